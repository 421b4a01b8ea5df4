"""Key → newest offset in a fixed amount of memory: the 16 byte hash of a key and 8 bytes of offset.

Open addressing in two flat arrays, as in Kafka's SkimpyOffsetMap: two keys with the same hash would
be taken for one, which with 128 bits doesn't happen. A map that is full takes no new key; whoever
fills it goes on from there in another pass.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 24

_HASH_BYTES: Final = 16
_MAX_LOAD: Final = 0.75


def slots_for(keys: int, max_bytes: int) -> int:
    """How many slots a map for `keys` different keys needs; not more than fit in `max_bytes`."""
    return max(2, min(int(keys / _MAX_LOAD) + 2, max_bytes // ENTRY_BYTES))


class OffsetMap:
    """`slots` entries, all but a quarter of which can be used."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._capacity = max(1, int(slots * _MAX_LOAD))
        self._hashes = bytearray(slots * _HASH_BYTES)
        self._offsets = array("q", bytes(8)) * slots  # offset + 1, 0 where the slot is free
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._slots * ENTRY_BYTES

    def _find(self, digest: bytes) -> int:
        """The slot that has the key, or the free one where it belongs."""
        hashes, offsets, slots = self._hashes, self._offsets, self._slots
        slot = int.from_bytes(digest[:8], "little") % slots
        while offsets[slot]:
            at = slot * _HASH_BYTES
            if hashes[at : at + _HASH_BYTES] == digest:
                break
            slot += 1
            if slot == slots:
                slot = 0
        return slot

    def put(self, key: bytes, offset: int) -> bool:
        """Notes the key's newest offset; False when the map is full."""
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        slot = self._find(digest)
        if not self._offsets[slot]:
            if self._count >= self._capacity:
                return False
            self._count += 1
            at = slot * _HASH_BYTES
            self._hashes[at : at + _HASH_BYTES] = digest
        self._offsets[slot] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """The key's newest offset, -1 for a key that the map hasn't met."""
        return self._offsets[self._find(blake2b(key, digest_size=_HASH_BYTES).digest())] - 1
