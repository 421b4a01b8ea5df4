"""Key → newest offset in a fixed amount of memory: two hashes of a key and an offset, 24 bytes.

Open addressing in one flat array, as in Kafka's SkimpyOffsetMap: two keys with the same 128 bits of
hash would be taken for one, which doesn't happen. They are Python's own SipHash with this process's
random key, of the key and of the key with a byte more. A map that is full takes no new key; whoever
fills it goes on from there in another pass.

`LiveOffsets` then says of every offset that the map was given whether it is still its key's newest:
a bit each, so that the records needn't be looked at again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import compress
from typing import Final

ENTRY_BYTES: Final = 24

_MAX_LOAD: Final = 0.75
_FIELDS: Final = 3  # of an entry: the hashes, of which the first is 0 where it is free; the offset
_ZERO: Final = bytes(8)
_LIVE_SHARE: Final = 8


class Budget:
    """How `max_bytes` are shared by a map and the bits of its offsets."""

    def __init__(self, max_bytes: int) -> None:
        bits_bytes = max(8, max_bytes // _LIVE_SHARE)
        self.slots = max(2, (max_bytes - bits_bytes) // ENTRY_BYTES)
        self.offsets = bits_bytes * 8

    def slots_for(self, keys: int) -> int:
        """How many slots a map for at most `keys` different keys gets."""
        return max(2, min(int(keys / _MAX_LOAD) + 2, self.slots))


class OffsetMap:
    """`slots` entries, all but a quarter of which can be used."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._capacity = max(1, int(slots * _MAX_LOAD))
        self._entries = array("q", _ZERO) * (slots * _FIELDS)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._slots * ENTRY_BYTES

    def put(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> int | None:
        """Notes the newest offset of each key; they come in the log's order, None is no key.

        Returns the first offset that it couldn't take, because the map is full.
        """
        entries, slots, end = self._entries, self._slots, self._slots * _FIELDS
        count, capacity = self._count, self._capacity
        refused = None
        for key, offset in zip(keys, offsets, strict=True):
            if key is None:
                continue
            first, second = hash(key) or 1, hash(key + b"+")
            at = first % slots * _FIELDS
            while (found := entries[at]) != first or entries[at + 1] != second:
                if not found:
                    break
                at += _FIELDS
                if at == end:
                    at = 0
            if not found:
                if count == capacity:
                    refused = offset
                    break
                count += 1
                entries[at], entries[at + 1] = first, second
            entries[at + 2] = offset
        self._count = count
        return refused

    def newest(self, keys: Iterable[bytes | None]) -> list[int]:
        """The newest offset of each key; -1 for one that the map hasn't met, and for None."""
        entries, slots, end = self._entries, self._slots, self._slots * _FIELDS
        offsets = []
        for key in keys:
            if key is None:
                offsets.append(-1)
                continue
            first, second = hash(key) or 1, hash(key + b"+")
            at = first % slots * _FIELDS
            while (found := entries[at]) != first or entries[at + 1] != second:
                if not found:
                    break
                at += _FIELDS
                if at == end:
                    at = 0
            offsets.append(entries[at + 2] if found else -1)
        return offsets

    def offsets(self) -> Iterable[int]:
        """The newest offset of each key, in no order."""
        entries = memoryview(self._entries)
        return compress(entries[2::_FIELDS], entries[::_FIELDS])


class LiveOffsets:
    """Those of the offsets from `start` to below `end` that are some key's newest."""

    def __init__(self, start: int, end: int, offsets: Iterable[int]) -> None:
        self._start = start
        self._bits = bits = bytearray((end - start >> 3) + 1)
        for offset in offsets:
            number = offset - start
            bits[number >> 3] |= 1 << (number & 7)

    def any_of(self, first: int, last: int) -> bool:
        """Whether one from `first` to `last` is."""
        number, count = first - self._start, last - first + 1
        some = int.from_bytes(self._bits[number >> 3 : (number + count + 7) >> 3], "little")
        return (some >> (number & 7)) & ((1 << count) - 1) != 0

    def flags(self, base_offset: int, deltas: Iterable[int]) -> list[bool]:
        """Whether each is, given by what is added to `base_offset`."""
        bits, base = self._bits, base_offset - self._start
        return [bits[base + delta >> 3] & (1 << (base + delta & 7)) != 0 for delta in deltas]
