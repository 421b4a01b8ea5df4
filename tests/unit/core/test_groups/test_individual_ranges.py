"""Sets of offsets as ranges, against a plain set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.individual.ranges import Growth, RangeSet

_END = 40
_offsets = st.integers(0, _END)
_range = st.tuples(_offsets, st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def offsets_of(ranges: RangeSet) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def check(ranges: RangeSet) -> None:
    """Sorted, and with a gap between any two."""
    found = list(ranges)
    assert all(first <= last for first, last in found)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))


def filled(*pairs: tuple[int, int]) -> RangeSet:
    ranges = RangeSet()
    for pair in pairs:
        ranges.add(*pair)
    return ranges


def test_the_drafts_example_of_a_merge() -> None:
    """[48-49] beside [45-47] and [50]: one range, and two records less."""
    ranges = filled((45, 47), (50, 50))
    assert ranges.add(48, 49) == Growth(45, 50, (50,))
    assert list(ranges) == [(45, 50)]


def test_what_is_there_already_changes_nothing() -> None:
    ranges = filled((10, 20))
    assert ranges.add(12, 20) is None
    assert list(ranges) == [(10, 20)]


def test_a_range_that_grows_downwards_gets_another_name() -> None:
    ranges = filled((10, 20))
    assert ranges.add(5, 9) == Growth(5, 20, (10,))


@given(st.lists(_range, max_size=12), _range)
def test_adding(before: list[tuple[int, int]], added: tuple[int, int]) -> None:
    ranges = filled(*before)
    was, names = offsets_of(ranges), {first for first, _ in ranges}
    growth = ranges.add(*added)
    wanted = was | set(range(added[0], added[1] + 1))
    check(ranges)
    assert offsets_of(ranges) == wanted
    if growth is None:
        assert wanted == was
    else:
        assert (growth.first, growth.last) in list(ranges)
        assert names - set(growth.merged) | {growth.first} == {first for first, _ in ranges}


@given(st.lists(_range, max_size=12), _offsets)
def test_looking(pairs: list[tuple[int, int]], offset: int) -> None:
    ranges = filled(*pairs)
    there = offsets_of(ranges)
    uncovered = next(each for each in range(offset, 2 * _END) if each not in there)
    assert ranges.uncovered_from(offset) == uncovered
    behind = [pair for pair in ranges if pair[1] >= offset]
    assert ranges.following(offset) == (behind[0] if behind else None)


@given(st.lists(_range, max_size=12), _offsets)
def test_discarding_below(pairs: list[tuple[int, int]], offset: int) -> None:
    ranges = filled(*pairs)
    before = list(ranges)
    gone = ranges.discard_below(offset)
    check(ranges)
    assert list(ranges) == [pair for pair in before if pair[1] >= offset]
    assert gone == tuple(first for first, last in before if last < offset)


@given(st.lists(_range, max_size=12), _offsets)
def test_discarding_from(pairs: list[tuple[int, int]], offset: int) -> None:
    ranges = filled(*pairs)
    before = list(ranges)
    gone, shorter = ranges.discard_from(offset)
    check(ranges)
    wanted = [(first, min(last, offset - 1)) for first, last in before if first < offset]
    assert list(ranges) == wanted
    assert gone == tuple(first for first, _ in before if first >= offset)
    assert (shorter is not None) == any(first < offset <= last for first, last in before)
    assert shorter is None or (shorter.first, shorter.last) == wanted[-1]
