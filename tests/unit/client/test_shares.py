"""Slices, shares and the assignors that deal them out: complete, even, sticky."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.assignor import SharedAssignment, Subscription, Topics
from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.shares import equal_slices, off_line, on_line, without
from kraftpy.client.sharing import cut, sharing_of
from kraftpy.client.spans import (
    Spans,
    contains,
    intersect,
    join,
    size,
    split,
    subtract,
    uncovered_from,
)
from kraftpy.client.sticky_shares import MOST_RANGES, stick
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    Shares,
    ShareSubscription,
    encode_share_subscription,
)

FEW = settings(max_examples=60)
STICKY = ASSIGNORS["kraftpy-cooperative-sticky"]
SHARING = ["range", "roundrobin", "kraftpy-colocate", "kraftpy-cooperative-sticky"]
FIVE = ("c1", "c2", "c3", "c4", "c5")
T = frozenset("t")


def sharing(
    owned: Shares | None = None, generation: int = -1, *, host: str = "", topics: Iterable[str] = T
) -> Subscription:
    """A member that shares."""
    data = encode_share_subscription(ShareSubscription(True, host, owned or {}))
    return Subscription(frozenset(topics), tuple(owned or ()), generation, user_data=data)


def partitions(count: int) -> dict[int, int]:
    return dict.fromkeys(range(count), 1)


def again(
    members: Mapping[str, Subscription], assignment: SharedAssignment, generation: int
) -> dict[str, Subscription]:
    """The members as they join again after an assignment."""
    return {
        member: sharing(assignment.get(member), generation, topics=subscription.topics)
        for member, subscription in members.items()
    }


def settle(there: Topics, members: Mapping[str, Subscription]) -> SharedAssignment:
    """Rebalances until nothing is withheld any more."""
    before = {member: sharing_of(subscription).owned for member, subscription in members.items()}
    for generation in range(2, 6):
        assignment = STICKY.share(there, members, there.keys())
        if assignment == before:
            return assignment
        before, members = assignment, again(members, assignment, generation)
    raise AssertionError("it never comes to rest")


def slots_of(shares: Shares) -> int:
    return sum(last - first + 1 for slots in shares.values() for first, last in slots)


def assert_tiles(there: Topics, assignment: SharedAssignment) -> None:
    """Each slot of each partition has one owner."""
    for topic, numbers in there.items():
        for number in numbers:
            slots = sorted(
                each for share in assignment.values() for each in share.get((topic, number), ())
            )
            assert slots[0][0] == 0
            assert slots[-1][1] == SLOTS - 1
            for (_, last), (first, _) in pairwise(slots):
                assert first == last + 1


# -- slices and spans


def test_a_partition_in_two_slices_is_cut_where_the_draft_does_but_one() -> None:
    """Its N/2 - 1 with N = Long.MAX is an odd number's half: one hash below ours."""
    low, high = equal_slices(2)
    assert [hashes_of(*slots) for (slots,) in (low, high)] == [
        (0, HASH_MAX // 2),
        (HASH_MAX // 2 + 1, HASH_MAX),
    ]


@given(st.integers(1, 3000))
def test_equal_slices_tile_a_partition(count: int) -> None:
    slices = [each for (each,) in equal_slices(count)]
    assert slices[0][0] == 0
    assert slices[-1][1] == SLOTS - 1
    assert all(b[0] == a[1] + 1 for a, b in pairwise(slices))
    sizes = [last - first for first, last in slices]
    assert max(sizes) - min(sizes) <= 1


PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda t: (min(t), max(t))))


def points(spans: Spans) -> set[int]:
    return {point for begin, end in spans for point in range(begin, end)}


def assert_spans(spans: Spans) -> None:
    assert all(begin < end for begin, end in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))


@given(PIECES, PIECES, st.integers(0, 50))
def test_spans_are_sets_of_slots(some: Spans, others: Spans, first: int) -> None:
    a, b = join(some), join(others)
    for spans in (a, subtract(a, b), intersect(a, b)):
        assert_spans(spans)
    assert points(a) == points(some)
    assert size(a) == len(points(a))
    assert points(subtract(a, b)) == points(a) - points(b)
    assert points(intersect(a, b)) == points(a) & points(b)
    low, high = split(a, first)
    assert sorted(points(low)) == sorted(points(a))[:first]
    assert points(high) == points(a) - points(low)
    assert contains(a, first) == (first in points(a))
    assert uncovered_from(a, first) == min(set(range(first, 99)) - points(a))


@given(st.lists(st.tuples(st.integers(0, 4 * SLOTS), st.integers(0, 4 * SLOTS)), max_size=6))
def test_a_topic_s_line_and_back(pieces: Spans) -> None:
    spans = join((min(piece), max(piece)) for piece in pieces)
    numbers = [0, 2, 3, 7]
    shares = off_line(spans, "t", numbers)
    assert on_line(shares, "t", numbers) == spans
    assert shares.keys() <= {("t", number) for number in numbers}
    assert slots_of(shares) == size(spans)


# -- the page's examples, by value


def readers(assignment: SharedAssignment, topic: str) -> dict[int, list[str]]:
    """Who reads each partition, by slices."""
    found: dict[int, list[tuple[int, str]]] = {}
    for member, share in assignment.items():
        for (name, number), slots in share.items():
            if name == topic:
                found.setdefault(number, []).append((slots[0][0], member))
    return {number: [member for _, member in sorted(found[number])] for number in sorted(found)}


@pytest.mark.parametrize(
    ("name", "on_three", "on_two"),
    [
        (
            "range",
            {0: ["c1", "c2"], 1: ["c3", "c4"], 2: ["c5"]},
            {0: ["c1", "c2", "c3"], 1: ["c4", "c5"]},
        ),
        (
            "roundrobin",
            {0: ["c1", "c4"], 1: ["c2", "c5"], 2: ["c3"]},
            {0: ["c1", "c3", "c5"], 1: ["c2", "c4"]},
        ),
    ],
)
def test_five_members_on_three_partitions_and_on_two(
    name: str, on_three: dict[int, list[str]], on_two: dict[int, list[str]]
) -> None:
    there = {"three": partitions(3), "two": partitions(2)}
    members = dict.fromkeys(FIVE, sharing(topics=there))
    assignment = ASSIGNORS[name].share(there, members, there.keys())
    assert readers(assignment, "three") == on_three
    assert readers(assignment, "two") == on_two
    assert_tiles(there, assignment)
    for topic, found in (("three", on_three), ("two", on_two)):
        for number, group in found.items():
            shares = [assignment[member][topic, number] for member in group]
            assert shares == equal_slices(len(group))


def test_colocated_members_have_equal_pieces_of_the_line() -> None:
    members = dict.fromkeys(FIVE, sharing())
    assignment = ASSIGNORS["kraftpy-colocate"].share({"t": partitions(3)}, members, T)
    tenths = {
        member: {
            number: [(round(first / SLOTS, 3), round((last + 1) / SLOTS, 3)) for first, last in s]
            for (_, number), s in share.items()
        }
        for member, share in assignment.items()
    }
    assert tenths == {
        "c1": {0: [(0, 0.6)]},
        "c2": {0: [(0.6, 1)], 1: [(0, 0.2)]},
        "c3": {1: [(0.2, 0.8)]},
        "c4": {1: [(0.8, 1)], 2: [(0, 0.4)]},
        "c5": {2: [(0.4, 1)]},
    }
    assert len({slots_of(share) for share in assignment.values()}) <= 2


def test_two_hosts_of_two_threads_have_both_halves_of_a_partition_each() -> None:
    """The draft's shared tasks: two stores, and four if the halves were on both hosts."""
    hosts = {"c1": "a", "c2": "b", "c3": "a", "c4": "b"}
    members = {member: sharing(host=host) for member, host in hosts.items()}
    assignment = ASSIGNORS["kraftpy-colocate"].share({"t": partitions(2)}, members, T)
    low, high = equal_slices(2)
    assert assignment == {
        "c1": {("t", 0): low},
        "c3": {("t", 0): high},
        "c2": {("t", 1): low},
        "c4": {("t", 1): high},
    }


def test_a_fifth_member_moves_a_fifth() -> None:
    there = {"t": partitions(1)}
    before = settle(there, dict.fromkeys(FIVE[:4], sharing()))
    after = settle(there, again(dict.fromkeys(FIVE, sharing()), before, 9))
    moved = slots_of(after["c5"])
    assert moved in (SLOTS // 5, SLOTS // 5 + 1)
    for member in FIVE[:4]:
        ((first, last),) = after[member]["t", 0]
        ((was_first, was_last),) = before[member]["t", 0]
        assert first == was_first, "donors give from the top"
        assert last < was_last
    assert_tiles(there, after)


def test_above_32_ranges_a_member_all_is_cut_anew() -> None:
    there = {"t": partitions(1)}
    names = [f"m{number:02}" for number in range(40)]
    before = settle(there, dict.fromkeys(names[:2], sharing()))
    cuts = 0
    for count in range(3, 41):
        owned = {member: on_line(share, "t", [0]) for member, share in before.items()}
        kept = stick(names[:count], owned, SLOTS)
        after = settle(there, again(dict.fromkeys(names[:count], sharing()), before, 9))
        if max(map(len, kept.values())) > MOST_RANGES:
            pieces = cut("t", [0], names[:count])
            first = STICKY.share(
                there, again(dict.fromkeys(names[:count], sharing()), before, 9), T
            )
            assert all(not without(first[member], pieces[member]) for member in pieces)
            assert max(len(share["t", 0]) for share in after.values()) < 8
            cuts += 1
        else:
            assert after == {member: off_line(kept[member], "t", [0]) for member in kept}
        before = after
    assert cuts


# -- what holds for every group


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, dict[int, int]], dict[str, Subscription]]:
    """Topics of few partitions, and members that share or don't."""
    there = {name: partitions(draw(st.integers(1, 4))) for name in draw(st.sets(NAMES, min_size=1))}
    members = {}
    for number in range(draw(st.integers(1, 9))):
        names = draw(st.sets(NAMES, min_size=1))
        if draw(st.booleans()) or number % 2:
            members[f"m{number}"] = sharing(host=draw(st.sampled_from("xy")), topics=names)
        else:
            members[f"m{number}"] = Subscription(frozenset(names))
    return there, members


NAMES = st.sampled_from("abc")


@pytest.mark.parametrize("name", SHARING)
@FEW
@given(groups(), st.sets(NAMES))
def test_each_slot_has_one_owner_who_subscribes(
    name: str, group: tuple[Topics, dict[str, Subscription]], shareable: set[str]
) -> None:
    there, members = group
    assignment = ASSIGNORS[name].share(there, members, shareable)
    assert assignment.keys() == members.keys()
    wanted = frozenset[str]().union(*(m.topics for m in members.values()))
    assert_tiles({t: there[t] for t in there if t in wanted}, assignment)
    for member, share in assignment.items():
        assert {topic for topic, _ in share} <= members[member].topics
        if not sharing_of(members[member]).allow_key_share:
            assert set(share.values()) <= {ALL_SLOTS}
    for topic in there:
        sharers = [
            member
            for member, subscription in members.items()
            if topic in subscription.topics and sharing_of(subscription).allow_key_share
        ]
        slices = [s for a in assignment.values() for (t, _), s in a.items() if t == topic]
        if topic in shareable and len(sharers) > len(there[topic]):
            assert all(assignment[member] for member in sharers)
            sizes = [
                slots_of({n: s for n, s in assignment[m].items() if n[0] == topic}) for m in sharers
            ]
            if name in ("kraftpy-colocate", "kraftpy-cooperative-sticky"):
                assert max(sizes) - min(sizes) <= 1
        else:
            assert set(slices) <= {ALL_SLOTS}
    backwards = dict(reversed(members.items()))
    assert ASSIGNORS[name].share(there, backwards, shareable) == assignment


@pytest.mark.parametrize("name", SHARING)
@FEW
@given(groups())
def test_what_may_not_be_shared_is_dealt_out_as_ever(
    name: str, group: tuple[Topics, dict[str, Subscription]]
) -> None:
    there, members = group
    assignor = ASSIGNORS[name]
    whole = {
        member: dict.fromkeys(found, ALL_SLOTS)
        for member, found in assignor.assign(there, members).items()
    }
    assert assignor.share(there, members, ()) == whole


@FEW
@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 4), st.integers(0, 4))
def test_who_stays_keeps_what_an_even_share_leaves_him(
    count: int, members_count: int, gone: int, come: int
) -> None:
    there = {"t": partitions(count)}
    names = [f"m{number}" for number in range(members_count + count)]
    before = settle(there, dict.fromkeys(names, sharing()))
    stay = names[gone:]
    changed = [*stay, *(f"n{number}" for number in range(come))]
    if len(changed) <= count:
        return
    after = settle(there, again(dict.fromkeys(changed, sharing()), before, 9))
    assert_tiles(there, after)
    share, remainder = divmod(count * SLOTS, len(changed))
    assert all(slots_of(each) - share in (0, 1) for each in after.values())
    kept = sum(
        size(intersect(on_line(before[m], "t", range(count)), on_line(after[m], "t", range(count))))
        for m in stay
    )
    most = sum(min(slots_of(before[m]), share) for m in stay)
    most += min(remainder, sum(slots_of(before[m]) > share for m in stay))
    assert kept == most
    assert settle(there, again(dict.fromkeys(changed, sharing()), after, 20)) == after


def test_from_slices_to_whole_partitions_and_back() -> None:
    there = {"t": partitions(2)}
    five = settle(there, dict.fromkeys(FIVE, sharing()))
    two = settle(there, again(dict.fromkeys(FIVE[:2], sharing()), five, 9))
    assert sorted(map(list, two.values())) == [[("t", 0)], [("t", 1)]]
    assert_tiles(there, two)
    back = settle(there, again(dict.fromkeys(FIVE, sharing()), two, 20))
    assert_tiles(there, back)


# -- what others say


def test_a_stock_leader_s_cooperative_assignor_is_never_told_of_slices() -> None:
    """It would give the partition away at once."""
    data = ASSIGNORS["cooperative-sticky"].user_data(
        [("t", 0)], 1, ShareSubscription(True, "", {("t", 0): ((0, 9),)})
    )
    assert data == (1).to_bytes(4, "big")


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\5", b"kpks", b"kpks\0\0\1\x7f\xff", b"kpks\xff\xff"]
)
def test_who_says_nothing_that_makes_sense_has_whole_partitions(data: bytes) -> None:
    member = Subscription(T, (("t", 1),), 3, user_data=data)
    assert sharing_of(member) == ShareSubscription(False, "", {("t", 1): ALL_SLOTS})


def test_of_two_claims_to_a_slot_neither_is_given_it_before_the_other_gives_it_up() -> None:
    there = {"t": partitions(1)}
    half = SLOTS // 2
    members = {
        "a": sharing({("t", 0): ((0, half - 1),)}, 3),
        "b": sharing({("t", 0): ((0, SLOTS - 1),)}, 2),
    }
    first = STICKY.share(there, members, T)
    assert first == {"a": {}, "b": {("t", 0): ((half, SLOTS - 1),)}}
    after = settle(there, again(members, first, 4))
    assert after == {"a": {("t", 0): ((0, half - 1),)}, "b": {("t", 0): ((half, SLOTS - 1),)}}


def test_who_is_replaced_makes_nobody_else_move() -> None:
    """The slots that are over go to who comes, not one by one to those who have enough."""
    one, two, three = [(0, 21_845)], [(21_845, 43_690)], [(43_690, SLOTS)]
    kept = stick(["a", "b", "d"], {"a": one, "b": two}, SLOTS)
    assert kept == {"a": one, "b": two, "d": three}
    kept = stick(["b", "c", "d"], {"b": two, "c": three}, SLOTS)
    assert kept == {"b": two, "c": three, "d": one}
