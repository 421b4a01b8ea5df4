"""Assignors: complete, even, sticky, in step with other clients' ones."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from kraftpy.client.assignors import ASSIGNORS, Assignment, Partition, Subscription, Topics
from kraftpy.client.sticky import place

NAMES = "abcde"
FEW = settings(max_examples=60)


@st.composite
def topics(draw: st.DrawFn) -> dict[str, dict[int, int]]:
    counts = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 7)))
    return {name: {n: draw(st.integers(-1, 3)) for n in range(c)} for name, c in counts.items()}


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False) -> dict[str, Subscription]:
    names = st.frozensets(st.sampled_from(NAMES))
    same = draw(names)
    return {
        f"m{number}": Subscription(
            same if equal else draw(names),
            instance_id=draw(st.none() | st.just(f"i{9 - number}")),
        )
        for number in range(draw(st.integers(1, 6)))
    }


def owner_of(assignment: Mapping[str, list[Partition]]) -> dict[Partition, str]:
    pairs = [(p, member) for member, partitions in assignment.items() for p in partitions]
    assert len(dict(pairs)) == len(pairs), "a partition has two owners"
    return dict(pairs)


def loads(assignment: Assignment) -> list[int]:
    return sorted(map(len, assignment.values()))


def claiming(
    name: str, assignment: Assignment, members: Mapping[str, Subscription], generation: int = 1
) -> dict[str, Subscription]:
    """The members as they join again after an assignment."""
    assignor = ASSIGNORS[name]
    return {
        member: Subscription(
            subscription.topics,
            tuple(assignment.get(member, ())) if assignor.cooperative else (),
            generation if member in assignment else -1,
            subscription.instance_id,
            assignor.user_data(assignment.get(member, ()), generation),
        )
        for member, subscription in members.items()
    }


@pytest.mark.parametrize("name", [name for name, each in ASSIGNORS.items() if not each.leasing])
@FEW
@given(topics(), groups())
def test_every_partition_has_one_owner_who_subscribes(
    name: str, there: Topics, members: dict[str, Subscription]
) -> None:
    assignment = ASSIGNORS[name].assign(there, members)
    assert assignment.keys() == members.keys()
    owners = owner_of(assignment)
    assert all(topic in members[member].topics for (topic, _), member in owners.items())
    wanted = frozenset[str]().union(*(m.topics for m in members.values()))
    assert owners.keys() == {(t, n) for t in there if t in wanted for n in there[t]}
    backwards = dict(reversed(members.items()))
    assert ASSIGNORS[name].assign(there, backwards) == assignment


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "cooperative-sticky"])
@FEW
@given(topics(), groups(equal=True))
def test_equal_subscriptions_give_equal_loads(
    name: str, there: Topics, members: dict[str, Subscription]
) -> None:
    found = loads(ASSIGNORS[name].assign(there, members))
    assert found[-1] - found[0] <= 1


@pytest.mark.parametrize("name", ["range", "kraftpy-broker-range"])
@FEW
@given(topics(), groups(equal=True))
def test_ranges_divide_each_topic_evenly(
    name: str, there: Topics, members: dict[str, Subscription]
) -> None:
    assignment = ASSIGNORS[name].assign(there, members)
    for topic in there:
        shares = [sum(t == topic for t, _ in ps) for ps in assignment.values()]
        assert max(shares) - min(shares) <= 1


def test_broker_range_clusters_partitions_of_a_broker() -> None:
    there = {"t": {0: 1, 1: 2, 2: 1, 3: 2, 4: 1, 5: 2}}
    members = dict.fromkeys(("a", "b"), Subscription(frozenset("t")))
    assert ASSIGNORS["kraftpy-broker-range"].assign(there, members) == {
        "a": [("t", 0), ("t", 2), ("t", 4)],
        "b": [("t", 1), ("t", 3), ("t", 5)],
    }


def theirs(cluster_topics: Topics) -> Any:
    return SimpleNamespace(
        topics=lambda: set(cluster_topics),
        partitions_for_topic=lambda t: set(cluster_topics.get(t, ())) or None,
    )


@pytest.mark.parametrize(
    ("name", "other", "equal"),
    [
        ("range", RangePartitionAssignor, False),
        # Its round robin ends with a KeyError when subscriptions differ.
        ("roundrobin", RoundRobinPartitionAssignor, True),
    ],
)
@FEW
@given(topics(), st.data())
def test_agrees_with_kafka_python(
    name: str, other: Any, equal: bool, there: Topics, data: st.DataObject
) -> None:
    members = data.draw(groups(equal=equal))
    # It keeps only the last run of static members if they don't stand together (groupby).
    ordered = sorted(members.items(), key=lambda item: item[1].instance_id is None)
    joined = [
        SimpleNamespace(
            member_id=member,
            group_instance_id=subscription.instance_id,
            metadata=SimpleNamespace(topics=sorted(subscription.topics)),
        )
        for member, subscription in ordered
    ]
    expected = {
        member: sorted(
            (entry.topic, n) if hasattr(entry, "topic") else (entry[0], n)
            for entry in assignment.assigned_partitions
            for n in (entry.partitions if hasattr(entry, "partitions") else entry[1])
        )
        for member, assignment in other.assign(theirs(there), joined).items()
    }
    assert ASSIGNORS[name].assign(there, members) == expected


@pytest.mark.parametrize(("name", "other"), [("range", AioRange), ("roundrobin", AioRoundRobin)])
@FEW
@given(topics(), groups())
def test_agrees_with_aiokafka(
    name: str, other: Any, there: Topics, members: dict[str, Subscription]
) -> None:
    """It knows no static members."""
    dynamic = {member: Subscription(s.topics) for member, s in members.items()}
    metadata = {m: other.metadata(sorted(s.topics)) for m, s in dynamic.items()}
    found = other.assign(theirs(there), metadata)
    expected = {m: sorted((t, n) for t, ns in a.assignment for n in ns) for m, a in found.items()}
    assert ASSIGNORS[name].assign(there, dynamic) == expected


@FEW
@given(topics(), groups(equal=True))
def test_sticky_reads_and_writes_what_aiokafka_does(
    there: Topics, members: dict[str, Subscription]
) -> None:
    """A group that aiokafka's leader divided stays as it is when ours leads, and the other way."""
    StickyPartitionAssignor.member_assignment = None
    metadata = {m: StickyPartitionAssignor.metadata(sorted(s.topics)) for m, s in members.items()}
    assigned = StickyPartitionAssignor.assign(theirs(there), metadata)
    first = {m: sorted((t, n) for t, ns in a.assignment for n in ns) for m, a in assigned.items()}
    again = {}
    for member, subscription in members.items():
        theirs_had = StickyPartitionAssignor._metadata(
            sorted(subscription.topics),
            [SimpleNamespace(topic=t, partition=n) for t, n in first[member]],
            1,
        )
        again[member] = Subscription(subscription.topics, user_data=theirs_had.user_data)
        had = ASSIGNORS["sticky"].user_data(first[member], 1)
        assert theirs_had.user_data == had or len(first[member]) > 1
        parsed = StickyPartitionAssignor.parse_member_metadata(
            SimpleNamespace(user_data=had, subscription=sorted(subscription.topics))
        )
        assert sorted((p.topic, p.partition) for p in parsed.partitions) == first[member]
        assert parsed.generation == 1
    assert ASSIGNORS["sticky"].assign(there, again) == first


def settle(name: str, there: Topics, members: dict[str, Subscription]) -> Assignment:
    """Rebalances as members hold them, until nothing is withheld; checks KIP-429's promise."""
    assignor = ASSIGNORS[name]
    for generation in itertools.count(2):
        held = {m: set(s.owned) for m, s in members.items()}
        assignment = assignor.assign(there, members)
        for member, partitions in assignment.items():
            others = set().union(*(held[m] for m in held if m != member))
            assert not set(partitions) & others, "given away while somebody has it"
        if not any(set(held[m]) - set(assignment[m]) for m in held):
            return assignment
        assert generation < 4
        members = claiming(name, assignment, members, generation)
    raise AssertionError


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@FEW
@given(topics(), groups(equal=True), st.integers(0, 6))
def test_members_that_come_and_go_move_no_more_than_they_must(
    name: str, there: Topics, members: dict[str, Subscription], removed: int
) -> None:
    before = settle(name, there, members)
    topic_names = next(iter(members.values())).topics
    stay = dict(list(members.items())[removed:])
    changed = stay | {"new": Subscription(topic_names)}
    after = settle(name, there, claiming(name, before, changed))
    assert loads(after)[-1] - loads(after)[0] <= 1
    share, remainder = divmod(sum(map(len, after.values())), len(after))
    kept = sum(len(set(before[m]) & set(after[m])) for m in stay)
    most = sum(min(len(before[m]), share) for m in stay)
    most += min(remainder, sum(len(before[m]) > share for m in stay))
    assert kept == most


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@FEW
@given(topics(), groups())
def test_nothing_moves_when_nothing_changed(
    name: str, there: Topics, members: dict[str, Subscription]
) -> None:
    before = settle(name, there, members)
    assert settle(name, there, claiming(name, before, members)) == before


@FEW
@given(
    st.dictionaries(st.sampled_from("ab"), st.integers(1, 3), min_size=1),
    st.lists(st.frozensets(st.sampled_from("ab")), min_size=1, max_size=3),
    st.data(),
)
def test_unequal_subscriptions_are_as_even_as_can_be(
    counts: dict[str, int], subscribed: list[frozenset[str]], data: st.DataObject
) -> None:
    """Against all placements there are."""
    subscriptions = {f"m{number}": topics for number, topics in enumerate(subscribed)}
    partitions = [(topic, n) for topic, count in counts.items() for n in range(count)]
    owners = data.draw(
        st.dictionaries(st.sampled_from(partitions), st.sampled_from([*subscriptions, "gone"]))
    )
    choices = [[m for m in subscriptions if topic in subscriptions[m]] for topic, _ in partitions]
    every = itertools.product(*filter(None, choices))
    best = min(sum(n * n for n in Counter(placement).values()) for placement in every)
    placed = place(partitions, subscriptions, owners)
    assert sum(len(partitions) ** 2 for partitions in placed.values()) == best


def test_of_two_claims_the_newer_generation_counts() -> None:
    """KIP-341: a member that was away for a while believes in what it had."""
    there = {"t": dict.fromkeys(range(4), 1)}
    t = frozenset("t")
    for name in ("sticky", "cooperative-sticky"):
        assignor = ASSIGNORS[name]
        old = [("t", n) for n in (0, 1)]
        new = [("t", n) for n in (0, 1)]
        members = {
            "a": Subscription(t, tuple(old), 3, user_data=assignor.user_data(old, 3)),
            "b": Subscription(t, tuple(new), 5, user_data=assignor.user_data(new, 5)),
        }
        assignment = assignor.assign(there, members)
        if name == "sticky":
            assert assignment == {"a": [("t", 2), ("t", 3)], "b": new}
        else:
            # What a may still be reading is given to b once a has revoked it.
            assert assignment == {"a": [("t", 2), ("t", 3)], "b": []}


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\1\0\5ab", b"\0\0\0\1\0\1t\x7f\xff\xff\xff"])
def test_user_data_that_makes_no_sense_claims_nothing(data: bytes) -> None:
    there = {"t": {0: 1, 1: 1}}
    members = {m: Subscription(frozenset("t"), user_data=data) for m in "ab"}
    assert loads(ASSIGNORS["sticky"].assign(there, members)) == [1, 1]
    assert loads(ASSIGNORS["cooperative-sticky"].assign(there, members)) == [1, 1]


@given(topics(), groups())
def test_members_that_are_leased_batches_have_all_of_what_they_subscribe_to(
    there: Topics, members: dict[str, Subscription]
) -> None:
    assignment = ASSIGNORS["kraftpy-cooperative-fetch"].assign(there, members)
    assert assignment == {
        member: sorted((topic, n) for topic in each.topics for n in there.get(topic, ()))
        for member, each in members.items()
    }
