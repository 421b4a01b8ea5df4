"""A set of offsets as sorted, disjoint ranges with both ends in them.

Rules:
* Ranges that overlap or touch are one. A range is known by its first offset, and so is its record
  in the log: `add` and `discard_below` say whose records have nothing to say any more.
* Sixteen bytes a range, whatever lies between them: a bitmap would grow with the distance.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class Growth(NamedTuple):
    """What adding a range makes: the range that has it now, and those that went into that one.

    `merged` are the first offsets of ranges that are none any more.
    """

    first: int
    last: int
    merged: tuple[int, ...]


class RangeSet:
    """Offsets from 0 up."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last offset of each range, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def uncovered_from(self, offset: int) -> int:
        """The first offset from this one on that isn't in the set."""
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0 and self._lasts[at] >= offset:
            return self._lasts[at] + 1
        return offset

    def following(self, offset: int) -> tuple[int, int] | None:
        """The range that has the offset, else the next one; None behind the last."""
        at = bisect_left(self._lasts, offset)
        return (self._firsts[at], self._lasts[at]) if at < len(self._firsts) else None

    def growth(self, first: int, last: int) -> Growth | None:
        """What `add` would make; None if the set has the whole range already."""
        start, end = self._touched(first, last)
        if start == end:
            return Growth(first, last, ())
        firsts, lasts = self._firsts, self._lasts
        if firsts[start] <= first and last <= lasts[start]:
            return None
        low, high = min(first, firsts[start]), max(last, lasts[end - 1])
        return Growth(low, high, tuple(each for each in firsts[start:end] if each != low))

    def add(self, first: int, last: int) -> Growth | None:
        """Adds the offsets from `first` to `last`; None if the set has them already."""
        growth = self.growth(first, last)
        if growth is not None:
            start, end = self._touched(first, last)
            self._firsts[start:end] = array("q", (growth.first,))
            self._lasts[start:end] = array("q", (growth.last,))
        return growth

    def _touched(self, first: int, last: int) -> tuple[int, int]:
        """The ranges, by their places, that overlap or touch this one."""
        return bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)

    def discard_below(self, offset: int) -> tuple[int, ...]:
        """Takes away the ranges that end below the offset; their first offsets."""
        end = bisect_left(self._lasts, offset)
        gone = tuple(self._firsts[:end])
        del self._firsts[:end], self._lasts[:end]
        return gone

    def discard_from(self, offset: int) -> tuple[tuple[int, ...], Growth | None]:
        """Takes away all offsets from this one on.

        Returns the first offsets of ranges that went, and the range that got shorter.
        """
        start = bisect_left(self._firsts, offset)
        gone = tuple(self._firsts[start:])
        del self._firsts[start:], self._lasts[start:]
        if start and self._lasts[-1] >= offset:
            self._lasts[-1] = offset - 1
            return gone, Growth(self._firsts[-1], offset - 1, ())
        return gone, None
