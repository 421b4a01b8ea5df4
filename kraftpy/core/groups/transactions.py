"""Committing offsets in transactions: TxnOffsetCommit and its markers (KIP-98, KIP-447).

Rules, which are Kafka 4.4's:

* A TxnOffsetCommit is one write of its producer's, and pending until the transaction's marker.
* Who says nothing of itself isn't checked: old clients can't (before version 3, KIP-447), and the
  transaction alone fences them. Who names a member or a generation has to be right. A classic group
  takes it in any state: the transaction began before the rebalance.
* Wrong epochs of a consumer group's members are ILLEGAL_GENERATION, and so is a generation of a
  group that isn't there.
* Claims go to their own log alone, from version 5 on, and are pending there (`individual`). What
  makes less done is no part of a transaction: INVALID_REQUEST.
* What is pending is part of what groups take in memory: COORDINATOR_NOT_AVAILABLE where that is
  full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kraftpy.core.coordination import PRIMARY
from kraftpy.core.groups.claimed_commits import Claimed, Claiming, commit_error, plain_answers
from kraftpy.core.groups.commits import refusal
from kraftpy.core.groups.config import GroupConfig
from kraftpy.core.groups.consumer.offset_rules import check_transactional_commit
from kraftpy.core.groups.consumer.service import ConsumerGroups
from kraftpy.core.groups.consumer.topics import PartitionsOf, Topics
from kraftpy.core.groups.effects import Outbox, Write
from kraftpy.core.groups.group import Group, GroupState
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.coverage import WHOLE, Claim
from kraftpy.core.groups.individual.plan import Key
from kraftpy.core.groups.individual.requests import has_claims, waits
from kraftpy.core.groups.individual.waiting import Waiter, Waiting
from kraftpy.core.groups.memory import MachineMemory
from kraftpy.core.groups.offsets import OffsetMap, OffsetRow, refused_offset
from kraftpy.core.groups.pending_offsets import (
    PendingOffsets,
    Place,
    TransactionalOffsets,
    TransactionEnds,
    pending_bytes,
)
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset, OffsetRecord
from kraftpy.core.groups.shares import MemberShares
from kraftpy.core.groups.timers import TimerQueue
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

FIRST_WITH_CLAIMS = 5

_TopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_PartitionAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


class TransactionalCommits:
    """The transactions that commit offsets of the groups of one partition of the offsets topic."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, Group],
        offsets: OffsetMap,
        pending: PendingOffsets,
        consumers: ConsumerGroups,
        outbox: Outbox,
        memory: MachineMemory,
        claims: Claims,
        shares: MemberShares,
        timers: TimerQueue,
    ) -> None:
        self.waiting = Waiting(claims, outbox, timers)
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._pending = pending
        self._consumers = consumers
        self._out = outbox
        self._memory = memory
        self._claims = claims
        self._shares = shares

    def commit(
        self,
        token: object,
        request: TxnOffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        topics: Topics,
        api_version: int,
    ) -> None:
        """A TxnOffsetCommit: answered once what it writes is committed."""
        error = self._check(request, topics)
        if error is not ErrorCode.NONE:
            self._out.reply(token, transactional_error_response(request, error))
            return
        response, records, size_bytes, claiming = self._judge(
            request, partitions_of, now_ms, topics, api_version
        )
        if not self._memory.has_room(size_bytes):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._out.reply(token, transactional_error_response(request, error))
            return
        reply: Callable[[], None] = partial(self._out.reply, token, response)
        entries: Claimed = () if claiming is None else claiming.entries
        if claiming is not None and entries:
            claiming.begin(bool(records), reply)
            reply = claiming.ended
        elif not records:
            reply()
            return

        def failed(error: ErrorCode, now_ms: int) -> None:
            for partition in plain_answers(response, entries):
                partition.error_code = commit_error(error)
            reply()

        if records:
            self._out.write(
                TransactionalOffsets(request.producer_id, request.producer_epoch, records),
                (request.group_id,),
                lambda now_ms: reply(),
                failed,
            )
        if claiming is not None and entries:
            transaction = request.producer_id, request.producer_epoch
            for entry, _ in entries:
                self._claims.submit_in(transaction, entry, now_ms)
            claiming.ended()

    def wait(
        self,
        token: object,
        request: TxnOffsetCommitRequest,
        partitions_of: PartitionsOf,
        topics: Topics,
        deadline_ms: int,
    ) -> None:
        """Has a commit wait for what lies below its claims; `token` is answered with an error.

        NONE if that is done, or if there is nothing to wait for.
        """
        error = self._check(request, topics) or self._claims.unknown
        if error is not ErrorCode.NONE:
            self._out.reply(token, error)
            return
        claiming = self._claiming(request, topics)
        firsts: dict[Key, int] = {}
        claims: dict[Key, list[Claim]] = {}
        for topic in request.topics:
            known = partitions_of(topic.name)
            for partition in topic.partitions:
                if partition.partition_index not in known or not has_claims(partition._tags):
                    continue
                answer = _PartitionAnswer(partition.partition_index)
                entry = claiming.read(topic.name, partition, answer, voids=False)
                if entry is None:
                    continue  # It's answered when it's committed.
                claims.setdefault(entry.key, []).extend(entry.claims)
                stable = self._claims.stable_offset(entry.key)
                first = min((each.first for each in entry.claims), default=-1)
                if waits(partition._tags) and first > stable >= 0:
                    firsts[entry.key] = first
        if firsts:
            check = partial(self._check_waiting, request, topics)
            waiter = Waiter(token, request.producer_id, firsts, claims, check)
            self.waiting.wait(request.group_id, waiter, deadline_ms)
        else:
            self._out.reply(token, ErrorCode.NONE)

    def _check_waiting(self, request: TxnOffsetCommitRequest, topics: Topics) -> ErrorCode:
        """What ends a wait, before it's over."""
        group = self._groups.get(request.group_id)
        if group is not None and group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.ILLEGAL_GENERATION
        return self._check(request, topics)

    def _claiming(self, request: TxnOffsetCommitRequest, topics: Topics) -> Claiming:
        return Claiming(
            self._config,
            self._claims,
            self._groups.get(request.group_id),
            request,
            topics,
            self._shares,
        )

    def _check(self, request: TxnOffsetCommitRequest, topics: Topics) -> ErrorCode:
        consumer = self._consumers.groups.get(request.group_id)
        if self._consumers.is_dying(request.group_id):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if consumer is not None:
            return check_transactional_commit(consumer, request, topics)
        return _check_classic(self._groups.get(request.group_id), request)

    def _judge(
        self,
        request: TxnOffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        topics: Topics,
        api_version: int,
    ) -> _Judged:
        response = TxnOffsetCommitResponse()
        claiming: Claiming | None = None
        records: list[OffsetRecord] = []
        size_bytes = 0
        for topic in request.topics:
            known = partitions_of(topic.name)
            answers = []
            for partition in topic.partitions:
                index = partition.partition_index
                metadata = partition.committed_metadata or ""
                error = ErrorCode.NONE
                if index not in known:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif has_claims(partition._tags):
                    answer = _PartitionAnswer(index)
                    if api_version < FIRST_WITH_CLAIMS:
                        answer.error_code = ErrorCode.INVALID_REQUEST
                    else:
                        claiming = claiming or self._claiming(request, topics)
                        claiming.read(topic.name, partition, answer, voids=False)
                    answers.append(answer)
                    continue
                elif reason := refusal(partition.committed_offset, metadata, self._config):
                    error = reason
                else:
                    committed = CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        now_ms,
                        NO_TIMESTAMP,
                    )
                    records.append(OffsetRecord(request.group_id, topic.name, index, committed))
                    size_bytes += pending_bytes(topic.name, metadata)
                answers.append(_PartitionAnswer(index, error))
            response.topics.append(_TopicAnswer(topic.name, answers))
        return _Judged(response, records, size_bytes, claiming)

    def markers(
        self, token: object, ends: Sequence[tuple[int, bool]], log_number: int = PRIMARY
    ) -> Write:
        """The write of markers that the shell appends; `token` is answered with an ErrorCode.

        Of each the producer id, and whether it commits.
        """

        def failed(error: ErrorCode, now_ms: int) -> None:
            if error is ErrorCode.NOT_COORDINATOR:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._out.reply(token, error)

        return self._out.expect(
            TransactionEnds(ends),
            (),
            lambda now_ms: self._out.reply(token, ErrorCode.NONE),
            failed,
            log_number,
        )

    def replay(self, records: TransactionalOffsets | TransactionEnds) -> set[str]:
        """Takes in a write that is committed; gives the groups that it concerns."""
        group_ids = set()
        if isinstance(records, TransactionalOffsets):
            for record in records:
                self._pending.put(records.producer_id, record)
                group_ids.add(record.group_id)
            return group_ids
        for producer_id, committed in records.ends:
            group_ids.update(self._pending.groups_of(producer_id))
            self._offsets.replay(self._pending.end(producer_id, committed=committed))
        return group_ids

    def stable(
        self, group_id: str, found: list[tuple[str, list[OffsetRow]]], asker: str | None = None
    ) -> list[tuple[str, list[OffsetRow]]]:
        """Offsets by topic, with an error in the place of what a transaction may change.

        `asker`: a member that knows of claims, and is told what it has of a partition itself.
        """
        unstable = self.unstable(group_id, asker)
        if not unstable:
            return found
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return [
            (
                name,
                [
                    refused_offset(row[0], error) if (name, row[0]) in unstable else row
                    for row in rows
                ],
            )
            for name, rows in found
        ]

    def unstable(self, group_id: str, asker: str | None = None) -> set[Place]:
        """Where open transactions have committed offsets of the group, or are about to.

        Or have claimed something, but for what is none of the asker's. Nor is the offset that of
        before where what they have claimed counts and has to move it.
        """
        in_flight = {
            (record.topic, record.partition)
            for write in self._out.in_flight(group_id)
            if isinstance(write.records, TransactionalOffsets)
            for record in write.records
        }
        unstable = in_flight.union(self._pending.places_of(group_id))
        if asker is None:
            unstable.update(key[1:] for key in self._claims.mending(group_id))
        for (_, topic, partition), slices in self._claims.pending_slices(group_id).items():
            mine = self._slices_of(group_id, asker, topic, partition)
            if any(low <= high_ and low_ <= high for low, high in slices for low_, high_ in mine):
                unstable.add((topic, partition))
        return unstable

    def _slices_of(
        self, group_id: str, asker: str | None, topic: str, partition: int
    ) -> Sequence[tuple[int, int]]:
        group = self._groups.get(group_id)
        found = None
        if group is not None and asker and group.state is GroupState.STABLE:
            found = self._shares.of_member(group, asker, topic, partition)
        return found or (WHOLE,)


class _Judged(NamedTuple):
    """The answer if all goes well, the records to write, what they take in memory, and claims."""

    response: TxnOffsetCommitResponse
    records: list[OffsetRecord]
    size_bytes: int
    claiming: Claiming | None


def _check_classic(group: Group | None, request: TxnOffsetCommitRequest) -> ErrorCode:
    generation = request.generation_id
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and (
        group.state is GroupState.EMPTY
        or (not request.member_id and request.group_instance_id is None)
    ):
        return ErrorCode.NONE
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def transactional_error_response(
    request: TxnOffsetCommitRequest, error: ErrorCode
) -> TxnOffsetCommitResponse:
    """The same error for every partition of the request."""
    return TxnOffsetCommitResponse(
        topics=[
            _TopicAnswer(
                topic.name,
                [_PartitionAnswer(each.partition_index, error) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )
