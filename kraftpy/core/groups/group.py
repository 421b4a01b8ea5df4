"""A classic group: its members, its state, and the vote on a protocol.

This module knows what a group is; `membership` knows what requests and timers do to it.

    Empty ──join──> PreparingRebalance ──all joined──> CompletingRebalance ──assignment──> Stable
      ^                  │        ^ ^                          │                             │
      └───nobody left────┘        │ └─────join, leave, expiry──┘                             │
                                  └────────────────join, leave, expiry───────────────────────┘

A group is Dead from the moment that its tombstone is on the way until the group is forgotten. While
Dead it answers COORDINATOR_NOT_AVAILABLE, so that nobody joins what is about to vanish.

Everything but the last committed snapshot (generation, members, assignments) is soft: it is lost
when the coordinator moves, as in Kafka, and clients rejoin. Iteration orders are insertion orders,
so that a machine replays the same way every time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum

from kraftpy.core.groups.memory import (
    GROUP_BYTES,
    MEMBER_BYTES,
    PENDING_MEMBER_BYTES,
    protocols_bytes,
    text_bytes,
)
from kraftpy.core.groups.records import GroupSnapshot, MemberSnapshot
from kraftpy.core.groups.timers import Timer, TimerKind
from kraftpy.protocol.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class GroupState(Enum):
    """The values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_VALID_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}


class Member:
    """One member; `protocols` maps protocol name to metadata in the member's order of preference.

    `join_token` and `sync_token` are the requests that the member has parked here. `stands_for` is
    who the log has in the place of a static member whose return is not recorded yet.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
        "stands_for",
        "sync_token",
    )

    def __init__(
        self,
        session_timer: Timer,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = session_timer.member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        self.is_new = False
        self.join_token: object | None = None
        self.sync_token: object | None = None
        self.stands_for: Member | None = None
        self.session_timer = session_timer

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Whether these are the member's protocols, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        names = self.member_id, self.group_instance_id, self.client_id, self.client_host
        said = protocols_bytes(self.protocols.items())
        return MEMBER_BYTES + text_bytes(*names) + said + len(self.assignment)

    def vote(self, candidates: set[str]) -> str:
        """The candidate that the member likes best."""
        return next(name for name in self.protocols if name in candidates)

    def snapshot(self, protocol_name: str, assignment: bytes) -> MemberSnapshot:
        return MemberSnapshot(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols[protocol_name],
            assignment,
        )


class Group:
    """One classic group.

    `pending` are member ids that were given out but have not joined yet (KIP-394). `persisted` says
    that the log holds a record of the group, so that forgetting it takes a tombstone.
    `is_converting` says that the records which make a consumer group of it are on their way.
    """

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending: dict[str, Timer] = {}
        self.pending_sync: dict[str, None] = {}
        self.persisted = False
        self.is_converting = False
        self.assignment_in_flight = False
        self.is_initial_rebalance = False
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.join_timer = Timer(TimerKind.JOIN, group_id)
        self.sync_timer = Timer(TimerKind.SYNC, group_id)
        self._awaiting_join_count = 0
        self._supporters: dict[str, int] = {}
        self._members_bytes = 0

    # -- state

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        assert self.state in _VALID_PREVIOUS_STATES[state], f"{self.state} -> {state}"
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def is_simple(self) -> bool:
        """Used for offsets alone: nobody joined it, ever."""
        return self.protocol_type is None and not self.members and not self.pending

    @property
    def is_awaited(self) -> bool:
        """Nobody has joined it, but member ids were given out."""
        return (
            self.state is GroupState.EMPTY
            and bool(self.pending)
            and not self.members
            and not self.persisted
        )

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        pending_bytes = len(self.pending) * PENDING_MEMBER_BYTES
        return GROUP_BYTES + text_bytes(self.group_id) + self._members_bytes + pending_bytes

    @property
    def assigned_bytes(self) -> int:
        """What the members' assignments take."""
        return sum(len(member.assignment) for member in self.members.values())

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The group waits as long as its most patient member."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # -- members

    def add(self, member: Member, join_token: object | None) -> None:
        """Takes a member in; the first one becomes leader and sets the protocol type."""
        instance_id = member.group_instance_id
        if instance_id is not None:
            assert instance_id not in self.static_members
            self.static_members[instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self.park_join(member, join_token)
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Drops a member or pending member; the lead passes to the longest-serving member."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.join_token is not None:
                self._awaiting_join_count -= 1
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)

    def replace_static(self, old: Member, new: Member) -> None:
        """A static member has another id: `new` takes the place of `old`, lead included."""
        assert new.group_instance_id is not None
        assert old.join_token is None
        self._count(old, -1)
        self._count(new, 1)
        # In the same position: the order of members decides ties of the protocol vote.
        self.members = {
            (new.member_id if member is old else member_id): (new if member is old else member)
            for member_id, member in self.members.items()
        }
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new.member_id] = None
        self.static_members[new.group_instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id

    def update_protocols(self, member: Member, protocols: dict[str, bytes]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        self._members_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the caller is who it says: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or NONE."""
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- parked joins

    def park_join(self, member: Member, token: object | None) -> None:
        """The member waits in JoinGroup with `token` (None: it does not wait)."""
        self._awaiting_join_count += (token is not None) - (member.join_token is not None)
        member.join_token = token

    @property
    def awaiting_join_count(self) -> int:
        return self._awaiting_join_count

    @property
    def has_all_members_joined(self) -> bool:
        return len(self.members) == self._awaiting_join_count and not self.pending

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader takes part in the rebalance; False if nobody does."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    # -- protocols

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can be in the group with the present members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supporters.get(name, 0) == count for name in names
        )

    def select_protocol(self) -> str:
        """The protocol that all support and most prefer (the first voted for wins a tie)."""
        count = len(self.members)
        candidates = {name for name, supporters in self._supporters.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count(self, member: Member, delta: int) -> None:
        self._members_bytes += delta * member.size_bytes
        for name in member.protocols:
            supporters = self._supporters.get(name, 0) + delta
            if supporters:
                self._supporters[name] = supporters
            else:
                del self._supporters[name]

    # -- what others want to know

    def subscribed_topics(self) -> set[str] | None:
        """The topics that the members of a consumer group subscribe to.

        None if they are not known: then it may be any.
        """
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            return None
        topics: set[str] = set()
        for member in self.members.values():
            assert self.protocol_name is not None
            subscribed = _subscription_topics(member.protocols.get(self.protocol_name, b""))
            if subscribed is None:
                return None
            topics.update(subscribed)
        return topics

    def snapshot(self, assignment: dict[str, bytes]) -> GroupSnapshot:
        """The state to persist, with this assignment (missing members get an empty one)."""
        name = self.protocol_name
        members: tuple[MemberSnapshot, ...] = ()
        if name is not None:
            members = tuple(
                member.snapshot(name, assignment.get(member_id, b""))
                for member_id, member in self.members.items()
            )
        return GroupSnapshot(
            self.protocol_type,
            self.generation,
            name,
            self.leader,
            self.state_timestamp_ms,
            members,
        )

    @classmethod
    def from_snapshot(cls, group_id: str, snapshot: GroupSnapshot) -> Group:
        """The group as its record left it: stable, or empty."""
        group = cls(group_id, snapshot.state_timestamp_ms)
        group.protocol_type = snapshot.protocol_type
        group.protocol_name = snapshot.protocol_name
        group.generation = snapshot.generation
        group.leader = snapshot.leader if snapshot.members else None
        group.persisted = True
        for saved in snapshot.members:
            assert snapshot.protocol_name is not None
            member = Member(
                Timer(TimerKind.SESSION, group_id, saved.member_id),
                saved.group_instance_id,
                saved.client_id,
                saved.client_host,
                saved.rebalance_timeout_ms,
                saved.session_timeout_ms,
                {snapshot.protocol_name: saved.subscription},
            )
            member.assignment = saved.assignment
            group.add(member, None)
        if group.members:
            group.state = GroupState.STABLE
        return group


def _subscription_topics(metadata: bytes) -> list[str] | None:
    """The topics at the start of a ConsumerProtocolSubscription of any version; None if it is none.

    Members may be newer than this broker, so only the part that all versions share is read.
    """
    try:
        if _INT16.unpack_from(metadata, 0)[0] < 0:
            return None
        (count,) = _INT32.unpack_from(metadata, 2)
        if not 0 <= count <= len(metadata):
            return None
        topics = []
        position = 6
        for _ in range(count):
            (size,) = _INT16.unpack_from(metadata, position)
            position += 2
            name = metadata[position : position + size]
            if size < 0 or len(name) != size:
                return None
            topics.append(name.decode())
            position += size
    except (ValueError, struct.error):
        return None
    return topics
