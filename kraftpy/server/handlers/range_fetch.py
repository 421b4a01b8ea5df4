"""Fetches of consumers that share partitions: of some, only the records with keys in their slices.

A partition of the request has its slices in KEY_RANGES_TAG, and its answer in SCANNED_OFFSET_TAG
how far it was looked through: the client goes on there, whether there were records for it or not.
(Without the tag nothing was looked through.) What is read is `server.replication.range_reads`'s.

Rules:

* Only while the feature COOPERATIVE_FEATURE is in use; else the tag is one that nobody knows. A
  topic without `accept.range.fetch` gets TOPIC_RANGE_FETCH_NOT_ALLOWED, slices that can't be are
  INVALID_REQUEST, and replicas, which need everything, may not name any.
* Progress is answered as records are. How such a fetch waits is `opening_fetch`'s.
* A session keeps a partition's slices; a request that names the partition anew says them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from kraftpy.server.handlers.consumer_fetch import AbortedTransaction
from kraftpy.server.handlers.opening_fetch import OpeningFetch
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.fetch_sessions import FetchPartition, Key
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.range_reads import RangeRead

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker


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


class RangeFetch(OpeningFetch):
    """A fetch in which at least one partition is wanted in part."""

    __slots__ = ("_ranges", "_reads")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._reads: dict[Key, RangeRead] = {}
        # The session's next fetch, on another connection, may change them while this one waits.
        self._ranges: dict[Key, KeyRanges] = {
            each.key: each.key_ranges for each in self._partitions if each.key_ranges is not None
        }
        if self._session is not None:
            self._session.ranged = bool(self._ranges)

    def _opens(self, wanted: FetchPartition) -> bool:
        return wanted.key in self._ranges

    async def _read_on(
        self,
        wanted: FetchPartition,
        partition: Partition,
        answer: FetchResponse.PartitionData,
        *,
        late: bool,
    ) -> None:
        if not partition.config.accept_range_fetch:
            raise KafkaError(ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED)
        read = self._reads.get(wanted.key)
        if read is None:
            if late:
                return
            partition.numbers.reads += 1
            read = self._reads[wanted.key] = RangeRead(
                self._ranges[wanted.key], wanted.fetch_offset, 0
            )
        if not late:
            await self._go_on(wanted, partition, read)
        self._tell(answer, wanted, partition, read)

    async def _go_on(self, wanted: FetchPartition, partition: Partition, read: RangeRead) -> None:
        committed = self._isolation == READ_COMMITTED
        upper = partition.last_stable_offset if committed else partition.high_watermark
        before = read.size_bytes
        read.limit_bytes = self._limit_bytes(wanted, before)
        try:
            await self._broker.replicas.range_reads.go_on(
                read, partition, upper, min_one=self._size_bytes == before, until_s=self._until_s
            )
        except KafkaError as failure:
            raise KafkaError(self._believable(failure.code, partition, wanted)) from failure
        self._size_bytes += read.size_bytes - before
        self._opened_bytes += read.size_bytes - before
        self._ready_bytes += read.size_bytes
        if read.full:
            self._ready_bytes += self._min_bytes  # there is no use in waiting

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
