"""A set of offsets as sorted, disjoint ranges with both ends in them.

Rules:
* Ranges that overlap or touch are one. A range is known by its first offset, and so is its record
  in the log: `add` and `discard_below` say whose records have nothing to say any more.
* Sixteen bytes a range, whatever lies between them: a bitmap would grow with the distance. No more
  is kept of ranges that are gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from kraftpy.frozen import NamedTuple

# Of an array without anything.
_ARRAY_BYTES = 200


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

    def firsts(self) -> Iterator[int]:
        """The first offset of each range, descending."""
        return reversed(self._firsts)

    def uncovered_from(self, offset: int) -> int:
        """The first offset from this one on that isn't in the set."""
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0 and self._lasts[at] >= offset:
            return self._lasts[at] + 1
        return offset

    def covers(self, offset: int) -> bool:
        """Whether the set has the offset."""
        at = bisect_left(self._lasts, offset)
        return at < len(self._lasts) and self._firsts[at] <= offset

    def following(self, offset: int) -> tuple[int, int] | None:
        """The range that has the offset, else the next one; None behind the last."""
        at = bisect_left(self._lasts, offset)
        return (self._firsts[at], self._lasts[at]) if at < len(self._firsts) else None

    def ends_below(self, offset: int) -> bool:
        """Whether `discard_below` would take anything away."""
        return bool(self._lasts) and self._lasts[0] < offset

    def growth(self, first: int, last: int) -> Growth | None:
        """What `add` would make; None if the set has the whole range already."""
        if not self._lasts or first > self._lasts[-1] + 1:
            return Growth(first, last, ())
        start, end = self._touched(first, last)
        if start == end:
            return Growth(first, last, ())
        firsts, lasts = self._firsts, self._lasts
        if firsts[start] <= first and last <= lasts[start]:
            return None
        low, high = min(first, firsts[start]), max(last, lasts[end - 1])
        return Growth(low, high, tuple(firsts[start + (firsts[start] == low) : end]))

    def add(self, first: int, last: int) -> Growth | None:
        """Adds the offsets from `first` to `last`; None if the set has them already."""
        growth = self.growth(first, last)
        if growth is not None:
            start, end = self._touched(first, last)
            self._firsts[start:end] = array("q", (growth.first,))
            self._lasts[start:end] = array("q", (growth.last,))
        return growth

    def touched_count(self, first: int, last: int) -> int:
        """How many ranges overlap or touch this one."""
        start, end = self._touched(first, last)
        return end - start

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


class EpochRanges(RangeSet):
    """The same; of each range it's known in which leader epoch its last offset was written."""

    __slots__ = ("_epochs",)

    def __init__(self) -> None:
        super().__init__()
        self._epochs = array("i")

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> EpochRanges:
        """All of these (first, last, epoch), which may overlap; one by one takes far longer."""
        firsts: list[int] = []
        lasts: list[int] = []
        epochs: list[int] = []
        end = -2
        for first, last, epoch in sorted(rows):
            if first > end + 1:
                firsts.append(first)
                lasts.append(last)
                epochs.append(epoch)
                end = last
            elif last > end:
                lasts[-1], epochs[-1] = last, epoch
                end = last
        found = cls()
        found._firsts, found._lasts = array("q", firsts), array("q", lasts)
        found._epochs = array("i", epochs)
        return found

    def copy(self) -> EpochRanges:
        other = EpochRanges()
        other._firsts, other._lasts = self._firsts[:], self._lasts[:]
        other._epochs = self._epochs[:]
        return other

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """First and last offset and leader epoch of each range, ascending."""
        return zip(self._firsts, self._lasts, self._epochs, strict=True)

    def having(self, offset: int) -> tuple[int, int, int] | None:
        """The range that has the offset, with its epoch."""
        at = bisect_left(self._lasts, offset)
        if at == len(self._firsts) or self._firsts[at] > offset:
            return None
        return self._firsts[at], self._lasts[at], self._epochs[at]

    def epoch_at(self, offset: int) -> int:
        """The epoch of the range that has the offset, -1 if none has."""
        at = bisect_left(self._lasts, offset)
        if at == len(self._firsts) or self._firsts[at] > offset:
            return -1
        return self._epochs[at]

    def add(self, first: int, last: int, leader_epoch: int = -1) -> Growth | None:
        if not self._lasts or first > self._lasts[-1] + 1:  # As nearly always.
            self._firsts.append(first)
            self._lasts.append(last)
            self._epochs.append(leader_epoch)
            return Growth(first, last, ())
        growth = self.growth(first, last)
        if growth is not None:
            start, end = self._touched(first, last)
            if start < end and self._lasts[end - 1] >= last:
                leader_epoch = self._epochs[end - 1]
            self._firsts[start:end] = array("q", (growth.first,))
            self._lasts[start:end] = array("q", (growth.last,))
            self._epochs[start:end] = array("i", (leader_epoch,))
            if growth.merged:
                self._trim()
        return growth

    def put(self, first: int, last: int, leader_epoch: int) -> Growth | None:
        """The range that begins here ends there now, be it sooner or later than before.

        None unless the set has more now.
        """
        at = bisect_left(self._firsts, first)
        if at < len(self._firsts) and self._firsts[at] == first and self._lasts[at] > last:
            self._lasts[at], self._epochs[at] = last, leader_epoch
            return None
        return self.add(first, last, leader_epoch)

    def extend(self, firsts: list[int], lasts: list[int], epochs: list[int]) -> bool:
        """Adds ascending ranges, if all lie apart, behind those that there are; else nothing."""
        ends = [self._lasts[-1] if self._lasts else -2, *lasts]
        if any(first <= end + 1 for first, end in zip(firsts, ends[:-1], strict=True)):
            return False
        self._firsts.extend(firsts)
        self._lasts.extend(lasts)
        self._epochs.extend(epochs)
        return True

    def remove(self, first: int) -> bool:
        """Takes away the range that begins here; False if none does."""
        at = bisect_left(self._firsts, first)
        if at == len(self._firsts) or self._firsts[at] != first:
            return False
        del self._firsts[at], self._lasts[at], self._epochs[at]
        self._trim()
        return True

    def _trim(self) -> None:
        """Gives memory back: arrays do so by themselves only where much goes at once."""
        if self._firsts.__sizeof__() > _ARRAY_BYTES + 16 * len(self._firsts):
            self._firsts, self._lasts = self._firsts[:], self._lasts[:]
            self._epochs = self._epochs[:]

    def discard_below(self, offset: int) -> tuple[int, ...]:
        gone = super().discard_below(offset)
        del self._epochs[: len(gone)]
        self._trim()
        return gone

    def discard_from(self, offset: int) -> tuple[tuple[int, ...], Growth | None]:
        gone, cut = super().discard_from(offset)
        del self._epochs[len(self._firsts) :]
        return gone, cut
