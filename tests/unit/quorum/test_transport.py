"""What strangers, liars and slow peers can do at the quorum's listener: nothing to anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy import events
from kraftpy.quorum import listener as listener_module
from kraftpy.quorum import transport
from kraftpy.quorum.client import ControllerUnavailable
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.messages import FromBroker, FromController
from kraftpy.quorum.state import pack_envelope
from kraftpy.quorum.transport import FrameConnection
from tests.waiting import until

from .proxy import TO_BROKER, TO_CONTROLLER, Proxy
from .stack import (
    CREDENTIALS,
    TIMEOUT_MS,
    VOTER,
    Broker,
    controller,
)
from .test_journal import Poison

GREETING = b"kpQ1\x01" + bytes(32)


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


class RawPeer(FrameConnection):
    """A peer with the right secret that sends whatever a test wants."""

    def __init__(self, credentials: Credentials = CREDENTIALS) -> None:
        super().__init__(credentials, dialer=True)
        self.messages: list[Any] = []
        self.said: Any = ["broker", 99, -1]
        self.welcome: Any = None
        self.is_over = False

    def introduction(self, other: Any) -> Any:
        return self.said

    def authenticated(self, introduction: Any) -> None:
        self.welcome = introduction

    def received(self, message: Any) -> None:
        self.messages.append(message)

    def disconnected(self, reason: str | None) -> None:
        self.is_over = True


async def raw_peer(port: int, said: Any = ("broker", 99, -1)) -> RawPeer:
    peer = RawPeer()
    peer.said = said
    await asyncio.get_running_loop().create_connection(lambda: peer, "127.0.0.1", port)
    await until(lambda: peer.welcome is not None or peer.is_over)
    return peer


async def stranger_says(port: int, data: bytes, then_close: bool = False) -> bytes:
    """Everything that the listener answers to `data` before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if then_close:
        writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "announced a frame of 1195725856 bytes"),
        (b"\xff\xff\xff\xff" * 1000, "announced a frame of 4294967295 bytes; 1024 are allowed"),
        (framed(bytes(1025)), "announced a frame of 1025 bytes"),
        (framed(b"hello"), "does not speak the quorum's protocol"),
        (framed(b""), "does not speak the quorum's protocol"),
        (framed(GREETING[:-1]), "does not speak the quorum's protocol"),
        (framed(b"kpQ1\x09" + bytes(32)), "speaks version 9"),
        (framed(GREETING) + framed(bytes(100)), "has another secret"),
        (framed(GREETING) + framed(GREETING), "has another secret"),
        (framed(GREETING) + framed(b"x"), "has another secret"),
    ],
)
async def test_a_stranger_gets_a_closed_connection_and_one_log_line(
    tmp_path: Path, data: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        answer = await stranger_says(serving.port, data)
        assert len(answer) in (0, 4 + len(GREETING)), "it tells a stranger only its nonce"
        await broker.add("works")
        lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(lines) == 1
        assert said in lines[0]


async def test_a_pickle_from_the_network_is_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    poison = pickle.dumps(Poison(str(marker)))
    async with controller(tmp_path / "m") as serving:
        await stranger_says(serving.port, framed(poison))
        peer = await raw_peer(serving.port)
        peer.send([FromBroker.PROPOSE, 1, poison])
        peer.send([FromBroker.PROPOSE, 2, pack_envelope(b"c" * 16, 1, 1, 0, {"add": poison})])
        await until(lambda: len(peer.messages) == 2)
        peer.send_packed(poison)
        await until(lambda: peer.is_over)
        assert [m[3] for m in peer.messages] == [42, 0]
    async with controller(tmp_path / "m"):
        pass
    assert not marker.exists()


async def test_whoever_does_not_authenticate_in_time_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        monkeypatch.setattr(transport, "AUTHENTICATION_TIMEOUT_S", 0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)

        async def drip() -> None:
            for byte in framed(GREETING) + framed(bytes(1000)):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        silent = stranger_says(serving.port, b"")
        assert await asyncio.wait_for(silent, 5) == b""
        with contextlib.suppress(ConnectionError):  # what drips on may meet the closed end first
            await asyncio.wait_for(reader.read(), 5)
        dripping.cancel()
        writer.close()
        # Of the same peer, for the same cause, within a second: one line, and a count.
        events.flush()
        assert caplog.text.count("did not authenticate within 0.2 s") == 1
        assert "event=connection-closed" in caplog.text
        assert caplog.messages[-1].endswith("count=1")
        await broker.add("works")
        assert broker.client.is_connected


async def test_strangers_cannot_crowd_brokers_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "MAX_UNAUTHENTICATED", 5)
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 2)

    async with controller(tmp_path / "m") as serving:
        crowd = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(20)]
        async with Broker({VOTER: serving.port}) as broker:
            await broker.add("works")
            assert await asyncio.wait_for(crowd[0][0].read(), 5) == b""
            second = await raw_peer(serving.port)
            third = await raw_peer(serving.port)
            await until(lambda: third.is_over)
            assert "2 brokers are connected already" in caplog.text
            sessions = serving.listener.controller._liveness._connections
            assert len(sessions) == 2, "who was refused doesn't count as connected"
            second.close()
            await broker.add("still works")
        for _, writer in crowd:
            writer.close()


@pytest.mark.parametrize(
    "message",
    [None, [], {}, "x", [9], [FromBroker.PROPOSE], [FromBroker.PROPOSE, 1, "text"], [1, -1], [[]]],
)
async def test_nonsense_from_an_authenticated_peer_ends_its_connection_only(
    tmp_path: Path, message: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        peer = await raw_peer(serving.port)
        peer.send(message)
        await until(lambda: peer.is_over)
        await broker.add("works")
        assert "node 99 disconnected: it sent a message of unknown kind" in caplog.text


async def test_an_introduction_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving:
        wrong: list[Any] = [None, ["x"], [1], ["broker", 1], ["broker", -1, 5], {}]
        for said in wrong:
            peer = await raw_peer(serving.port, said)
            await until(lambda: peer.is_over)  # noqa: B023


async def test_a_client_with_another_secret_is_told_what_to_compare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path / "m") as serving:
        broker = Broker({VOTER: serving.port}, secret=b"another secret, long enough")
        with pytest.raises(ControllerUnavailable, match="compare the two secret files"):
            await broker.client.start(300)
        await broker.client.close()
        assert "has another secret than this node" in caplog.text


def flip(direction: str, number: int, frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])]


def repeat(direction: str, number: int, frame: bytes) -> list[bytes]:
    return [frame, frame]


def drop(direction: str, number: int, frame: bytes) -> list[bytes]:
    return []


@pytest.mark.parametrize("direction", [TO_CONTROLLER, TO_BROKER])
@pytest.mark.parametrize("change", [flip, repeat, drop])
async def test_altered_repeated_or_dropped_frames_end_the_connection_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
    direction: str,
    change: Callable[[str, int, bytes], list[bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    tampered = 0

    def tamper(towards: str, number: int, frame: bytes) -> list[bytes]:
        nonlocal tampered
        if towards == direction and number == 12 and tampered < 2:
            tampered += 1
            return change(towards, number, frame)
        return [frame]

    async with (
        controller(tmp_path / "m") as serving,
        Proxy(serving.port, tamper) as proxy,
        Broker({VOTER: proxy.port}) as broker,
    ):
        await asyncio.gather(*(broker.add(n) for n in range(200)))
        assert tampered == 2
        assert proxy.connections == 3
        await broker.client.barrier(TIMEOUT_MS)
        assert sorted(broker.copy.values) == list(range(200))
        assert "altered on its way" in caplog.text


async def test_two_frames_that_change_places_end_the_connection(tmp_path: Path) -> None:
    held: list[bytes] = []
    swapped = False

    def swap(direction: str, number: int, frame: bytes) -> list[bytes]:
        nonlocal swapped
        if direction == TO_CONTROLLER and number == 12 and not swapped:
            held.append(frame)
            return []
        if held and direction == TO_CONTROLLER:
            swapped = True
            return [frame, held.pop()]
        return [frame]

    async with (
        controller(tmp_path / "m") as serving,
        Proxy(serving.port, swap) as proxy,
        Broker({VOTER: proxy.port}) as broker,
    ):
        await asyncio.gather(*(broker.add(n) for n in range(50)))
        assert swapped
        assert proxy.connections == 2
        await broker.client.barrier(TIMEOUT_MS)
        assert broker.copy.values == list(range(50))


async def test_an_echo_of_our_own_frames_is_no_proof(tmp_path: Path) -> None:
    """Each direction has its own key, so a mirror can't authenticate to either side."""

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(mirror, "127.0.0.1", 0)
    peer = RawPeer()
    loop = asyncio.get_running_loop()
    port = server.sockets[0].getsockname()[1]
    await loop.create_connection(lambda: peer, "127.0.0.1", port)
    await until(lambda: peer.is_over)
    assert peer.welcome is None
    server.close()


async def test_a_recorded_session_cannot_be_played_again(tmp_path: Path) -> None:
    recorded: list[bytes] = []

    def record(direction: str, number: int, frame: bytes) -> list[bytes]:
        if direction == TO_CONTROLLER:
            recorded.append(frame)
        return [frame]

    async with controller(tmp_path / "m") as serving:
        async with (
            Proxy(serving.port, record) as proxy,
            Broker({VOTER: proxy.port}) as broker,
        ):
            await broker.add("once")
        index = serving.quorum.applied_index
        answer = await stranger_says(serving.port, b"".join(map(framed, recorded)))
        assert len(answer) == 4 + len(GREETING)
        assert serving.quorum.applied_index == index


async def fill(broker: Broker, count: int, pad: int) -> None:
    for start in range(0, count, 100):
        await asyncio.gather(
            *(
                broker.client.propose({"add": n, "pad": bytes(pad)}, TIMEOUT_MS)
                for n in range(start, min(start + 100, count))
            )
        )


async def test_a_follower_that_does_not_read_costs_nothing_and_catches_up(tmp_path: Path) -> None:
    async with controller(tmp_path / "m") as serving, Broker({VOTER: serving.port}) as broker:
        slow = await raw_peer(serving.port)
        slow.send([FromBroker.FOLLOW, 0])
        await until(lambda: slow.messages)
        slow.pause_reading()
        await fill(broker, 2_000, 10_000)
        (connection,) = (c for c in serving.listener._connected if c.node_id == 99)
        assert connection.unsent_bytes() < 2 << 20
        slow.resume_reading()
        last = serving.quorum.applied_index
        got: list[int] = []
        await until(lambda: connection.next_index == last + 1 and not connection.is_paused)

        def indexes() -> list[int]:
            got.clear()
            for message in slow.messages:
                if message[0] == FromController.SNAPSHOT:
                    got.append(message[1])
                else:
                    got.extend(index for index, _ in message[1])
            return got

        await until(lambda: indexes()[-1] == last)
        snapshot = max(m[1] for m in slow.messages if m[0] == FromController.SNAPSHOT)
        assert snapshot > 1, "it lagged behind what is kept"
        assert [i for i in got if i > snapshot] == list(range(snapshot + 1, last + 1))


async def beat(peer: RawPeer) -> None:
    while True:
        peer.send([FromBroker.HEARTBEAT, 0, -1, 0])
        await asyncio.sleep(0.1)


async def test_a_follower_that_stalls_or_falls_silent_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "STALL_TIMEOUT_S", 0.4)
    monkeypatch.setattr(listener_module, "SILENCE_TIMEOUT_S", 1.5)
    monkeypatch.setattr(listener_module, "CHECK_INTERVAL_S", 0.1)
    caplog.set_level("INFO")

    async with (
        controller(tmp_path / "m") as serving,
        Broker({VOTER: serving.port}, heartbeat_interval_ms=100) as broker,
    ):
        slow = await raw_peer(serving.port)
        slow.send([FromBroker.FOLLOW, 0])
        await until(lambda: slow.messages)
        slow.pause_reading()
        beating = asyncio.create_task(beat(slow))  # or it could be silent for longer than this
        await fill(broker, 1_000, 10_000)
        await until(lambda: "node 99 disconnected" in caplog.text)
        assert "node 99 disconnected: it has read nothing for 0.4 s" in caplog.text
        beating.cancel()
        slow.close()
        silent = await raw_peer(serving.port, ["broker", 98, -1])
        await until(lambda: silent.is_over)
        assert "node 98 disconnected: nothing was heard from it for 1.5 s" in caplog.text
        await broker.add("works")
        assert broker.snapshots == broker.snapshots[:1], "the broker was never disconnected"


async def test_a_peer_may_have_only_so_many_proposals_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "MAX_OUTSTANDING", 10)

    async with controller(tmp_path / "m") as serving:
        peer = await raw_peer(serving.port)
        for n in range(1, 501):
            envelope = pack_envelope(b"c" * 16, n, n, 0, {"add": n})
            peer.send([FromBroker.PROPOSE, n, envelope])
        await until(lambda: len(peer.messages) == 500)
        assert [m[1] for m in peer.messages] == list(range(1, 501))
