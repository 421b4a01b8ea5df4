"""Which clients make others wait, and what answers may take, over real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus

import pytest

from kraftpy.metrics import admission
from kraftpy.metrics.admission import CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX
from kraftpy.metrics.frames import LABEL_MAX_LENGTH, label
from kraftpy.metrics.http import PLAIN, Answer, HttpServer
from kraftpy.server.network.listener import bind
from tests.waiting import wait_until

PAGE = b"x" * 8_000_000
TIMEOUT_S = 20.0


class Exporter:
    """Serves large pages; says how many are made at a time."""

    def __init__(self) -> None:
        self.making = self.most = 0
        self._lock = threading.Lock()

    def metrics(self, accept: str, *, compress: bool, timeout_s: float) -> tuple[bytes, str]:
        return PAGE, PLAIN

    def healthz(self) -> dict[str, bool]:
        return {"all is well": True}

    readyz = healthz

    def site(self) -> Exporter:
        return self

    def answer(self, path: str, query: str) -> Answer:
        with self._lock:
            self.making += 1
            self.most = max(self.most, self.making)
        body = bytes(PAGE)
        with self._lock:
            self.making -= 1
        return Answer(HTTPStatus.OK, body, PLAIN, {})


@pytest.fixture
def exporter() -> Exporter:
    return Exporter()


@pytest.fixture
def server(exporter: Exporter) -> Iterator[HttpServer]:
    listening = bind("127.0.0.1", 0)
    listening.setblocking(True)
    serving = HttpServer(listening, exporter)
    threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield serving
    serving.shutdown()
    serving.server_close()


def get(server: HttpServer, path: str, source: str = "127.0.0.1") -> bytes:
    connection = http.client.HTTPConnection(
        *server.server_address[:2], timeout=TIMEOUT_S, source_address=(source, 0)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == HTTPStatus.OK, body
        return body
    finally:
        connection.close()


def connect(server: HttpServer, source: str = "127.0.0.1", request: bytes = b"") -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind((source, 0))
    sock.settimeout(TIMEOUT_S)
    sock.connect(server.server_address)
    sock.sendall(request)
    return sock


def answers_bytes(server: HttpServer) -> int:
    return server.admission._answers_bytes


def test_who_reads_slowly_keeps_nobody_from_a_probe_and_takes_so_much(
    server: HttpServer, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ANSWERS_MAX_BYTES", 4 * len(PAGE))
    with ExitStack() as connections:
        for number in range(40):
            request = b"GET / HTTP/1.1\r\n\r\n" if number % 2 else b"GET /metrics HTTP/1.1\r\n\r\n"
            connections.enter_context(connect(server, request=request))
            assert b"all is well" in get(server, "/healthz")
            assert answers_bytes(server) <= 6 * len(PAGE), "two pages and a scrape may begin"
        wait_until(lambda: answers_bytes(server) >= 4 * len(PAGE), "four pages are being answered")
        assert get(server, "/", "127.0.0.2") == PAGE, "a reader has to go for it"
        assert exporter.most <= admission.Making.PAGE.most
    wait_until(lambda: not server.admission._places, "no connection has a place")
    assert answers_bytes(server) == 0


def test_one_address_takes_no_place_from_another(server: HttpServer) -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    with connect(server, "127.0.0.3") as patient, ExitStack() as connections:
        for _ in range(3 * CONNECTIONS_PER_PEER_MAX):
            connections.enter_context(connect(server, "127.0.0.2", request))
        wait_until(
            lambda: server.admission._of_peer["127.0.0.2"] == CONNECTIONS_PER_PEER_MAX,
            "the address has all it may have",
        )
        assert b"all is well" in get(server, "/readyz", "127.0.0.2")
        patient.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert patient.recv(15) == b"HTTP/1.1 200 OK"


def test_all_addresses_together_have_so_many(server: HttpServer) -> None:
    with ExitStack() as connections:
        for number in range(2 * CONNECTIONS_MAX):
            connections.enter_context(connect(server, f"127.0.1.{number % 100 + 1}"))
        wait_until(
            lambda: len(server.admission._places) == CONNECTIONS_MAX,
            "all places are taken",
        )
        assert b"all is well" in get(server, "/healthz")
    wait_until(lambda: not server.admission._places, "all places are free")
    assert not server.admission._of_peer


def test_when_nobody_can_go_the_wait_ends(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ANSWERS_MAX_BYTES", len(PAGE))
    monkeypatch.setattr(admission, "SLOW_S", 60.0)
    monkeypatch.setattr(admission, "TURN_MAX_S", 0.2)
    with connect(server, request=b"GET / HTTP/1.1\r\n\r\n"):
        wait_until(lambda: answers_bytes(server) == len(PAGE), "a page is being answered")
        with connect(server, request=b"GET /metrics HTTP/1.1\r\n\r\n") as refused:
            answer = refused.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 5\r\n" in answer


def test_a_label_is_short_and_stays_one_of_a_kind() -> None:
    assert label("t" * LABEL_MAX_LENGTH) == "t" * LABEL_MAX_LENGTH
    long = [label("g" * 32_000 + end) for end in ("a", "b", "\ud800")]
    assert len(set(long)) == 3
    assert {len(text) for text in long} == {LABEL_MAX_LENGTH}
    assert label("g" * 32_000 + "a") == long[0]
