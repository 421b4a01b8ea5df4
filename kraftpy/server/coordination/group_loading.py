"""Reading a partition of `__consumer_offsets` into its machine, when this broker begins to lead it.

Rules that it keeps:

* A partition is loaded before it takes requests, and only after all that earlier leaders committed
  can be read here: a new leader's high watermark may be behind (docs/rules.md, rule 9).
* It is read in pieces, so that the broker answers others meanwhile: one in a turn of the loop,
  however many partitions are loaded at a time. An empty one is loaded at once.
* Before a partition takes requests the topics that members' regular expressions match have been
  found, in pieces, too.
* A record that can't be read is skipped with one log line; a damaged batch keeps the partition from
  being loaded, since a committed offset might be lost behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kraftpy.core.groups import ConsumerTimes, GroupConfig, GroupMachine, GroupMemory
from kraftpy.core.groups.loading import Loaded, load_batches
from kraftpy.events import emit
from kraftpy.protocol.errors import DecodeError, KafkaError
from kraftpy.server.coordination.group_partition import (
    OFFSETS_TOPIC,
    GroupPartition,
    GroupPartitionHost,
)
from kraftpy.server.coordination.group_topics import ClusterTopics

log = logging.getLogger(__name__)

# About a thousand records: one to two milliseconds.
_CHUNK_BYTES = 64 * 1024
_REPORT_INTERVAL_S = 5.0


class LoadProgress(NamedTuple):
    """How far the load of a partition is; `total_bytes` is the size of its log, roughly."""

    partition: int
    records: int
    bytes: int
    total_bytes: int

    @property
    def percent(self) -> float:
        """0 to 100."""
        return 100 * min(self.bytes / self.total_bytes, 1) if self.total_bytes else 0.0


class Turns:
    """Lets one of those who wait go on in each turn of the loop, first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def soon(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        try:
            # It stays in the queue while it works, so that nobody else begins in this turn.
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._next)


class GroupLoading:
    """The load of one partition."""

    def __init__(
        self,
        host: GroupPartitionHost,
        partition: GroupPartition,
        topics: ClusterTopics,
        own_times: Mapping[str, ConsumerTimes],
        turns: Turns,
        memory: GroupMemory,
    ) -> None:
        self.partition = partition
        # Gone for now or for good: what is committed for them is still to be forgotten.
        self.deleted_topics: set[str] = set()
        self._host = host
        self._loop = host.loop
        self._turns = turns
        self._topics = topics
        config = GroupConfig.from_broker(host.config)
        self._machine = GroupMachine(config, topics, memory, own_times)
        self._offset = 0  # the next one to read
        self._bytes = 0
        self._loaded = Loaded()
        self._matching: asyncio.Task[None] | None = None
        self.started_s = self._reported_s = host.loop.time()

    @property
    def progress(self) -> LoadProgress:
        """How far it is."""
        index = self.partition.index
        total_bytes = self._host.replicas.log_size_bytes(OFFSETS_TOPIC, index)
        return LoadProgress(index, self._loaded.records, self._bytes, total_bytes)

    def start(self) -> None:
        self._host.replicas.when_settled(OFFSETS_TOPIC, self.partition.index, self._settled)

    def _settled(self, is_leader: bool) -> None:
        if not is_leader:
            return
        if self.progress.total_bytes:
            self._turns.soon(self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Replays the next piece of the log; comes back for more after others had their turn."""
        partition = self.partition
        if partition.closed:
            return
        try:
            data, next_offset = self._host.replicas.read_batches(
                OFFSETS_TOPIC, partition.index, self._offset, _CHUNK_BYTES
            )
            load_batches(self._machine, data, self._loaded)
        except (DecodeError, KafkaError, OSError) as error:
            self._host.replicas.refused(OFFSETS_TOPIC, partition.index, self._offset, _CHUNK_BYTES)
            partition.fail()
            emit(
                log,
                logging.ERROR,
                "coordinator-failed",
                partition=partition.index,
                offset=self._offset,
                reason=str(error),
            )
            return
        if next_offset > self._offset:
            self._offset = next_offset
            self._bytes += len(data)
            self._report()
            self._turns.soon(self._go_on)
            return
        regexes = [each for each in self._machine.regexes() if not self._topics.knows(each)]
        if regexes:
            self._matching = self._loop.create_task(self._match(regexes))
        else:
            self._finish()

    async def _match(self, regexes: list[str]) -> None:
        for regex in regexes:
            # Kafka may have accepted what is none here; its members will hear of it.
            with contextlib.suppress(KafkaError):
                await self._topics.prepare(regex)
        if not self.partition.closed:
            self._finish()

    def _finish(self) -> None:
        partition, machine, loaded = self.partition, self._machine, self._loaded
        if loaded.problem:
            log.error("%s: skipped %s", partition, loaded.problem)
        if loaded.records or loaded.skipped:
            emit(
                log,
                logging.INFO,
                "coordinator-loaded",
                partition=partition.index,
                epoch=partition.leader_epoch,
                seconds=self._loop.time() - self.started_s,
                records=loaded.records,
                skipped=loaded.skipped,
                groups=machine.groups_count,
                offsets=machine.offsets_count,
            )
        partition.take_on(machine, self._offset - 1)
        # Topics may also have gone while nobody coordinated. What the log has is older than this
        # leadership, so a topic that is not known here is no new one. One that was made again
        # meanwhile can't be told from the old one: the records name topics without their ids.
        gone = {topic for topic in machine.offsets.topics() if self._topics.find(topic) is None}
        for topic in sorted(gone | self.deleted_topics):
            partition.carry_out(machine.delete_topic(topic), partition.now_ms())

    def _report(self) -> None:
        """Says every few seconds how far a long load is."""
        now_s = self._loop.time()
        if now_s - self._reported_s < _REPORT_INTERVAL_S:
            return
        self._reported_s = now_s
        progress = self.progress
        log.info(
            "%s: loading, %.0f %% of %.0f MB: %d records, %d committed offsets so far",
            self.partition,
            progress.percent,
            progress.total_bytes / 1e6,
            progress.records,
            self._machine.offsets_count,
        )
