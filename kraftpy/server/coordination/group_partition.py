"""One partition of `__consumer_offsets` on the broker that coordinates its groups.

The machine decides, this shell carries out (docs/architecture.md, decision 8):

* What a machine gives back is carried out in order: batches are appended, then replies go to the
  futures that the requests wait on.
* Outcomes of appends are handed to the machine in the order of the log, whatever order the appends
  end in, so that the map of offsets never goes back to an older commit.
* A machine that the log's order or an error of its own put in doubt takes no more requests; it is
  loaded again once the appends under way have ended, since loading sees what is committed only.
* `offsets.commit.timeout.ms` ends the wait of the client, not of the append: a batch that commits
  later still counts.
* A client that goes away while its request is parked cancels the future; the answer is dropped when
  it comes, and the member ends with its session, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.groups import Effects, GroupMachine, Write, encode_record
from kraftpy.core.groups.offset_runs import build_offset_batch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import RecordInput, build_batch

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

_EXPIRE_GROUPS_AT_A_TIME = 200


class PartitionLog(Protocol):
    """The logs of the offsets topic, as the coordinator needs them."""

    def led_epochs(self, topic: str) -> dict[int, int]:
        """The leader epochs of the topic's partitions that this broker leads, by index."""

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        """Calls `settled(True)` once all that earlier leaders committed can be read here.

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

    def refused(self, topic: str, partition: int, start_offset: int, size_bytes: int) -> None:
        """What `read_batches` gave could not be used: the disk may have damaged it."""


class GroupPartitionHost(Protocol):
    """What a partition needs of its broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def replicas(self) -> PartitionLog: ...


class _Append:
    """A write on its way into the log; `deadline_s` is in the loop's time."""

    __slots__ = ("deadline_s", "future", "write")

    def __init__(self, write: Write, future: asyncio.Future[int]) -> None:
        self.write = write
        self.future = future
        self.deadline_s = math.inf


class GroupPartition:
    """A partition of the offsets topic that this broker coordinates.

    `machine` is None while it loads (`group_loading`), and stays so if loading failed. `loaded` is
    done when it is known which. `now_ms` is the clock of the machine. `on_disorder` is called to
    have the partition loaded again, if its machine can't be trusted any more.
    """

    def __init__(
        self,
        host: GroupPartitionHost,
        index: int,
        leader_epoch: int,
        now_ms: Callable[[], int],
        on_disorder: Callable[[GroupPartition], None],
    ) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.machine: GroupMachine | None = None
        self.loaded: asyncio.Future[None] = host.loop.create_future()
        self.failed = False
        self.closed = False
        self._host = host
        self._loop = host.loop
        self.now_ms = now_ms
        self._on_disorder = on_disorder
        # In log order.
        self._appends: deque[_Append] = deque()
        self._draining = False
        self._last_offset = -1
        self._timer: asyncio.Handle | None = None
        self._timer_due_s = 0.0

    def __str__(self) -> str:
        return f"{OFFSETS_TOPIC}-{self.index}"

    def take_on(self, machine: GroupMachine, last_offset: int) -> None:
        """The log has been read into this machine, up to this offset."""
        self._last_offset = last_offset
        self.machine = machine
        self.loaded.set_result(None)
        now_ms = self.now_ms()
        self.carry_out(machine.finish_load(now_ms), now_ms)

    def fail(self) -> None:
        """The log can't be read; the partition's groups are not served here."""
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
            _reply(machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms()))

    # -- carrying out effects

    def carry_out(self, effects: Effects, now_ms: int) -> None:
        """Does what the machine asked for at `now_ms`."""
        for write in effects.writes:
            self._append(write, now_ms)
        if effects.replies:
            _reply(effects)
        if self.machine is not None:
            deadline_ms = self.machine.next_deadline()
            if deadline_ms is not None:
                left_ms = deadline_ms - now_ms
                self._arm(self._loop.time() + left_ms / 1000)

    def _append(self, write: Write, now_ms: int) -> None:
        try:
            batch = _encode(write, now_ms)
        except (ValueError, struct.error) as error:
            # Whoever let it in was wrong. The groups go on without it all the same.
            log.error("%s: a record can't be written: %s", self, error)
            future: asyncio.Future[int] = self._loop.create_future()
            future.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            future = self._host.replicas.append_records(OFFSETS_TOPIC, self.index, batch)
        append = _Append(write, future)
        self._appends.append(append)
        if future.done() and self._appends[0] is append:
            self._drain(now_ms)
            return
        timeout_ms = self._host.config.offsets_commit_timeout_ms
        append.deadline_s = self._loop.time() + timeout_ms / 1000
        self._arm(append.deadline_s)
        future.add_done_callback(lambda future: self._drain(self.now_ms()))

    def _drain(self, now_ms: int) -> None:
        """Tells the machine of the appends that have ended, in log order."""
        if self._draining:
            return
        self._draining = True
        appends = self._appends
        while appends and appends[0].future.done():
            try:
                effects = self._outcome(appends.popleft(), now_ms)
                if effects is not None:
                    self.carry_out(effects, now_ms)
            except Exception:
                log.exception("%s: a bug; loading the partition again", self)
                self._distrust()
        self._draining = False
        if self.failed and not appends and not self.closed:
            self._on_disorder(self)

    def _distrust(self) -> None:
        """Takes the machine away. What comes of the appends under way it isn't told any more."""
        machine, self.machine = self.machine, None
        self.failed = True
        if machine is not None:
            _reply(machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms()))

    def _outcome(self, append: _Append, now_ms: int) -> Effects | None:
        error = ErrorCode.NONE
        offset = -1
        if append.future.cancelled():
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif (raised := append.future.exception()) is None:
            offset = append.future.result()
        elif isinstance(raised, KafkaError):
            error = raised.code
        else:
            log.error("%s: append failed", self, exc_info=raised)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        machine = self.machine
        if machine is None:
            return None
        if error is not ErrorCode.NONE:
            return machine.failed(append.write, error, now_ms)
        if offset <= self._last_offset:
            log.error(
                "%s: offset %d came after %d; loading the partition again",
                self,
                offset,
                self._last_offset,
            )
            self._distrust()
            return None
        self._last_offset = offset
        return machine.committed(append.write, now_ms)

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
        self._timer = None
        machine = self.machine
        if machine is None:
            return
        now_ms = self.now_ms()
        loop_s = self._loop.time()
        for append in list(self._appends):
            if append.deadline_s > loop_s:
                self._arm(append.deadline_s)
                break
            if not append.write.settled:
                self.carry_out(machine.timed_out(append.write, now_ms), now_ms)
        self.carry_out(machine.handle_timers(now_ms), now_ms)

    async def expire_offsets(self) -> None:
        """Deletes the committed offsets whose time is over, some groups at a time."""
        machine = self.machine
        if machine is None:
            return
        expired = 0
        group_ids = machine.group_ids()
        while chunk := list(islice(group_ids, _EXPIRE_GROUPS_AT_A_TIME)):
            now_ms = self.now_ms()
            count, effects = machine.expire_offsets(chunk, now_ms)
            expired += count
            self.carry_out(effects, now_ms)
            await asyncio.sleep(0)
            if self.closed:
                return
        if expired:
            log.info("%s: %d committed offsets expired", self, expired)


def _encode(write: Write, now_ms: int) -> bytes:
    """The write's batch; raises ValueError or struct.error if a record can't hold
    what it is to.
    """
    batch = build_offset_batch(write.records, now_ms)
    if batch is not None:
        return batch
    records: list[RecordInput] = [(now_ms, *encode_record(record), []) for record in write.records]
    return build_batch(records)


def _reply(effects: Effects) -> None:
    for token, response in effects.replies:
        assert isinstance(token, asyncio.Future)
        if not token.done():  # done: the client went away
            token.set_result(response)
