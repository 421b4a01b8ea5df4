"""One partition of a coordinator's internal topic, on the broker that coordinates it.

The machine decides, this shell carries out (docs/architecture.md, decision 8):

* What a machine gives back is carried out in order: batches are appended, then replies go to the
  futures that the requests wait on, then messages go to other brokers.
* A coordinator may have the writes of a turn of the loop gathered into one batch. If that can't be
  written as it is, each of them is by itself. Who is in a hurry has them appended at once where
  that commits them: as long as the log's last append was.
* What somebody else appends to the log takes its place among the writes (`follow`).
* Outcomes of appends are handed to the machine in the order of their log, whatever order the
  appends end in, so that what it knows never goes back to something older. A coordinator with two
  logs has a queue for each. What a log beside the first had in flight when it was lost or left,
  nobody is told any more.
* A machine that the log's order or an error of its own put in doubt takes no more requests; it is
  loaded again once the appends under way have ended, since loading sees what is committed only.
* The timeout of writes ends the wait of the client, not of the append: a batch that commits later
  still counts.
* A client that goes away while its request is parked cancels the future; the answer is dropped when
  it comes.
* However many partitions have something due, one has its turn in each turn of the loop, and a
  machine does some of it at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from kraftpy.core.coordination import Codec, Effects, Machine, Write, together
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.turns import Turns
from kraftpy.server.network.prompt_future import when_done
from kraftpy.server.replication.reading_along import Place

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine[Any])

# What is read of a log at a time. About a thousand records: one to two milliseconds.
PIECE_BYTES = 64 * 1024

# So many writes are one batch at most.
GATHERED_MAX = 100

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class CoordinatorLog(NamedTuple, Generic[M]):
    """An internal topic and its format.

    One that is `beside` is read and lost while the machine works (`log_beside`); such come last.
    """

    topic: str
    codec: Codec[M]
    beside: bool = False


class MachineBeside(Protocol):
    """What is said to a machine that has logs beside the first."""

    def log_opened(self, number: int, now_ms: int) -> Effects[Any]:
        """That log has been read; its writes are taken from here on."""

    def log_closed(self, number: int, now_ms: int, *, exists: bool) -> Effects[Any]:
        """That log isn't led here, or is about to be read anew: what was in flight is unknown."""


class PartitionLog(Protocol):
    """The logs of internal topics, as coordinators need them."""

    def led_epochs(self, topic: str) -> dict[int, int]:
        """The leader epochs of the topic's partitions that this broker leads, by index."""

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        """Calls `settled(True)` once all that is in the log now can be read here.

        `settled(False)` if this broker doesn't lead the partition any more by then.
        """

    def log_size_bytes(self, topic: str, partition: int) -> int:
        """The size of the log on disk; 0 if it isn't led here."""

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        """Appends a batch; gives its base offset once it is committed, flushed if the policy says.

        Calls append in their order. Raises KafkaError, and then the batch is not in the log and
        never will be (or this broker does not lead the partition any more).
        """

    def read_batches(
        self, topic: str, partition: int, start_offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Committed batches from `start_offset`, and the offset to go on from.

        No bytes at the end. Raises KafkaError.
        """

    def followed(self, topic: str) -> list[int]:
        """The topic's partitions that this broker follows."""

    def has_place(self, topic: str, partition: int, place: Place) -> bool:
        """Whether a replica's log up to there is what was read."""

    def read_along(
        self, topic: str, partition: int, place: Place | None, max_bytes: int
    ) -> tuple[bytes, Place]:
        """Committed batches of a replica from there, None: from the start, and the place behind.

        Raises KafkaError, OSError.
        """

    def refused(self, topic: str, partition: int, start_offset: int, size_bytes: int) -> None:
        """What `read_batches` gave could not be used: the disk may have damaged it."""


class CoordinatorPartitionHost(Protocol):
    """What a partition needs of its broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def replicas(self) -> PartitionLog: ...


class Owner(Protocol[M]):
    """What a partition needs of its coordinator."""

    @property
    def logs(self) -> Sequence[CoordinatorLog[M]]: ...
    @property
    def write_timeout_ms(self) -> int: ...
    @property
    def gathers(self) -> bool:
        """Whether the writes of a turn of the loop go into the log together."""

    @property
    def timer_turns(self) -> Turns:
        """Who has something due takes turns."""

    def now_ms(self) -> int:
        """The clock of the machines."""

    def send(self, message: Any) -> None:
        """Sends what a machine has for another broker."""

    def reload(self, partition: CoordinatorPartition[M]) -> None:
        """Loads the partition again, as its machine can't be trusted any more."""


_Append = tuple[Sequence[Write[Any]], asyncio.Future[int], float]
"""A batch on its way into the log, its base offset to be, and until when clients wait for that, in
the loop's time. A plain tuple, as every commit makes one."""


class _Queue:
    """The appends under way to one log, in its order."""

    __slots__ = ("appends", "closed", "draining", "encode", "is_prompt", "last_offset", "topic")

    def __init__(self, topic: str, encode: Callable[[Write[Any], int], bytes]) -> None:
        self.topic = topic
        self.encode = encode
        self.appends: deque[_Append] = deque()
        self.draining = False
        self.is_prompt = False
        self.closed = False
        self.last_offset = -1


class CoordinatorPartition(Generic[M]):
    """A partition that this broker coordinates, since these leader epochs of its logs.

    `machine` is None while it loads (`loading`), and stays so if loading failed. `loaded` is done
    when it is known which.
    """

    def __init__(
        self,
        host: CoordinatorPartitionHost,
        owner: Owner[M],
        index: int,
        leader_epochs: Sequence[int],
    ) -> None:
        self.index = index
        self.leader_epochs = leader_epochs
        self.machine: M | None = None
        self.loaded: asyncio.Future[None] = host.loop.create_future()
        self.failed = False
        self.closed = False
        self._loop = host.loop
        self._replicas = host.replicas
        self._owner = owner
        self._gathers = owner.gathers
        self._gathered: list[Write[Any]] = []
        self._queues = [_Queue(each.topic, each.codec.encode) for each in owner.logs]
        self._timer: asyncio.Handle | None = None
        self._timer_due_s = 0.0

    def __str__(self) -> str:
        return f"{self._queues[0].topic}-{self.index}"

    def take_on(self, machine: M, last_offsets: Sequence[int]) -> None:
        """The logs have been read into this machine, up to these offsets.

        Those beside the first have yet to be.
        """
        for queue, last_offset in zip(self._queues, last_offsets, strict=False):
            queue.last_offset = last_offset
        self.machine = machine
        self.loaded.set_result(None)
        now_ms = self._owner.now_ms()
        self.carry_out(machine.finish_load(now_ms), now_ms)

    def open_log(self, number: int, last_offset: int) -> None:
        """A log beside the first has been read, up to this offset."""
        self._queues[number].last_offset = last_offset
        machine, now_ms = cast("MachineBeside", self.machine), self._owner.now_ms()
        self.carry_out(machine.log_opened(number, now_ms), now_ms)

    def close_log(self, number: int, *, exists: bool) -> None:
        """A log beside the first is led here no more, or is about to be read anew."""
        queue = self._queues[number]
        queue.closed = True
        self._queues[number] = _Queue(queue.topic, queue.encode)
        machine, now_ms = cast("MachineBeside", self.machine), self._owner.now_ms()
        self.carry_out(machine.log_closed(number, now_ms, exists=exists), now_ms)

    def fail(self) -> None:
        """A log can't be read; the partition is not served here."""
        self.failed = True
        self.loaded.set_result(None)

    def close(self) -> None:
        """Answers every parked request with NOT_COORDINATOR; the partition is not led any more."""
        self.closed = True
        machine, self.machine = self.machine, None
        if self._timer is not None:
            self._timer.cancel()
        if not self.loaded.done():
            self.loaded.set_result(None)
        if machine is not None:
            _reply(machine.close(ErrorCode.NOT_COORDINATOR, self._owner.now_ms()))

    # -- carrying out effects

    def carry_out(self, effects: Effects[Any], now_ms: int, *, at_once: bool = False) -> None:
        """Does what the machine asked for at `now_ms`; `at_once`: somebody is in a hurry."""
        for write in effects.writes:
            if self._gathers and not (
                at_once and not self._gathered and self._queues[write.log].is_prompt
            ):
                self._gather(write)
            else:
                self._append((write,), now_ms)
        if effects.replies:
            _reply(effects)
        if effects.messages:
            for message in effects.messages:
                self._owner.send(message)
        if self.machine is not None:
            deadline_ms = self.machine.next_deadline()
            if deadline_ms is not None:
                left_ms = deadline_ms - now_ms
                self._arm(self._loop.time() + left_ms / 1000)

    def _gather(self, write: Write[Any]) -> None:
        if not self._gathered:
            self._loop.call_soon(self._append_gathered)
        self._gathered.append(write)

    def _append_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        if self.machine is None:
            return  # what it had asked for it has answered as failed
        now_ms = self._owner.now_ms()
        for _, writes in groupby(gathered, lambda write: write.log):
            of_log = tuple(writes)
            for start in range(0, len(of_log), GATHERED_MAX):
                self._append(of_log[start : start + GATHERED_MAX], now_ms)

    def _append(self, writes: Sequence[Write[Any]], now_ms: int) -> None:
        queue = self._queues[writes[0].log]
        try:
            batch = queue.encode(writes[0] if len(writes) == 1 else together(writes), now_ms)
        except (ValueError, struct.error) as error:
            if len(writes) > 1:
                self._append_each(writes, now_ms)
                return
            # Whoever let it in was wrong. The others go on without it all the same.
            log.error("%s: a record can't be written: %s", self, error)
            future: asyncio.Future[int] = self._loop.create_future()
            future.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            future = self._replicas.append_records(queue.topic, self.index, batch)
        self._enqueue(queue, writes, future, now_ms)

    def follow(self, write: Write[Any], future: asyncio.Future[int], now_ms: int) -> None:
        """Hands a write to the machine that was appended elsewhere, just now, if at all.

        It has no records; `future` gives the last offset that it waits for.
        """
        self._enqueue(self._queues[write.log], (write,), future, now_ms)

    def _enqueue(
        self,
        queue: _Queue,
        writes: Sequence[Write[Any]],
        future: asyncio.Future[int],
        now_ms: int,
    ) -> None:
        queue.is_prompt = future.done()
        if queue.is_prompt and not queue.appends:
            queue.appends.append((writes, future, math.inf))
            self._drain(queue, now_ms)
            return
        deadline_s = self._loop.time() + self._owner.write_timeout_ms / 1000
        queue.appends.append((writes, future, deadline_s))
        self._arm(deadline_s)
        when_done(future, partial(self._landed, queue))

    def _append_each(self, writes: Sequence[Write[Any]], now_ms: int) -> None:
        for write in writes:
            self._append((write,), now_ms)

    def _landed(self, queue: _Queue, future: asyncio.Future[int]) -> None:
        self._drain(queue, self._owner.now_ms())

    def _drain(self, queue: _Queue, now_ms: int) -> None:
        """Tells the machine of the log's appends that have ended, in log order."""
        if queue.draining:
            return
        queue.draining = True
        appends = queue.appends
        while appends and appends[0][1].done():
            writes, future, _ = appends.popleft()
            try:
                self._outcome(queue, writes, future, now_ms)
            except Exception:
                log.exception("%s: a bug; loading the partition again", self)
                self._distrust()
        queue.draining = False
        if self.failed and not self.closed and self._is_idle():
            self._owner.reload(self)

    def _is_idle(self) -> bool:
        return not any(queue.appends or queue.draining for queue in self._queues)

    def _distrust(self) -> None:
        """Takes the machine away. What comes of the appends under way it isn't told any more."""
        machine, self.machine = self.machine, None
        self.failed = True
        if machine is not None:
            _reply(machine.close(ErrorCode.NOT_COORDINATOR, self._owner.now_ms()))

    def _outcome(
        self, queue: _Queue, writes: Sequence[Write[Any]], future: asyncio.Future[int], now_ms: int
    ) -> None:
        error = ErrorCode.NONE
        offset = -1
        if future.cancelled():
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif (raised := future.exception()) is None:
            offset = future.result()
        elif isinstance(raised, KafkaError):
            error = raised.code
        else:
            log.error("%s: append failed", self, exc_info=raised)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        machine = self.machine
        if machine is None or queue.closed:
            return
        if error is not ErrorCode.NONE:
            if error in _TOO_LARGE and len(writes) > 1:
                self._append_each(writes, now_ms)
                return
            for write in writes:
                self.carry_out(machine.failed(write, error, now_ms), now_ms)
            return
        # One without records may wait for no more than those before it.
        if offset < queue.last_offset + bool(writes[0].records):
            log.error(
                "%s: offset %d came after %d; loading the partition again",
                self,
                offset,
                queue.last_offset,
            )
            self._distrust()
            return
        queue.last_offset = offset
        for write in writes:
            write.offset = offset
            self.carry_out(machine.committed(write, now_ms), now_ms)

    # -- time

    def _arm(self, deadline_s: float) -> None:
        """Makes sure that the timer fires at this time of the loop at the latest."""
        if self._timer is not None:
            if self._timer_due_s <= deadline_s:
                return
            self._timer.cancel()
        # What uvloop returns for a time that is now or past doesn't know its `when`.
        self._timer_due_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._owner.timer_turns.soon(self._handle_timers)

    def _handle_timers(self) -> None:
        self._timer = None
        machine = self.machine
        if machine is None:
            return
        now_ms = self._owner.now_ms()
        loop_s = self._loop.time()
        for queue in self._queues:
            for writes, _, deadline_s in list(queue.appends):
                if deadline_s > loop_s:
                    self._arm(deadline_s)
                    break
                for write in writes:
                    if not write.settled:
                        self.carry_out(machine.timed_out(write, now_ms), now_ms)
        self.carry_out(machine.handle_timers(now_ms), now_ms)


def _reply(effects: Effects[Any]) -> None:
    for token, response in effects.replies:
        assert isinstance(token, asyncio.Future)
        if not token.done():  # done: the client went away
            token.set_result(response)
