"""Who may commit and fetch the offsets of a consumer group (KIP-848, KIP-1251)."""

from __future__ import annotations

from kraftpy.core.groups.consumer.records import CurrentAssignment, MemberMetadata
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import OffsetCommitRequest

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
    current = group.current(request.member_id)
    if epoch == current.epoch:
        return ErrorCode.NONE
    if epoch > current.epoch or not _had_all(current, epoch, request, topics):
        return _wrong_epoch(metadata)
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


def _had_all(
    current: CurrentAssignment, epoch: int, request: OffsetCommitRequest, topics: Topics
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
