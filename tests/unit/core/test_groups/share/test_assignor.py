"""The assignor `simple`: balance first, then as few moves as that allows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.consumer.records import Partitions
from kraftpy.core.groups.share.assignor import assign

A, B, C = (name.encode().ljust(16, b".") for name in "abc")
MEMBERS = st.integers(1, 9).map(lambda count: [f"m{number}" for number in range(count)])
COUNTS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 7), min_size=1)


def shown(targets: dict[str, Partitions]) -> dict[str, list[tuple[bytes, int]]]:
    return {
        member: sorted((topic, index) for topic, some in target.items() for index in some)
        for member, target in targets.items()
    }


def all_ask(members: list[str], counts: dict[bytes, int]) -> dict[str, frozenset[bytes]]:
    return dict.fromkeys(members, frozenset(counts))


def ready(counts: dict[bytes, int]) -> dict[bytes, range]:
    return {topic: range(count) for topic, count in counts.items()}


@given(members=MEMBERS, counts=COUNTS)
def test_all_have_something_and_equally_much(members: list[str], counts: dict[bytes, int]) -> None:
    dealt = shown(assign(all_ask(members, counts), {}, ready(counts)))
    partitions = sum(counts.values())
    sharing = -(-len(members) // partitions)
    holders = Counter(place for places in dealt.values() for place in places)
    assert set(holders) == {(topic, index) for topic in counts for index in range(counts[topic])}
    assert set(holders.values()) == {sharing}
    sizes = {len(places) for places in dealt.values()}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(members=MEMBERS, counts=COUNTS, before=MEMBERS, more=st.integers(0, 3))
def test_whatever_there_was_before_all_have_something(
    members: list[str], counts: dict[bytes, int], before: list[str], more: int
) -> None:
    targets = assign(all_ask(before, counts), {}, ready(counts))
    grown = {topic: count + more for topic, count in counts.items()}
    dealt = shown(assign(all_ask(members, grown), targets, ready(grown)))
    holders = Counter(place for places in dealt.values() for place in places)
    sharing = -(-len(members) // sum(grown.values()))
    assert len(holders) == sum(grown.values())
    assert max(holders.values()) <= sharing
    assert all(dealt.values())
    sizes = [len(places) for places in dealt.values()]
    assert max(sizes) - min(sizes) <= max(1, sharing)


@given(members=MEMBERS, counts=COUNTS)
def test_nothing_moves_while_nothing_changes(members: list[str], counts: dict[bytes, int]) -> None:
    asked = all_ask(members, counts)
    once = assign(asked, {}, ready(counts))
    assert assign(asked, once, ready(counts)) == once


@given(members=MEMBERS, counts=COUNTS)
def test_who_comes_takes_no_more_than_its_share(
    members: list[str], counts: dict[bytes, int]
) -> None:
    partitions = sum(counts.values())
    before = assign(all_ask(members, counts), {}, ready(counts))
    after = assign(all_ask([*members, "a new one"], counts), before, ready(counts))
    if len(members) + 1 <= partitions:  # each has one member before and behind
        moved = sum(
            len(set(places) - set(shown(after)[member])) for member, places in shown(before).items()
        )
        assert moved == len(shown(after)["a new one"])


def test_members_that_ask_for_different_topics_share_each_topic() -> None:
    asked = {"1": frozenset((A,)), "2": frozenset((B,)), "3": frozenset((A, B))}
    dealt = shown(assign(asked, {}, {A: range(4), B: range(4)}))
    assert [len(dealt[each]) for each in "123"] == [2, 2, 4]
    assert Counter(topic for topic, _ in dealt["3"]) == {A: 2, B: 2}
    assert {topic for topic, _ in dealt["1"]} == {A}


def test_only_what_is_ready_is_dealt_out() -> None:
    asked = all_ask(["1", "2"], {A: 4, B: 1})
    assert shown(assign(asked, {}, {A: (1,)})) == {"1": [(A, 1)], "2": [(A, 1)]}
    assert shown(assign(asked, {"1": {A: frozenset((0, 1))}}, {})) == {"1": [], "2": []}
    assert assign({"1": frozenset()}, {}, {A: (0,)}) == {"1": {}}
