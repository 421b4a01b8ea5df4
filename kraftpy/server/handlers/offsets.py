"""ListOffsets, OffsetForLeaderEpoch (KIP-320), DeleteRecords (KIP-107).

ListOffsets: -1 the next offset to be written that a consumer of the given isolation may read, -2
the log start offset, -3 the offset of the record with the largest timestamp (KIP-734), else the
first record at or after a time. What KIP-405, KIP-1005 and KIP-1023 ask of tiered storage is
answered as Kafka does without: -4 the log start offset; -5 and -6 that there is none.

Version 0 is that of clients before KIP-79 (`getOffsetsBefore`, seed 004): valid offsets before a
time, the latest first. Its answer begins with the same offset; behind it come the starts of the
segments before that one, the log's start last, as many as were asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Generator
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.api import READ_COMMITTED, ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.reserved_topics import refuse_deletion_of_records
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, at_once, in_slices
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.timestamp_search import finish_search
from kraftpy.storage.readable_log import TimestampOffset

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
FIRST_VERSION_OF_POSITION = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
UNKNOWN = -1
FIRST_VERSION_WITH_NOT_AVAILABLE = 5

Wanted = ListOffsetsRequest.ListOffsetsPartition
Listed = ListOffsetsResponse.ListOffsetsPartitionResponse
# What searches by time came to, by topic and partition.
Found = dict[tuple[str, int], TimestampOffset | KafkaError | None]


@handles(ApiKey.LIST_OFFSETS, long=True)
def list_offsets(
    broker: Broker, ctx: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Offsets by timestamp or position; one that is named twice is refused."""
    sorting = _sorted_out(request)

    async def search() -> ListOffsetsResponse:
        asked = await in_slices(sorting) if ctx.many else few
        return _answer(broker, ctx, request, asked, await _search_all(broker, asked.searched))

    if not ctx.many:
        few = at_once(sorting)
        if not few.searched:
            return _answer(broker, ctx, request, few, {})
    return search()


class _Asked(NamedTuple):
    """What is wanted by topic and partition, what was named twice, what takes a search by time."""

    wanted: dict[str, dict[int, Wanted]]
    twice: set[tuple[str, int]]
    searched: list[tuple[str, Wanted]]


def _sorted_out(request: ListOffsetsRequest) -> Generator[None, None, _Asked]:
    asked = _Asked({}, set(), [])
    for topic in request.topics:
        yield
        partitions = asked.wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            if partitions.setdefault(each.partition_index, each) is not each:
                asked.twice.add((topic.name, each.partition_index))
            yield
    for name, partitions in asked.wanted.items():
        for each in partitions.values():
            if _is_searched(each) and (name, each.partition_index) not in asked.twice:
                asked.searched.append((name, each))
            yield
    return asked


def _answer(
    broker: Broker, ctx: RequestContext, request: ListOffsetsRequest, asked: _Asked, found: Found
) -> ListOffsetsResponse:
    isolation, version = request.isolation_level, ctx.api_version

    def of_topic(
        item: tuple[str, dict[int, Wanted]],
    ) -> ListOffsetsResponse.ListOffsetsTopicResponse:
        name, partitions = item

        def of_partition(wanted: Wanted) -> Listed:
            if (name, wanted.partition_index) in asked.twice:
                return _refuse(wanted)
            return _list_offset(broker, version, isolation, name, wanted, found)

        answers = elements(list(partitions.values()), of_partition, ctx, _refuse)
        return ListOffsetsResponse.ListOffsetsTopicResponse(name, answers)

    return ListOffsetsResponse(topics=elements(list(asked.wanted.items()), of_topic))


def _refuse(wanted: Wanted) -> Listed:
    """It is in the request twice, or doesn't fit into the answer."""
    return Listed(wanted.partition_index, ErrorCode.INVALID_REQUEST)


def _is_searched(wanted: Wanted) -> bool:
    """Whether batches have to be looked into."""
    return wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP


async def _search_all(broker: Broker, searched: list[tuple[str, Wanted]]) -> Found:
    """In slices; batches that take long are opened in another process."""
    found: Found = {}
    for topic, wanted in searched:
        key = topic, wanted.partition_index
        try:
            partition = broker.led_partition(*key, wanted.current_leader_epoch)
            log = partition.log
            newest = wanted.timestamp == MAX_TIMESTAMP
            search = (
                log.search_max_timestamp() if newest else log.search_timestamp(wanted.timestamp)
            )
            found[key] = await finish_search(search, partition, broker.opener)
        except KafkaError as error:
            found[key] = error
    return found


def _list_offset(
    broker: Broker, version: int, isolation: int, topic: str, wanted: Wanted, found: Found
) -> Listed:
    answer = Listed(wanted.partition_index)
    try:
        partition = broker.led_partition(topic, wanted.partition_index, wanted.current_leader_epoch)
        if version < FIRST_VERSION_OF_POSITION.get(wanted.timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        sought = found.get((topic, wanted.partition_index))
        if isinstance(sought, KafkaError):
            raise sought
        _find_offset(partition, wanted.timestamp, isolation, answer, sought)
        if version == 0:
            answer.old_style_offsets = _offsets_before(partition, wanted, answer.offset)
    except KafkaError as error:
        answer.error_code = error.code
        if (
            error.code is ErrorCode.OFFSET_NOT_AVAILABLE
            and version < FIRST_VERSION_WITH_NOT_AVAILABLE
        ):
            answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return answer


def _find_offset(
    partition: Partition,
    timestamp: int,
    isolation: int,
    answer: Listed,
    sought: TimestampOffset | None,
) -> None:
    """`sought`: what a search by time came to."""
    log = partition.log
    committed = isolation == READ_COMMITTED
    end_offset = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == LATEST:
        found: TimestampOffset | None = log.latest_offset(end_offset)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.timestamp, answer.offset, answer.leader_epoch = log.earliest_offset()
        return
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return  # nothing is kept anywhere else, and nothing is about to be
    elif timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        found = sought if sought is not None and sought.offset < end_offset else None
    else:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing here")
    if found is None or timestamp == LATEST:
        # A new leader's high watermark may be behind: no answer that goes back later (rule 9).
        partition.check_settled()
    if found is not None:
        answer.timestamp, answer.offset, answer.leader_epoch = found


def _offsets_before(partition: Partition, wanted: Wanted, found: int) -> list[int]:
    """Up to `max_num_offsets`; where no record is as young as was asked for, all are before it."""
    latest = partition.high_watermark if found == UNKNOWN else found
    count = max(wanted.max_num_offsets, 0)
    return [latest, *partition.log.starts_before(latest, count)][:count]


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, long=True)
async def offset_for_leader_epoch(
    broker: Broker, ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """The end offset of the largest epoch at or below the one asked for (KIP-101, KIP-279).

    A partition that is named more than once is answered once, as Kafka does.
    """
    wanted: dict[str, dict[int, OffsetForLeaderEpochRequest.OffsetForLeaderPartition]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        partitions = wanted.setdefault(topic.topic, {})
        for each in topic.partitions:
            partitions[each.partition] = each
            await pace.keep()
    return OffsetForLeaderEpochResponse(
        topics=elements(list(wanted.items()), partial(_epoch_ends, broker))
    )


def _epoch_ends(
    broker: Broker,
    wanted: tuple[str, dict[int, OffsetForLeaderEpochRequest.OffsetForLeaderPartition]],
) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult:
    topic, partitions = wanted
    return OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
        topic, elements(list(partitions.values()), partial(_epoch_end, broker, topic))
    )


def _epoch_end(
    broker: Broker, topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    answer = OffsetForLeaderEpochResponse.EpochEndOffset(
        partition=wanted.partition, leader_epoch=UNKNOWN, end_offset=UNKNOWN
    )
    try:
        partition = broker.led_partition(topic, wanted.partition, wanted.current_leader_epoch)
    except KafkaError as error:
        answer.error_code = error.code
    else:
        answer.leader_epoch, answer.end_offset = partition.log.end_offset_for_epoch(
            wanted.leader_epoch
        )
    return answer


@handles(ApiKey.DELETE_RECORDS, long=True)
async def delete_records(
    broker: Broker, ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Moves log start offsets up, on all replicas that are up; -1 means the high watermark.

    Of a partition that is named more than once the last offset counts, as in Kafka.
    """
    response = DeleteRecordsResponse()
    waiting: list[tuple[DeleteRecordsResponse.DeleteRecordsPartitionResult, Partition, int]] = []
    wanted: dict[str, dict[int, int]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        offsets = wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            offsets[each.partition_index] = each.offset
            await pace.keep()
    for name, offsets in wanted.items():
        answers = []
        refusal = refuse_deletion_of_records(name)
        for index, offset in offsets.items():
            answer = DeleteRecordsResponse.DeleteRecordsPartitionResult(
                index, low_watermark=UNKNOWN
            )
            answers.append(answer)
            try:
                if refusal is not None:
                    raise KafkaError(*refusal)
                partition = broker.led_partition(name, index)
                target = _delete_before(partition, offset)
            except KafkaError as error:
                answer.error_code = error.code
            else:
                waiting.append((answer, partition, target))
                # Each deletion is durable before it is answered: give others the loop in between.
                await asyncio.sleep(0)
            await pace.keep()
        response.topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name, answers))
    deadline_s = broker.loop.time() + request.timeout_ms / 1000
    for answer, partition, target in waiting:
        await pace.keep()
        await _wait_for_replicas(partition, target, deadline_s)
        answer.low_watermark = partition.low_watermark
        if partition.leadership is None:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif answer.low_watermark < target:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
    return response


async def _wait_for_replicas(partition: Partition, target: int, deadline_s: float) -> None:
    """Returns when no replica has records below `target` any more, or at the deadline."""
    done = asyncio.Event()
    partition.when_deleted(target, lambda _: done.set())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline_s):
            await done.wait()


def _delete_before(partition: Partition, offset: int) -> int:
    policy = partition.config.cleanup_policy
    if "delete" not in policy and policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{partition.topic} has cleanup.policy={','.join(sorted(policy))}; "
            "records can be deleted with cleanup.policy=delete only",
        )
    target = partition.high_watermark if offset == -1 else offset
    if not 0 <= target <= partition.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside 0..{partition.high_watermark} (the high watermark)",
        )
    partition.delete_records_before(target)
    return target
