"""Runs of offsets: many that are put in one pass are as if each were put by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.leases import runs as runs_module
from kraftpy.core.leases.runs import Piece, Runs

KINDS = st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 1), st.sampled_from(["", "ann"]))


def rows(runs: Runs) -> list[tuple[object, ...]]:
    columns = (runs.firsts, runs.states, runs.deliveries, runs.members, runs.deadlines)
    return [*zip(*columns, runs.changes, strict=True), (runs.end,)]


@given(
    st.lists(st.tuples(st.integers(1, 4), KINDS), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), KINDS), min_size=1, max_size=10),
)
def test_many_are_put_as_one_by_one(
    lengths: list[tuple[int, tuple[int, int, str]]],
    wanted: list[tuple[int, int, tuple[int, int, str]]],
) -> None:
    one_by_one, together = Runs(5), Runs(5)
    for length, (state, deliveries, member) in lengths:
        for runs in (one_by_one, together):
            runs.append(runs.end + length - 1, state, deliveries, member)
    pieces: list[Piece] = []
    at = 5
    for gap, length, (state, deliveries, member) in wanted:
        at += gap
        if at + length > together.end:
            break
        pieces.append((at, at + length - 1, (state, deliveries, member, 0, 0)))
        at += length
    for first, last, row in pieces:
        one_by_one.put(first, last, *row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "FEW_PIECES", 1)
        together.put_all(pieces)
    assert rows(together) == rows(one_by_one)


@given(
    st.lists(st.tuples(st.integers(1, 4), KINDS), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8),
)
def test_parts_are_where_ranges_lie(
    lengths: list[tuple[int, tuple[int, int, str]]], wanted: list[tuple[int, int]]
) -> None:
    runs = Runs(5)
    for length, (state, deliveries, member) in lengths:
        runs.append(runs.end + length - 1, state, deliveries, member)
    ranges, at = [], 2
    for gap, length in wanted:
        ranges.append((at + gap, at + gap + length - 1))
        at += gap + length
    found = [
        (offset, index, each)
        for first, last, index, each in runs.parts(ranges)
        for offset in range(first, last + 1)
    ]
    assert found == [
        (offset, runs.index_of(offset), each)
        for each in ranges
        for offset in range(max(each[0], 5), min(each[1] + 1, runs.end))
    ]
    assert all(
        runs.index_of(first) == runs.index_of(last) for first, last, _, _ in runs.parts(ranges)
    )
