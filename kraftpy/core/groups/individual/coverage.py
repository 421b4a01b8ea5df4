"""The claims of a group on one partition, and the stable offset that follows from them.

Rules:
* Claims are kept by slice, as ranges of offsets. Slices may overlap, as they do after a rebalance.
* An offset is done when the slices that claim it have all hashes between them. A claim covers what
  isn't there, too: control batches, aborted records, what compaction took away.
* What ends below the stable offset is let go of. What only begins below it keeps its name, as a
  range's first offset is the key of its record.
* The stable offset is swept for only when a claim touches it. A sweep visits the ranges that it
  passes, each once in its life, and each slice once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from operator import itemgetter

from kraftpy.core.groups.individual.memory import RANGE_BYTES, SLICE_BYTES
from kraftpy.core.groups.individual.ranges import EpochRanges, Growth
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.key_hash import HASH_MAX

WHOLE = (0, HASH_MAX)
"""The slice of all hashes."""


class Claim(NamedTuple):
    """Of the records with these hashes and offsets, both ends in, all that exist are done."""

    low: int
    high: int
    first: int
    last: int


ClaimKey = tuple[int, int, int]
"""The slice's first and last hash and the claim's first offset, by which the log knows it."""


_NOTHING: frozenset[tuple[int, int]] = frozenset()


ClaimRow = tuple[int, int, int, bytes, int]
"""First offset, last offset, leader epoch, topic id and commit time of a claim's record."""


class Coverage:
    """The claims above the stable offset of one group and partition."""

    __slots__ = ("_lent", "_slices", "count")

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int], EpochRanges] = {}
        # Slices whose ranges are another one's, to be copied before they change.
        self._lent: AbstractSet[tuple[int, int]] = _NOTHING
        self.count = 0
        """How many ranges there are."""

    def __iter__(self) -> Iterator[Claim]:
        """The claims, by slice and offset."""
        for (low, high), ranges in sorted(self._slices.items()):
            for first, last in ranges:
                yield Claim(low, high, first, last)

    @property
    def slices_count(self) -> int:
        return len(self._slices)

    @property
    def size_bytes(self) -> int:
        """What the claims take in memory."""
        return self.count * RANGE_BYTES + len(self._slices) * SLICE_BYTES

    def more_bytes(self, low: int, high: int) -> int:
        """What one more range takes, of this slice."""
        return RANGE_BYTES if (low, high) in self._slices else RANGE_BYTES + SLICE_BYTES

    def growth(self, claim: Claim) -> Growth | None:
        """What `add` would make; None if the slice's claims have it already."""
        ranges = self._slices.get((claim.low, claim.high))
        if ranges is None:
            return Growth(claim.first, claim.last, ())
        return ranges.growth(claim.first, claim.last)

    def touched_count(self, claim: Claim) -> int:
        """How many ranges would be one with it."""
        ranges = self._slices.get((claim.low, claim.high))
        return 0 if ranges is None else ranges.touched_count(claim.first, claim.last)

    def add(self, claim: Claim, leader_epoch: int = -1) -> Growth | None:
        """Takes a claim in; None if the slice's claims have it already."""
        ranges = self._of(claim.low, claim.high)
        before = len(ranges)
        growth = ranges.add(claim.first, claim.last, leader_epoch)
        self.count += len(ranges) - before
        return growth

    def _of(self, low: int, high: int) -> EpochRanges:
        """The ranges of this slice, which may be changed."""
        key = low, high
        ranges = self._slices.get(key)
        if ranges is None:
            ranges = self._slices[key] = EpochRanges()
        elif key in self._lent:
            self._lent -= {key}
            ranges = self._slices[key] = ranges.copy()
        return ranges

    # -- as the log has it

    def put(self, claim: Claim, leader_epoch: int) -> Growth | None:
        """Takes in the record of a claim: what it said before, if it did, doesn't count.

        None unless it is more than the slice's claims have.
        """
        ranges = self._of(claim.low, claim.high)
        before = len(ranges)
        growth = ranges.put(claim.first, claim.last, leader_epoch)
        self.count += len(ranges) - before
        return growth

    def extend(self, low: int, high: int, rows: Iterable[ClaimRow]) -> bool:
        """Takes in the records of many claims of one slice.

        False, and nothing is taken in, unless they lie apart, behind those that there are. One that
        begins where another one does has to reach as far.
        """
        lasts: dict[int, int] = {}
        epochs: dict[int, int] = {}
        for first, last, epoch, _, _ in rows:
            known = lasts.get(first, -1)
            if last > known:
                lasts[first] = last
                epochs[first] = epoch
            elif last < known:
                return False
        firsts = sorted(lasts)
        is_new = (low, high) not in self._slices
        if not self._of(low, high).extend(
            firsts, [lasts[each] for each in firsts], [epochs[each] for each in firsts]
        ):
            if is_new:
                del self._slices[low, high]
            return False
        self.count += len(firsts)
        return True

    def remove(self, key: ClaimKey) -> bool:
        """Takes in the tombstone of a claim; False if none has this key: it is in another one."""
        ranges = self._slices.get(key[:2])
        if ranges is None or not self._of(*key[:2]).remove(key[2]):
            return False
        ranges = self._slices[key[:2]]
        self.count -= 1
        if not ranges:
            del self._slices[key[:2]]
            count = len(self._slices)
            if not count & (count - 1):  # Deleting gives no memory back, and this seldom comes.
                self._slices = dict(self._slices)
        return True

    def having(self, key: ClaimKey) -> tuple[int, int, int] | None:
        """First, last and epoch of the range of this slice that has the first offset of `key`."""
        ranges = self._slices.get(key[:2])
        return None if ranges is None else ranges.having(key[2])

    def begins_at(self, key: ClaimKey) -> bool:
        """Whether a range has this key."""
        having = self.having(key)
        return having is not None and having[0] == key[2]

    def keys(self) -> Iterator[ClaimKey]:
        """Those of the records of all claims, from the end: they are removed soonest so."""
        for (low, high), ranges in reversed(self._slices.items()):
            for first in ranges.firsts():
                yield low, high, first

    def slices(self) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """First and last hash of each slice, and its ranges with their epochs."""
        return [(*key, list(ranges.rows())) for key, ranges in sorted(self._slices.items())]

    def epoch_at(self, offset: int) -> int:
        """The newest epoch of the claims that have this offset; -1 if none has."""
        return max((ranges.epoch_at(offset) for ranges in self._slices.values()), default=-1)

    def clear(self) -> None:
        self._slices.clear()
        self._lent = _NOTHING
        self.count = 0

    def joined(self, claims: Iterable[tuple[Claim, int]]) -> Coverage:
        """Another one with these, too, each with its leader epoch."""
        rows: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for (low, high, first, last), leader_epoch in claims:
            rows.setdefault((low, high), []).append((first, last, leader_epoch))
        other = self.copy()
        for key, more in rows.items():
            before = other._of(*key)
            after = other._slices[key] = EpochRanges.of([*before.rows(), *more])
            other.count += len(after) - len(before)
        return other

    def copy(self) -> Coverage:
        other = Coverage()
        other._slices = {key: ranges.copy() for key, ranges in self._slices.items()}
        other.count = self.count
        return other

    def draft(self) -> Coverage:
        """A copy that may be changed, good for as long as this one isn't: a slice is copied late.

        A claim is of one slice mostly, and all those who share a partition have one each.
        """
        other = Coverage()
        other._slices = self._slices.copy()
        other._lent = self._slices.keys() | ()
        other.count = self.count
        return other

    # -- the stable offset

    def stable_from(self, offset: int, *others: Coverage) -> int:
        """The lowest offset from this one on that isn't claimed for all hashes, here or there."""
        slices = sorted(self._slices.items())
        if others:
            slices += [each for other in others for each in other._slices.items()]
            slices.sort(key=itemgetter(0))
        expected, tiled = 0, True
        for (low, high), _ in slices:
            if low > expected:
                return offset  # Nobody claims what lies between.
            tiled = tiled and low == expected
            expected = max(expected, high + 1)
        if expected <= HASH_MAX:
            return offset
        if tiled:  # Nearly always: each hash has one slice.
            return min(ranges.uncovered_from(offset) for _, ranges in slices)
        return _sweep(slices, offset)

    def passed_with(
        self, low: int, high: int, last: int, leader_epoch: int, offset: int
    ) -> tuple[int, int] | None:
        """What `stable_from` and `epoch_at` give if this slice has one range from `offset` to
        `last`, of this epoch; None where that takes more, or all stays as it is.
        """
        own = low, high
        slices = self._slices
        others: list[EpochRanges] = []
        expected, stable = 0, last + 1
        for key in sorted(slices if own in slices else (*slices, own)):
            if key[0] != expected:
                return None
            expected = key[1] + 1
            if key != own:
                ranges = slices[key]
                others.append(ranges)
                stable = min(stable, ranges.uncovered_from(offset))
        if expected <= HASH_MAX or stable == offset:
            return None
        epochs = [ranges.epoch_at(stable - 1) for ranges in others]
        return stable, max([leader_epoch, *epochs])

    def may_pass(self, offset: int, low: int, high: int) -> bool:
        """Whether a claim of these hashes for this offset may be the last that is wanted for it.

        False where all slices together have too few hashes.
        """
        width = high - low + 1
        for (first, last), ranges in self._slices.items():
            if ranges.covers(offset):
                width += last - first + 1
        return width > HASH_MAX

    def discard_below(self, offset: int) -> list[ClaimKey]:
        """Lets go of the claims that end below the offset; gives their keys."""
        gone: list[ClaimKey] = []
        for (low, high), ranges in list(self._slices.items()):
            if not ranges.ends_below(offset):
                continue
            gone += [(low, high, first) for first in self._of(low, high).discard_below(offset)]
        if gone:
            self._slices = {key: ranges for key, ranges in self._slices.items() if ranges}
        self.count -= len(gone)
        return gone

    def discard_from(self, offset: int) -> tuple[list[Claim], list[Claim]]:
        """Lets go of all from this offset on: the log was cut there.

        Returned are claims that went, of which the last offsets aren't known any more, and claims
        that got shorter.
        """
        gone, shorter = [], []
        for low, high in list(self._slices):
            ranges = self._of(low, high)
            firsts, cut = ranges.discard_from(offset)
            gone += [Claim(low, high, first, first) for first in firsts]
            if cut is not None:
                shorter.append(Claim(low, high, cut.first, cut.last))
            if not ranges:
                del self._slices[low, high]
        self.count -= len(gone)
        return gone, shorter


def _sweep(slices: list[tuple[tuple[int, int], EpochRanges]], offset: int) -> int:
    """Goes from offset to offset at which a range begins or ends, until a hash has no range."""
    bounds = sorted({each for (low, high), _ in slices for each in (low, high + 1)})
    place_of = {bound: place for place, bound in enumerate(bounds)}
    counts = _Counts(len(bounds) - 1)
    events: list[tuple[int, int, int]] = []
    """Offset, number of the slice, 1 if a range of it begins there and -1 if one has ended."""

    def begin(number: int, from_offset: int) -> None:
        found = slices[number][1].following(from_offset)
        if found is not None:
            heappush(events, (max(found[0], from_offset), number, 1))
            heappush(events, (found[1] + 1, number, -1))

    for number in range(len(slices)):
        begin(number, offset)
    if events and events[0][0] > offset:
        return offset
    while events:
        at = events[0][0]
        while events and events[0][0] == at:
            _, number, delta = heappop(events)
            (low, high), _ranges = slices[number]
            counts.add(place_of[low], place_of[high + 1], delta)
            if delta < 0:
                begin(number, at)
        if not counts.least():
            return at
    return offset


class _Counts:
    """How many ranges each place has, of which the least is asked for: a tree of minima."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._least = [0] * (4 * size)
        self._own = [0] * (4 * size)

    def least(self) -> int:
        return self._least[1]

    def add(self, start: int, end: int, delta: int) -> None:
        """Adds to the places from `start` to `end`, which isn't one of them."""
        self._add(1, 0, self._size, start, end, delta)

    def _add(self, node: int, low: int, high: int, start: int, end: int, delta: int) -> None:
        if start <= low and high <= end:
            self._own[node] += delta
            self._least[node] += delta
            return
        middle = (low + high) // 2
        if start < middle:
            self._add(2 * node, low, middle, start, end, delta)
        if end > middle:
            self._add(2 * node + 1, middle, high, start, end, delta)
        least = min(self._least[2 * node], self._least[2 * node + 1])
        self._least[node] = self._own[node] + least
