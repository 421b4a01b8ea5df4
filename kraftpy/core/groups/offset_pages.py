"""Committed offsets in columns: 22 bytes an entry, sorted by a 64-bit key.

Rules:

* A `Leaf` holds up to `LEAF_MAX` entries in arrays of one length; a `Page` is a sorted list of
  leaves. The slowest insertion splits one leaf, so growth never stalls.
* What most entries do not need is not kept with each: a commit's time is 32 bits beside the leaf's
  own, leader epochs are 16 bits. A leaf with values that do not fit widens that column. Metadata
  and expiry times are in the page's `extras`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import lt

from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset

LEAF_MAX = 1024
_LEAF_MERGE_MAX = 512

_TIME_SPAN_MS = 1 << 32
_NO_EXTRA = ("", NO_TIMESTAMP)


class Leaf:
    """Entries in the order of their keys, one array per column."""

    __slots__ = ("base_ms", "epochs", "keys", "offsets", "times")

    def __init__(self, base_ms: int) -> None:
        self.keys = array("Q")
        self.offsets = array("q")
        self.epochs = array("h")
        # Milliseconds after `base_ms`; as "q" after 0.
        self.times = array("I")
        self.base_ms = base_ms

    def insert(self, at: int, key: int, offset: int, epoch: int, time_ms: int) -> None:
        self.keys.insert(at, key)
        self.offsets.insert(at, offset)
        self.epochs.insert(at, 0)
        self.times.insert(at, 0)
        self.set_epoch(at, epoch)
        self.set_time(at, time_ms)

    def set(self, at: int, offset: int, epoch: int, time_ms: int) -> None:
        """Overwrites an entry."""
        self.offsets[at] = offset
        try:
            self.times[at] = time_ms - self.base_ms
            self.epochs[at] = epoch
        except OverflowError:
            self.set_time(at, time_ms)
            self.set_epoch(at, epoch)

    def set_epoch(self, at: int, epoch: int) -> None:
        try:
            self.epochs[at] = epoch
        except OverflowError:
            self.epochs = array("i", self.epochs)
            self.epochs[at] = epoch

    def set_time(self, at: int, time_ms: int) -> None:
        try:
            self.times[at] = time_ms - self.base_ms
        except OverflowError:
            times_ms = [self.base_ms + time for time in self.times]
            times_ms[at] = time_ms
            self._set_times(times_ms)

    def _set_times(self, times_ms: list[int]) -> None:
        low, high = min(times_ms), max(times_ms)
        if high - low < _TIME_SPAN_MS:
            # The room that is left lies on both sides: times seldom come in order.
            self.base_ms = low - (_TIME_SPAN_MS - 1 - (high - low)) // 2
            self.times = array("I", [time_ms - self.base_ms for time_ms in times_ms])
        else:
            self.base_ms = 0
            self.times = array("q", times_ms)

    def splice(
        self,
        start: int,
        end: int,
        keys: array[int],
        offsets: Sequence[int],
        epochs: Sequence[int],
        times_ms: Sequence[int],
    ) -> bool:
        """Puts these entries in the place of some; False if columns are too narrow for them."""
        base_ms = self.base_ms
        try:
            times = array(self.times.typecode, [time_ms - base_ms for time_ms in times_ms])
            self.epochs[start:end] = array(self.epochs.typecode, epochs)
        except OverflowError:
            return False
        self.times[start:end] = times
        self.offsets[start:end] = array("q", offsets)
        self.keys[start:end] = keys
        return True

    def delete(self, at: int) -> None:
        del self.keys[at], self.offsets[at], self.epochs[at], self.times[at]

    def split(self) -> Leaf:
        """Takes the upper half of the entries away, into a leaf of its own."""
        half = len(self.keys) // 2
        upper = Leaf(self.base_ms)
        upper.keys, self.keys = self.keys[half:], self.keys[:half]
        upper.offsets, self.offsets = self.offsets[half:], self.offsets[:half]
        upper.epochs, self.epochs = self.epochs[half:], self.epochs[:half]
        upper.times, self.times = self.times[half:], self.times[:half]
        return upper

    def extend(self, upper: Leaf) -> None:
        """Takes in the entries of a leaf whose keys are all larger."""
        times_ms = [leaf.base_ms + time for leaf in (self, upper) for time in leaf.times]
        self.keys.extend(upper.keys)
        self.offsets.extend(upper.offsets)
        epochs = [*self.epochs, *upper.epochs]
        self.epochs = array(
            "h" if self.epochs.typecode == upper.epochs.typecode == "h" else "i", epochs
        )
        self._set_times(times_ms)


class Page:
    """Entries by key. `extras` has (metadata, expiry time) of the few entries with either."""

    __slots__ = ("extras", "firsts", "leaves")

    def __init__(self, time_ms: int) -> None:
        self.leaves = [Leaf(time_ms - _TIME_SPAN_MS // 2)]
        self.firsts = array("Q", [0])
        self.extras: dict[int, tuple[str, int]] | None = None

    def leaf_of(self, key: int) -> Leaf:
        """The leaf that has the key or would have it."""
        leaves = self.leaves
        if len(leaves) == 1:
            return leaves[0]
        return leaves[bisect_right(self.firsts, key) - 1]

    def get(self, key: int) -> CommittedOffset | None:
        leaf = self.leaf_of(key)
        keys = leaf.keys
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            return None
        metadata, expire_ms = _NO_EXTRA
        if self.extras is not None:
            metadata, expire_ms = self.extras.get(key, _NO_EXTRA)
        return CommittedOffset(
            leaf.offsets[at], leaf.epochs[at], metadata, leaf.base_ms + leaf.times[at], expire_ms
        )

    def offset(self, key: int) -> int | None:
        leaf = self.leaf_of(key)
        at = bisect_left(leaf.keys, key)
        if at == len(leaf.keys) or leaf.keys[at] != key:
            return None
        return leaf.offsets[at]

    def put(self, key: int, committed: CommittedOffset) -> bool:
        """Sets an entry; whether it is a new one."""
        leaf = self.leaf_of(key)
        keys = leaf.keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            self.set(leaf, at, committed)
            return False
        offset, epoch, metadata, time_ms, expire_ms = committed
        leaf.insert(at, key, offset, epoch, time_ms)
        if metadata or expire_ms != NO_TIMESTAMP:
            self._set_extra(key, metadata, expire_ms)
        if len(keys) > LEAF_MAX:
            self._split(leaf)
        return True

    def put_run(
        self,
        keys: array[int],
        offsets: Sequence[int],
        epochs: Sequence[int],
        times_ms: Sequence[int],
    ) -> int:
        """Puts entries without metadata and expiry times in order; how many are new.

        At once if they ascend, belong into one leaf, and either all of them are new there with none
        between them, or all of them replace what is there with none between them.
        """
        first, last = keys[0], keys[-1]
        leaf = self.leaf_of(first)
        if self.extras is None and leaf is self.leaf_of(last) and len(keys) <= LEAF_MAX:
            start = bisect_left(leaf.keys, first)
            end = bisect_right(leaf.keys, last, start)
            added = len(keys) - (end - start)
            fits = leaf.keys[start:end] == keys if start < end else all(map(lt, keys, keys[1:]))
            if fits and leaf.splice(start, end, keys, offsets, epochs, times_ms):
                if len(leaf.keys) > LEAF_MAX:
                    self._split(leaf)
                return added
        return self._put_each(keys, offsets, epochs, times_ms)

    def _put_each(
        self,
        keys: array[int],
        offsets: Sequence[int],
        epochs: Sequence[int],
        times_ms: Sequence[int],
    ) -> int:
        """Puts entries without metadata and expiry times one after the other; how many are new."""
        added = at = 0
        present = array("Q")
        for key, offset, epoch, time_ms in zip(keys, offsets, epochs, times_ms, strict=True):
            at += 1
            if at >= len(present) or present[at] != key:
                leaf = self.leaf_of(key)
                present = leaf.keys
                at = bisect_left(present, key)
            if self.extras is None and at < len(present) and present[at] == key:
                leaf.set(at, offset, epoch, time_ms)
            else:
                added += self.put(key, CommittedOffset(offset, epoch, "", time_ms, NO_TIMESTAMP))
                at = len(present)  # its leaf may have been split
        return added

    def _split(self, leaf: Leaf) -> None:
        upper = leaf.split()
        index = bisect_right(self.firsts, upper.keys[0])
        self.leaves.insert(index, upper)
        self.firsts.insert(index, upper.keys[0])

    def set(self, leaf: Leaf, at: int, committed: CommittedOffset) -> None:
        """Overwrites an entry."""
        offset, epoch, metadata, time_ms, expire_ms = committed
        leaf.set(at, offset, epoch, time_ms)
        if metadata or expire_ms != NO_TIMESTAMP:
            self._set_extra(leaf.keys[at], metadata, expire_ms)
        elif self.extras is not None:
            self._remove_extra(leaf.keys[at])

    def remove(self, key: int) -> bool:
        """Forgets an entry; whether there was one."""
        leaf = self.leaf_of(key)
        at = bisect_left(leaf.keys, key)
        if at == len(leaf.keys) or leaf.keys[at] != key:
            return False
        leaf.delete(at)
        if self.extras is not None:
            self._remove_extra(key)
        self._merge_around(key)
        return True

    def _set_extra(self, key: int, metadata: str, expire_ms: int) -> None:
        if self.extras is None:
            self.extras = {}
        self.extras[key] = (metadata, expire_ms)

    def _remove_extra(self, key: int) -> None:
        assert self.extras is not None
        if self.extras.pop(key, None) is not None and not self.extras:
            self.extras = None

    def _merge_around(self, key: int) -> None:
        if len(self.leaves) == 1:
            return
        index = bisect_right(self.firsts, key) - 1
        for left in (index, index - 1):
            if 0 <= left < len(self.leaves) - 1:
                lower, upper = self.leaves[left : left + 2]
                if len(lower.keys) + len(upper.keys) <= _LEAF_MERGE_MAX:
                    lower.extend(upper)
                    del self.leaves[left + 1], self.firsts[left + 1]

    def spans(self, low: int, high: int) -> list[tuple[Leaf, int, int]]:
        """Where the keys from `low` to below `high` are: leaf, start and end, ascending."""
        leaves, firsts = self.leaves, self.firsts
        index = bisect_right(firsts, low) - 1 if len(leaves) > 1 else 0
        found = []
        while index < len(leaves) and firsts[index] < high:
            leaf = leaves[index]
            start = bisect_left(leaf.keys, low)
            end = bisect_left(leaf.keys, high, start)
            if start < end:
                found.append((leaf, start, end))
            index += 1
        return found
