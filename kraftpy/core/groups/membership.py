"""The requests of the classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The rules are Kafka's (KIP-62, KIP-345 static members, KIP-394 member ids first, KIP-559 protocol
checks, KIP-814 skip assignment); `rebalance` has those of the rebalance itself. In short:

* A rebalance starts when somebody joins, leaves, expires or changes. JoinGroups are parked until it
  ends, SyncGroups until the leader's assignment is there.
* The assignment is persisted first; once committed the group is Stable and every parked SyncGroup
  gets its part.
* Whoever sends a request again while the first is parked gets the older one answered with
  REBALANCE_IN_PROGRESS.
* What a member says is bounded by `group.max.metadata.bytes`, what all say by `memory`. A member
  that waits for its group's first generation goes with its connection: nobody knows of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kraftpy.core.groups.config import (
    GROUPS_PER_PARTITION_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBERS_MAX,
    GroupConfig,
)
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.events import (
    MAX_MEMORY,
    MAX_METADATA,
    tell_back,
    tell_gone,
    tell_refused,
    tell_unassigned,
)
from kraftpy.core.groups.group import Group, GroupState, Member
from kraftpy.core.groups.memory import MEMBER_BYTES, MachineMemory, protocols_bytes, text_bytes
from kraftpy.core.groups.rebalance import Rebalance, membership_error
from kraftpy.core.groups.records import GroupRecord, too_long
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)

_FIRST_JOIN_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9
_NO_REASON = "no reason given"

# Member ids start with the client's name; a name of any length must not make one unstorable.
_MEMBER_ID_PREFIX_MAX = 255


class Client(NamedTuple):
    """Who sent a request: its API version, client id and host as Kafka shows it ("/10.0.0.1").

    `may_describe` says of which topics it may know; None: of all.
    """

    api_version: int
    client_id: str
    host: str
    may_describe: Callable[[str], bool] | None = None


class Membership:
    """Runs the classic protocol over the groups of one partition of the offsets topic."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, Group],
        timers: TimerQueue,
        outbox: Outbox,
        rebalance: Rebalance,
        memory: MachineMemory,
    ) -> None:
        self._memory = memory
        self._config = config
        self._groups = groups
        self._timers = timers
        self._out = outbox
        self._rebalance = rebalance

    # -- JoinGroup

    def join(
        self, token: object, request: JoinGroupRequest, client: Client, uuid: str, now_ms: int
    ) -> None:
        """A JoinGroup; `uuid` is a fresh random one for the case that a member id is due.

        `token` is answered now, or parked until the rebalance ends.
        """
        if not self.allows_session(request):
            self._refuse(token, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
            return
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                self._refuse(token, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return
            if len(self._groups) >= GROUPS_PER_PARTITION_MAX:
                tell_refused(request.group_id, "too many groups", "offsets.topic.num.partitions")
                self._refuse(token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            group = self._groups[request.group_id] = Group(request.group_id, now_ms)
        self._join_group(group, token, request, client, uuid, now_ms)
        self._rebalance.discard_if_unused(group)

    def allows_session(self, request: JoinGroupRequest) -> bool:
        """Whether the session timeout is within the broker's limits."""
        least_ms = self._config.group_min_session_timeout_ms
        return least_ms <= request.session_timeout_ms <= self._config.group_max_session_timeout_ms

    def _join_group(
        self,
        group: Group,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        uuid: str,
        now_ms: int,
    ) -> None:
        protocols = {protocol.name: protocol.metadata for protocol in request.protocols}
        member_id = request.member_id
        if not self._has_room(group, member_id):
            self._rebalance.drop(group, member_id)
            self._refuse(token, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._rebalance.maybe_complete_join(group, now_ms)
        elif group.state is GroupState.DEAD:
            self._refuse(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not group.supports_protocols(request.protocol_type, protocols):
            self._refuse(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif any(
            map(too_long, (request.protocol_type, request.group_instance_id or "", *protocols))
        ):
            self._refuse(token, ErrorCode.INVALID_REQUEST, member_id)
        elif (error := self._check_size(group, request, client, protocols)) is not ErrorCode.NONE:
            self._refuse(token, error, member_id)
        elif member_id:
            self._join_existing(group, token, request, client, protocols, now_ms)
        else:
            self._join_new(group, token, request, client, protocols, uuid, now_ms)

    def _check_size(
        self, group: Group, request: JoinGroupRequest, client: Client, protocols: dict[str, bytes]
    ) -> ErrorCode:
        """GROUP_MAX_SIZE_REACHED for too much metadata, COORDINATOR_NOT_AVAILABLE without room."""
        said_bytes = protocols_bytes(protocols.items())
        most_bytes = self._config.group_max_metadata_bytes
        if said_bytes > most_bytes:
            tell_refused(group.group_id, f"metadata of {said_bytes} bytes", MAX_METADATA)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        static_id = group.static_members.get(request.group_instance_id or "", "")
        known = group.members.get(request.member_id or static_id)
        if known is None:
            # Its id is made of its client's name.
            more_bytes = said_bytes + MEMBER_BYTES + 2 * text_bytes(client.client_id)
        else:
            more_bytes = said_bytes - protocols_bytes(known.protocols.items())
        if not self._memory.has_room(more_bytes):
            tell_refused(group.group_id, "no memory for another member", MAX_MEMORY)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        """group.max.size: counts members, but while they rejoin only those that already have."""
        limit = self._config.group_max_size
        if not member_id and len(group.pending) >= PENDING_MEMBERS_MAX:
            return False
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            is_waiting = member is not None and member.join_token is not None
            return is_waiting or group.awaiting_join_count < limit
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in group.members or len(group.members) < limit
        return True

    def _join_new(
        self,
        group: Group,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        protocols: dict[str, bytes],
        uuid: str,
        now_ms: int,
    ) -> None:
        instance_id = request.group_instance_id
        member_id = new_member_id(request, client, uuid)
        if instance_id is not None and instance_id in group.static_members:
            self._rejoin_static(group, token, request, client, protocols, member_id, now_ms)
        elif must_come_back(request, client):
            timer = group.pending[member_id] = Timer(TimerKind.SESSION, group.group_id, member_id)
            self._timers.set(timer, now_ms + request.session_timeout_ms)
            self._refuse(token, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            timer = Timer(TimerKind.SESSION, group.group_id, member_id)
            self._add_member(group, token, request, client, protocols, timer, now_ms)

    def _join_existing(
        self,
        group: Group,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        protocols: dict[str, bytes],
        now_ms: int,
    ) -> None:
        member_id = request.member_id
        timer = group.pending.get(member_id)
        if timer is not None and request.group_instance_id is None:
            self._add_member(group, token, request, client, protocols, timer, now_ms)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            self._refuse(token, error, member_id)
            return
        member = group.members[member_id]
        unchanged = member.matches(protocols)
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The answer to its first JoinGroup was lost on the way: repeat it.
            self._rebalance.answer_parked_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._out.reply(token, self._rebalance.joined(group, member))
        elif group.state is GroupState.STABLE and unchanged and group.leader != member_id:
            self._rebalance.answer_parked_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._out.reply(token, self._rebalance.joined(group, member))
        else:
            # A leader that rejoins asks for a rebalance: the topics it watches changed.
            self._update_member(group, member, token, request, protocols)
            reason = f"member {member_id} rejoins: {request.reason or _NO_REASON}"
            self._rebalance.rebalance_or_complete_join(group, reason, now_ms)

    def _add_member(
        self,
        group: Group,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        protocols: dict[str, bytes],
        timer: Timer,
        now_ms: int,
    ) -> None:
        member = Member(
            timer,
            request.group_instance_id,
            client.client_id,
            client.host,
            rebalance_timeout_ms(request),
            request.session_timeout_ms,
            protocols,
        )
        member.is_new = True
        group.new_member_added = group.is_initial_rebalance
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member, token)
        self._timers.set(timer, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"member {member.member_id} joins: {request.reason or _NO_REASON}"
        self._rebalance.rebalance_or_complete_join(group, reason, now_ms)

    def _update_member(
        self,
        group: Group,
        member: Member,
        token: object,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
    ) -> None:
        self._rebalance.answer_parked_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.update_protocols(member, protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        group.park_join(member, token)

    def _rejoin_static(
        self,
        group: Group,
        token: object,
        request: JoinGroupRequest,
        client: Client,
        protocols: dict[str, bytes],
        member_id: str,
        now_ms: int,
    ) -> None:
        """A static member restarted: it gets a new member id, and the old one is fenced."""
        assert request.group_instance_id is not None
        old = group.members[group.static_members[request.group_instance_id]]
        self._rebalance.answer_parked_join(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalance.answer_parked_sync(old, ErrorCode.FENCED_INSTANCE_ID)
        self._timers.cancel(old.session_timer)
        member = Member(
            Timer(TimerKind.SESSION, group.group_id, member_id),
            old.group_instance_id,
            client.client_id,
            client.host,
            rebalance_timeout_ms(request),
            request.session_timeout_ms,
            protocols,
        )
        member.assignment = old.assignment
        member.stands_for = old.stands_for or old
        group.replace_static(old, member)
        group.park_join(member, token)
        self._rebalance.touch(member, now_ms)
        tell_back(group.group_id, member_id, old.member_id)
        reason = f"static member {member_id} is back"
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            # Same protocol, so the assignment still holds: no rebalance (KIP-345).
            self._persist_static_rejoin(group, old, member, client.api_version)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.maybe_complete_join(group, now_ms)
        else:
            self._rebalance.prepare_rebalance(group, reason, now_ms)

    def _persist_static_rejoin(
        self, group: Group, old: Member, member: Member, api_version: int
    ) -> None:
        token = member.join_token
        generation = group.generation

        def is_current() -> bool:
            # If not, a rebalance has taken the parked join over, or it has been answered.
            return (
                group.state is GroupState.STABLE
                and group.generation == generation
                and member.join_token is token
            )

        def committed(now_ms: int) -> None:
            if not is_current():
                return
            response = self._rebalance.joined(group, member)
            if group.leader == member.member_id:
                if api_version >= _FIRST_JOIN_WITH_SKIP_ASSIGNMENT:
                    response.skip_assignment = True
                else:
                    # An older leader must not compute an assignment that nobody waits for:
                    # it is told the id of its former self, and takes itself for a follower.
                    response.leader = old.member_id
                    response.members = []
            group.park_join(member, None)
            self._out.reply(token, response)
            self._rebalance.touch(member, now_ms)

        def failed(error: ErrorCode, now_ms: int) -> None:
            if is_current():
                # As the log has it: the member is still the old one.
                self._rebalance.answer_parked_join(group, member, membership_error(error))
                self._timers.cancel(member.session_timer)
                recorded = member.stands_for or member
                group.replace_static(member, recorded)
                self._rebalance.touch(recorded, now_ms)

        assignment = {member_id: m.assignment for member_id, m in group.members.items()}
        record = GroupRecord(group.group_id, group.snapshot(assignment))
        self._out.write((record,), (group.group_id,), committed, failed)

    def abandon(self, group_id: str, member_id: str, token: object, now_ms: int) -> None:
        """The connection of a parked JoinGroup has ended, which `token` was to answer."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or member.join_token is not token:
            return
        if group.generation or group.persisted:
            return  # It may be back in time, as with Kafka.
        tell_gone(group_id, member_id, "its connection ended before the first generation")
        self._rebalance.drop(group, member_id)
        if not group.members:
            self._rebalance.start_over(group, now_ms)
        self._rebalance.discard_if_unused(group)

    def _refuse(self, token: object, error: ErrorCode, member_id: str = "") -> None:
        self._out.reply(token, JoinGroupResponse(error_code=error, member_id=member_id))

    # -- SyncGroup

    def sync(self, token: object, request: SyncGroupRequest, now_ms: int) -> None:
        """A SyncGroup: answered now, or parked until the leader's assignment is committed."""
        group = self._groups.get(request.group_id)
        error = _check_sync(group, request)
        if error is not ErrorCode.NONE:
            self._out.reply(token, SyncGroupResponse(error_code=error))
            return
        assert group is not None
        member = group.members[request.member_id]
        self._rebalance.answer_parked_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            self._timers.cancel(group.sync_timer)
        if group.state is GroupState.STABLE:
            self._out.reply(token, _synced(group, member))
            self._rebalance.touch(member, now_ms)
            return
        member.sync_token = token
        if group.leader == member.member_id and not group.assignment_in_flight:
            self._persist_assignment(group, request, now_ms)

    def _persist_assignment(self, group: Group, request: SyncGroupRequest, now_ms: int) -> None:
        assignment = {given.member_id: given.assignment for given in request.assignments}
        missing = [member_id for member_id in group.members if member_id not in assignment]
        if missing:
            tell_unassigned(group.group_id, group.generation, missing)
        given_bytes = sum(map(len, assignment.values()))
        largest_bytes = max(map(len, assignment.values()), default=0)
        if largest_bytes > self._config.group_max_metadata_bytes:
            what = f"an assignment of {largest_bytes} bytes"
            tell_refused(group.group_id, what, MAX_METADATA)
            self._refuse_assignment(group, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms)
            return
        if not self._memory.has_room(given_bytes - group.assigned_bytes):
            tell_refused(group.group_id, "no memory for its assignment", MAX_MEMORY)
            self._refuse_assignment(group, ErrorCode.COORDINATOR_NOT_AVAILABLE, now_ms)
            return
        generation = group.generation
        group.assignment_in_flight = True

        def committed(now_ms: int) -> None:
            if group.state is GroupState.STABLE and group.generation == generation:
                for member in group.members.values():
                    if member.sync_token is not None:
                        self._out.reply(member.sync_token, _synced(group, member))
                        member.sync_token = None
                        self._rebalance.touch(member, now_ms)

        def failed(error: ErrorCode, now_ms: int) -> None:
            if (
                group.state is GroupState.COMPLETING_REBALANCE
                and group.generation == generation
                and group.assignment_in_flight
            ):
                log.warning(
                    "group %r: could not record its assignment: %s", group.group_id, error.name
                )
                self._refuse_assignment(group, membership_error(error), now_ms)

        record = GroupRecord(group.group_id, group.snapshot(assignment))
        self._out.write((record,), (group.group_id,), committed, failed)

    def _refuse_assignment(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        self._rebalance.withhold_assignment(group, error, now_ms)
        self._rebalance.prepare_rebalance(group, "its assignment could not be recorded", now_ms)

    # -- Heartbeat

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Puts the end of the member's session off; tells it of a rebalance."""
        group = self._groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalance.touch(group.members[request.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- LeaveGroup

    def leave(self, request: LeaveGroupRequest, now_ms: int) -> LeaveGroupResponse:
        """Takes the members of a batched leave out (the form of version 3 and later)."""
        group = self._groups.get(request.group_id)
        if group is not None and group.state is GroupState.DEAD:
            return LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = LeaveGroupResponse()
        left = []
        for identity in request.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                error = self._leave_one(group, identity)
            if error is ErrorCode.NONE:
                left.append(identity.member_id or identity.group_instance_id or "")
            response.members.append(
                LeaveGroupResponse.MemberResponse(
                    identity.member_id, identity.group_instance_id, error
                )
            )
        if group is not None and left:
            if group.state is not GroupState.EMPTY:
                reason = f"{', '.join(left)} left"
                self._rebalance.rebalance_or_complete_join(group, reason, now_ms)
            self._rebalance.discard_if_unused(group)
        return response

    def _leave_one(self, group: Group, identity: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        instance_id = identity.group_instance_id
        if not member_id and instance_id is not None:
            # An administrator removes a static member by the name that it was given.
            member_id = group.static_members.get(instance_id, "")
        if member_id not in group.pending:
            error = group.check_member(member_id, instance_id)
            if error is not ErrorCode.NONE:
                return error
        tell_gone(group.group_id, member_id, f"it leaves: {identity.reason or _NO_REASON}")
        self._rebalance.drop(group, member_id)
        return ErrorCode.NONE


def new_member_id(request: JoinGroupRequest, client: Client, uuid: str) -> str:
    """A member id that nobody has, which shows whose it is."""
    prefix = client.client_id if request.group_instance_id is None else request.group_instance_id
    return f"{prefix[:_MEMBER_ID_PREFIX_MAX]}-{uuid}"


def must_come_back(request: JoinGroupRequest, client: Client) -> bool:
    """Whether who has no member id is given one to join with, and nothing else (KIP-394)."""
    return (
        not request.member_id
        and request.group_instance_id is None
        and client.api_version >= _FIRST_JOIN_WITH_MEMBER_ID_REQUIRED
    )


def _check_sync(group: Group | None, request: SyncGroupRequest) -> ErrorCode:
    if group is None or group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for asked, actual in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if asked is not None and actual is not None and asked != actual:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _synced(group: Group, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has none: the session timeout stands for both."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms
