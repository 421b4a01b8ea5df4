"""Fetches of consumers that share partitions: of some, only the records with keys in their slices.

A partition of the request has its slices in KEY_RANGES_TAG, and its answer in SCANNED_OFFSET_TAG
how far it was looked through: the client goes on there, whether there were records for it or not.
(Without the tag nothing was looked through.) What is read is `server.replication.range_reads`'s.

Rules:

* Only while the feature COOPERATIVE_FEATURE is in use; else the tag is one that nobody knows. A
  topic without `accept.range.fetch` gets TOPIC_RANGE_FETCH_NOT_ALLOWED, slices that can't be are
  INVALID_REQUEST, and replicas, which need everything, may not name any.
* Progress is answered as records are. A fetch that has come to the end waits there, goes on where
  it stopped when there is more, and is answered when something was for it or its time is over.
* A session keeps a partition's slices; a request that names the partition anew says them anew.
* After LOOK_MAX_S a fetch begins with no further partition if it has something to answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from kraftpy.protocol.api import READ_COMMITTED
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
    KEY_RANGES_MAX,
    KEY_RANGES_TAG,
    SCANNED_OFFSET_TAG,
    decode_ranges,
    encode_int64,
)
from kraftpy.protocol.key_index import KeyRanges, checked_key_ranges
from kraftpy.protocol.messages import FetchResponse
from kraftpy.server.handlers.consumer_fetch import (
    AbortedTransaction,
    LongFetch,
    PartitionData,
    Result,
)
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.fetch_sessions import FetchPartition, Key
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.range_reads import RangeRead

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

LOOK_MAX_S: Final = 0.25


def note_key_ranges(
    broker: Broker, key: Key, tags: dict[int, bytes], found: dict[Key, bytes]
) -> KeyRanges | None:
    """Puts what says the slices of this partition, which has tags, into `found`.

    Returns None for all slices, as they aren't read yet.
    """
    content = tags.get(KEY_RANGES_TAG)
    if content is not None and broker.metadata.features.get(COOPERATIVE_FEATURE):
        found[key] = content
    return None


async def read_key_ranges(wanted: list[FetchPartition], found: dict[Key, bytes]) -> None:
    """Gives the partitions their slices; others have the loop in between.

    Raises INVALID_REQUEST.
    """
    pace = Pace()
    try:
        for each in wanted:
            content = found.get(each.key)
            if content is not None:
                each.key_ranges = checked_key_ranges(decode_ranges(content, KEY_RANGES_MAX))
                await pace.keep()
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


class RangeFetch(LongFetch):
    """A fetch in which at least one partition is wanted in part."""

    __slots__ = ("_answers", "_expired", "_ranged_bytes", "_reads", "_ready", "_until_s", "_woken")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # By partition: how far it was read, what its answer would be, how many bytes are ready.
        self._reads: dict[Key, RangeRead] = {}
        self._answers: dict[Key, FetchResponse.PartitionData] = {}
        self._ready: dict[Key, int] = {}
        self._ranged_bytes = 0
        self._woken: dict[Partition, None] = {}
        self._expired = self._wait_ms <= 0
        self._until_s = 0.0
        if self._session is not None:
            self._session.ranged = any(each.key_ranges is not None for each in self._partitions)

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
        self._size_bytes = self._ranged_bytes
        pace = Pace()
        for wanted in partitions:
            # First of all, so that whatever comes from this look on wakes the fetch.
            self._watch_one(wanted)
            self._ready_bytes -= self._ready.get(wanted.key, 0)
            before = self._ready_bytes
            if wanted.key_ranges is None:
                self._look(wanted)
            else:
                late = perf_counter() >= self._until_s and self._is_enough()
                await self._look_in_ranges(wanted, wanted.key_ranges, late=late)
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

    async def _look_in_ranges(
        self, wanted: FetchPartition, ranges: KeyRanges, *, late: bool
    ) -> None:
        """Reads on; if it is too late for that, only says how the partition is."""
        answer = self._answers[wanted.key] = PartitionData(wanted.index, records=[])
        try:
            partition = self._find(wanted)
            if not partition.config.accept_range_fetch:
                raise KafkaError(ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED)
            self._tell_watermarks(answer, partition)
            if self._rack and self._prefers_replica(partition, wanted, answer):
                return
            if self._diverges(partition, wanted, answer):
                return
            read = self._reads.get(wanted.key)
            if read is None:
                if late:
                    return
                partition.numbers.reads += 1
                limit = max(min(wanted.max_bytes, self._max_bytes - self._size_bytes), 0)
                read = self._reads[wanted.key] = RangeRead(ranges, wanted.fetch_offset, limit)
            if not late:
                await self._go_on(wanted, partition, read)
            self._tell(answer, wanted, partition, read)
        except KafkaError as failure:
            answer.error_code = failure.code
            answer.high_watermark = -1
            self._errors = True

    async def _go_on(self, wanted: FetchPartition, partition: Partition, read: RangeRead) -> None:
        committed = self._isolation == READ_COMMITTED
        upper = partition.last_stable_offset if committed else partition.high_watermark
        before = read.size_bytes
        try:
            await self._broker.replicas.range_reads.go_on(
                read, partition, upper, min_one=self._size_bytes == before, until_s=self._until_s
            )
        except KafkaError as failure:
            raise KafkaError(self._believable(failure.code, partition, wanted)) from failure
        self._size_bytes += read.size_bytes - before
        self._ranged_bytes += read.size_bytes - before
        self._ready_bytes += read.size_bytes
        if read.full:
            self._ready_bytes += self._min_bytes  # there is no use in waiting

    def _tell_watermarks(self, answer: FetchResponse.PartitionData, partition: Partition) -> None:
        answer.high_watermark = partition.high_watermark
        answer.last_stable_offset = partition.last_stable_offset
        answer.log_start_offset = partition.log.log_start_offset

    def _tell(
        self,
        answer: FetchResponse.PartitionData,
        wanted: FetchPartition,
        partition: Partition,
        read: RangeRead,
    ) -> None:
        answer.records = read.records
        if read.offset > wanted.fetch_offset:
            answer._tags = {SCANNED_OFFSET_TAG: encode_int64(read.offset)}
        if self._isolation == READ_COMMITTED:
            answer.aborted_transactions = [
                AbortedTransaction(aborted.producer_id, aborted.first_offset)
                for aborted in partition.log.aborted_transactions(wanted.fetch_offset, read.offset)
            ]

    # -- answering

    async def _gather_all(self) -> list[Result]:
        """What was found in ranges, and all else as it is by now."""
        self._size_bytes = self._ranged_bytes
        results: list[Result] = []
        pace = Pace()
        for wanted in self._partitions:
            if wanted.key_ranges is None:
                results.append(self._look(wanted))
            else:
                results.append((wanted, self._answers[wanted.key], 0))
            await pace.keep()
        return results
