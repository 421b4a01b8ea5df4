"""Which partition a record goes to, as Kafka's Java producer decides it.

A key always goes to the same partition: murmur2 of its bytes, sign bit cleared, modulo the number
of partitions, so that clients in other languages agree. Records without a key stick to one
partition until a batch's worth of bytes went there, then move to another (KIP-794): full batches
without favouring any partition.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Austin Appleby's 32-bit MurmurHash2 with the seed that Kafka uses, unsigned."""
    length = len(data)
    whole = length & ~3
    h = SEED ^ length
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key among partitions 0 to `partition_count` - 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The partition of a topic's records without a key."""

    def __init__(self, switch_after_bytes: int, rng: random.Random) -> None:
        self._switch_after_bytes = switch_after_bytes
        self._rng = rng
        self._partition = -1
        self._size_bytes = 0

    def partition(self, size_bytes: int, available: Sequence[int]) -> int:
        """Places a record of this size; `available` are the partitions that have a leader."""
        if self._size_bytes >= self._switch_after_bytes or self._partition not in available:
            others = [p for p in available if p != self._partition] or available
            self._partition = self._rng.choice(others)
            self._size_bytes = 0
        self._size_bytes += size_bytes
        return self._partition
