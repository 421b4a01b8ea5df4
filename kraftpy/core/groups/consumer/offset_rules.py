"""Who may commit and fetch the offsets of a consumer group (KIP-848, KIP-1251)."""

from __future__ import annotations

from kraftpy.core.groups.consumer.records import CurrentAssignment, MemberMetadata
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import OffsetCommitRequest, TxnOffsetCommitRequest

_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9


def check_commit(
    group: ConsumerGroup, request: OffsetCommitRequest, api_version: int, topics: Topics
) -> ErrorCode:
    """NONE, or the error for every partition of the commit.

    A member commits in its epoch, or in an earlier one as long as it had each of the partitions in
    that epoch already and nobody else had it since: the answer that raised its epoch may be on the
    way. A client that is no member may commit while the group has none.
    """
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    metadata = group.members.get(request.member_id)
    if metadata is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if metadata.classic is None and api_version < _FIRST_COMMIT_WITH_MEMBER_EPOCH:
        return ErrorCode.UNSUPPORTED_VERSION
    if not _may_commit(group, epoch, request, topics):
        return _wrong_epoch(metadata)
    return ErrorCode.NONE


def check_transactional_commit(
    group: ConsumerGroup, request: TxnOffsetCommitRequest, topics: Topics
) -> ErrorCode:
    """The same for a TxnOffsetCommit, which needn't say whose it is, and knows no member epochs."""
    generation = request.generation_id
    is_anonymous = not request.member_id and request.group_instance_id is None
    if generation < 0 and (not group.members or is_anonymous):
        return ErrorCode.NONE
    if request.member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not _may_commit(group, generation, request, topics):
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
    """NONE, or the error of an OffsetFetch that says who sends it (version 9 and later)."""
    if member_id is None and member_epoch < 0:
        return ErrorCode.NONE
    metadata = group.members.get(member_id or "")
    if metadata is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch != group.current(member_id or "").epoch:
        return _wrong_epoch(metadata)
    return ErrorCode.NONE


def _wrong_epoch(metadata: MemberMetadata) -> ErrorCode:
    if metadata.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _may_commit(
    group: ConsumerGroup,
    epoch: int,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    topics: Topics,
) -> bool:
    """Whether this member of the group commits in its epoch, or in one that does as well."""
    current = group.current(request.member_id)
    if epoch >= current.epoch:
        return epoch == current.epoch
    return _had_all(current, epoch, request, topics)


def _had_all(
    current: CurrentAssignment,
    epoch: int,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    topics: Topics,
) -> bool:
    """Whether the member has had each of these partitions in that epoch, and has it still."""
    for asked in request.topics:
        topic = topics.find(asked.name)
        if topic is None:
            return False
        assigned = current.assigned.get(topic.topic_id, {})
        revoking = current.revoking.get(topic.topic_id, {})
        for partition in asked.partitions:
            index = partition.partition_index
            since = assigned.get(index, revoking.get(index))
            if since is None or epoch < since:
                return False
    return True
