"""Fetches whose answers are known only when batches have been opened, of some partitions or all.

`range_fetch` and `converted_fetch` are the two. Rules:

* A fetch that has come to the end waits there, goes on where it stopped when there is more, and is
  answered when something was for it or its time is over.
* What is found of all partitions together, whenever it came, is within the client's limit.
* After LOOK_MAX_S a fetch begins with no further partition if it has something to answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final

from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages import FetchResponse
from kraftpy.server.handlers.consumer_fetch import LongFetch, PartitionData, Result
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.fetch_sessions import FetchPartition, Key
from kraftpy.server.replication.partition import Partition

LOOK_MAX_S: Final = 0.25


class OpeningFetch(LongFetch):
    """A fetch in which at least one partition's batches are opened."""

    __slots__ = ("_answers", "_expired", "_opened_bytes", "_ready", "_until_s", "_woken")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # By partition: what its answer would be, how many bytes are ready.
        self._answers: dict[Key, FetchResponse.PartitionData] = {}
        self._ready: dict[Key, int] = {}
        self._opened_bytes = 0
        self._woken: dict[Partition, None] = {}
        self._expired = self._wait_ms <= 0
        self._until_s = 0.0

    @abstractmethod
    def _opens(self, wanted: FetchPartition) -> bool:
        """Whether this partition's batches are opened."""

    @abstractmethod
    async def _read_on(
        self,
        wanted: FetchPartition,
        partition: Partition,
        answer: FetchResponse.PartitionData,
        *,
        late: bool,
    ) -> None:
        """Reads on and puts all that was found into `answer`; if it is `late`, only the latter.

        Counts in `_size_bytes`, `_opened_bytes` and `_ready_bytes`. Raises KafkaError.
        """

    async def run(self) -> FetchResponse:
        """Looks at everything, then again at what has changed until there is enough."""
        self._enough = self._broker.loop.create_future()
        try:
            if not self._expired:
                self._timer = self._wait_for(self._expire)
            await self._look_at(self._partitions)
            while not (self._expired or self._is_enough()):
                if not self._woken:
                    self._enough = self._broker.loop.create_future()
                    await self._enough
                woken = [self._watched[partition][0] for partition in self._woken]
                self._woken.clear()
                await self._look_at(woken)
            return await self._respond_all(await self._gather_all())
        finally:
            self._unwatch(None)

    def _wake(self, partition: Partition) -> None:
        self._woken[partition] = None
        self._stop_waiting()

    def _expire(self) -> None:
        self._expired = True
        self._stop_waiting()

    # -- looking

    async def _look_at(self, partitions: Iterable[FetchPartition]) -> None:
        self._until_s = perf_counter() + LOOK_MAX_S
        self._size_bytes = self._opened_bytes
        pace = Pace()
        for wanted in partitions:
            # First of all, so that whatever comes from this look on wakes the fetch.
            self._watch_one(wanted)
            self._ready_bytes -= self._ready.get(wanted.key, 0)
            before = self._ready_bytes
            if self._opens(wanted):
                await self._look_inside(wanted)
            else:
                self._look(wanted)
            self._ready[wanted.key] = self._ready_bytes - before
            await pace.keep()

    def _watch_one(self, wanted: FetchPartition) -> None:
        try:
            partition = self._find(wanted)
        except KafkaError:
            return  # the look says so
        watched = self._watched.get(partition)
        if watched is not None and watched[2] is not partition.leadership:
            self._deposed.add(partition)
        elif watched is None and not self._expired:
            partition.fetches.add(self._wake)
            self._watched[partition] = wanted, 0, partition.leadership

    async def _look_inside(self, wanted: FetchPartition) -> None:
        late = perf_counter() >= self._until_s and self._is_enough()
        answer = self._answers[wanted.key] = PartitionData(wanted.index, records=[])
        try:
            partition = self._find(wanted)
            answer.high_watermark = partition.high_watermark
            answer.last_stable_offset = partition.last_stable_offset
            answer.log_start_offset = partition.log.log_start_offset
            if self._rack and self._prefers_replica(partition, wanted, answer):
                return
            if self._diverges(partition, wanted, answer):
                return
            await self._read_on(wanted, partition, answer, late=late)
        except KafkaError as failure:
            answer.error_code = failure.code
            answer.high_watermark = -1
            self._errors = True

    def _limit_bytes(self, wanted: FetchPartition, found_bytes: int) -> int:
        """How much there may be of a partition, of which so much was found.

        It's less each time that more was found of others, since when all began there was nothing.
        """
        left = self._max_bytes - self._size_bytes + found_bytes
        return max(min(wanted.max_bytes, left), 0)

    # -- answering

    async def _gather_all(self) -> list[Result]:
        """What was found in batches, and all else as it is by now."""
        self._size_bytes = self._opened_bytes
        results: list[Result] = []
        pace = Pace()
        for wanted in self._partitions:
            if self._opens(wanted):
                results.append((wanted, self._answers[wanted.key], 0))
            else:
                results.append(self._look(wanted))
            await pace.keep()
        return results
