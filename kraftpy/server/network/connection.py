"""One client connection: bytes in, requests out, responses back in request order.

Responsible for framing, back-pressure and the order of answers; knows nothing of Kafka's messages
beyond the four-byte size in front of each frame, and nothing of what lies around its bytes: it
talks to a channel, and how answers get into that is `sending`'s.

Rules that it keeps (docs/architecture.md, decision 3; docs/rules.md, rule 36):

* Bytes are received into one buffer that all connections of the process share and are parsed where
  they lie. A frame that isn't whole yet moves to a buffer of its own, which grows with what
  arrives, never with what the size field promises. A handler therefore may not keep a view of its
  frame once it returned.
* Responses leave in the order of their requests. Requests marked `concurrent` (Produce) may be
  handled while earlier ones of that kind still wait; behind any other unanswered request, or behind
  unsent output, the connection stops taking requests, as Kafka's broker mutes it; so it does for a
  while when its client is over a quota (`mute`), but for one that is on its way in then.
* The responses that one readable event produced leave together, up to CORK_MAX_BYTES.
* Memory is bounded: the frame size by `socket.request.max.bytes`, the bytes of all unfinished
  frames together by `queued.max.request.bytes`, what is read ahead of a busy connection by
  READ_AHEAD_MAX_BYTES, or by what came with the request that it is busy with, SCRATCH_BYTES at
  most, and answers that wait behind an earlier one by WAITING_MAX_BYTES. What the peer hasn't taken
  of its answers counts in `queued.max.response.bytes`, slices of files aside that no channel has
  sealed yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kraftpy.events import emit
from kraftpy.server.network.sending import Channel, Outbox, Part, held_bytes

if TYPE_CHECKING:
    import asyncio

    from kraftpy.core.security.principals import Principal
    from kraftpy.server.network.memory import QueueMemory
    from kraftpy.server.network.session import Session

log = logging.getLogger(__name__)

SCRATCH_BYTES = 1024 * 1024
FRAME_BUFFER_MIN_BYTES = 64 * 1024
SPARE_BUFFER_MAX_BYTES = 2 * 1024 * 1024
READ_AHEAD_MAX_BYTES = 256 * 1024
MAX_WAITING_RESPONSES = 1000
WAITING_MAX_BYTES = 1024 * 1024
CORK_MAX_BYTES = 64 * 1024

_SIZE = Struct(">i").unpack_from


class Slot:
    """The place of one unanswered request in its connection's answer order."""

    __slots__ = ("concurrent", "done", "on_abandon", "parts", "waiting_bytes")

    def __init__(self, concurrent: bool) -> None:
        self.concurrent = concurrent
        self.waiting_bytes = 0  # of an answer that is there and waits for earlier ones
        self.done = False
        self.parts: list[Part] | None = None
        self.on_abandon: Callable[[], object] | None = None


class Scratch:
    """The receive buffer that all connections of a process share, and one spare frame buffer."""

    __slots__ = ("spare", "view")

    def __init__(self) -> None:
        # Of the kernel's own zeros: what is never received into takes no memory.
        self.view = memoryview(mmap(-1, SCRATCH_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS))
        self.spare: bytearray | None = None


class Connection:
    """A connected client on the event loop, behind its channel.

    `dispatch(connection, frame)` is called for each whole frame (a writable memoryview without the
    size prefix) and either answers through `respond`, or takes a place with `defer` and calls
    `complete` later, or does neither (a request without an answer). When the frames that were taken
    together, at `taken_s`, have been handled, `handled(connection, total)` is told the sum of what
    `dispatch` returned. `on_close` is called once. `taken_s` and `last_active` are times of
    `perf_counter`. `session` says who the peer is. `last_route` and `client_id` are for `dispatch`
    and `handled` to keep: what was asked for here last, and by whom.
    """

    __slots__ = (
        "_answers_held_bytes",
        "_blocked",
        "_channel",
        "_dispatch",
        "_filled",
        "_frame",
        "_frame_size",
        "_handled",
        "_inbox",
        "_loop",
        "_max_frame_bytes",
        "_max_frame_setting",
        "_muted",
        "_on_close",
        "_outbox",
        "_pending",
        "_reading",
        "_reserved",
        "_scratch",
        "_waiting_bytes",
        "answer_memory",
        "answers_held_since_s",
        "client_id",
        "closed",
        "draining",
        "last_active",
        "last_route",
        "peer",
        "request_memory",
        "session",
        "taken_s",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        session: Session,
        *,
        scratch: Scratch,
        request_memory: QueueMemory,
        answer_memory: QueueMemory,
        max_frame_bytes: int,
        max_frame_setting: str = "socket.request.max.bytes",
        dispatch: Callable[[Connection, memoryview], int],
        handled: Callable[[Connection, int], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.session = session
        session.connection = self
        self.peer = session.peer
        self.closed = False
        self.draining = False
        self.last_active = self.taken_s = perf_counter()
        self.last_route: Any = None
        self.client_id: str | None = None
        self.request_memory = request_memory
        self.answer_memory = answer_memory
        self.answers_held_since_s: float | None = None
        self._loop = loop
        self._channel = channel
        self._scratch = scratch
        self._max_frame_bytes = max_frame_bytes
        self._max_frame_setting = max_frame_setting
        self._dispatch = dispatch
        self._handled = handled
        self._on_close = on_close
        self._inbox = bytearray()  # received, not yet taken: < 4 bytes unless blocked
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._reserved = 0
        self._pending: deque[Slot] = deque()
        self._outbox = Outbox(channel, self._on_writable)
        self._waiting_bytes = 0  # answers behind an earlier one
        self._answers_held_bytes = 0  # what of both is counted in `answer_memory`
        self._blocked = False
        self._muted: asyncio.TimerHandle | None = None
        self._reading = False
        self._resume_reading()

    def let_in(
        self,
        principal: Principal,
        mechanism: str,
        *,
        max_frame_bytes: int,
        dispatch: Callable[[Connection, memoryview], int],
    ) -> None:
        """It is known who asks: the next frame is for this `dispatch`."""
        session = self.session
        session.principal, session.mechanism, session.connection = principal, mechanism, self
        self.redirect(dispatch, max_frame_bytes)

    def redirect(
        self,
        dispatch: Callable[[Connection, memoryview], int],
        max_frame_bytes: int,
        max_frame_setting: str = "socket.request.max.bytes",
    ) -> None:
        """Has this `dispatch` take the next frame, which may be so large by that setting."""
        self._dispatch = dispatch
        self._max_frame_bytes = max_frame_bytes
        self._max_frame_setting = max_frame_setting

    # -- reading

    def _resume_reading(self) -> None:
        if not self._reading and not self.closed and not self.draining:
            self._reading = True
            self._channel.read_when(self._on_readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._channel.stop_reading()

    def _on_readable(self) -> None:
        try:
            if self._frame is not None:
                self._read_into_frame(self._frame)
            else:
                self._read_into_scratch()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"connection lost: {error.strerror or error}")
            return
        except Exception:
            self.close("a defect of the broker; its traceback follows")
            log.exception("serving %s", self.peer)
            return
        if self._outbox.parts and not self._outbox.blocked:
            self._flush()

    def _read_into_scratch(self) -> None:
        view = self._scratch.view
        held = len(self._inbox)
        if self._blocked:
            received = self._channel.recv_into(view[: max(1, READ_AHEAD_MAX_BYTES - held)])
        else:
            if held:
                view[:held] = self._inbox
            received = self._channel.recv_into(view[held:] if held else view)
        if received == 0:
            self.close(None)
            return
        self.last_active = self.taken_s = perf_counter()
        if self._blocked:
            self._keep(view[:received])
            return
        if held:
            self._inbox = bytearray()
        self._consume(view[: held + received])

    def _read_into_frame(self, frame: bytearray) -> None:
        with memoryview(frame) as view:
            received = self._channel.recv_into(view[self._filled : self._frame_size])
        if received == 0:
            self.close("the peer closed the connection inside a request")
            return
        self.last_active = self.taken_s = perf_counter()
        self._filled += received
        if self._filled == self._frame_size:
            self._channel.expect(0)
            self._finish_frame(frame)
            return
        if self._filled == len(frame):
            self._grow_frame()
        self._channel.expect(self._frame_size - self._filled)

    def _consume(self, view: memoryview) -> None:
        position, end = 0, len(view)
        total = 0
        outbox = self._outbox
        while end - position >= 4:
            if self._blocked:
                break
            size = _SIZE(view, position)[0]
            if not 0 < size <= self._max_frame_bytes:
                self.close(
                    f"a request of {size} bytes is outside 1..{self._max_frame_bytes} "
                    f"({self._max_frame_setting}); is the peer a Kafka client without TLS?"
                )
                break
            position += 4
            if end - position < size:
                self._start_frame(size, view[position:])
                position = end
                break
            total += self._dispatch(self, view[position : position + size])
            position += size
            if outbox.fresh_bytes >= CORK_MAX_BYTES and not outbox.blocked:
                self._handled(self, total)
                total = 0
                self._flush()
            if self.closed:
                break
        self._handled(self, total)
        if position < end and not self.closed:
            self._keep(view[position:])

    def _keep(self, view: memoryview) -> None:
        """Keeps what isn't taken yet, and reads no more if that is enough."""
        self._inbox += view
        if len(self._inbox) >= READ_AHEAD_MAX_BYTES:
            self._pause_reading()

    def _start_frame(self, size: int, head: memoryview) -> None:
        spare = self._scratch.spare
        if spare is not None and size <= len(spare):
            self._scratch.spare = None
            frame = spare
        else:
            # A buffer in proportion to what came: a promise of 100 MB costs its maker as much.
            frame = bytearray(min(size, max(FRAME_BUFFER_MIN_BYTES, 8 * len(head))))
        frame[: len(head)] = head
        self._frame, self._frame_size, self._filled = frame, size, len(head)
        self._channel.expect(size - len(head))
        self._reserve(len(frame))

    def _reserve(self, size_bytes: int) -> None:
        self._reserved += size_bytes
        if not self.request_memory.reserve(size_bytes):
            self._pause_reading()
            self.request_memory.wait(self)

    def memory_available(self) -> None:
        """Goes on reading: the broker-wide limit of request bytes has room again."""
        self.last_active = perf_counter()  # that nothing came meanwhile isn't the peer's fault
        self._resume_reading()

    def _grow_frame(self) -> None:
        assert self._frame is not None
        more = min(self._frame_size - len(self._frame), len(self._frame))
        self._frame.extend(bytes(more))
        self._reserve(more)

    def _finish_frame(self, frame: bytearray) -> None:
        self._frame = None
        self.request_memory.release(self._reserved)
        self._reserved = 0
        self._handled(self, self._dispatch(self, memoryview(frame)[: self._frame_size]))
        if len(frame) <= SPARE_BUFFER_MAX_BYTES:
            self._scratch.spare = frame

    # -- answering

    def respond(self, parts: list[Part]) -> None:
        """Queues a response; it leaves when the current readable event has been handled."""
        if self._pending:
            slot = Slot(concurrent=True)
            slot.done, slot.parts = True, parts
            self._pending.append(slot)
            self._wait_behind(slot)
            if (
                len(self._pending) >= MAX_WAITING_RESPONSES
                or self._waiting_bytes >= WAITING_MAX_BYTES
            ):
                self._blocked = True
        else:
            self._outbox.put(parts)

    def defer(self, concurrent: bool) -> Slot:
        """Takes a place in the answer order for a request that is answered later."""
        slot = Slot(concurrent)
        self._pending.append(slot)
        if not concurrent or len(self._pending) >= MAX_WAITING_RESPONSES:
            self._blocked = True
        return slot

    def _wait_behind(self, slot: Slot) -> None:
        """Counts an answer that isn't next."""
        if slot.parts is not None:
            slot.waiting_bytes = held_bytes(slot.parts)
            self._waiting_bytes += slot.waiting_bytes
            self._hold(self._outbox.unsent_bytes + self._waiting_bytes)

    def _hold(self, size_bytes: int) -> None:
        """Counts so much, and no more, as held by answers of this connection."""
        more = size_bytes - self._answers_held_bytes
        if not more:
            return
        if not self._answers_held_bytes:
            self.answers_held_since_s = perf_counter()
        elif not size_bytes:
            self.answers_held_since_s = None
        self._answers_held_bytes = size_bytes
        if more > 0:
            self.answer_memory.reserve(more)
        else:
            self.answer_memory.release(-more)

    def let_overlap(self, slot: Slot) -> None:
        """Later requests needn't wait any more until this place is filled."""
        slot.concurrent = True
        if not self.closed:
            self._unblock()

    def complete(self, slot: Slot, parts: list[Part] | None, *, later: bool = False) -> None:
        """Fills a place taken by `defer`; sends it and what waited behind it in its turn.

        Requests that have come meanwhile are taken then, or `later`: in the loop's next turn.
        """
        slot.done, slot.parts = True, parts
        if self.closed:
            return
        pending = self._pending
        if pending[0] is not slot:
            self._wait_behind(slot)
        while pending and pending[0].done:
            ready = pending.popleft()
            if ready.parts is not None:
                self._waiting_bytes -= ready.waiting_bytes
                self._outbox.put(ready.parts)
        if self._outbox.parts and not self._outbox.blocked:
            self._flush()
        if later and len(self._inbox) >= 4:
            self._loop.call_soon(self._unblock)
        elif not self.closed:
            self._unblock()

    def _unblock(self) -> None:
        """Takes requests again once nothing that must be answered first is left."""
        pending = self._pending
        while not self.closed:
            self._blocked = (
                self._outbox.blocked
                or self._muted is not None
                or len(pending) >= MAX_WAITING_RESPONSES
                or self._waiting_bytes >= WAITING_MAX_BYTES
                # Nothing is taken behind a request that may not overlap, so it is the last one.
                or bool(pending and not pending[-1].concurrent and not pending[-1].done)
            )
            if self._blocked or self.draining:
                return
            if len(self._inbox) < 4 or self._frame is not None:
                break
            received, self._inbox = self._inbox, bytearray()
            before = len(received)
            self.taken_s = perf_counter()
            self._consume(memoryview(received))
            if self._outbox.parts and not self._outbox.blocked and not self.closed:
                self._flush()
            if len(self._inbox) == before:
                break
        if not self.closed and not self.request_memory.is_waiting(self):
            self._resume_reading()

    def mute(self, wait_s: float) -> None:
        """Takes no request for so long; answers that are due still leave."""
        if self.closed:
            return
        until_s = self._loop.time() + wait_s
        if self._muted is not None:
            if self._muted.when() >= until_s:
                return
            self._muted.cancel()
        self._blocked = True
        self._muted = self._loop.call_at(until_s, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self.last_active = perf_counter()  # that nothing was taken meanwhile isn't the peer's fault
        self._unblock()

    @property
    def muted(self) -> bool:
        """Whether it takes no request because its client has had too much."""
        return self._muted is not None

    # -- writing

    def _flush(self) -> None:
        try:
            sent = self._outbox.flush()
        except OSError as error:
            self.close(f"connection lost: {error.strerror or error}")
            return
        if not sent:
            self._blocked = True
            self._hold(self._outbox.unsent_bytes + self._waiting_bytes)
        elif self._answers_held_bytes:
            self._hold(self._waiting_bytes)

    def _on_writable(self) -> None:
        self.last_active = perf_counter()
        self._flush()
        if not self._outbox.blocked and not self.closed:
            self._unblock()

    # -- end

    def drain(self) -> None:
        """Takes no further request; what was taken is still answered."""
        self.draining = True
        self._blocked = True
        self._pause_reading()

    @property
    def holds_memory(self) -> bool:
        """Whether part of a request is here and the peer is free to send the rest."""
        return self._reserved > 0 and not self.request_memory.is_waiting(self)

    @property
    def idle(self) -> bool:
        """Nothing is owed to the peer: no request unanswered, no response unsent."""
        return not self._pending and not self._outbox.parts

    def close(self, reason: str | None) -> None:
        """Closes the socket; `reason` is logged unless None (a peer that simply went away)."""
        if self.closed:
            return
        self.closed = True
        if reason is not None:
            emit(
                log,
                logging.WARNING,
                "connection-closed",
                peer=self.peer,
                client=self.client_id,
                reason=reason,
            )
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._pause_reading()
        self.request_memory.forget(self, self._reserved)
        self._reserved = 0
        self._frame = None
        self._hold(0)
        self._outbox.close()
        for slot in self._pending:
            if not slot.done and slot.on_abandon is not None:
                slot.on_abandon()
        self._pending.clear()
        self._channel.close()
        self._on_close(self)
