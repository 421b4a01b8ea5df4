"""Names kept as text in blocks, and numbers that stand for them.

A `str` in a dict costs about 150 bytes; here a name costs its UTF-8 text and some 11 bytes. Rules:

* Numbers are small and used again: what is kept per number can live in flat arrays.
* Nothing is ever rebuilt as a whole. The index is a sorted list of (hash, number) in leaves of
  bounded size, so that the slowest insertion splits one leaf.
* Python's own hash finds a name (it is seeded, so nobody can choose names that collide); what a
  caller sees does not depend on it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# Names per block of text: removing a name moves the text behind it.
_BLOCK_BITS = 8
_BLOCK_NAMES = 1 << _BLOCK_BITS
_BLOCK_MASK = _BLOCK_NAMES - 1

_LEAF_MAX = 512
_LEAF_MERGE_MAX = 256
_MASK_32 = 0xFFFFFFFF

# Names looked up lately keep their numbers at hand; all are dropped when there are this many.
_RECENT_MAX = 512


class _Block:
    """The text of neighbouring numbers; bit n of `used` says that slot n is taken."""

    __slots__ = ("ends", "text", "used")

    def __init__(self) -> None:
        self.text = bytearray()
        self.ends = array("H")
        self.used = 0

    def get(self, slot: int) -> bytearray:
        ends = self.ends
        return self.text[ends[slot - 1] if slot else 0 : ends[slot]]

    def append(self, text: bytes) -> None:
        self.used |= 1 << len(self.ends)
        self.text += text
        try:
            self.ends.append(len(self.text))
        except OverflowError:
            self.ends = array("I", [*self.ends, len(self.text)])

    def replace(self, slot: int, text: bytes, *, used: bool) -> None:
        self.used = self.used & ~(1 << slot) | used << slot
        start = self.ends[slot - 1] if slot else 0
        longer = len(text) - (self.ends[slot] - start)
        self.text[start : self.ends[slot]] = text
        if longer:
            ends = [*self.ends[:slot], *(end + longer for end in self.ends[slot:])]
            self.ends = array("H" if ends[-1] <= 0xFFFF else "I", ends)


class NameTable:
    """Names and their numbers, from 0 up."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._count = 0
        self._free = array("I")
        # Keys are hash << 32 | number, sorted; `_firsts` bounds each leaf from below.
        self._leaves = [array("Q")]
        self._firsts = [0]
        self._recent: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        """The names in the order of their numbers."""
        for block in self._blocks:
            for slot in range(len(block.ends)):
                if block.used >> slot & 1:
                    yield block.get(slot).decode()

    def number_of(self, name: str) -> int | None:
        """The name's number, None if it has none."""
        number = self._recent.get(name)
        if number is None:
            number = self._search(name)
            if number is not None:
                self._remember(name, number)
        return number

    def name_of(self, number: int) -> str:
        """The name behind a number that is in use."""
        return self._blocks[number >> _BLOCK_BITS].get(number & _BLOCK_MASK).decode()

    def add(self, name: str) -> int:
        """Gives a number to a name that has none."""
        text = name.encode()
        if self._free:
            number = self._free.pop()
            block = self._blocks[number >> _BLOCK_BITS]
            block.replace(number & _BLOCK_MASK, text, used=True)
        else:
            if not self._blocks or len(self._blocks[-1].ends) == _BLOCK_NAMES:
                self._blocks.append(_Block())
            block = self._blocks[-1]
            number = (len(self._blocks) - 1 << _BLOCK_BITS) + len(block.ends)
            block.append(text)
        self._count += 1
        self._insert_key((hash(name) & _MASK_32) << 32 | number)
        self._remember(name, number)
        return number

    def remove(self, number: int) -> None:
        """Takes the number from its name; another name may get it."""
        name = self.name_of(number)
        self._blocks[number >> _BLOCK_BITS].replace(number & _BLOCK_MASK, b"", used=False)
        self._count -= 1
        self._free.append(number)
        self._remove_key((hash(name) & _MASK_32) << 32 | number)
        self._recent.pop(name, None)

    def _remember(self, name: str, number: int) -> None:
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        self._recent[name] = number

    # -- the index

    def _search(self, name: str) -> int | None:
        text = name.encode()
        wanted = hash(name) & _MASK_32
        low = wanted << 32
        index = bisect_right(self._firsts, low) - 1
        at = bisect_left(self._leaves[index], low)
        while True:
            leaf = self._leaves[index]
            if at == len(leaf):
                index, at = index + 1, 0
                if index == len(self._leaves):
                    return None
                continue
            key = leaf[at]
            if key >> 32 != wanted:
                return None
            number = key & _MASK_32
            if self._blocks[number >> _BLOCK_BITS].get(number & _BLOCK_MASK) == text:
                return number
            at += 1

    def _insert_key(self, key: int) -> None:
        index = bisect_right(self._firsts, key) - 1
        leaf = self._leaves[index]
        leaf.insert(bisect_left(leaf, key), key)
        if len(leaf) > _LEAF_MAX:
            half = len(leaf) // 2
            self._leaves.insert(index + 1, leaf[half:])
            self._firsts.insert(index + 1, leaf[half])
            del leaf[half:]

    def _remove_key(self, key: int) -> None:
        index = bisect_right(self._firsts, key) - 1
        leaf = self._leaves[index]
        del leaf[bisect_left(leaf, key)]
        for left in (index, index - 1):
            if 0 <= left < len(self._leaves) - 1 and (
                len(self._leaves[left]) + len(self._leaves[left + 1]) <= _LEAF_MERGE_MAX
            ):
                self._leaves[left].extend(self._leaves[left + 1])
                del self._leaves[left + 1], self._firsts[left + 1]
