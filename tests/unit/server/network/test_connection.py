"""Connection: framing, answer order, back-pressure, limits; over a real socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.server.network import connection as module
from kraftpy.server.network.connection import Connection, Scratch, Slot
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.network.listener import Listener, bind
from kraftpy.server.network.memory import QueueMemory
from kraftpy.server.network.sending import PlainChannel
from kraftpy.server.network.session import Session
from tests.waiting import until

MAX_FRAME = 8 * 1024 * 1024
DEADLINE_S = 10.0
KERNEL_BYTES = 256 * 1024
"""About so much lies between the two ends; by itself the kernel takes many megabytes at times."""


class Peer:
    """The client's end of the pair, with what the server's end saw."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.handled: list[int] = []  # how many frames it knew of, each time that it was called
        self.handle: Callable[[Connection, bytes], None] = lambda c, f: c.respond([frame_of(f)])
        self.memory = QueueMemory(64 * 1024 * 1024)
        self.answer_memory = QueueMemory(64 * 1024 * 1024, "queued.max.response.bytes")
        self.closed = asyncio.Event()
        self.connection: Connection
        self.sock: socket.socket

    def dispatch(self, connection: Connection, frame: memoryview) -> int:
        copy = bytes(frame)
        self.frames.append(copy)
        self.handle(connection, copy)
        return 1

    def note_handled(self, connection: Connection, total: int) -> None:
        self.handled.append(sum(self.handled[-1:]) + total)

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.sock, data), DEADLINE_S)

    async def receive(self, size_bytes: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size_bytes:
            piece = await asyncio.wait_for(
                loop.sock_recv(self.sock, size_bytes - len(data)), DEADLINE_S
            )
            if not piece:
                break
            data += piece
        return data


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@asynccontextmanager
async def connected(peer: Peer | None = None) -> AsyncIterator[Peer]:
    peer = peer or Peer()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        peer.sock = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    peer.sock.setblocking(False)
    accepted.setblocking(False)
    peer.connection = Connection(
        loop,
        PlainChannel(loop, accepted),
        Session.of(accepted, "PLAINTEXT"),
        scratch=Scratch(),
        request_memory=peer.memory,
        answer_memory=peer.answer_memory,
        max_frame_bytes=MAX_FRAME,
        dispatch=peer.dispatch,
        handled=peer.note_handled,
        on_close=lambda _: peer.closed.set(),
    )
    try:
        yield peer
    finally:
        peer.connection.close(None)
        peer.sock.close()


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1000])
async def test_frames_arrive_whole_however_they_are_cut(step: int) -> None:
    async with connected() as peer:
        bodies = [b"a", b"bcd", b"x" * 300, b"yz"]
        stream = b"".join(map(frame_of, bodies))
        for start in range(0, len(stream), step):
            await peer.send(stream[start : start + step])
            await asyncio.sleep(0)
        assert await peer.receive(len(stream)) == stream
        assert peer.frames == bodies


async def test_a_frame_larger_than_every_buffer_arrives_whole() -> None:
    async with connected() as peer:
        body = os.urandom(MAX_FRAME)
        sending = asyncio.ensure_future(peer.send(frame_of(body) + frame_of(b"after")))
        assert await peer.receive(len(body) + 4) == frame_of(body)
        assert await peer.receive(9) == frame_of(b"after")
        await sending
        assert peer.memory.used_bytes == 0


@pytest.mark.parametrize("size", [0, -1, -(2**31), MAX_FRAME + 1, 2**31 - 1, 0x47455420])
async def test_an_impossible_size_closes_the_connection(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as peer:
        await peer.send(struct.pack(">i", size) + b"GET / HTTP/1.1")
        assert await peer.receive(1) == b""
        assert peer.closed.is_set()
        assert peer.frames == []
        assert peer.memory.used_bytes == 0
    assert len(caplog.records) == 1
    assert "socket.request.max.bytes" in caplog.text


async def test_a_promised_size_takes_memory_only_as_bytes_arrive() -> None:
    async with connected() as peer:
        await peer.send(struct.pack(">i", MAX_FRAME) + b"x")
        await until(lambda: peer.memory.used_bytes > 0)
        assert peer.memory.used_bytes == module.FRAME_BUFFER_MIN_BYTES


async def test_answers_leave_in_request_order_when_handled_out_of_order() -> None:
    slots: list[tuple[Slot, bytes]] = []
    async with connected() as peer:
        peer.handle = lambda c, f: slots.append((c.defer(True), f))
        await peer.send(b"".join(frame_of(b"%d" % n) for n in range(5)))
        await until(lambda: len(slots) == 5)
        for slot, body in reversed(slots):
            peer.connection.complete(slot, [frame_of(body)])
        assert await peer.receive(25) == b"".join(frame_of(b"%d" % n) for n in range(5))


async def test_an_immediate_answer_waits_behind_a_pending_one() -> None:
    slots: list[Slot] = []
    async with connected() as peer:

        def handle(connection: Connection, body: bytes) -> None:
            if body == b"slow":
                slots.append(connection.defer(True))
            else:
                connection.respond([frame_of(body)])

        peer.handle = handle
        await peer.send(frame_of(b"slow") + frame_of(b"fast"))
        await until(lambda: len(peer.frames) == 2)
        peer.connection.complete(slots[0], [frame_of(b"slow")])
        assert await peer.receive(16) == frame_of(b"slow") + frame_of(b"fast")


async def test_nothing_is_taken_behind_a_request_that_may_not_overlap() -> None:
    slots: list[Slot] = []
    async with connected() as peer:

        def handle(connection: Connection, body: bytes) -> None:
            if body == b"wait":
                slots.append(connection.defer(False))
            else:
                connection.respond([frame_of(body)])

        peer.handle = handle
        await peer.send(frame_of(b"wait") + frame_of(b"next"))
        await until(lambda: bool(slots))
        await peer.send(frame_of(b"later"))
        await asyncio.sleep(0.02)
        assert peer.frames == [b"wait"]
        peer.connection.complete(slots[0], [frame_of(b"done")])
        assert peer.handled[-1] == 3
        assert await peer.receive(25) == b"".join(map(frame_of, [b"done", b"next", b"later"]))


async def test_requests_behind_an_answer_may_be_left_for_the_next_turn() -> None:
    slots: list[Slot] = []
    async with connected() as peer:
        peer.handle = lambda c, f: slots.append(c.defer(False))
        await peer.send(frame_of(b"1") + frame_of(b"2") + frame_of(b"3"))
        await until(lambda: bool(slots))
        for taken in (1, 2):
            slot = slots.pop()
            peer.connection.complete(slot, [frame_of(b"x")], later=True)
            assert len(peer.frames) == taken
            assert await peer.receive(5) == frame_of(b"x")
            await until(lambda: bool(slots))
        peer.connection.complete(slots[-1], [frame_of(b"x")], later=True)
        peer.handle = lambda c, f: c.respond([frame_of(f)])
        await peer.send(frame_of(b"4"))
        assert await peer.receive(10) == frame_of(b"x") + frame_of(b"4")


async def test_frames_that_come_together_are_handled_together() -> None:
    async with connected() as peer:
        for count in (1, 2, 3):
            await peer.send(frame_of(b"x") * count)
            await peer.receive(5 * count)
        assert [each for each in peer.handled if each] == [1, 3, 6]
        large = frame_of(b"y" * module.CORK_MAX_BYTES)
        await peer.send(large * 2)  # they leave one by one
        await peer.receive(len(large) * 2)
        assert {7, 8} <= set(peer.handled)


async def test_what_is_read_ahead_of_a_busy_connection_is_bounded() -> None:
    slots: list[Slot] = []
    async with connected() as peer:
        peer.handle = lambda c, f: (
            slots.append(c.defer(False)) if f == b"wait" else c.respond([frame_of(f[:1])])
        )
        count = 40
        flood = frame_of(b"wait") + frame_of(b"y" * 100_000) * count
        sending = asyncio.ensure_future(peer.send(flood))
        await until(lambda: bool(slots))
        await asyncio.sleep(0.05)
        held = len(peer.connection._inbox)
        assert held <= module.SCRATCH_BYTES
        peer.connection.complete(slots[0], [frame_of(b"done")])
        expected = frame_of(b"done") + frame_of(b"y") * count
        assert await peer.receive(len(expected)) == expected
        await sending


async def test_a_client_that_never_reads_stops_being_served() -> None:
    async with connected() as peer:
        peer.handle = lambda c, f: c.respond([frame_of(bytes(1024 * 1024))])
        sending = asyncio.ensure_future(peer.send(frame_of(b"more") * 2000))
        await until(lambda: peer.connection._outbox.blocked)
        served = len(peer.frames)
        await asyncio.sleep(0.05)
        assert len(peer.frames) == served < 200
        answer = frame_of(bytes(1024 * 1024))
        for _ in range(served + 5):
            assert await peer.receive(len(answer)) == answer
        await sending


async def test_a_peer_that_leaves_abandons_what_it_waited_for() -> None:
    abandoned = []
    async with connected() as peer:

        def handle(connection: Connection, body: bytes) -> None:
            slot = connection.defer(False)
            slot.on_abandon = lambda: abandoned.append(body)

        peer.handle = handle
        await peer.send(frame_of(b"join"))
        await until(lambda: bool(peer.frames))
        peer.sock.close()
        await until(lambda: bool(abandoned))
        assert abandoned == [b"join"]


async def test_answers_that_wait_behind_another_are_bounded() -> None:
    slots: list[Slot] = []
    async with connected() as peer:

        def handle(connection: Connection, body: bytes) -> None:
            if body == b"slow":
                slots.append(connection.defer(True))
            else:
                connection.respond([frame_of(body)])

        peer.handle = handle
        count = 5000
        await peer.send(frame_of(b"slow") + frame_of(b"fast") * count)
        await until(lambda: len(peer.frames) >= module.MAX_WAITING_RESPONSES)
        await asyncio.sleep(0.02)
        assert len(peer.frames) == module.MAX_WAITING_RESPONSES
        peer.connection.complete(slots[0], [frame_of(b"slow")])
        expected = frame_of(b"slow") + frame_of(b"fast") * count
        assert await peer.receive(len(expected)) == expected


async def test_nothing_is_read_any_more_while_draining() -> None:
    async with connected() as peer:
        await peer.send(struct.pack(">i", 100_000) + b"x")
        await until(lambda: peer.memory.used_bytes > 0)
        peer.connection.drain()
        peer.connection.memory_available()
        assert not peer.connection._reading


async def test_a_slow_reader_is_not_idle() -> None:
    async with connected() as peer:
        size = 32 * 1024 * 1024
        peer.handle = lambda c, f: c.respond([bytes(size)])
        await peer.send(frame_of(b"large"))
        await until(lambda: peer.connection._outbox.blocked)
        peer.connection.last_active = 0.0
        await peer.receive(size // 2)
        assert peer.connection._outbox.blocked
        assert peer.connection.last_active > 0.0


class Waiting:
    """Holds request memory and waits for more; closing it gives back what it holds."""

    def __init__(self, memory: QueueMemory, size_bytes: int) -> None:
        self.memory, self.size_bytes = memory, size_bytes
        self.closed = False
        if not memory.reserve(size_bytes):
            memory.wait(self)

    def memory_available(self) -> None:
        pass

    def close(self, reason: str | None) -> None:
        self.closed = True
        self.memory.forget(self, self.size_bytes)


def test_no_more_are_closed_than_memory_needs() -> None:
    memory = QueueMemory(10)
    first, second, third = (Waiting(memory, 8) for _ in range(3))
    memory.expire(0.0)
    memory.expire(100.0)
    assert [first.closed, second.closed, third.closed] == [False, True, True]
    memory = QueueMemory(10)
    first, second, third = Waiting(memory, 8), Waiting(memory, 8), Waiting(memory, 1)
    memory.expire(0.0)
    memory.expire(100.0)
    assert [first.closed, second.closed, third.closed] == [False, True, False]
    assert not memory.scarce


async def test_who_stalls_inside_a_request_gives_way_to_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    served: list[int] = []
    gone: list[str] = []

    class Counting:
        def dispatch(self, connection: Connection, frame: memoryview) -> int:
            served.append(len(frame))
            return 1

        def handled(self, connection: Connection, total: int) -> None:
            pass

    monkeypatch.setattr("kraftpy.server.network.listener.SWEEP_INTERVAL_S", 0.01)
    monkeypatch.setattr("kraftpy.server.network.listener.MEMORY_STALL_MAX_S", 0.1)
    config = BrokerConfig.from_properties(
        {"socket.request.max.bytes": "1000000", "queued.max.request.bytes": "1000000"}
    )
    listener = Listener(loop, config, cast(Dispatcher, Counting()), gone.append)
    listening = bind("127.0.0.1", 0)
    address = listening.getsockname()
    listener.start(listening, "PLAINTEXT")
    body = bytes(1_000_000)
    with socket.create_connection(address) as stalled, socket.create_connection(address) as b:
        peer = "{}:{}".format(*stalled.getsockname())
        stalled.setblocking(False)
        b.setblocking(False)
        await loop.sock_sendall(stalled, frame_of(body)[:900_000])
        async with asyncio.timeout(DEADLINE_S):
            while listener._memory.used_bytes < 900_000:
                await asyncio.sleep(0.001)
            await loop.sock_sendall(b, frame_of(body))
            while not served:
                await asyncio.sleep(0.001)
    assert served == [1_000_000]
    assert gone == [peer]
    listener.drain()
    await listener.stop(0)


async def test_request_memory_stops_readers_and_wakes_them() -> None:
    first = Peer()
    first.memory = QueueMemory(3 * 1024 * 1024)
    second = Peer()
    second.memory = first.memory
    async with connected(first), connected(second):
        body = bytes(3 * 1024 * 1024)
        half = len(body) // 2
        await first.send(frame_of(body)[:half])
        await until(lambda: first.memory.used_bytes > 0)
        sending = asyncio.ensure_future(second.send(frame_of(body)))
        await until(lambda: first.memory.is_waiting(second.connection))
        assert second.frames == []
        rest = asyncio.ensure_future(first.send(frame_of(body)[half:]))
        # Both overshoot by one growth step at most, and both get through.
        first_answer = asyncio.ensure_future(first.receive(len(body) + 4))
        second_answer = asyncio.ensure_future(second.receive(len(body) + 4))
        await until(lambda: first.memory.is_waiting(first.connection) or bool(first.frames))
        if not first.frames:
            # Deadlocked on purpose: expiry frees what the waiting ones hold.
            first.memory.expire(0.0)
            first.memory.expire(100.0)
            await until(lambda: first.memory.used_bytes == 0)
            cut_off = (sending, rest, first_answer, second_answer)
            for task in cut_off:
                task.cancel()
            await asyncio.gather(*cut_off, return_exceptions=True)
            return
        assert await first_answer == frame_of(body)
        assert await second_answer == frame_of(body)
        await sending
        await rest


# -- connections of clients that are over a quota


async def test_trap_20_muted_and_pipelined() -> None:
    """What is sent to a muted connection stays bytes, a few, and is answered in order later."""
    async with connected() as peer:

        def handle(connection: Connection, frame: bytes) -> None:
            connection.respond([frame_of(frame)])
            if frame.startswith(b"first"):
                connection.mute(1000.0)

        peer.handle = handle
        bodies = [b"first", *(b"%06d" % number + bytes(2_000) for number in range(2_000))]
        stream = b"".join(map(frame_of, bodies))
        sending = asyncio.ensure_future(peer.send(stream))
        assert await peer.receive(9) == frame_of(b"first")
        connection = peer.connection
        await until(lambda: not connection._reading)
        assert peer.frames == [b"first"]
        assert len(connection._inbox) <= module.SCRATCH_BYTES
        assert peer.memory.used_bytes == 0
        assert not sending.done()
        connection._muted.cancel()  # type: ignore[union-attr] # its time is over
        connection._unmute()
        assert await peer.receive(len(stream) - 9) == stream[9:]
        await sending
        assert peer.frames == bodies


async def test_what_a_muted_connection_keeps_is_bounded() -> None:
    """Ten thousand producers that have sent what they may would be 12 GB else, for an hour."""
    async with connected() as peer, connected() as other:
        peer.connection.mute(1000.0)
        sending = asyncio.ensure_future(peer.send(frame_of(bytes(MAX_FRAME))))
        await until(lambda: not peer.connection._reading)
        assert len(peer.connection._inbox) == module.READ_AHEAD_MAX_BYTES
        sending.cancel()
        other.handle = lambda connection, _: connection.mute(1000.0)
        other.connection._consume(memoryview(bytearray(frame_of(bytes(1_000)) * 1_000)))
        assert len(other.connection._inbox) == 999 * 1_004
        assert not other.connection._reading, "it has enough of what came with the first"


async def test_a_muted_connection_goes_on_by_itself() -> None:
    async with connected() as peer:

        def handle(connection: Connection, frame: bytes) -> None:
            connection.respond([frame_of(frame)])
            connection.mute(0.001)

        peer.handle = handle
        stream = frame_of(b"one") + frame_of(b"two") + frame_of(b"three")
        await peer.send(stream)
        assert await peer.receive(len(stream)) == stream


async def test_the_longest_wait_counts_and_answers_that_are_due_leave() -> None:
    async with connected() as peer:
        slots: list[Slot] = []

        def handle(connection: Connection, frame: bytes) -> None:
            if frame == b"parks":
                slots.append(connection.defer(concurrent=True))
            else:
                connection.respond([frame_of(frame)])
                connection.mute(1000.0)
                connection.mute(0.001)

        peer.handle = handle
        await peer.send(frame_of(b"parks") + frame_of(b"mutes") + frame_of(b"waits"))
        await until(lambda: peer.connection.muted)
        peer.connection.complete(slots[0], [frame_of(b"parked")])
        assert await peer.receive(19) == frame_of(b"parked") + frame_of(b"mutes")
        await asyncio.sleep(0.01)
        assert peer.frames == [b"parks", b"mutes"]
        assert peer.connection.muted


async def test_a_muted_connection_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep leaves it, and when it goes on it has as long as any other."""
    async with connected() as muted, connected() as idle:
        muted.connection.mute(1000.0)
        loop = asyncio.get_running_loop()
        config = BrokerConfig.from_properties({"connections.max.idle.ms": "1000"})
        listener = Listener(loop, config, Dispatcher(None, {}), lambda _: None)
        listener._connections = {muted.connection, idle.connection}
        for each in listener._connections:
            each.last_active -= 60.0
        listener._sweep()
        assert listener._sweeper is not None
        listener._sweeper.cancel()
        assert idle.connection.closed
        assert not muted.connection.closed
        muted.connection._muted.cancel()  # type: ignore[union-attr]
        muted.connection._unmute()
        listener._sweep()
        listener._sweeper.cancel()
        assert not muted.connection.closed
