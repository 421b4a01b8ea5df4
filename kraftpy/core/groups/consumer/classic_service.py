"""Requests of the classic protocol that meet a consumer group (KIP-848, "Migration").

Rules (Kafka's; `classic_members` has those of each request):

* They wait in the group's line like any other. When their turn comes the group may be a classic one
  again, or still: then the classic protocol's own rules apply.
* A classic member of a consumer group has its rebalance timeout to rejoin once it was told to, and
  to sync after each join; or it is fenced.
* An empty consumer group becomes an empty classic one when a classic member joins, and one in which
  a classic member takes the place of the last static member of the consumer protocol downgrades.
"""

from __future__ import annotations

from kraftpy.core.groups.consumer import classic_members
from kraftpy.core.groups.consumer.conversion import emptied
from kraftpy.core.groups.consumer.heartbeat import Caller
from kraftpy.core.groups.consumer.migration import Migration
from kraftpy.core.groups.consumer.service import ConsumerGroups
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.membership import Client, Membership, must_come_back, new_member_id
from kraftpy.core.groups.rebalance import membership_error
from kraftpy.core.groups.timers import TimerKind
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicService:
    """Runs the classic protocol over consumer groups; `consumers` has their state."""

    def __init__(
        self,
        topics: Topics,
        consumers: ConsumerGroups,
        migration: Migration,
        membership: Membership,
        outbox: Outbox,
    ) -> None:
        self._topics = topics
        self._consumers = consumers
        self._migration = migration
        self._membership = membership
        self._out = outbox

    # -- JoinGroup

    def join(
        self, token: object, request: JoinGroupRequest, client: Client, uuid: str, now_ms: int
    ) -> None:
        """A JoinGroup 0-9 to a group that is, becomes or ceases to be a consumer group."""

        def refuse(error: ErrorCode) -> None:
            self._refuse_join(token, error, request.member_id)

        self._consumers.submit(
            request.group_id,
            lambda now_ms: self._join(token, request, client, uuid, now_ms),
            refuse,
            now_ms,
        )

    def _join(
        self, token: object, request: JoinGroupRequest, client: Client, uuid: str, now_ms: int
    ) -> None:
        group = self._consumers.groups.get(request.group_id)
        if group is None:
            self._membership.join(token, request, client, uuid, now_ms)
        elif not group.members:
            self._join_empty(group, token, request, client, uuid, now_ms)
        else:
            try:
                self._join_group(group, token, request, client, uuid, now_ms)
            except KafkaError as error:
                self._refuse_join(token, error.code, request.member_id)

    def _join_empty(
        self,
        group: ConsumerGroup,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        uuid: str,
        now_ms: int,
    ) -> None:
        if request.member_id:
            self._refuse_join(token, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            return
        self._consumers.write(
            request.group_id,
            emptied(group, now_ms),
            lambda now_ms: self._membership.join(token, request, client, uuid, now_ms),
            lambda error, now_ms: self._refuse_join(token, membership_error(error)),
        )

    def _join_group(
        self,
        group: ConsumerGroup,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        uuid: str,
        now_ms: int,
    ) -> None:
        if not self._membership.allows_session(request):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        classic_members.check_join(group, request, self._consumers.settings)
        member_id = request.member_id or new_member_id(request, client, uuid)
        if must_come_back(request, client):
            self._refuse_join(token, ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return
        holder = group.static_members.get(request.group_instance_id or "")
        if not request.member_id and holder and self._migration.is_due(group, [holder]):
            self._join_last(group, holder, token, request, client, uuid, now_ms)
            return
        version = self._topics.version
        joined = classic_members.join(
            group,
            request,
            Caller(member_id, client.client_id, client.host),
            self._consumers.settings,
            self._topics,
            now_ms,
            topics_changed=self._consumers.topics_changed(group.group_id, version),
        )

        def committed(now_ms: int) -> None:
            self._consumers.saw_topics(group.group_id, version)
            self._consumers.fulfilled(TimerKind.CLASSIC_REJOIN, group.group_id, member_id)
            self._consumers.fulfilled(TimerKind.CLASSIC_SYNC, group.group_id, member_id)
            self._consumers.expect(TimerKind.CLASSIC_SYNC, group, member_id, now_ms)
            self._consumers.touch(group, member_id, now_ms)
            self._out.reply(token, joined.response)

        def failed(error: ErrorCode, now_ms: int) -> None:
            self._refuse_join(token, membership_error(error), request.member_id)

        if not joined.records:
            committed(now_ms)
            return
        self._consumers.write(group.group_id, joined.records, committed, failed)

    def _join_last(
        self,
        group: ConsumerGroup,
        holder: str,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        uuid: str,
        now_ms: int,
    ) -> None:
        """A classic member takes the place of the last static one of the consumer protocol."""
        departure = self._migration.departure(group, [holder], now_ms)

        def committed(now_ms: int) -> None:
            departure.committed(now_ms)
            self._membership.join(token, request, client, uuid, now_ms)

        self._consumers.write(
            group.group_id,
            departure.records,
            committed,
            lambda error, now_ms: self._refuse_join(token, membership_error(error)),
        )

    def _refuse_join(self, token: object, error: ErrorCode, member_id: str = "") -> None:
        self._out.reply(token, JoinGroupResponse(error_code=error, member_id=member_id))

    # -- SyncGroup

    def sync(self, token: object, request: SyncGroupRequest, now_ms: int) -> None:
        """A SyncGroup 0-5."""
        self._consumers.submit(
            request.group_id,
            lambda now_ms: self._sync(token, request, now_ms),
            lambda error: self._out.reply(token, SyncGroupResponse(error_code=error)),
            now_ms,
        )

    def _sync(self, token: object, request: SyncGroupRequest, now_ms: int) -> None:
        group = self._consumers.groups.get(request.group_id)
        if group is None:
            self._membership.sync(token, request, now_ms)
            return
        try:
            response = classic_members.sync(group, request, self._topics)
        except KafkaError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._expect_rejoin(group, request.member_id, now_ms)
            response = SyncGroupResponse(error_code=error.code)
        else:
            self._consumers.fulfilled(TimerKind.CLASSIC_SYNC, group.group_id, request.member_id)
            self._consumers.touch(group, request.member_id, now_ms)
        self._out.reply(token, response)

    # -- Heartbeat

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """A Heartbeat 0-4 of a consumer group that is there; it never has effects."""
        group = self._consumers.groups[request.group_id]
        try:
            error = classic_members.heartbeat(group, request)
        except KafkaError as raised:
            return raised.code
        self._consumers.touch(group, request.member_id, now_ms)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._expect_rejoin(group, request.member_id, now_ms)
        return error

    # -- LeaveGroup

    def leave(self, token: object, request: LeaveGroupRequest, now_ms: int) -> None:
        """A LeaveGroup in its batched form (version 3-5)."""
        self._consumers.submit(
            request.group_id,
            lambda now_ms: self._leave(token, request, now_ms),
            lambda error: self._out.reply(token, LeaveGroupResponse(error_code=error)),
            now_ms,
        )

    def _leave(self, token: object, request: LeaveGroupRequest, now_ms: int) -> None:
        group = self._consumers.groups.get(request.group_id)
        if group is None:
            self._out.reply(token, self._membership.leave(request, now_ms))
            return
        left = classic_members.leave(group, request)
        if not left.member_ids:
            self._out.reply(token, left.response)
            return
        departure = self._migration.departure(group, left.member_ids, now_ms)

        def committed(now_ms: int) -> None:
            departure.committed(now_ms)
            self._out.reply(token, left.response)

        def failed(error: ErrorCode, now_ms: int) -> None:
            self._out.reply(token, LeaveGroupResponse(error_code=membership_error(error)))

        self._consumers.write(group.group_id, departure.records, committed, failed)

    def _expect_rejoin(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        self._consumers.expect(TimerKind.CLASSIC_REJOIN, group, member_id, now_ms)
