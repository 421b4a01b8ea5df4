"""The way in to the exporter's HTTP, over real sockets: TLS, Basic, and who is slow."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from kraftpy.metrics import door as door_module
from kraftpy.metrics import http as http_module
from kraftpy.metrics.admission import CONNECTIONS_PER_PEER_MAX
from kraftpy.metrics.door import Door, DoorTls, Given, read_basic
from kraftpy.metrics.http import PLAIN, Answer, HttpServer
from kraftpy.metrics.users import Users
from kraftpy.server.network.listener import bind
from kraftpy.tls.settings import StoreSettings, TlsSettings
from tests.certificates import Authority
from tests.unit.metrics.test_users import MARKER, line
from tests.waiting import wait_until

PAGE = b"<html>"
LARGE = bytes(24_000_000)  # more than fits into the buffers of sockets
TIMEOUT_S = 20.0


class Exporter:
    """Serves a page and no metrics."""

    def metrics(self, accept: str, *, compress: bool, timeout_s: float) -> tuple[bytes, str]:
        return b"up 1\n", PLAIN

    def healthz(self) -> dict[str, bool]:
        return {"all is well": True}

    readyz = healthz

    def site(self) -> Exporter:
        return self

    def answer(self, path: str, query: str) -> Answer | None:
        if path == "/defect":
            raise AssertionError(path)
        body = {"/": PAGE, "/large": LARGE}.get(path)
        return None if body is None else Answer(HTTPStatus.OK, body, PLAIN, {})


class Ground:
    """A door, what it is made of, and who knocks."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.authority.write(folder / "ca.pem")
        self.keystore = self.authority.issue("CN=first").write_pem(folder / "door.pem")
        self.users = folder / "users"
        self.users.write_text(line("alice", "wonder"))
        store = StoreSettings(prefix="ssl.keystore", type="PEM", location=str(self.keystore))
        self.tls = DoorTls(TlsSettings(keystore=store))
        listening = bind("127.0.0.1", 0)
        listening.setblocking(True)
        door = Door(self.tls, Users(self.users))
        self.server = HttpServer(listening, Exporter(), door)
        self.address = self.server.server_address[:2]
        self.context = ssl.create_default_context(cafile=str(folder / "ca.pem"))

    def raw(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=TIMEOUT_S)

    def connect(self) -> ssl.SSLSocket:
        return self.context.wrap_socket(self.raw(), server_hostname="127.0.0.1")

    def get(self, path: str, given: str | None = None) -> tuple[int, Any, bytes]:
        headers = {} if given is None else {"Authorization": given}
        connection = http.client.HTTPSConnection(
            *self.address, timeout=TIMEOUT_S, context=self.context
        )
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


ALICE = basic("alice", "wonder")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("door"))
    threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_who_is_a_user_sees_it(ground: Ground) -> None:
    assert ground.get("/metrics", ALICE)[::2] == (200, b"up 1\n")
    assert ground.get("/", ALICE)[::2] == (200, PAGE)
    assert ground.get("/nothing", ALICE)[0] == 404


@pytest.mark.parametrize("path", ["/metrics", "/nothing", "/healthz/"])
def test_all_others_are_told_the_same(ground: Ground, path: str) -> None:
    """Trap 8: neither a name nor a path can be found out."""
    wrong = [basic("alice", "wrong"), basic("nobody", "wonder"), basic("", ""), "Basic ???", "x"]
    answers = [ground.get(path, given) for given in (None, *wrong)]
    assert {(status, body) for status, _, body in answers} == {(401, answers[0][2])}
    kept = [{name: text for name, text in each.items() if name != "Date"} for _, each, _ in answers]
    assert kept == [kept[0]] * len(kept)
    assert kept[0]["WWW-Authenticate"] == 'Basic realm="kraftpy", charset="UTF-8"'


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_checks_are_for_everybody(ground: Ground, path: str) -> None:
    for given in (None, basic("nobody", "x")):
        assert ground.get(path, given)[::2] == (200, b"all is well: yes\n")


@pytest.mark.parametrize(
    ("header", "given"),
    [
        (basic("alice", "won:der"), Given("alice", b"won:der")),
        ("  bAsIc   " + basic("é", "").partition(" ")[2] + " ", Given("é", b"")),
        ("Bearer abc", None),
        ("Basic", None),
        ("Basic YQ==", None),
        ("Basic /zo=", None),  # no UTF-8
        ("Basic é", None),
        ("Basic YTpi!", None),
        (basic("a" * 256, "b"), None),
        (basic("a", "b" * 4097), None),
    ],
)
def test_what_a_header_says(header: str, given: Given | None) -> None:
    assert read_basic(header) == given


def test_a_password_is_in_no_log(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Trap 23: a wrong one, a right one in a traceback, and one where the name belongs."""
    with caplog.at_level(logging.DEBUG):
        for given in (basic("alice", MARKER), basic(MARKER, "x"), f"Basic {MARKER}"):
            assert ground.get("/", given)[0] == 401
        ground.users.write_text(line("alice", "wonder") + line("bob", MARKER))
        assert ground.get("/defect", basic("bob", MARKER))[0] == 500
    assert "Traceback" in caplog.text
    told = [each for each in caplog.records if "authentication-failed" in each.getMessage()]
    assert told
    assert "listener=METRICS mechanism=Basic" in told[0].getMessage()
    assert MARKER not in caplog.text
    assert base64.b64encode(MARKER.encode()).decode()[:16] not in caplog.text


def test_who_doesnt_shake_hands_neither_holds_up_nor_stays(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Trap 6: nothing, half a record, one byte at a time; others come in meanwhile."""
    monkeypatch.setattr(door_module, "HANDSHAKE_MAX_S", 0.3)
    with ExitStack() as stack, caplog.at_level(logging.INFO):
        hello = b"\x16\x03\x01\x02\x00\x01\x00"
        slow = [stack.enter_context(ground.raw()) for _ in range(6)]
        for sock in slow[2:]:
            sock.sendall(hello)
        drips = iter(range(10_000))

        def gone(sock: socket.socket) -> bool:
            sock.settimeout(0.01)
            try:
                sock.sendall(b"\0" if next(drips) % 2 else b"\1")
                return sock.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert ground.get("/healthz")[0] == 200
        for sock in slow:
            wait_until(lambda sock=sock: gone(sock), "it had to go", TIMEOUT_S)
    assert "no handshake of TLS within 0.3 s" in caplog.text


def test_a_head_that_drips_ends(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 6: within TLS, too."""
    monkeypatch.setattr(http_module, "HEAD_MAX_S", 0.3)
    with ground.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")

        def gone() -> bool:
            slow.settimeout(0.01)
            try:
                slow.sendall(b"a")
                return slow.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(gone, "it had to go", TIMEOUT_S)


def test_who_doesnt_read_ends(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 6: an answer has its time as a whole, not each record of TLS."""
    monkeypatch.setattr(http_module, "SILENCE_MAX_S", 0.4)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(TIMEOUT_S)
        sock.connect(ground.address)
        with ground.context.wrap_socket(sock, server_hostname="127.0.0.1") as reader:
            reader.sendall(f"GET /large HTTP/1.1\r\nAuthorization: {ALICE}\r\n\r\n".encode())
            received = 0

            def gone() -> bool:
                nonlocal received
                with suppress(OSError):
                    received += len(reader.recv(4096))
                return not ground.server.admission._places

            wait_until(gone, "it had to go", TIMEOUT_S)
            with suppress(OSError):
                while part := reader.recv(65536):
                    received += len(part)
            assert 0 < received < len(LARGE)


def test_of_one_address_so_many_are_in(ground: Ground) -> None:
    """Trap 6: who connects and says nothing is the first to go."""
    with ExitStack() as stack:
        first = stack.enter_context(ground.raw())
        for _ in range(CONNECTIONS_PER_PEER_MAX):
            stack.enter_context(ground.raw())
        assert first.recv(100) == b""
        assert ground.get("/", ALICE)[0] == 200


def test_plain_http_is_told_in_the_log(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> bool:
        """Others of this address may have been told of in the same second."""
        with ground.raw() as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            answer = b""
            while part := plain.recv(1000):
                answer += part
            assert b"HTTP/1.1" not in answer
        return "TLS: http request" in caplog.text

    with caplog.at_level(logging.INFO):
        wait_until(told, "that is told")
    assert "connection-closed" in caplog.text


def test_a_new_certificate_is_shown_from_then_on(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """Trap 21: half a pair changes nothing, and those that are in stay."""

    def shown() -> str:
        with ground.connect() as sock:
            return str(sock.getpeercert()["subject"])

    def kept(sock: ssl.SSLSocket) -> bool:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        return sock.recv(1000).startswith(b"HTTP/1.1 200")

    with ground.connect() as old:
        before = ground.keystore.read_text()
        second = ground.authority.issue("CN=second")
        ground.keystore.write_text(before.replace("PRIVATE", "PRIVAT"))
        ground.tls.look()
        assert "first" in shown()
        assert [each.levelno for each in caplog.records] == [logging.ERROR]
        assert "BEGIN" not in caplog.text
        second.write_pem(ground.keystore)
        with caplog.at_level(logging.INFO):
            ground.tls.look()
        assert "second" in shown()
        assert 'certificate-loaded listener=METRICS subject="CN=second"' in caplog.text
        assert ground.tls.expires_s == second.certificate.not_valid_after_utc.timestamp()
        assert kept(old)


def test_hashes_are_one_at_a_time(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that many try at once takes the time of one after the other, and no more."""
    at_once, most = 0, 0
    lock = threading.Lock()
    users = ground.server.door.users
    assert users is not None
    real: Callable[[str, bytes], bool] = users.check

    def check(name: str, password: bytes) -> bool:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        try:
            return real(name, password)
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(users, "check", check)
    guesses = [
        threading.Thread(target=ground.get, args=("/", basic("alice", str(number))))
        for number in range(8)
    ]
    for guess in guesses:
        guess.start()
    for guess in guesses:
        guess.join()
    assert most == 1
