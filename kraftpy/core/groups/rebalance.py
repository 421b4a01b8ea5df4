"""How a classic group rebalances: the join phase, the new generation, and every deadline.

Rules (Kafka's; KIP-62, KIP-134, KIP-345):

* A rebalance ends when every member has (re)joined, or at the largest rebalance timeout among the
  members. Then the generation goes up, all parked JoinGroups are answered, and the leader gets the
  list of members. The first rebalance of an empty group waits for
  `group.initial.rebalance.delay.ms` instead, again and again while new members come, within the
  rebalance timeout.
* A dynamic member that did not rejoin in time is dropped; a static one stays until its session
  ends. A member that waits in JoinGroup or SyncGroup needs no heartbeat.
* Whoever is dropped gets its parked request answered: none is ever forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kraftpy.core.coordination import TOO_LARGE, write_error
from kraftpy.core.groups.config import RETRY_MS_MIN, GroupConfig
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.events import tell_generation, tell_gone, tell_rebalance
from kraftpy.core.groups.group import Group, GroupState, Member
from kraftpy.core.groups.records import GroupRecord, GroupSnapshot
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import JoinGroupResponse, SyncGroupResponse

log = logging.getLogger(__name__)


class Rebalance:
    """Moves the groups of one partition of the offsets topic through their states."""

    def __init__(
        self, config: GroupConfig, groups: dict[str, Group], timers: TimerQueue, outbox: Outbox
    ) -> None:
        self._config = config
        self._groups = groups
        self._timers = timers
        self._out = outbox

    # -- the rebalance

    def rebalance_or_complete_join(self, group: Group, reason: str, now_ms: int) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, now_ms)
        else:
            self.prepare_rebalance(group, reason, now_ms)

    def prepare_rebalance(self, group: Group, reason: str, now_ms: int) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.withhold_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._timers.cancel(group.sync_timer)
        group.pending_sync.clear()
        group.is_initial_rebalance = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        tell_rebalance(group.group_id, group.generation, len(group.members), reason)
        if group.is_initial_rebalance:
            # Wait a little for the others of a group that starts up (KIP-134).
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._timers.set(group.join_timer, now_ms + delay_ms)
        elif group.has_all_members_joined:
            self._complete_join(group, now_ms)
        else:
            self._timers.set(group.join_timer, now_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(self, group: Group, now_ms: int) -> None:
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and not group.is_initial_rebalance
            and group.has_all_members_joined
        ):
            self._complete_join(group, now_ms)

    def _complete_join(self, group: Group, now_ms: int) -> None:
        """Ends the join phase with those who are there: a new generation begins."""
        self._timers.cancel(group.join_timer)
        for member in list(group.members.values()):
            if member.join_token is None and member.group_instance_id is None:
                tell_gone(group.group_id, member.member_id, "it did not rejoin in time")
                self.drop(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none is back yet: keep their places.
            wait_ms = max(group.rebalance_timeout_ms, RETRY_MS_MIN)
            self._timers.set(group.join_timer, now_ms + wait_ms)
            return
        group.is_initial_rebalance = False
        group.assignment_in_flight = False
        group.generation = (group.generation + 1) & 0x7FFFFFFF
        if not group.members:
            self._become_empty(group, now_ms)
            return
        group.protocol_name = group.select_protocol()
        group.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        tell_generation(group.group_id, group.generation, len(group.members), group.protocol_name)
        for member in group.members.values():
            if member.join_token is not None:
                self._out.reply(member.join_token, self.joined(group, member))
                group.park_join(member, None)
            member.is_new = False
            group.pending_sync[member.member_id] = None
            self.touch(member, now_ms)
        self._timers.set(group.sync_timer, now_ms + group.rebalance_timeout_ms)

    def _become_empty(self, group: Group, now_ms: int) -> None:
        group.protocol_name = None
        group.transition_to(GroupState.EMPTY, now_ms)
        tell_generation(group.group_id, group.generation, 0, None)

        def failed(error: ErrorCode, now_ms: int) -> None:
            # The members stay in the log and get a session each if it is loaded; they won't
            # heartbeat, and the group empties again.
            log.warning(
                "group %r: could not record that it is empty: %s", group.group_id, error.name
            )

        record = GroupRecord(group.group_id, group.snapshot({}))
        self._out.write((record,), (group.group_id,), lambda now_ms: None, failed)

    def withhold_assignment(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        """Answers all parked SyncGroups with an error: there will be no assignment to give.

        Members may still own what they were given before, so that is kept.
        """
        group.assignment_in_flight = False
        for member in group.members.values():
            if self.answer_parked_sync(member, error):
                self.touch(member, now_ms)

    def touch(self, member: Member, now_ms: int) -> None:
        """The member gave a sign of life: its session starts again."""
        if not member.is_new:
            self._timers.set(member.session_timer, now_ms + member.session_timeout_ms)

    # -- committed records

    def replay(self, group_id: str, snapshot: GroupSnapshot, now_ms: int) -> None:
        """The record of a group has been committed.

        It makes the assignment of the present generation official; a record of an older generation
        has been overtaken by a rebalance and changes nothing. A group that is not there was a
        consumer group until now.
        """
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group.from_snapshot(group_id, snapshot)
            for member in group.members.values():
                self.touch(member, now_ms)
            return
        group.persisted = True
        for saved in snapshot.members:
            member_now = group.members.get(saved.member_id)
            if member_now is not None:
                member_now.stands_for = None
        if (
            group.state is GroupState.COMPLETING_REBALANCE
            and group.generation == snapshot.generation
            and group.assignment_in_flight
        ):
            for saved in snapshot.members:
                group.assign(group.members[saved.member_id], saved.assignment)
            group.assignment_in_flight = False
            group.transition_to(GroupState.STABLE, now_ms)

    # -- deadlines

    def timer_fired(self, timer: Timer, now_ms: int) -> None:
        """A deadline of a group or a member has passed."""
        group = self._groups.get(timer.group_id)
        if group is None:
            return
        if timer.kind is TimerKind.SESSION:
            self._session_expired(group, timer, now_ms)
        elif timer is group.sync_timer:
            self._sync_expired(group, now_ms)
        elif timer is group.join_timer and group.state is GroupState.PREPARING_REBALANCE:
            self._join_expired(group, now_ms)
        self.discard_if_unused(group)

    def _session_expired(self, group: Group, timer: Timer, now_ms: int) -> None:
        member_id = timer.member_id
        member = group.members.get(member_id)
        if member is None:
            if group.pending.get(member_id) is timer:
                del group.pending[member_id]
                tell_gone(group.group_id, member_id, "it never joined")
                self.maybe_complete_join(group, now_ms)
            return
        if member.session_timer is not timer:
            return
        is_parked = member.join_token is not None or member.sync_token is not None
        if is_parked and not member.is_new:
            # Its session starts again with the answer.
            return
        tell_gone(group.group_id, member_id, "its session expired: no heartbeat")
        self.drop(group, member_id)
        if group.state is not GroupState.EMPTY:
            reason = f"the session of member {member_id} expired"
            self.rebalance_or_complete_join(group, reason, now_ms)

    def _sync_expired(self, group: Group, now_ms: int) -> None:
        absent = list(group.pending_sync)
        for member_id in absent:
            self.drop(group, member_id)
        if absent:
            reason = f"{', '.join(absent)} did not sync in time"
            self.prepare_rebalance(group, reason, now_ms)

    def _join_expired(self, group: Group, now_ms: int) -> None:
        if not group.is_initial_rebalance:
            self._complete_join(group, now_ms)
            return
        remaining_ms = group.initial_remaining_ms
        if not group.new_member_added or remaining_ms == 0:
            self._complete_join(group, now_ms)
            return
        group.new_member_added = False
        elapsed_ms = group.initial_delay_ms
        group.initial_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - elapsed_ms, 0)
        self._timers.set(group.join_timer, now_ms + group.initial_delay_ms)

    # -- loading and unloading

    def loaded(self, group: Group, now_ms: int) -> None:
        """A group was read from the log: its members get a fresh session."""
        for member in group.members.values():
            self.touch(member, now_ms)
        if len(group.members) > self._config.group_max_size:
            self.prepare_rebalance(group, "it was loaded with too many members", now_ms)

    def forget(self, group: Group, error: ErrorCode) -> None:
        """Ends every wait in the group with `error` and stops its timers."""
        for member_id in [*group.pending, *group.members]:
            member = group.members.get(member_id)
            if member is not None:
                self.answer_parked_join(group, member, error)
                self.answer_parked_sync(member, error)
            self.drop(group, member_id)
        self._timers.cancel(group.join_timer)
        self._timers.cancel(group.sync_timer)

    def start_over(self, group: Group, now_ms: int) -> None:
        """The last one has left a group before its first generation: it is as it never was."""
        self._timers.cancel(group.join_timer)
        group.is_initial_rebalance = False
        group.protocol_type = None
        group.transition_to(GroupState.EMPTY, now_ms)

    def retire(self, group: Group) -> None:
        """It is a consumer group from now on: who waits here is told to rejoin."""
        self.forget(group, ErrorCode.REBALANCE_IN_PROGRESS)
        del self._groups[group.group_id]

    def downgraded(
        self,
        group: Group,
        protocols: dict[str, dict[str, bytes]],
        going: Iterable[str],
        now_ms: int,
    ) -> None:
        """It was a consumer group until now, which members `going` have left.

        `protocols` are all that each member supports: the record has the selected one only.
        """
        for member_id, supported in protocols.items():
            group.update_protocols(group.members[member_id], supported)
        for member_id in going:
            self.drop(group, member_id)
        reason = "the last member of the consumer protocol has left"
        self.prepare_rebalance(group, reason, now_ms)

    def drop(self, group: Group, member_id: str) -> None:
        """Takes a member or pending member out; what it has parked is answered."""
        member = group.members.get(member_id)
        timer = group.pending.get(member_id) if member is None else member.session_timer
        if timer is not None:
            self._timers.cancel(timer)
        if member is not None:
            self.answer_parked_join(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            self.answer_parked_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member_id)

    def discard_if_unused(self, group: Group) -> None:
        """Forgets a group that nobody is in and the log knows nothing of."""
        if (
            group.state is GroupState.EMPTY
            and not group.persisted
            and not group.pending
            and not self._out.in_flight(group.group_id)
            and self._groups.get(group.group_id) is group
        ):
            del self._groups[group.group_id]

    # -- answers

    def joined(self, group: Group, member: Member) -> JoinGroupResponse:
        """The answer to a member that is part of the present generation."""
        name = group.protocol_name
        assert name is not None
        response = JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=name,
            leader=group.leader or "",
            member_id=member.member_id,
        )
        if group.leader == member.member_id:
            response.members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    other.member_id, other.group_instance_id, other.protocols[name]
                )
                for other in group.members.values()
            ]
        return response

    def answer_parked_join(self, group: Group, member: Member, error: ErrorCode) -> None:
        if member.join_token is not None:
            self._out.reply(
                member.join_token,
                JoinGroupResponse(error_code=error, member_id=member.member_id),
            )
            group.park_join(member, None)

    def answer_parked_sync(self, member: Member, error: ErrorCode) -> bool:
        if member.sync_token is None:
            return False
        self._out.reply(member.sync_token, SyncGroupResponse(error_code=error))
        member.sync_token = None
        return True


def membership_error(error: ErrorCode) -> ErrorCode:
    """What a member is told when its group could not be recorded (Kafka's translation)."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if error in TOO_LARGE else write_error(error)
