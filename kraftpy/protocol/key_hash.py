"""Where a record stands among the consumers that share its partition.

Rules:
* The hash of a key has 63 bits, 0 to `HASH_MAX`: CRC-32C, spread by Knuth's multiplication. No
  partitioner uses CRC-32C, so the keys of one partition aren't those of one hash range, whoever
  wrote them.
* A record without a key has no order to keep: its offset stands for the key's CRC.
* Another hash is another version of the wire format and of the records that name hash ranges.
* Partitions are dealt out by slot: the upper 16 bits.

Source: seed 001, "Key Based Filtering", which leaves the hash open.
"""

from __future__ import annotations

from kraftpy.protocol.crc import crc32c

HASH_MAX = (1 << 63) - 1
"""The last hash: a range of hashes fits into two int64."""

SLOTS = 1 << 16
"""How many parts a partition can be dealt out in."""

GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
"""What the multiplication keeps; `key_index` has this hash in its loop."""

_SLOT_SHIFT = 63 - 16


def key_hash(key: bytes | None, offset: int) -> int:
    """The hash of a record with this key at this offset, which counts only without a key."""
    spread = offset if key is None else crc32c(key)
    return (spread * GOLDEN_RATIO & MASK) >> 1


def slot_of(hash_: int) -> int:
    """The slot that a hash is in, 0 to 65,535."""
    return hash_ >> _SLOT_SHIFT


def hashes_of(first_slot: int, last_slot: int) -> tuple[int, int]:
    """The first and the last hash of a range of slots."""
    return first_slot << _SLOT_SHIFT, (last_slot + 1 << _SLOT_SHIFT) - 1
