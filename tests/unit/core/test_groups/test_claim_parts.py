"""Claims of one commit as those of several: together they say the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.individual.coverage import Claim
from kraftpy.core.groups.individual.requests import (
    IMPOSSIBLE,
    Cutter,
    ManyClaims,
    Parts,
    Reader,
)
from kraftpy.protocol.extensions import (
    DISCARD_FROM_TAG,
    OFFSET_RANGES_TAG,
    SLICES_TAG,
    WAIT_FOR_STABLE_TAG,
    YES,
    encode_int64,
    encode_ranges,
    encode_slices,
)

Ranges = list[tuple[int, int]]
TOGETHER = 3


def cut(tags: Mapping[int, bytes]) -> Parts:
    work = Cutter(TOGETHER).cut(tags)
    while True:
        try:
            next(work)
        except StopIteration as end:
            parts: Parts = end.value
            return parts


def read(tags: Mapping[int, bytes], max_bytes: int = 1 << 20) -> list[Claim] | None:
    found = Reader(max_bytes).read(-1, tags)
    return None if found is None else list(found.claims)


numbers = st.lists(st.integers(0, 99), max_size=16)


@given(
    st.none() | numbers,
    st.none() | st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), numbers)),
)
def test_parts_claim_together_what_one_does(
    whole: list[int] | None, slices: list[tuple[int, int, list[int]]] | None
) -> None:
    tags = {WAIT_FOR_STABLE_TAG: YES}
    if whole is not None:
        tags[OFFSET_RANGES_TAG] = encode_ranges(_pairs(whole))
    if slices is not None:
        tags[SLICES_TAG] = encode_slices([(low, high, _pairs(its)) for low, high, its in slices])
    expected = read(tags)
    parts = cut(tags)
    if expected is None:
        assert parts == [IMPOSSIBLE]
        assert read(IMPOSSIBLE) is None
        return
    found = [read(part) for part in parts]
    assert [claim for some in found for claim in some or ()] == expected
    assert all(some is not None and len(some) <= TOGETHER for some in found)
    assert all(part[WAIT_FOR_STABLE_TAG] == YES for part in parts)


def _pairs(numbers_: list[int]) -> Ranges:
    """Some of them ascend, and some don't."""
    return list(zip(numbers_[::2], numbers_[1::2], strict=False))


def test_what_is_void_is_so_once() -> None:
    ranges = encode_ranges([(2 * n, 2 * n) for n in range(7)])
    parts = cut({OFFSET_RANGES_TAG: ranges, DISCARD_FROM_TAG: encode_int64(9)})
    assert [DISCARD_FROM_TAG in part for part in parts] == [True, False, False]
    assert cut({DISCARD_FROM_TAG: encode_int64(9)}) == [{DISCARD_FROM_TAG: encode_int64(9)}]


@pytest.mark.parametrize(
    "tags",
    [
        {OFFSET_RANGES_TAG: encode_ranges([(2 * n, 2 * n) for n in range(60_001)])},
        {SLICES_TAG: encode_slices([(n, n, []) for n in range(60_001)])},
        {OFFSET_RANGES_TAG: b""},
        {OFFSET_RANGES_TAG: b"\x05\0"},
        {SLICES_TAG: b"\x05\0"},
        {SLICES_TAG: encode_slices([(1, 2, [(3, 4)])])[:-1]},
        {OFFSET_RANGES_TAG: encode_ranges([(1, 2)]) + b"\0"},
    ],
)
def test_what_can_t_be_is_one_part_that_can_t_be(tags: dict[int, bytes]) -> None:
    assert cut(tags) == [IMPOSSIBLE]


def test_so_much_is_read_at_once() -> None:
    data = encode_ranges([(2 * n, 2 * n) for n in range(100)])
    reader = Reader(2 * len(data))
    for _ in range(2):
        assert reader.read(-1, {OFFSET_RANGES_TAG: data}) is not None
    with pytest.raises(ManyClaims):
        reader.read(-1, {OFFSET_RANGES_TAG: data})
