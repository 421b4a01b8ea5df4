"""A slot has one owner at every moment, whatever order members come, go, join and learn in."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kraftpy.client.assignor import Subscription
from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.handover import hand_over
from kraftpy.client.shares import together, without
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    Shares,
    ShareSubscription,
    encode_share_subscription,
)

STICKY = ASSIGNORS["kraftpy-cooperative-sticky"]
THERE = {"t": {0: 1, 1: 1}}
T = frozenset("t")


@dataclass
class Reader:
    """A member as it sees itself; fenced ones hand out nothing."""

    has: Shares = field(default_factory=dict)
    generation: int = -1
    joined: Subscription | None = None
    given: Shares | None = None
    must_join: bool = True


class Group(RuleBasedStateMachine):
    """The coordinator is one variable: who is in, and who has joined the next generation."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.members: dict[str, Reader] = {}
        self.born = 0

    @rule()
    def a_member_starts(self) -> None:
        if len(self.members) < 7:
            self.members[f"m{self.born}"] = Reader()
            self.born += 1

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_member_dies(self, data: st.DataObject) -> None:
        """It leaves, or its session is over: then it has handed out nothing for as long."""
        del self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_member_joins(self, data: st.DataObject) -> None:
        """With what it reads, though it may have been given something else since."""
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        member.given = None
        said = encode_share_subscription(ShareSubscription(True, "", dict(member.has)))
        member.joined = Subscription(T, tuple(member.has), member.generation, user_data=said)
        member.must_join = False

    @precondition(lambda self: any(m.joined for m in self.members.values()))
    @rule(patient=st.booleans())
    def a_rebalance_ends(self, patient: bool) -> None:
        """Once all have joined; or without those that haven't, when their time is up."""
        if patient and not all(m.joined for m in self.members.values()):
            return
        self.members = {name: m for name, m in self.members.items() if m.joined}
        self.generation += 1
        joined = {name: m.joined for name, m in self.members.items() if m.joined}
        for name, share in STICKY.share(THERE, joined, T).items():
            member = self.members[name]
            member.joined, member.given, member.generation = None, share, self.generation

    @precondition(lambda self: any(m.given is not None for m in self.members.values()))
    @rule(data=st.data(), lost=st.booleans())
    def a_member_learns_what_it_is_given(self, data: st.DataObject, lost: bool) -> None:
        told = sorted(name for name, m in self.members.items() if m.given is not None)
        member = self.members[data.draw(st.sampled_from(told))]
        given, member.given = member.given or {}, None
        if lost:
            member.must_join = True
            return
        change = hand_over(member.has, given)
        member.has = without(member.has, change.revoked)
        self.no_slot_has_two_owners()
        member.has = together(member.has, change.added)
        assert member.has == given
        member.must_join = bool(change.revoked)

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        seen: Shares = {}
        for member in self.members.values():
            assert without(member.has, seen) == member.has
            seen = together(seen, member.has)

    def teardown(self) -> None:
        """Left alone the group comes to rest, and all is read."""
        for _ in range(4):
            for member in self.members.values():
                said = encode_share_subscription(ShareSubscription(True, "", dict(member.has)))
                member.joined = Subscription(
                    T, tuple(member.has), member.generation, user_data=said
                )
            if self.members:
                self.a_rebalance_ends(patient=True)
            for member in self.members.values():
                change = hand_over(member.has, member.given or {})
                member.has = without(member.has, change.revoked)
            self.no_slot_has_two_owners()
            for member in self.members.values():
                member.has, member.given = member.given or {}, None
                self.no_slot_has_two_owners()
        seen: Shares = {}
        for member in self.members.values():
            seen = together(seen, member.has)
        assert not self.members or seen == {("t", 0): ALL_SLOTS, ("t", 1): ALL_SLOTS}


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
