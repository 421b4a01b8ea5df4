"""Random stories of several clients, with what must always hold checked after every step.

* Every parked request is answered at most once (the driver checks), and none is forgotten.
* Each member of a stable generation has exactly one assignment: what the leader gave it.
* Committed offsets are those of the last commit that the log took; a fetch never shows another.
* Another machine that has read the log agrees on offsets, and on every group that is at rest.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kraftpy.core.groups.group import GroupState
from kraftpy.core.groups.memory import GROUP_BYTES, PENDING_MEMBER_BYTES
from kraftpy.protocol.errors import ErrorCode

from .driver import TOPICS, Driver

GROUPS = st.sampled_from(["g", "h"])
PICK = st.integers(0, 7)
ERRORS = st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])


class Stories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(commits=False)
        self.parked: dict[str, str] = {}  # token -> group
        self.ids: dict[str, list[str]] = {"g": [], "h": []}
        self.model: dict[str, dict[tuple[str, int], int]] = {"g": {}, "h": {}}
        self.value = 0
        # Generations in which a record timed out: the log may know more than the group does.
        self.unsure: set[tuple[str, int]] = set()

    def some_id(self, group: str, pick: int) -> str:
        ids = self.ids[group]
        return ids[pick % len(ids)] if ids else "nobody"

    def generation(self, group: str) -> int:
        known = self.driver.machine._groups.get(group)
        return 0 if known is None else known.generation

    # -- what clients do

    @rule(group=GROUPS, version=st.sampled_from([3, 9]))
    def arrive(self, group: str, version: int) -> None:
        token = self.driver.join(group=group, version=version)
        self.parked[token] = group

    @rule(group=GROUPS, instance=st.sampled_from(["i-1", "i-2"]))
    def arrive_static(self, group: str, instance: str) -> None:
        self.parked[self.driver.join(group=group, instance=instance)] = group

    @rule(group=GROUPS, pick=PICK, metadata=st.sampled_from([b"a", b"b"]))
    def rejoin(self, group: str, pick: int, metadata: bytes) -> None:
        member = self.some_id(group, pick)
        token = self.driver.join(member, group=group, protocols={"range": metadata})
        self.parked[token] = group

    @rule(group=GROUPS, pick=PICK, stale=st.booleans())
    def sync(self, group: str, pick: int, stale: bool) -> None:
        known = self.driver.machine._groups.get(group)
        members = [] if known is None else list(known.members)
        generation = self.generation(group) - stale
        assignment = {m: f"{m} in {generation}".encode() for m in members}
        token = self.driver.sync(self.some_id(group, pick), generation, assignment, group=group)
        self.parked[token] = group

    @rule(group=GROUPS, pick=PICK)
    def disconnect(self, group: str, pick: int) -> None:
        """The connection of a parked JoinGroup ends."""
        known = self.driver.machine._groups.get(group)
        waiting = [] if known is None else [m for m in known.members.values() if m.join_token]
        if waiting:
            member = waiting[pick % len(waiting)]
            assert isinstance(member.join_token, str)
            self.driver.abandon(member.member_id, member.join_token, group=group)

    @rule(group=GROUPS, newcomer=st.booleans())
    def come_together(self, group: str, newcomer: bool) -> None:
        """Everybody does as a well-behaved client does, up to a stable group."""
        if newcomer:
            self.arrive(group, 3)
        known = self.driver.machine._groups.get(group)
        members = [] if known is None else list(known.members.values())
        for member in members:
            if member.join_token is None:
                token = self.driver.join(
                    member.member_id,
                    group=group,
                    instance=member.group_instance_id,
                    protocols=member.protocols,
                )
                self.parked[token] = group
        self.driver.advance(9_000)
        if known is None or known.state is not GroupState.COMPLETING_REBALANCE:
            return
        assignment = {m: f"{m} in {known.generation}".encode() for m in known.members}
        for member in list(known.members.values()):
            self.parked[
                self.driver.sync(
                    member.member_id,
                    known.generation,
                    assignment,
                    group=group,
                    instance=member.group_instance_id,
                )
            ] = group
        while self.driver.in_flight:
            self.land()

    @rule(group=GROUPS, pick=PICK)
    def heartbeat(self, group: str, pick: int) -> None:
        self.driver.heartbeat(self.some_id(group, pick), self.generation(group), group=group)

    @rule(group=GROUPS, pick=PICK)
    def leave(self, group: str, pick: int) -> None:
        self.driver.leave(self.some_id(group, pick), group=group)

    @rule(
        group=GROUPS,
        pick=PICK,
        outside=st.booleans(),
        places=st.sets(st.tuples(st.sampled_from([*TOPICS]), st.integers(0, 2)), min_size=1),
    )
    def commit(self, group: str, pick: int, outside: bool, places: set[tuple[str, int]]) -> None:
        self.value += 1
        offsets = dict.fromkeys(sorted(places), self.value)
        if outside:
            self.driver.commit(offsets, group=group)
        else:
            self.driver.commit(
                offsets,
                group=group,
                member_id=self.some_id(group, pick),
                generation=self.generation(group),
            )

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.driver.delete_group(group)

    @rule(group=GROUPS, place=st.tuples(st.sampled_from([*TOPICS]), st.integers(0, 2)))
    def delete_offsets(self, group: str, place: tuple[str, int]) -> None:
        self.driver.delete_offsets(place, group=group)

    @rule(topic=st.sampled_from([*TOPICS]))
    def delete_topic(self, topic: str) -> None:
        self.driver.carry_out(self.driver.machine.delete_topic(topic, self.driver.now_ms))

    # -- what the log and the clock do

    @rule()
    def land(self) -> None:
        if not self.driver.in_flight:
            return
        for record in self.driver.in_flight[0].records:
            if hasattr(record, "topic"):
                place = (record.topic, record.partition)
                if record.committed is None:
                    self.model[record.group_id].pop(place, None)
                else:
                    self.model[record.group_id][place] = record.committed.offset
        self.driver.settle()

    @rule(error=ERRORS)
    def fail(self, error: ErrorCode) -> None:
        # One that timed out is in the log already and can't fail any more.
        if self.driver.in_flight and not self.driver.in_flight[0].settled:
            self.driver.settle(error)

    @rule()
    def time_out(self) -> None:
        if self.driver.in_flight:
            for group in self.driver.in_flight[0].keys:
                self.unsure.add((group, self.generation(group)))
            self.driver.time_out()

    @rule(ms=st.sampled_from([1, 3_000, 9_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule()
    def expire(self) -> None:
        self.driver.now_ms += 8 * 86_400_000
        self.driver.machine.shift_deadlines(8 * 86_400_000)
        self.driver.expire()

    @rule()
    def move(self) -> None:
        """The coordinator moves: what was in flight is lost, everybody parked is told."""
        effects = self.driver.machine.close(ErrorCode.NOT_COORDINATOR, self.driver.now_ms)
        self.driver.carry_out(effects)
        for token in self.parked:
            assert token in self.driver.replies, "a parked request was forgotten"
        replies, number = self.driver.replies, self.driver._number
        self.driver = self.driver.reloaded()
        self.driver.commits = False
        self.driver.replies, self.driver._number = replies, number

    # -- what always holds

    @invariant()
    def answers_are_collected(self) -> None:
        for token, group in list(self.parked.items()):
            reply = self.driver.replies.get(token)
            if reply is None:
                continue
            del self.parked[token]
            member_id = getattr(reply, "member_id", "")
            if member_id and member_id not in self.ids[group]:
                self.ids[group].append(member_id)

    @invariant()
    def parked_requests_are_held_by_a_member(self) -> None:
        held = {
            token
            for group in self.driver.machine._groups.values()
            for member in group.members.values()
            for token in (member.join_token, member.sync_token)
            if token is not None
        }
        assert held == self.parked.keys() - self.driver.replies.keys()

    @invariant()
    def offsets_are_those_of_the_log(self) -> None:
        for group, offsets in self.model.items():
            assert self.driver.offsets(group) == offsets

    @invariant()
    def memory_is_counted(self) -> None:
        machine, memory = self.driver.machine, self.driver.memory
        used_bytes = awaited_bytes = 0
        for group in machine._groups.values():
            members_bytes = sum(member.size_bytes for member in group.members.values())
            pending_bytes = len(group.pending) * PENDING_MEMBER_BYTES
            size_bytes = GROUP_BYTES + len(group.group_id) + members_bytes + pending_bytes
            if group.is_awaited:
                awaited_bytes += size_bytes
            elif group.state is not GroupState.DEAD or group.group_id in machine._memory._sizes:
                used_bytes += size_bytes
        assert (memory.used_bytes, memory.awaited_bytes) == (used_bytes, awaited_bytes)

    @invariant()
    def groups_are_sound(self) -> None:
        for group in self.driver.machine._groups.values():
            assert (group.leader in group.members) if group.members else group.leader is None
            waiting = [m for m in group.members.values() if m.join_token is not None]
            assert group.awaiting_join_count == len(waiting)
            assert set(group.static_members.values()) == {
                m.member_id for m in group.members.values() if m.group_instance_id is not None
            }
            assert not group.pending.keys() & group.members.keys()
            assert group.pending_sync.keys() <= group.members.keys()
            if group.state in (GroupState.EMPTY, GroupState.DEAD):
                assert not group.members
            if group.state is GroupState.STABLE:
                assert all(m.sync_token is None for m in group.members.values())
                for member in group.members.values():
                    assert member.assignment.endswith(f" in {group.generation}".encode())
            if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial_rebalance:
                assert not group.has_all_members_joined
            for member in group.members.values():
                # Whoever is not waiting for an answer has a session that can end.
                is_parked = member.join_token is not None or member.sync_token is not None
                assert is_parked or member.session_timer.deadline_ms is not None

    @invariant()
    def the_log_tells_the_same(self) -> None:
        other = self.driver.reloaded()
        for group_id in self.model:
            assert other.offsets(group_id) == self.driver.offsets(group_id)
        for group in self.driver.machine._groups.values():
            if (
                group.state is GroupState.STABLE
                and (group.group_id, group.generation) not in self.unsure
                and not any(group.group_id in w.keys for w in self.driver.in_flight)
            ):
                described = self.driver.machine.describe(group.group_id)
                assert other.machine.describe(group.group_id) == described


Stories.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestStories = Stories.TestCase
