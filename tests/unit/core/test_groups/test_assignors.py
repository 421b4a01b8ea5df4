from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.consumer.assignors import ASSIGNORS, Assignment, MemberSpec

A, B, C, D = (bytes(15) + bytes([n]) for n in range(1, 5))

Topics = dict[bytes, int]
Members = dict[str, MemberSpec]
Result = dict[str, Assignment]


def member(
    *topic_ids: bytes,
    owned: Mapping[bytes, frozenset[int]] | None = None,
    instance: str | None = None,
) -> MemberSpec:
    return MemberSpec(instance, None, frozenset(topic_ids), owned or {})


def reassign(name: str, members: Members, topics: Topics, result: Result) -> Result:
    """The next target when `result` is the present one."""
    owning = {
        member_id: spec._replace(owned=result.get(member_id, {}))
        for member_id, spec in members.items()
    }
    return ASSIGNORS[name](owning, topics)


def flat(result: Result) -> list[tuple[bytes, int, str]]:
    return [
        (topic_id, index, member_id)
        for member_id, assignment in result.items()
        for topic_id, indexes in assignment.items()
        for index in indexes
    ]


def moves(before: Result, after: Result) -> int:
    """How many partitions of members that are still there went to another member."""
    owners = {(topic_id, index): member_id for topic_id, index, member_id in flat(after)}
    return sum(
        owners[topic_id, index] != member_id
        for topic_id, index, member_id in flat(before)
        if member_id in after and (topic_id, index) in owners
    )


def count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


topics_strategy = st.dictionaries(st.sampled_from([A, B, C, D]), st.integers(1, 12), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, homogeneous: bool) -> tuple[Members, Topics]:
    """A group with any present target: also with partitions and topics that are no more."""
    topics = draw(topics_strategy)
    ids = draw(
        st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=9, unique=True)
    )
    some = st.frozensets(st.sampled_from(sorted(topics)))
    same = draw(some)
    owners = draw(
        st.dictionaries(
            st.tuples(st.sampled_from([A, B, C, D]), st.integers(0, 14)), st.sampled_from(ids)
        )
    )
    members = {}
    for member_id in ids:
        owned: dict[bytes, set[int]] = {}
        for (topic_id, index), owner in owners.items():
            if owner == member_id:
                owned.setdefault(topic_id, set()).add(index)
        members[member_id] = MemberSpec(
            draw(st.none() | st.just(f"instance-{member_id}")),
            None,
            same if homogeneous else draw(some),
            {topic_id: frozenset(indexes) for topic_id, indexes in owned.items()},
        )
    return members, topics


any_group = groups(homogeneous=True) | groups(homogeneous=False)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=any_group)
def test_each_partition_goes_to_one_subscriber(name: str, group: tuple[Members, Topics]) -> None:
    members, topics = group
    result = ASSIGNORS[name](members, topics)
    assert result.keys() == members.keys()
    assert all(indexes for each in result.values() for indexes in each.values())
    for member_id, assignment in result.items():
        assert assignment.keys() <= members[member_id].topic_ids
    subscribed = frozenset[bytes]().union(*(spec.topic_ids for spec in members.values()))
    assert sorted((topic_id, index) for topic_id, index, _ in flat(result)) == sorted(
        (topic_id, index) for topic_id in subscribed for index in range(topics[topic_id])
    )


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=any_group, seed=st.integers())
def test_the_order_of_the_arguments_does_not_matter(
    name: str, group: tuple[Members, Topics], seed: int
) -> None:
    members, topics = group
    shuffled = random.Random(seed)
    other_members = list(members.items())
    other_topics = list(topics.items())
    shuffled.shuffle(other_members)
    shuffled.shuffle(other_topics)
    assert ASSIGNORS[name](dict(other_members), dict(other_topics)) == ASSIGNORS[name](
        members, topics
    )


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=any_group)
def test_what_is_balanced_stays(name: str, group: tuple[Members, Topics]) -> None:
    members, topics = group
    result = ASSIGNORS[name](members, topics)
    assert reassign(name, members, topics, result) == result


@given(group=groups(homogeneous=True))
def test_uniform_shares_differ_by_one_at_most(group: tuple[Members, Topics]) -> None:
    counts = [count(each) for each in ASSIGNORS["uniform"](*group).values()]
    assert max(counts) - min(counts) <= 1


@given(group=groups(homogeneous=False))
def test_uniform_has_no_single_move_left_that_would_even_out_two_subscribers(
    group: tuple[Members, Topics],
) -> None:
    members, topics = group
    result = ASSIGNORS["uniform"](members, topics)
    for topic_id, _, owner in flat(result):
        for member_id, spec in members.items():
            if topic_id in spec.topic_ids:
                assert count(result[owner]) - count(result[member_id]) <= 1


@given(group=groups(homogeneous=True))
def test_uniform_moves_no_more_than_evening_out_takes(group: tuple[Members, Topics]) -> None:
    members, topics = group
    before = ASSIGNORS["uniform"](members, topics)
    joined = {**members, "zz": member(*next(iter(members.values())).topic_ids)}
    after = reassign("uniform", joined, topics, before)
    # Only what the new member got has moved, and nothing between the others.
    assert moves(before, after) == count(after["zz"])
    left = dict(list(joined.items())[1:])
    remaining = reassign("uniform", left, topics, after)
    assert moves(after, remaining) == 0


@given(group=groups(homogeneous=False))
def test_uniform_moves_nothing_between_others_when_a_like_member_joins(
    group: tuple[Members, Topics],
) -> None:
    members, topics = group
    before = ASSIGNORS["uniform"](members, topics)
    after = reassign("uniform", {**members, "zz": member()}, topics, before)
    assert moves(before, after) == 0


def test_range_gives_runs_in_the_order_of_members() -> None:
    members = {"m2": member(A), "m1": member(A), "m3": member(A)}
    assert ASSIGNORS["range"](members, {A: 7}) == {
        "m1": {A: frozenset({0, 1, 2})},
        "m2": {A: frozenset({3, 4})},
        "m3": {A: frozenset({5, 6})},
    }


def test_range_gives_the_same_indexes_of_topics_that_are_partitioned_alike() -> None:
    members = {name: member(A, B) for name in ("m1", "m2", "m3", "m4")}
    result = ASSIGNORS["range"](members, {A: 10, B: 10})
    assert all(each[A] == each[B] for each in result.values())


def test_range_leaves_late_members_without_when_there_are_too_few_partitions() -> None:
    members = {name: member(A) for name in ("m1", "m2", "m3")}
    result = ASSIGNORS["range"](members, {A: 2})
    assert result == {"m1": {A: frozenset({0})}, "m2": {A: frozenset({1})}, "m3": {}}


def test_range_gives_a_static_member_the_same_under_another_member_id() -> None:
    members = {
        "m1": member(A, instance="i2"),
        "m2": member(A, instance="i1"),
        "m0": member(A),
    }
    before = ASSIGNORS["range"](members, {A: 6})
    assert before["m2"] == {A: frozenset({0, 1})}
    assert before["m0"] == {A: frozenset({4, 5})}
    members["a-new-id"] = members.pop("m2")
    assert ASSIGNORS["range"](members, {A: 6})["a-new-id"] == before["m2"]


def test_uniform_makes_up_for_a_topic_with_one_subscriber() -> None:
    members = {"m1": member(A, B), "m2": member(A)}
    result = ASSIGNORS["uniform"](members, {A: 4, B: 2})
    assert count(result["m1"]) == count(result["m2"]) == 3
    assert result["m1"][B] == frozenset({0, 1})
