"""What requests and time do to committed offsets: commit, delete, expire.

Rules:

* The map holds committed records only: it changes in `replay` and nowhere else, so a fetch never
  sees a commit that could still fail, and a failed append changes nothing.
* One OffsetCommit is one write, whole or not at all. Partitions refused on their own account
  (unknown, metadata too large, not the expected offset) are not part of it in Kafka. With
  `ALL_OR_NONE_TAG` they keep the others from being written ("it should not be possible for some to
  get saved and some not", seed 000), and so they do where a condition is named.
* A commit may name the offset that it expects to replace (an extension, the optimistic locking of
  seed 000's open questions). It is refused, too, while another commit of the partition is in
  flight, or in an open transaction, whose fate nobody knows yet: of two with one expectation one at
  most succeeds.
* An offset is 0 or more, or -1 or -2: kafkajs commits those to begin at the log's end or its start.
* Every commit is checked against the group's generation (rule 34). A commit from outside
  (generation -1, no member) is for groups without members only.
* What goes into the log after a write in flight must know of that write: a tombstone for a group
  covers the offsets in flight, and an expiry leaves the group alone until they have landed. So it
  is with what open transactions have committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from kraftpy.core.coordination import TOO_LARGE, write_error
from kraftpy.core.groups.config import GroupConfig
from kraftpy.core.groups.consumer.offset_rules import check_commit
from kraftpy.core.groups.consumer.service import ConsumerGroups
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.expectations import Expectations, undecided
from kraftpy.core.groups.group import Group, GroupState
from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import PendingOffsets
from kraftpy.core.groups.rebalance import Rebalance
from kraftpy.core.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    too_long,
)
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, EXPECTED_OFFSET_TAG, NO
from kraftpy.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from kraftpy.protocol.schema import ZERO_UUID

log = logging.getLogger(__name__)

# Tombstones go out in batches of this many and this size, roughly: a batch must stay below
# max.message.bytes.
_TOMBSTONES_PER_BATCH = 1_000
_TOMBSTONES_BATCH_BYTES = 500_000
_TOMBSTONE_BYTES = 300  # and the group's id

# The latest time that a record can hold.
_INT64_MAX = 2**63 - 1

_FIRST_WITH_GROUP_ID_NOT_FOUND = 9

PartitionsOf = Callable[[str], Collection[int]]

_LEAST_OFFSET = -2  # the log's start, as clients name it

_COLUMNS = attrgetter(
    "partition_index",
    "committed_offset",
    "committed_leader_epoch",
    "committed_metadata",
    "_tags",
)

_TOPICS_MANY = 1_000

_Topic = OffsetCommitRequest.OffsetCommitRequestTopic
_Judged = tuple[OffsetCommitResponse, Sequence[OffsetRecord]]
_TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic
_PartitionAnswer = OffsetCommitResponse.OffsetCommitResponsePartition


class _Usage(NamedTuple):
    """What keeps a group's offsets: `read` are the topics that members read, None for all.

    `is_empty` says that it is a group without members, `empty_since_ms` since when (-1: the commit
    counts).
    """

    is_empty: bool
    read: set[str] | None
    empty_since_ms: int


class Commits:
    """The offsets of the groups of one partition of the offsets topic."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, Group],
        offsets: OffsetMap,
        pending: PendingOffsets,
        rebalance: Rebalance,
        consumers: ConsumerGroups,
        outbox: Outbox,
    ) -> None:
        self._config = config
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._pending = pending
        self._rebalance = rebalance
        self._out = outbox

    # -- OffsetCommit

    def commit(
        self,
        token: object,
        request: OffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        api_version: int,
        topics: Topics,
    ) -> None:
        """An OffsetCommit: answered once its batch is committed.

        Topics have names, also where the request named ids; "" if nobody knows the id.
        """
        group = self._groups.get(request.group_id)
        consumer = self._consumers.groups.get(request.group_id)
        if self._consumers.is_dying(request.group_id):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif consumer is not None:
            error = check_commit(consumer, request, api_version, topics)
        else:
            error = _check_commit(group, request, api_version)
        if error is not ErrorCode.NONE:
            self._out.reply(token, commit_error_response(request, error))
            return
        if group is not None:
            member = group.members.get(request.member_id)
            if member is not None:
                self._rebalance.touch(member, now_ms)
        judged = _judge_at_once(request, partitions_of, now_ms)
        response, records = judged or self._judge(request, partitions_of, now_ms)
        if not records:
            self._out.reply(token, response)
            return

        def committed(now_ms: int) -> None:
            self._out.reply(token, response)

        def failed(error: ErrorCode, now_ms: int) -> None:
            self._out.reply(token, _withdraw(response, commit_error(error)))

        self._out.write(records, (request.group_id,), committed, failed)

    def _judge(
        self, request: OffsetCommitRequest, partitions_of: PartitionsOf, now_ms: int
    ) -> _Judged:
        """The answer if all goes well, and the records to write.

        Nobody else has the loop meanwhile: to make an answer for each of very many topics that
        aren't there would take several times as long as to find that out, so it's done later.
        """
        is_long = len(request.topics) > _TOPICS_MANY
        retention_ms = request.retention_time_ms
        expire_ms = NO_TIMESTAMP if retention_ms < 0 else min(now_ms + retention_ms, _INT64_MAX)
        response = OffsetCommitResponse()
        records: list[OffsetRecord] = []
        group_id = request.group_id
        expectations = Expectations(self._offsets, self._pending, self._out, group_id, records)
        unknown: list[_Topic] = []
        refused = False
        for topic in request.topics:
            name = topic.name
            known = partitions_of(name)
            if is_long and not known:
                unknown.append(topic)
                continue
            answers = []
            for partition in topic.partitions:
                index = partition.partition_index
                metadata = partition.committed_metadata or ""
                error = ErrorCode.NONE
                if index not in known:
                    error = _unknown(topic)
                elif reason := refusal(partition.committed_offset, metadata, self._config):
                    error = reason
                elif partition._tags and EXPECTED_OFFSET_TAG in partition._tags:
                    error = expectations.check(name, index, partition._tags[EXPECTED_OFFSET_TAG])
                if error is ErrorCode.NONE:
                    committed = CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        now_ms,
                        expire_ms,
                    )
                    records.append(OffsetRecord(group_id, name, index, committed))
                else:
                    refused = True
                answers.append(_PartitionAnswer(index, error))
            response.topics.append(_TopicAnswer(name, topic.topic_id, answers))
        if unknown:
            refused = True
            topics: list[_Topic | _TopicAnswer] = [*response.topics, *unknown]
            response.topics = elements(topics, _answered)
        if refused and _all_or_none(request, is_conditional=expectations.named):
            return _withdraw(response, ErrorCode.OPERATION_NOT_ATTEMPTED), []
        return response, records

    # -- deleting

    def delete_offsets(
        self,
        token: object,
        request: OffsetDeleteRequest,
        partitions_of: PartitionsOf,
    ) -> None:
        """An OffsetDelete (KIP-496): not for topics that the group still consumes."""
        group_id = request.group_id
        group = self._groups.get(group_id) or self._consumers.groups.get(group_id)
        error = self._check_delete_offsets(group_id, group)
        if error is not ErrorCode.NONE:
            self._out.reply(token, OffsetDeleteResponse(error_code=error))
            return
        read: set[str] | None = set()
        if isinstance(group, ConsumerGroup) or (group is not None and group.uses_consumer_protocol):
            read = group.subscribed_topics()
        in_doubt = undecided(self._out, self._pending, group_id)
        response = OffsetDeleteResponse()
        records: list[CoordinatorRecord] = []
        for topic in request.topics:
            is_subscribed = read is None or topic.name in read
            known = partitions_of(topic.name)
            answers = []
            for partition in topic.partitions:
                index = partition.partition_index
                error = ErrorCode.NONE
                if index not in known:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif is_subscribed:
                    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif (
                    self._offsets.get(group_id, topic.name, index) is not None
                    or (topic.name, index) in in_doubt
                ):
                    records.append(OffsetRecord(group_id, topic.name, index, None))
                answers.append(OffsetDeleteResponse.OffsetDeleteResponsePartition(index, error))
            response.topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(topic.name, answers)
            )
        if not records:
            self._out.reply(token, response)
            return
        self._out.write(
            records,
            (group_id,),
            lambda now_ms: self._out.reply(token, response),
            lambda error, now_ms: self._out.reply(
                token, OffsetDeleteResponse(error_code=commit_error(error))
            ),
        )

    def _check_delete_offsets(
        self, group_id: str, group: Group | ConsumerGroup | None
    ) -> ErrorCode:
        if group is None:
            known = self._has_offsets(group_id) or self._out.in_flight(group_id)
            return ErrorCode.NONE if known else ErrorCode.GROUP_ID_NOT_FOUND
        if isinstance(group, ConsumerGroup):
            dying = self._consumers.is_dying(group_id)
            return ErrorCode.GROUP_ID_NOT_FOUND if dying else ErrorCode.NONE
        if group.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    def delete_group(self, group_id: str, now_ms: int, done: Callable[[ErrorCode], None]) -> None:
        """Deletes a group and its offsets; `done` hears of the end, which may be at once.

        NONE, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, or why the deletion could not be recorded.
        """
        if self._consumers.holds(group_id):
            self._consumers.submit(
                group_id, lambda now_ms: self._delete_group(group_id, now_ms, done), done, now_ms
            )
        else:
            self._delete_group(group_id, now_ms, done)

    def _delete_group(self, group_id: str, now_ms: int, done: Callable[[ErrorCode], None]) -> None:
        consumer = self._consumers.groups.get(group_id)
        group = self._groups.get(group_id)
        is_known = consumer is not None or self._has_offsets(group_id)
        if group is not None:
            is_known = group.state is not GroupState.DEAD
        elif not is_known:
            is_known = bool(self._out.in_flight(group_id))
        if not is_known:
            done(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if (consumer is not None and consumer.members) or (
            group is not None and group.state is not GroupState.EMPTY
        ):
            done(ErrorCode.NON_EMPTY_GROUP)
            return
        partitions = dict.fromkeys(self._offsets.partitions_of(group_id))
        partitions.update(dict.fromkeys(undecided(self._out, self._pending, group_id)))
        self._bury(group_id, list(partitions), now_ms, done)

    def _has_offsets(self, group_id: str) -> bool:
        return group_id in self._offsets or group_id in self._pending

    def delete_topic(self, topic: str) -> None:
        """Writes tombstones for all that was committed for a topic, or is about to be."""
        places = dict.fromkeys(
            (group_id, index)
            for group_id in self._offsets.groups_reading(topic)
            for index in self._offsets.partitions_of_topic(group_id, topic)
        )
        places.update(dict.fromkeys(self._pending.places_of_topic(topic)))
        for write in self._out.all_in_flight():
            for record in write.records:
                if isinstance(record, OffsetRecord) and record.topic == topic:
                    places[record.group_id, record.partition] = None
        self._write_tombstones([OffsetRecord(group, topic, index, None) for group, index in places])

    def _bury(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        now_ms: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Writes tombstones for these offsets and, in the last batch, for the empty group."""
        records = [OffsetRecord(group_id, topic, index, None) for topic, index in partitions]
        *_, last = [(), *_batches(records)]
        tombstones: list[CoordinatorRecord] = [*last]
        self._write_tombstones(records[: len(records) - len(last)])
        if group_id in self._consumers.groups:
            self._consumers.bury(group_id, tombstones, lambda error: done(commit_error(error)))
            return
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, now_ms)
        self._rebalance.forget(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group.transition_to(GroupState.DEAD, now_ms)

        def failed(error: ErrorCode, now_ms: int) -> None:
            if group.state is GroupState.DEAD:
                group.transition_to(GroupState.EMPTY, now_ms)
            done(commit_error(error))

        tombstones.append(GroupRecord(group_id, None))
        self._out.write(tombstones, (group_id,), lambda now_ms: done(ErrorCode.NONE), failed)

    def _write_tombstones(self, tombstones: Sequence[OffsetRecord]) -> None:
        """Of any groups: a topic may have been read by very many."""
        for batch in _batches(tombstones):

            def failed(error: ErrorCode, now_ms: int, first: OffsetRecord = batch[0]) -> None:
                log.warning(
                    "the offsets of group %r, topic %r and others could not be deleted: %s",
                    first.group_id,
                    first.topic,
                    error.name,
                )

            group_ids = tuple(dict.fromkeys(record.group_id for record in batch))
            self._out.write(batch, group_ids, lambda now_ms: None, failed)

    # -- expiry

    def expire(self, group_id: str, now_ms: int) -> int:
        """Writes tombstones for what has expired; gives how many offsets that is.

        The clock (`offsets.retention.minutes`) starts when the group becomes empty; for groups that
        only keep offsets, and for topics that a live group no longer reads, with the commit
        (KIP-211). An empty group without offsets goes too.
        """
        if self._out.in_flight(group_id):
            return 0
        group = self._groups.get(group_id)
        if group is not None and (group.state is GroupState.DEAD or group.pending):
            return 0
        usage = self._usage(group_id)
        if not usage.is_empty and self._all_are_young(group_id, now_ms):
            return 0
        expired = []
        pending = self._pending.places_of(group_id)
        kept = bool(pending)
        for topic, partition, committed in self._offsets.of_group(group_id):
            if (topic, partition) not in pending and self._is_expired(
                usage, topic, committed, now_ms
            ):
                expired.append((topic, partition))
            else:
                kept = True
        if usage.is_empty and not kept:
            self._bury(group_id, expired, now_ms, lambda error: None)
        else:
            self._write_tombstones([OffsetRecord(group_id, *each, None) for each in expired])
        return len(expired)

    def _usage(self, group_id: str) -> _Usage:
        consumer = self._consumers.groups.get(group_id)
        if consumer is not None:
            if consumer.members:
                return _Usage(False, consumer.subscribed_topics(), NO_TIMESTAMP)
            return _Usage(True, set(), consumer.empty_since_ms)
        group = self._groups.get(group_id)
        if group is None:
            return _Usage(False, set(), NO_TIMESTAMP)
        is_empty = group.state is GroupState.EMPTY
        if group.protocol_type is None:
            return _Usage(is_empty, set(), NO_TIMESTAMP)
        if is_empty:
            return _Usage(True, set(), group.state_timestamp_ms)
        read = group.subscribed_topics() if group.state is GroupState.STABLE else None
        return _Usage(False, read, NO_TIMESTAMP)

    def _all_are_young(self, group_id: str, now_ms: int) -> bool:
        """Whether no offset can have expired, told without a look at each."""
        oldest_ms = self._offsets.oldest_ms(group_id)
        return oldest_ms is not None and now_ms - oldest_ms < self._config.offsets_retention_ms

    def _is_expired(
        self, usage: _Usage, topic: str, committed: CommittedOffset, now_ms: int
    ) -> bool:
        if usage.read is None or topic in usage.read:
            return False
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            return now_ms >= committed.expire_timestamp_ms
        since_ms = committed.commit_timestamp_ms
        if usage.empty_since_ms != NO_TIMESTAMP:
            # Somebody may have set an offset of the empty group since.
            since_ms = max(since_ms, usage.empty_since_ms)
        return now_ms - since_ms >= self._config.offsets_retention_ms


def _judge_at_once(
    request: OffsetCommitRequest, partitions_of: PartitionsOf, now_ms: int
) -> _Judged | None:
    """What `_judge` says of a request that asks for nothing special and is in order; else None.

    Nearly all commits are such; here nothing is done for each partition but in columns.
    """
    if request.retention_time_ms >= 0:
        return None
    response = OffsetCommitResponse()
    runs = []
    for topic in request.topics:
        if not topic.partitions:
            return None
        name = topic.name
        columns = zip(*map(_COLUMNS, topic.partitions), strict=True)
        indexes, offsets, epochs, metadata, tags = columns
        if any(metadata) or any(tags) or min(offsets) < _LEAST_OFFSET:
            return None
        if not all(map(partitions_of(name).__contains__, indexes)):
            return None
        times_ms = (now_ms,) * len(indexes)
        runs.append(OffsetRun(request.group_id, name, indexes, offsets, epochs, times_ms))
        answers = list(map(_PartitionAnswer, indexes))
        response.topics.append(_TopicAnswer(name, topic.topic_id, answers))
    return response, OffsetRuns(runs)


def refusal(offset: int, metadata: str, config: GroupConfig) -> ErrorCode:
    """Why an offset of a partition that there is can't be committed; NONE if it can."""
    if offset < _LEAST_OFFSET:
        return ErrorCode.INVALID_REQUEST
    if metadata and (len(metadata) > config.offset_metadata_max_bytes or too_long(metadata)):
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _answered(topic: _Topic | _TopicAnswer) -> _TopicAnswer:
    """Its answer, if there is none yet: nobody knows the topic."""
    if isinstance(topic, _TopicAnswer):
        return topic
    error = _unknown(topic)
    answers = [_PartitionAnswer(each.partition_index, error) for each in topic.partitions]
    return _TopicAnswer(topic.name, topic.topic_id, answers)


def _unknown(topic: _Topic) -> ErrorCode:
    if not topic.name and topic.topic_id != ZERO_UUID:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _batches(tombstones: Sequence[OffsetRecord]) -> Iterator[Sequence[OffsetRecord]]:
    start = size_bytes = 0
    for number, record in enumerate(tombstones):
        record_bytes = _TOMBSTONE_BYTES + len(record.group_id.encode())
        full = number - start == _TOMBSTONES_PER_BATCH
        if full or size_bytes + record_bytes > _TOMBSTONES_BATCH_BYTES:
            yield tombstones[start:number]
            start, size_bytes = number, 0
        size_bytes += record_bytes
    if tombstones:
        yield tombstones[start:]


def _all_or_none(request: OffsetCommitRequest, *, is_conditional: bool) -> bool:
    flag = (request._tags or {}).get(ALL_OR_NONE_TAG)
    return is_conditional if flag is None else flag != NO


def _check_commit(group: Group | None, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
    generation = request.generation_id_or_member_epoch
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        if api_version >= _FIRST_WITH_GROUP_ID_NOT_FOUND:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        # Its assignment may be another member's already; PreparingRebalance is the time to commit.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def commit_error(error: ErrorCode) -> ErrorCode:
    """What a client is told when its offsets could not be recorded (Kafka's translation)."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in TOO_LARGE else write_error(error)


def commit_error_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition of the request."""
    return OffsetCommitResponse(
        topics=[
            _TopicAnswer(
                topic.name,
                topic.topic_id,
                [
                    _PartitionAnswer(partition.partition_index, error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _withdraw(response: OffsetCommitResponse, error: ErrorCode) -> OffsetCommitResponse:
    """Puts the error in place of every success."""
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.NONE:
                partition.error_code = error
    return response
