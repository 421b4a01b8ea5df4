"""Reading a partition of an internal topic into its machine, when this broker begins to lead it.

Rules that it keeps:

* A partition is loaded before it takes requests, and only after all that earlier leaders committed
  can be read here: a new leader's high watermark may be behind (docs/rules.md, rule 9).
* It is read in pieces, so that the broker answers others meanwhile: one in a turn of the loop,
  however many partitions are loaded at a time. An empty one is loaded at once.
* Of two logs the first is read first. What every machine is to do meanwhile waits for the end. A
  log that is beside the others is read behind that (`log_beside`).
* What has been read along while another broker led (`warm`) isn't read again.
* A record that can't be read is skipped with one log line; a damaged batch keeps the partition from
  being loaded, since what a client was promised might be lost behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol

from kraftpy.core.coordination import Effects, Loaded
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.server.coordination.partition import (
    PIECE_BYTES,
    CoordinatorPartition,
    CoordinatorPartitionHost,
    M,
    Owner,
)
from kraftpy.server.coordination.turns import Turns
from kraftpy.server.coordination.warm import Warm

log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 5.0

# What a machine is to do that no request asks for, at a time.
Task = Callable[[M, int], Effects[Any]]


class LoadingOwner(Owner[M], Protocol):
    """What loading needs of its coordinator."""

    def new_machine(self, leader_epoch: int) -> M:
        """One that knows nothing yet."""

    def prepare(self, machine: M) -> Awaitable[None] | None:
        """What has to be waited for before a machine whose logs have been read takes requests."""

    def after_load(self, machine: M) -> Iterable[Task[M]]:
        """What a machine is to do as soon as it takes requests."""

    def contents(self, machine: M) -> str:
        """How much a machine has read, in words."""

    def tell_loaded(self, loading: Loading[M], machine: M) -> None:
        """A machine has been loaded and is about to take requests."""


class LoadProgress(NamedTuple):
    """How far the load of a partition is; `total_bytes` is the size of its logs, roughly."""

    partition: int
    records: int
    bytes: int
    total_bytes: int

    @property
    def percent(self) -> float:
        """0 to 100."""
        return 100 * min(self.bytes / self.total_bytes, 1) if self.total_bytes else 0.0


class Loading(Generic[M]):
    """The load of one partition."""

    def __init__(
        self,
        host: CoordinatorPartitionHost,
        owner: LoadingOwner[M],
        partition: CoordinatorPartition[M],
        turns: Turns,
        warm: Warm[M] | None,
    ) -> None:
        self.partition = partition
        self.counts = Loaded()
        # What came while it loaded, each once.
        self.postponed: dict[Task[M], None] = {}
        self._loop = host.loop
        self._replicas = host.replicas
        self._owner = owner
        self._turns = turns
        self._logs = [each for each in owner.logs if not each.beside]
        self._machine = owner.new_machine(partition.leader_epochs[0])
        self._offsets: list[int] = []  # the next one to read, of each log that has been begun
        self._bytes = 0
        self._warm = warm
        self._preparing: asyncio.Task[None] | None = None
        self.started_s = self._reported_s = host.loop.time()

    @property
    def progress(self) -> LoadProgress:
        """How far it is."""
        index = self.partition.index
        total_bytes = sum(self._size_bytes(each.topic) for each in self._logs)
        return LoadProgress(index, self.counts.records, self._bytes, total_bytes)

    def start(self) -> None:
        self._begin_log()

    def abandon(self) -> None:
        """Nobody takes what has been read: the partition is led here no more, or can't be read."""
        if self._warm is not None:
            self._warm.close()
        self._machine.close(ErrorCode.NOT_COORDINATOR, self._owner.now_ms())

    def _begin_log(self) -> None:
        topic = self._logs[len(self._offsets)].topic
        self._replicas.when_settled(topic, self.partition.index, self._settled)

    def _settled(self, is_leader: bool) -> None:
        if not is_leader or self.partition.closed:
            return
        topic = self._logs[len(self._offsets)].topic
        self._offsets.append(self._first_offset())
        if self._size_bytes(topic):
            self._turns.soon(self._go_on)
        else:
            self._go_on()

    def _first_offset(self) -> int:
        """Where to read from: with what was read along, the first log isn't read from its start."""
        warm, self._warm = self._warm, None
        taken = None if warm is None else warm.take()
        if taken is None:
            return 0
        self._machine, known, offset = taken
        self.counts = Loaded(skipped=known.skipped, problem=known.problem)
        return offset

    def _size_bytes(self, topic: str) -> int:
        return self._replicas.log_size_bytes(topic, self.partition.index)

    def _go_on(self) -> None:
        """Replays the next piece of the log; comes back for more after others had their turn."""
        partition = self.partition
        if partition.closed:
            return
        topic, codec, _ = self._logs[len(self._offsets) - 1]
        offset = self._offsets[-1]
        try:
            data, next_offset = self._replicas.read_batches(
                topic, partition.index, offset, PIECE_BYTES
            )
            codec.replay(data, self._machine, self.counts)
        except (DecodeError, KafkaError, OSError) as error:
            self._replicas.refused(topic, partition.index, offset, PIECE_BYTES)
            partition.fail()
            emit(
                log,
                logging.ERROR,
                "coordinator-failed",
                partition=f"{topic}-{partition.index}",
                offset=offset,
                reason=str(error),
            )
            return
        if next_offset > offset:
            self._offsets[-1] = next_offset
            self._bytes += len(data)
            self._report()
            self._turns.soon(self._go_on)
        elif len(self._offsets) < len(self._logs):
            self._begin_log()
        else:
            self._end()

    def _end(self) -> None:
        preparation = self._owner.prepare(self._machine)
        if preparation is None:
            self._finish()
        else:
            self._preparing = self._loop.create_task(self._prepare(preparation))

    async def _prepare(self, preparation: Awaitable[None]) -> None:
        await preparation
        if not self.partition.closed:
            self._finish()

    def _finish(self) -> None:
        partition, machine = self.partition, self._machine
        if self.counts.problem:
            log.error("%s: skipped %s", partition, self.counts.problem)
        self._owner.tell_loaded(self, machine)
        partition.take_on(machine, [offset - 1 for offset in self._offsets])
        for task in dict.fromkeys((*self._owner.after_load(machine), *self.postponed)):
            now_ms = self._owner.now_ms()
            partition.carry_out(task(machine, now_ms), now_ms)

    def _report(self) -> None:
        """Says every few seconds how far a long load is."""
        now_s = self._loop.time()
        if now_s - self._reported_s < _REPORT_INTERVAL_S:
            return
        self._reported_s = now_s
        progress = self.progress
        log.info(
            "%s: loading, %.0f %% of %.0f MB: %d records, %s so far",
            self.partition,
            progress.percent,
            progress.total_bytes / 1e6,
            progress.records,
            self._owner.contents(self._machine),
        )
