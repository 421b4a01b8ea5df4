"""Commits of groups that claim records out of order (`individual`).

Rules:

* A plain commit sets the stable offset to its value exactly. A member's that doesn't lower it, also
  as far as others are in flight, keeps the claims above; before any other they are dropped: who
  resets wants these records again. While their log can't be read nobody knows them: one that lowers
  the offset is refused then, and any other one keeps them.
* Nobody may claim what is another member's, as its assignment says (`protocol.key_shares`).
* Each partition with claims is answered for itself, with the stable offset. The request is answered
  when all of it has been decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kraftpy.core.coordination import TOO_LARGE, Committed, Failed, write_error
from kraftpy.core.groups.config import GroupConfig
from kraftpy.core.groups.consumer.topics import PartitionsOf, Topics
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.events import MAX_RANGES, MAX_RANGES_BYTES, tell_refused
from kraftpy.core.groups.group import Group
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.coverage import Claim
from kraftpy.core.groups.individual.places import Drop
from kraftpy.core.groups.individual.plan import Entry, Key
from kraftpy.core.groups.individual.requests import Reader, one_claim
from kraftpy.core.groups.records import CoordinatorRecord, OffsetRecord
from kraftpy.core.groups.shares import MemberShares
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import LAST_STABLE_OFFSET_TAG, encode_int64
from kraftpy.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_Partition = (
    OffsetCommitRequest.OffsetCommitRequestPartition
    | TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
)
_PartitionAnswer = (
    OffsetCommitResponse.OffsetCommitResponsePartition
    | TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
)

_Answer = OffsetCommitResponse.OffsetCommitResponsePartition
_TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic

Claimed = Sequence[tuple[Entry, _PartitionAnswer]]
"""What is claimed of partitions, and their answers."""


def plain_answers(
    response: OffsetCommitResponse | TxnOffsetCommitResponse, entries: Claimed
) -> list[_PartitionAnswer]:
    """The answers of success of partitions that aren't among these."""
    claimed = {id(answer) for _, answer in entries}
    return [
        partition
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE and id(partition) not in claimed
    ]


class Claiming:
    """What a request claims; it's answered, by `reply`, when all that `begin` counts has ended."""

    def __init__(
        self,
        config: GroupConfig,
        claims: Claims,
        group: Group | None,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        topics: Topics,
        shares: MemberShares,
    ) -> None:
        self.entries: list[tuple[Entry, _PartitionAnswer]] = []
        self._config = config
        self._claims = claims
        self._group = group
        self._request = request
        self._topics = topics
        self._shares = shares
        self._reader: Reader | None = None
        self._left = 1
        self._reply: Callable[[], None]

    def read(
        self, topic: str, partition: _Partition, answer: _PartitionAnswer, *, voids: bool = True
    ) -> Entry | None:
        """Takes in a partition with claims; None, and its answer says so, if something is wrong.

        `voids`: it may say that claims are void.
        """
        key = self._request.group_id, topic, partition.partition_index
        known = self._topics.find(topic)
        answered = partial(self._answered, key, answer)
        if self._reader is None:
            self._reader = Reader(self._claims.at_once_max_bytes)
        found = self._reader.read(partition.committed_offset, partition._tags or {})
        if not self._is_allowed:
            answer.error_code = ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
        elif found is None or (found.discard_from is not None and not voids):
            answer.error_code = ErrorCode.INVALID_REQUEST
        elif known is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not self._may_claim(key, found.claims):
            answer.error_code = ErrorCode.KEY_RANGE_NOT_OWNED
        else:
            epoch = partition.committed_leader_epoch
            entry = Entry(key, known.topic_id, found.claims, epoch, found.discard_from, answered)
            self.entries.append((entry, answer))
            return entry  # The answer has the stable offset when it is known.
        self._claims.count_answer(ErrorCode(answer.error_code))
        _tell_stable(answer, self._claims.stable_offset(key))
        return None

    def withdraw(self) -> None:
        """Nothing is claimed, because of another part of the request."""
        for entry, answer in self.entries:
            _tell_stable(answer, self._claims.stable_offset(entry.key))
        self.entries.clear()

    @property
    def _is_allowed(self) -> bool:
        return self._config.accept_individual_commit and self._claims.is_offered()

    def _may_claim(self, key: Key, claims: Iterable[Claim]) -> bool:
        if self._group is None or not self._request.member_id:
            return True
        taken = self._shares.of_others(self._group, self._request.member_id, key[1], key[2])
        return not taken or not any(
            low <= claim.high and claim.low <= high for claim in claims for low, high in taken
        )

    def begin(self, others: int, reply: Callable[[], None]) -> None:
        """The entries are about to be handed over, and so much else is done; `ended` follows."""
        self._reply = reply
        self._left += len(self.entries) + others

    def _answered(self, key: Key, answer: _PartitionAnswer, error: ErrorCode, stable: int) -> None:
        self._fill(key, answer, error, stable)
        self.ended()

    def _fill(self, key: Key, answer: _PartitionAnswer, error: ErrorCode, stable: int) -> None:
        answer.error_code = commit_error(error)
        self._claims.count_answer(error)
        if error is ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED:
            self._tell_full(key)
        _tell_stable(answer, stable)

    def _tell_full(self, key: Key) -> None:
        """The group's members wait until what holds its offset back is done."""
        count = self._claims.ranges_at(key)
        more = sum(len(entry.claims) for entry, _ in self.entries if entry.key == key)
        is_one = count + more > self._config.individual_commit_max_ranges
        group_id, topic, partition = key
        reason = f"{topic}-{partition} has {count} ranges above its offset"
        tell_refused(group_id, reason, MAX_RANGES if is_one else MAX_RANGES_BYTES)

    def ended(self, _: int = 0) -> None:
        """Some of what is waited for."""
        self._left -= 1
        if not self._left:
            self._reply()


class ClaimedCommit(Claiming):
    """One OffsetCommit of a group that has claims, or makes some."""

    _request: OffsetCommitRequest

    def __init__(
        self,
        config: GroupConfig,
        claims: Claims,
        outbox: Outbox,
        group: Group | None,
        request: OffsetCommitRequest,
        topics: Topics,
        shares: MemberShares,
    ) -> None:
        super().__init__(config, claims, group, request, topics, shares)
        self._out = outbox
        self._generation = request.generation_id_or_member_epoch

    def claim_one(self, token: object, partitions_of: PartitionsOf, now_ms: int) -> bool:
        """Carries out all of a request that claims one range of one slice, and is in order.

        False of any other, and nothing is done: it is to be judged. Nearly all are such.
        """
        request = self._request
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return False
        (topic,) = request.topics
        (partition,) = topic.partitions
        name, index = topic.name, partition.partition_index
        claim = one_claim(partition.committed_offset, partition._tags)
        known = self._topics.find(name)
        if claim is None or known is None or index not in partitions_of(name):
            return False
        key, claims = (request.group_id, name, index), (claim,)
        if not self._is_allowed or not self._may_claim(key, claims):
            return False
        answer = _Answer(index)
        response = OffsetCommitResponse(topics=[_TopicAnswer(name, topic.topic_id, [answer])])

        def answered(error: ErrorCode, stable: int) -> None:
            self._fill(key, answer, error, stable)
            self._out.reply(token, response)

        epoch = partition.committed_leader_epoch
        self._claims.submit(Entry(key, known.topic_id, claims, epoch, None, answered), now_ms)
        return True

    def carry_out(
        self,
        records: Sequence[CoordinatorRecord],
        response: OffsetCommitResponse,
        token: object,
        now_ms: int,
    ) -> None:
        """Commits offsets and claims; answers when all of it is decided."""
        self.begin(bool(records), partial(self._out.reply, token, response))
        if records:
            plain = plain_answers(response, self.entries)

            def failed(error: ErrorCode, now_ms: int) -> None:
                for answer in plain:
                    answer.error_code = commit_error(error)
                self.ended()

            self._commit(records, self.ended, failed, now_ms)
        for entry, _ in self.entries:
            self._claims.submit(entry, now_ms)
        self.ended()

    def _commit(
        self,
        records: Sequence[CoordinatorRecord],
        committed: Committed,
        failed: Failed,
        now_ms: int,
    ) -> None:
        """Writes plain offsets, once the claims are dropped that they reset."""
        is_member = self._generation >= 0
        reset = []
        for record in records:
            assert isinstance(record, OffsetRecord)
            assert record.committed is not None
            key = record.group_id, record.topic, record.partition
            if key not in self._claims and not self._claims.unknown:
                continue
            lowers = record.committed.offset < self._claims.latest_offset(key)
            if lowers and self._claims.unknown:
                failed(self._claims.unknown, now_ms)
                return
            if not self._claims.unknown and (lowers or not is_member):
                reset.append(key)
        _write_after(
            self._claims,
            self._out,
            reset,
            self._request.group_id,
            records,
            committed,
            failed,
            now_ms,
        )


def write_after_drop(
    claims: Claims,
    outbox: Outbox,
    group_id: str,
    records: Sequence[CoordinatorRecord],
    committed: Committed,
    failed: Failed,
    now_ms: int,
) -> None:
    """Writes records of the group's offsets, once the claims of these places are dropped."""
    keys = [
        (record.group_id, record.topic, record.partition)
        for record in records
        if isinstance(record, OffsetRecord)
    ]
    _write_after(claims, outbox, keys, group_id, records, committed, failed, now_ms)


def _write_after(
    claims: Claims,
    outbox: Outbox,
    keys: Sequence[Key],
    group_id: str,
    records: Sequence[CoordinatorRecord],
    committed: Committed,
    failed: Failed,
    now_ms: int,
) -> None:
    def dropped(drop: Drop, error: ErrorCode, now_ms: int) -> None:
        def written(now_ms: int) -> None:
            claims.release(drop, now_ms)
            committed(now_ms)

        def refused(error: ErrorCode, now_ms: int) -> None:
            claims.release(drop, now_ms)
            failed(error, now_ms)

        if error is ErrorCode.NONE:
            outbox.write(records, (group_id,), written, refused)
        else:
            refused(error, now_ms)

    claims.drop(keys, dropped, now_ms)


def commit_error(error: ErrorCode) -> ErrorCode:
    """What a client is told when its offsets could not be recorded (Kafka's translation)."""
    if not error:
        return error
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in TOO_LARGE else write_error(error)


def _tell_stable(answer: _PartitionAnswer, stable: int) -> None:
    answer._tags = {LAST_STABLE_OFFSET_TAG: encode_int64(stable)}
