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
* Where a group has claims (`claimed_commits`), who deletes an offset or the group has them dropped
  before.
* What goes into the log after a write in flight must know of that write: a tombstone for a group
  covers the offsets in flight, and an expiry leaves the group alone until they have landed. So it
  is with what open transactions have committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from kraftpy.batching import bounded
from kraftpy.core.groups.claimed_commits import ClaimedCommit, commit_error, write_after_drop
from kraftpy.core.groups.config import GroupConfig
from kraftpy.core.groups.consumer.offset_rules import check_commit
from kraftpy.core.groups.consumer.service import ConsumerGroups
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import PartitionsOf, Topics
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.expectations import Expectations, undecided
from kraftpy.core.groups.expiry import Expiry
from kraftpy.core.groups.group import Group, GroupState
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.places import Drop
from kraftpy.core.groups.individual.requests import has_claims
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
from kraftpy.core.groups.shares import MemberShares
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
        claims: Claims,
    ) -> None:
        self._claims = claims
        self.shares = MemberShares()
        self._expiry = Expiry(config, groups, consumers, offsets)
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
        claimed: ClaimedCommit | None = None
        concerned = self._claims.concerns(request.group_id)
        judged = None if concerned else _judge_at_once(request, partitions_of, now_ms)
        if judged is None:
            claimed = ClaimedCommit(
                self._config, self._claims, self._out, group, request, topics, self.shares
            )
            if claimed.claim_one(token, partitions_of, now_ms):
                return
            judged = self._judge(request, partitions_of, now_ms, claimed)
        response, records = judged
        if claimed is not None and (claimed.entries or (concerned and records)):
            claimed.carry_out(records, response, token, now_ms)
            return
        if not records:
            self._out.reply(token, response)
            return

        def committed(now_ms: int) -> None:
            self._out.reply(token, response)

        def failed(error: ErrorCode, now_ms: int) -> None:
            self._out.reply(token, _withdraw(response, commit_error(error)))

        self._out.write(records, (request.group_id,), committed, failed)

    def _judge(
        self,
        request: OffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        claimed: ClaimedCommit,
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
                elif has_claims(partition._tags):
                    answers.append(_PartitionAnswer(index))
                    claimed.read(name, partition, answers[-1])
                    refused |= bool(answers[-1].error_code)
                    continue
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
            claimed.withdraw()
            return _withdraw(response, ErrorCode.OPERATION_NOT_ATTEMPTED), []
        return response, records

    # -- deleting

    def delete_offsets(
        self,
        token: object,
        request: OffsetDeleteRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
    ) -> None:
        """An OffsetDelete (KIP-496): not for topics that the group still consumes."""
        group_id = request.group_id
        group = self._groups.get(group_id) or self._consumers.groups.get(group_id)
        error = self._claims.unknown or self._check_delete_offsets(group_id, group)
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
        write_after_drop(
            self._claims,
            self._out,
            group_id,
            records,
            lambda now_ms: self._out.reply(token, response),
            lambda error, now_ms: self._out.reply(
                token, OffsetDeleteResponse(error_code=commit_error(error))
            ),
            now_ms,
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
        if self._claims.unknown:
            done(self._claims.unknown)
            return
        claimed = self._claims.keys_of(group_id)
        if claimed:

            def dropped(drop: Drop, error: ErrorCode, now_ms: int) -> None:
                self._claims.release(drop, now_ms)
                if error is ErrorCode.NONE:
                    self._delete_group(group_id, now_ms, done)
                else:
                    done(commit_error(error))

            self._claims.drop(claimed, dropped, now_ms)
            return
        partitions = dict.fromkeys(self._offsets.partitions_of(group_id))
        partitions.update(dict.fromkeys(undecided(self._out, self._pending, group_id)))
        self._bury(group_id, list(partitions), now_ms, done)

    def _has_offsets(self, group_id: str) -> bool:
        return group_id in self._offsets or group_id in self._pending

    def delete_topic(self, topic: str, now_ms: int) -> None:
        """Writes tombstones for all that was committed for a topic, or is about to be."""

        def dropped(drop: Drop, _: ErrorCode, now_ms: int) -> None:
            # What couldn't be dropped is when it's read again, by the topic's id.
            self._delete_topic(topic)
            self._claims.release(drop, now_ms)

        self._claims.drop(self._claims.keys_of_topic(topic), dropped, now_ms)

    def _delete_topic(self, topic: str) -> None:
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
        """Writes tombstones for what has expired (`expiry`); gives how many offsets that is.

        An empty group without offsets goes too.
        """
        if self._out.in_flight(group_id) or self._claims.unknown:
            return 0
        group = self._groups.get(group_id)
        if group is not None and (group.state is GroupState.DEAD or group.pending):
            return 0
        usage = self._expiry.usage(group_id)
        if not usage.is_empty and self._expiry.all_are_young(group_id, now_ms):
            return 0
        expired = []
        pending = {
            *self._pending.places_of(group_id),
            *(key[1:] for key in self._claims.pending_slices(group_id)),
        }
        claimed = []
        kept = bool(pending)
        for topic, partition, committed in self._offsets.of_group(group_id):
            key = group_id, topic, partition
            claimed_ms = self._claims.commit_timestamp_ms(key)
            if (topic, partition) in pending or not self._expiry.is_expired(
                usage, topic, committed, claimed_ms, now_ms
            ):
                kept = True
            elif key in self._claims:
                claimed.append(key)
            else:
                expired.append((topic, partition))
        if claimed:  # These go first; their offsets the next time.
            self._claims.drop(
                claimed, lambda drop, _, now_ms: self._claims.release(drop, now_ms), now_ms
            )
            kept = True
        if usage.is_empty and not kept:
            self._bury(group_id, expired, now_ms, lambda error: None)
        else:
            self._write_tombstones([OffsetRecord(group_id, *each, None) for each in expired])
        return len(expired)


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
    weighed = ((each, _TOMBSTONE_BYTES + len(each.group_id.encode())) for each in tombstones)
    return bounded(weighed, _TOMBSTONES_BATCH_BYTES, _TOMBSTONES_PER_BATCH)


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
