"""Cooperative fetches (seed 001): several members of a group have a partition, each some batches.

A request says whose it is in COOPERATION_TAG, and of each partition in DONE_TAG what of its leases
the member has claimed at the group's coordinator. An answer says in ACQUIRED_TAG what is the
member's now; the batches have more. What is dealt is `core.leases.claimed`'s.

Rules:

* Only while the feature COOPERATIVE_FEATURE is at 2; else the tag is one that nobody knows. A topic
  without `accept.range.fetch` gets TOPIC_RANGE_FETCH_NOT_ALLOWED, and what can't be said of a
  partition INVALID_REQUEST.
* The leader alone serves them, whoever is nearer. Replicas may not send any.
* What is said done is judged before anything is dealt, once. One offset that isn't the member's
  refuses all of the partition: INVALID_RECORD_STATE, past what was dealt INVALID_REQUEST.
* The offset that is asked for says what has arrived: leases at or above it come again.
* A fetch is answered with whatever there is: leases run. There are no sessions: the tag belongs to
  a whole request, and what is asked is said anew in each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from kraftpy.core.leases import Acquired
from kraftpy.protocol.api import READ_COMMITTED
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.extensions import (
    ACQUIRED_TAG,
    COOPERATION_TAG,
    DONE_MAX,
    DONE_TAG,
    KEY_RANGES_TAG,
    Cooperation,
    Range,
    decode_cooperation,
    decode_ranges,
    encode_ranges,
)
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.cluster.features import has_cooperative_fetches
from kraftpy.server.coordination.claimed_leases import LedClaims
from kraftpy.server.handlers.consumer_fetch import AbortedTransaction
from kraftpy.server.handlers.opening_fetch import OpeningFetch
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPartition,
    Key,
)
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

MEMBER_LENGTH_MAX = 1_000


def cooperation_of(broker: Broker, request: FetchRequest) -> Cooperation | None:
    """Whose this fetch is, if it is a cooperative one and there are such. Raises KafkaError."""
    content = None if request._tags is None else request._tags.get(COOPERATION_TAG)
    if content is None or not has_cooperative_fetches(broker.metadata):
        return None
    try:
        found = decode_cooperation(content)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if not 1 <= len(found.member) <= MEMBER_LENGTH_MAX or found.generation < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if not found.group:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    longest_ms = broker.config.group_max_session_timeout_ms
    if not 1 <= found.session_timeout_ms <= longest_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    return found


class CooperativeFetch(OpeningFetch):
    """A fetch of a member that shares its partitions with others."""

    __slots__ = ("_came", "_cooperation", "_dealt", "_done", "_places", "_tables")

    def __init__(
        self,
        broker: Broker,
        ctx: RequestContext,
        request: FetchRequest,
        wanted: list[FetchPartition],
        by_id: bool,
        cooperation: Cooperation,
        done: dict[Key, list[Range]],
    ) -> None:
        super().__init__(broker, ctx, request, None, wanted, False, by_id)
        self._from_followers = False
        self._rack = ""
        self._min_bytes = min(self._min_bytes, 1)
        self._cooperation = cooperation
        self._done = done
        self._tables: dict[Key, LedClaims] = {}
        self._places: dict[LedClaims, Partition] = {}
        self._came: dict[LedClaims, int] = {}  # how often each had read then
        self._dealt: list[tuple[LedClaims, list[Acquired]]] = []

    def _opens(self, wanted: FetchPartition) -> bool:
        return True

    # -- waiting

    def _wake_for(self, table: LedClaims) -> None:
        self._wake(self._places[table])

    def _unwatch(self, _: object) -> None:
        super()._unwatch(None)
        for table in self._places:
            table.fetches.remove(self._wake_for)

    def _table(self, key: Key, partition: Partition) -> LedClaims:
        table = self._tables.get(key)
        if table is None:
            table = self._broker.leases.claimed.table(self._cooperation.group, partition)
            table.fetches.add(self._wake_for)
            self._tables[key] = table
            self._places[table] = partition
            self._came[table] = table.reads
        return table

    # -- looking

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
        table = self._table(wanted.key, partition)
        if table.closed is not None:
            raise KafkaError(table.closed)
        may_have = table.enter(self._cooperation, self._came[table])
        acquired: list[Acquired] = []
        if may_have and not late:
            table.done(self._cooperation.member, self._done.pop(wanted.key, ()))
            acquired = self._lease(wanted, partition, table, answer)
        ranges = [each[:2] for each in acquired]
        answer._tags = {ACQUIRED_TAG: encode_ranges(ranges)}

    def _lease(
        self,
        wanted: FetchPartition,
        partition: Partition,
        table: LedClaims,
        answer: FetchResponse.PartitionData,
    ) -> list[Acquired]:
        committed = self._isolation == READ_COMMITTED
        dealt = table.lease(
            self._cooperation,
            wanted.fetch_offset,
            max(min(wanted.max_bytes, self._max_bytes - self._size_bytes), 0),
            partition.last_stable_offset if committed else partition.high_watermark,
            min_one=not self._size_bytes,
        )
        acquired = dealt.acquired
        if acquired:
            self._dealt.append((table, acquired))
            answer.records = dealt.records
            self._size_bytes += dealt.size_bytes
            self._opened_bytes += dealt.size_bytes
            self._ready_bytes += max(dealt.size_bytes, 1)
            if committed:
                first, end = acquired[0].first, acquired[-1].last + 1
                answer.aborted_transactions = [
                    AbortedTransaction(aborted.producer_id, aborted.first_offset)
                    for aborted in partition.log.aborted_transactions(
                        max(first, partition.log.log_start_offset), end
                    )
                ]
        return acquired

    # -- answering

    def _nothing(self) -> FetchResponse:
        for table, acquired in self._dealt:
            table.take_back(self._cooperation.member, acquired)
        return FetchResponse()


async def fetch_cooperatively(
    broker: Broker,
    ctx: RequestContext,
    request: FetchRequest,
    cooperation: Cooperation,
    topics: AsyncIterator[list[FetchRequest.FetchTopic]],
    by_id: bool,
    kind: type[CooperativeFetch],
) -> FetchResponse:
    """Leases what there is; waits if that is nothing."""
    try:
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_id:
            broker.fetch_sessions.close(request.session_id)
        done: dict[Key, list[Range]] = {}
        once: dict[Key, FetchPartition] = {}
        pace = Pace()
        async for some in topics:
            for topic in some:
                name = topic.topic_id if by_id else topic.topic
                for each in topic.partitions:
                    key = name, each.partition
                    once[key] = _wanted(name, each)
                    done[key] = _done(each)
                    await pace.keep()
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    fetch = kind(broker, ctx, request, list(once.values()), by_id, cooperation, done)
    return await fetch.run()


def _wanted(name: str | bytes, each: FetchRequest.FetchPartition) -> FetchPartition:
    # Which epochs it has read of it, nobody knows: it has read what it was dealt.
    return FetchPartition(
        name,
        each.partition,
        each.fetch_offset,
        each.partition_max_bytes,
        each.current_leader_epoch,
        -1,
    )


def _done(each: FetchRequest.FetchPartition) -> list[Range]:
    tags: dict[int, Any] = each._tags or {}
    if KEY_RANGES_TAG in tags:
        raise KafkaError(ErrorCode.INVALID_REQUEST)  # a batch can't be both
    content = tags.get(DONE_TAG)
    try:
        return [] if content is None else decode_ranges(content, DONE_MAX)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
