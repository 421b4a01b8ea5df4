"""Which partition of `__consumer_offsets` keeps a group: Kafka's rule, so that its tools agree."""

from __future__ import annotations

from functools import lru_cache

_REMEMBERED_MAX_CHARS = 100  # groups choose the lengths of their names


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` as an unsigned 32-bit number (over UTF-16 code units)."""
    if text.isascii():
        units: bytes | list[int] = text.encode("ascii")
    else:
        utf16 = text.encode("utf-16-be", "surrogatepass")
        units = [high << 8 | low for high, low in zip(utf16[::2], utf16[1::2], strict=True)]
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def partition_for(group_id: str, partitions_count: int) -> int:
    """The partition of the offsets topic that the group lives in.

    By the absolute value of the signed hash, 0 for the one that has none in 32 bits: not by its
    lower 31 bits, as keys of messages.
    """
    if len(group_id) > _REMEMBERED_MAX_CHARS:
        return _positive_hash(group_id) % partitions_count
    return _remembered_hash(group_id) % partitions_count


def _positive_hash(group_id: str) -> int:
    value = java_string_hash(group_id)
    return value if value < 1 << 31 else ((1 << 32) - value) & 0x7FFFFFFF


_remembered_hash = lru_cache(maxsize=1024)(_positive_hash)
