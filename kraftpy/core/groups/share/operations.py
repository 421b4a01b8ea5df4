"""What a `GroupMachine` does for share groups: its operations, and the answers they give.

An id is of one kind of group: whoever uses a share group's as another group's hears what Kafka 4.3
says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kraftpy.core.groups.commits import commit_error_response
from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.effects import Effects, Outbox
from kraftpy.core.groups.membership import Client
from kraftpy.core.groups.share.describe import DescribedGroup
from kraftpy.core.groups.share.offsets import ShareOffsets
from kraftpy.core.groups.share.service import ShareGroups
from kraftpy.core.groups.transactions import transactional_error_response
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    ShareGroupHeartbeatRequest,
    TxnOffsetCommitRequest,
)


class ShareOperations:
    """The part of a machine that is concerned with share groups; see `offsets` for the steps."""

    def __init__(self, shares: ShareGroups, offsets: ShareOffsets, outbox: Outbox) -> None:
        self._shares = shares
        self._share_offsets = offsets
        self._outbox = outbox

    def _refuses(
        self,
        token: object,
        request: JoinGroupRequest
        | ConsumerGroupHeartbeatRequest
        | OffsetCommitRequest
        | TxnOffsetCommitRequest,
    ) -> bool:
        """Answers a request for another kind of group if the id is a share group's."""
        if not self._shares.holds(request.group_id):
            return False
        error = ErrorCode.GROUP_ID_NOT_FOUND
        response: object
        if isinstance(request, JoinGroupRequest):
            response = JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif isinstance(request, ConsumerGroupHeartbeatRequest):
            message = f"Group {request.group_id} is not a consumer group."
            response = ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
        elif isinstance(request, OffsetCommitRequest):
            response = commit_error_response(request, error)
        else:
            response = transactional_error_response(request, error)
        self._outbox.reply(token, response)
        return True

    def share_heartbeat(
        self, token: object, request: ShareGroupHeartbeatRequest, client: Client, now_ms: int
    ) -> Effects:
        """ShareGroupHeartbeat 1."""
        self._shares.heartbeat(token, request, client, now_ms)
        return self._outbox.take()

    def share_describe(self, group_id: str) -> DescribedGroup:
        """ShareGroupDescribe 1 of one group."""
        return self._shares.describe(group_id)

    def is_share_group(self, group_id: str) -> bool:
        """Whether there is such a share group, or one is about to come or to go."""
        return self._shares.holds(group_id)

    def share_partitions(self, group_id: str) -> dict[Uuid, frozenset[int]]:
        """The partitions of a share group that have a state; none if there is no such group."""
        group = self._shares.groups.get(group_id)
        if group is None:
            return {}
        return {topic: each.partitions for topic, each in group.states.initialized.items()}

    def share_topics(self) -> dict[Uuid, str]:
        """The topics that any share group has states of, by id and name."""
        return dict(self._shares.topics_of_states())

    def alter_share_offsets(
        self, token: object, group_id: str, wanted: Mapping[str, Mapping[int, int]], now_ms: int
    ) -> Effects:
        """The first step of an AlterShareGroupOffsets 0."""
        self._share_offsets.alter(token, group_id, wanted, now_ms)
        return self._outbox.take()

    def delete_share_offsets(
        self, token: object, group_id: str, names: Collection[str], now_ms: int
    ) -> Effects:
        """The first step of a DeleteShareGroupOffsets 0."""
        self._share_offsets.delete(token, group_id, names, now_ms)
        return self._outbox.take()

    def delete_share_states(self, token: object, group_id: str, now_ms: int) -> Effects:
        """The first step of a DeleteGroups of a share group; the last one is `delete_group`."""
        self._share_offsets.delete_all(token, group_id, now_ms)
        return self._outbox.take()

    def share_states_came(
        self,
        token: object,
        group_id: str,
        done: Mapping[Uuid, Collection[int]],
        failed: Mapping[Uuid, Collection[int]],
        now_ms: int,
        *,
        gives_up: bool,
    ) -> Effects:
        """Share coordinators have initialized states, and may have refused others."""
        self._share_offsets.states_came(token, group_id, done, failed, now_ms, gives_up=gives_up)
        return self._outbox.take()

    def share_states_went(
        self,
        token: object,
        group_id: str,
        topic_ids: Collection[Uuid],
        now_ms: int,
        *,
        refused: bool,
    ) -> Effects:
        """Share coordinators have deleted all states of these topics, and may have refused more."""
        self._share_offsets.states_went(token, group_id, topic_ids, now_ms, refused=refused)
        return self._outbox.take()
