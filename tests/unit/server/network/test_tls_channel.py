"""TLS under a connection, and the handshakes before it: a real listener, real clients, one loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.secret import Secret
from kraftpy.server.network import handshakes as handshakes_module
from kraftpy.server.network import tls_channel as module
from kraftpy.server.network import unestablished as unestablished_module
from kraftpy.server.network.connection import Connection, Slot
from kraftpy.server.network.listener import Listener, bind
from kraftpy.storage.files import OpenFile
from kraftpy.storage.segment import FileSlice
from kraftpy.tls.contexts import Loaded, server_context
from kraftpy.tls.settings import StoreSettings, TlsSettings
from kraftpy.tls.watching import Watched
from tests.certificates import ODD_SUBJECT, ODD_SUBJECT_AS_JAVA_PRINTS, Authority, Issued
from tests.waiting import until

AUTHORITY = Authority()
SERVER = AUTHORITY.issue("CN=broker")
DEADLINE_S = 20.0


class Echo:
    """In a dispatcher's place: answers each frame with what `handle` makes of it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.connections: list[Connection] = []
        self.handle: Callable[[Connection, bytes], None] = lambda c, f: c.respond([frame_of(f)])

    def dispatch(self, connection: Connection, frame: memoryview) -> int:
        body = bytes(frame)
        self.frames.append(body)
        if connection not in self.connections:
            self.connections.append(connection)
        self.handle(connection, body)
        return 1

    def handled(self, connection: Connection, total: int) -> None:
        pass


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Served:
    def __init__(self, listener: Listener, echo: Echo, port: int) -> None:
        self.listener = listener
        self.echo = echo
        self.port = port

    async def connect(
        self, shown: Issued | None = None, limit: int = 2**26
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        if shown is not None:
            with in_file(shown.key_pem + shown.certificate_pem) as own:
                context.load_cert_chain(own)
        return await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", self.port, ssl=context, limit=limit), DEADLINE_S
        )

    def connect_plainly(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setblocking(False)
        return sock


@contextlib.contextmanager
def in_file(text: str) -> Any:
    fd = os.memfd_create("test")
    os.write(fd, text.encode())
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@asynccontextmanager
async def served(**settings: str) -> AsyncIterator[Served]:
    config = BrokerConfig.from_properties(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": SERVER.certificate_pem,
            "ssl.keystore.key": SERVER.key_pem,
            "ssl.truststore.certificates": AUTHORITY.pem,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    echo: Any = Echo()
    listener = Listener(asyncio.get_running_loop(), config, echo, lambda _: None)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    listener.start(sock, "SSL")
    try:
        yield Served(listener, echo, port)
    finally:
        listener.drain()
        await listener.stop(0)


async def receive(reader: asyncio.StreamReader, size: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(size), DEADLINE_S)


@pytest.mark.parametrize("step", [1, 7, 1000, 10**9])
async def test_frames_arrive_whole_however_they_are_cut_into_records(step: int) -> None:
    async with served() as at:
        reader, writer = await at.connect()
        bodies = [b"a", b"bcd", b"x" * 3000, b"yz"]
        stream = b"".join(map(frame_of, bodies))
        for start in range(0, len(stream), step):
            writer.write(stream[start : start + step])
        assert await receive(reader, len(stream)) == stream
        assert at.echo.frames == bodies
        writer.close()


@pytest.mark.parametrize("passed", [0, 4, 10_000, 16_390, 16_420, 20_000, 33_000, 100_000])
async def test_a_request_is_done_with_its_last_byte_wherever_it_paused(passed: int) -> None:
    """What is awaited of the kernel is never more than what is to come, amid a record as well."""
    async with served() as at, relayed(at.port) as relay:
        other = await at.connect()
        at.port = relay.port
        reader, writer = await at.connect()
        stream = frame_of(os.urandom(passed + 20_000))
        writer.write(stream[:1000])
        await until(lambda: relay.passed_bytes > 1000)
        await turns(other, 2)
        before = relay.passed_bytes
        relay.limit_bytes = before + passed
        writer.write(stream[1000:])
        await until(lambda: relay.passed_bytes == before + passed)
        await turns(other, 2)
        relay.limit_bytes = None
        relay.go_on.set()
        assert await receive(reader, len(stream)) == stream
        writer.write(frame_of(b"next"))
        assert await receive(reader, 8) == frame_of(b"next")
        writer.close()


class Relay:
    """Between a client and the listener: of what the client sends, `limit_bytes` in all pass."""

    def __init__(self) -> None:
        self.port = 0
        self.passed_bytes = 0
        self.limit_bytes: int | None = None
        self.go_on = asyncio.Event()

    async def there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if self.limit_bytes is not None:
                most = self.limit_bytes - self.passed_bytes
                writer.write(data[:most])
                self.passed_bytes += min(most, len(data))
                data = data[most:]
                if data:
                    await self.go_on.wait()
            writer.write(data)
            self.passed_bytes += len(data)

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)


@asynccontextmanager
async def relayed(port: int) -> AsyncIterator[Relay]:
    relay = Relay()
    tasks: list[asyncio.Task[None]] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upwards, downwards = await asyncio.open_connection("127.0.0.1", port)
        tasks.append(asyncio.ensure_future(relay.there(reader, downwards)))
        tasks.append(asyncio.ensure_future(relay.back(upwards, writer)))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_within_a_request_not_every_record_is_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as at:
        reader, writer = await at.connect()
        other = await at.connect()
        stream = frame_of(os.urandom(150_000))
        writer.write(stream[:1000])
        await turns(other, 3)
        channel = at.echo.connections[0]._channel
        received: list[int] = []
        take = module.TlsChannel._receive

        def counted(self: module.TlsChannel, most_bytes: int) -> int:
            size = take(self, most_bytes)
            if self is not channel:
                received.append(size)
            return size

        monkeypatch.setattr(module.TlsChannel, "_receive", counted)
        for start in range(1000, 101_000, 1000):
            writer.write(stream[start : start + 1000])
            await turns(other, 1)
        assert len(received) <= 3  # of 100 records, with a turn of the loop after each
        writer.write(stream[101_000:])
        assert await receive(reader, len(stream)) == stream


async def turns(other: tuple[asyncio.StreamReader, asyncio.StreamWriter], count: int) -> None:
    """So many requests of another connection have been answered."""
    for _ in range(count):
        other[1].write(frame_of(b"turn"))
        assert await receive(other[0], 8) == frame_of(b"turn")


async def test_what_lies_decrypted_is_read_though_nothing_more_comes() -> None:
    """One frame is larger than every buffer; those behind it come in the same records."""
    async with served() as at:
        reader, writer = await at.connect()
        large = os.urandom(9_000_000)
        bodies = [large, *(bytes([number]) * 40_000 for number in range(50)), b"last"]
        writer.write(b"".join(map(frame_of, bodies)))
        for body in bodies:
            assert await receive(reader, len(body) + 4) == frame_of(body)
        assert at.listener.request_memory_bytes == 0
        writer.close()


async def test_what_came_while_the_connection_was_busy_is_taken_afterwards() -> None:
    slots: list[Slot] = []
    async with served() as at:

        def handle(connection: Connection, body: bytes) -> None:
            if body == b"wait":
                slots.append(connection.defer(False))
            else:
                connection.respond([frame_of(body[:1])])

        at.echo.handle = handle
        reader, writer = await at.connect()
        count = 60
        writer.write(frame_of(b"wait") + frame_of(b"y" * 100_000) * count)
        await until(lambda: bool(slots))
        await asyncio.sleep(0.05)
        assert len(at.echo.frames) == 1
        at.echo.connections[0].complete(slots[0], [frame_of(b"done")])
        assert await receive(reader, 8 + 5 * count) == frame_of(b"done") + frame_of(b"y") * count
        writer.close()


async def test_slices_of_files_arrive_as_they_are(tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    path = tmp_path / "segment"
    path.write_bytes(data)
    file = OpenFile(os.open(path, os.O_RDONLY), path)
    async with served() as at:
        cuts = [(0, 4_000_000), (100, 65_536), (4_000_000, 999_999), (7, 300)]
        at.echo.handle = lambda c, f: c.respond(
            [part for start, size in cuts for part in (b"head", FileSlice(file, start, size))]
        )
        reader, writer = await at.connect()
        writer.write(frame_of(b"fetch") * 2)
        for _ in range(2):
            for start, size in cuts:
                assert await receive(reader, 4) == b"head"
                assert await receive(reader, size) == data[start : start + size]
        writer.close()


async def test_a_client_that_never_reads_is_sealed_no_more_than_a_piece_ahead() -> None:
    async with served() as at:
        answer = os.urandom(1024 * 1024)
        at.echo.handle = lambda c, f: c.respond([answer])
        reader, writer = await at.connect(limit=1024)
        writer.write(frame_of(b"more") * 200)
        await until(lambda: at.listener.answer_memory_bytes > 0)
        served_frames = 0
        while len(at.echo.frames) > served_frames:  # until it stands still
            served_frames = len(at.echo.frames)
            await asyncio.sleep(0.1)
        assert 0 < served_frames < 100
        channel: Any = at.echo.connections[0]._channel
        assert len(channel._sealed) <= module.SEALED_BYTES + 4 * 1024
        assert not at.echo.connections[0].idle
        for _ in range(200):
            assert await receive(reader, len(answer)) == answer
        assert at.listener.answer_memory_bytes == 0
        writer.close()


async def test_what_is_sealed_of_files_for_who_does_not_read_counts(tmp_path: Path) -> None:
    """A slice of a file takes no memory, but the piece of it that is sealed does."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(8 * 1024 * 1024))
    file = OpenFile(os.open(path, os.O_RDONLY), path)
    async with served(socket_send_buffer_bytes="16384") as at:  # less than a piece
        at.echo.handle = lambda c, f: c.respond([FileSlice(file, 0, 8 * 1024 * 1024)])
        reader, writer = await at.connect(limit=1024)
        writer.write(frame_of(b"more") * 4)
        await until(lambda: at.listener.answer_memory_bytes > 0)
        connection = at.echo.connections[0]
        channel: Any = connection._channel
        assert len(channel._sealed) <= at.listener.answer_memory_bytes
        assert at.listener.answer_memory_bytes <= module.SEALED_BYTES + 4 * 1024
        assert connection.answers_held_since_s is not None  # so it's closed where room is scarce
        for _ in range(4):
            assert await receive(reader, 8 * 1024 * 1024) == path.read_bytes()
        await until(lambda: at.listener.answer_memory_bytes == 0)
        writer.close()


class Swallowing:
    """A socket whose peer takes everything."""

    def send(self, data: memoryview, flags: int) -> int:
        return len(data)


async def test_one_who_takes_everything_at_once_leaves_others_their_turn() -> None:
    async with served() as at:
        reader, writer = await at.connect()
        writer.write(frame_of(b"x"))
        await receive(reader, 5)
        channel: Any = at.echo.connections[0]._channel
        real, channel._sock = channel._sock, Swallowing()
        large, sent = bytes(2 * module.TURN_BYTES), 0
        with contextlib.suppress(BlockingIOError):
            while sent < 10 * module.TURN_BYTES:
                sent += channel.send(large, 0)
        assert module.TURN_BYTES - 10 <= sent <= module.TURN_BYTES + module.SEALED_BYTES
        assert channel.send(b"y", 0) == 1
        channel._sock = real
        writer.close()


@pytest.mark.parametrize(
    ("settings", "shown", "principal"),
    [
        ({}, AUTHORITY.issue("CN=alice"), "User:ANONYMOUS"),
        ({"ssl.client.auth": "requested"}, None, "User:ANONYMOUS"),
        (
            {"ssl.client.auth": "requested"},
            AUTHORITY.issue(ODD_SUBJECT),
            f"User:{ODD_SUBJECT_AS_JAVA_PRINTS}",
        ),
        (
            {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*),O=Acme$/$1/U,DEFAULT",
            },
            AUTHORITY.issue("CN=alice,O=Acme"),
            "User:ALICE",
        ),
        # Trap 10: a certificate's name never makes a principal of another type.
        ({"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"},
         AUTHORITY.issue("CN=Broker:1"), "User:Broker:1"),
    ],
)  # fmt: skip
async def test_who_a_certificate_stands_for(
    settings: dict[str, str], shown: Issued | None, principal: str
) -> None:
    async with served(**settings) as at:
        reader, writer = await at.connect(shown)
        writer.write(frame_of(b"who"))
        await receive(reader, 7)
        found = at.echo.connections[0].session.principal
        assert str(found) == principal
        assert found.type == "User"
        writer.close()


async def test_handshakes_have_a_few_steps_a_turn_and_requests_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[int] = []
    turn = 0
    shake = module.TlsChannel.shake_hands

    def counted(channel: module.TlsChannel) -> bool:
        steps.append(turn)
        return shake(channel)

    monkeypatch.setattr(module.TlsChannel, "shake_hands", counted)
    async with served() as at:
        stop = False

        async def turns() -> None:
            nonlocal turn
            while not stop:
                turn += 1
                await asyncio.sleep(0)

        turning = asyncio.ensure_future(turns())
        everybody = await asyncio.gather(*(at.connect() for _ in range(60)))
        await until(lambda: at.listener.connections == 60)
        stop = True
        await turning
        most = max(steps.count(each) for each in set(steps))
        # A turn of this test's task and one of the queue may be counted as one.
        assert most <= 2 * handshakes_module.STEPS_A_TURN
        assert at.listener.handshakes.done == 60
        for _, writer in everybody:
            writer.close()


async def test_6_slow_loris_the_oldest_gives_way_and_time_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unestablished_module, "UNESTABLISHED_MAX", 5)
    monkeypatch.setattr(unestablished_module, "UNESTABLISHED_MAX_S", 1.0)
    async with served() as at:
        unestablished = at.listener._unestablished
        silent = []
        for count in range(1, 6):
            silent.append(at.connect_plainly())
            await until(lambda count=count: len(unestablished) == count)
        # Who says something is no older for it, and who is in stays in.
        reader, writer = await at.connect()
        writer.write(frame_of(b"in"))
        assert await receive(reader, 6) == frame_of(b"in")
        assert silent[0].recv(1) == b""
        for sock in silent[1:]:
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        slow = silent[1]
        slow.send(b"\x16\x03\x01\x02\x00\x01")
        loop = asyncio.get_running_loop()
        for sock in silent[1:]:
            assert await asyncio.wait_for(loop.sock_recv(sock, 1), DEADLINE_S) == b""
        assert not len(unestablished)
        assert at.listener.connections == 1
        writer.write(frame_of(b"still"))
        assert await receive(reader, 9) == frame_of(b"still")
        for sock in silent:
            sock.close()
        writer.close()
    assert "haven't said who they are" in caplog.text
    assert "no handshake within 1 s" in caplog.text


async def test_a_peer_that_leaves_within_its_handshake_leaves_nothing_behind() -> None:
    async with served() as at:
        for data in (b"", b"\x16", b"\x16\x03\x01\x02\x00"):
            sock = at.connect_plainly()
            sock.send(data)
            sock.close()
        await until(lambda: at.listener.handshakes.failed == 3)
        assert not len(at.listener._unestablished)
        assert (at.listener.acceptor.quotas.total, at.listener.acceptor.quotas.addresses) == (0, 0)


async def test_hello_of_nonsense_is_refused_with_an_alert_and_others_come_in() -> None:
    async with served() as at:
        for _ in range(50):
            sock = at.connect_plainly()
            size = 200
            sock.send(b"\x16\x03\x01" + struct.pack(">H", size) + os.urandom(size))
            loop = asyncio.get_running_loop()
            answer = await asyncio.wait_for(loop.sock_recv(sock, 100), DEADLINE_S)
            assert answer[:1] == b"\x15"
            sock.close()
        reader, writer = await at.connect()
        writer.write(frame_of(b"in"))
        assert await receive(reader, 6) == frame_of(b"in")
        writer.close()


async def test_connections_within_a_handshake_count_for_the_limits() -> None:
    async with served(max_connections="2") as at:
        silent = [at.connect_plainly() for _ in range(2)]
        await until(lambda: len(at.listener._unestablished) == 2)
        third = asyncio.create_task(at.connect())
        await until(lambda: at.listener.acceptor.delayed["SSL"] == 1)
        assert at.listener.acceptor.quotas.total == 2
        for sock in silent:
            sock.close()
        reader, writer = await third
        writer.write(frame_of(b"in"))
        assert await receive(reader, 6) == frame_of(b"in")
        writer.close()


def test_21_a_ticket_from_before_the_trust_store_changed_is_not_taken(tmp_path: Path) -> None:
    """In memory: what one context has resumed, the next one verifies."""
    trusted = AUTHORITY.write(tmp_path / "ca.pem")
    settings = TlsSettings(
        keystore=StoreSettings(prefix="ssl.keystore", pem=Secret(SERVER.certificate_pem)),
        key=Secret(SERVER.key_pem),
        truststore=StoreSettings(prefix="ssl.truststore", type="PEM", location=str(trusted)),
        client_auth="required",
    )
    watched = Watched(settings, server_context)
    client = ssl.create_default_context(cadata=AUTHORITY.pem)
    alice = AUTHORITY.issue("CN=alice")
    with in_file(alice.key_pem + alice.certificate_pem) as own:
        client.load_cert_chain(own)

    def shake(loaded: Loaded, session: ssl.SSLSession | None) -> ssl.SSLObject:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        accepting = loaded.context.wrap_bio(to_server, to_client, server_side=True)
        dialing = client.wrap_bio(
            to_client, to_server, server_hostname="localhost", session=session
        )
        for _ in range(4):
            for end in (dialing, accepting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        accepting.write(b"x")
        assert dialing.read(1) == b"x"
        return dialing

    session = shake(watched.loaded, None).session
    assert shake(watched.loaded, session).session_reused
    Authority().write(trusted)
    assert watched.look(settings, 0.0) is not None
    with pytest.raises(ssl.SSLError):
        shake(watched.loaded, session)
