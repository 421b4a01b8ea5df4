"""Which partition of a coordinator's topic keeps a key: Kafka's rule, so that its tools agree.

A key of `__consumer_offsets` is a group.
"""

from __future__ import annotations

from functools import lru_cache

_REMEMBERED_MAX_CHARS = 100  # clients choose the lengths of their keys


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


def partition_for(key: str, partitions_count: int) -> int:
    """The partition of the topic that the key lives in.

    By the absolute value of the signed hash, 0 for the one that has none in 32 bits: not by its
    lower 31 bits, as keys of messages.
    """
    if len(key) > _REMEMBERED_MAX_CHARS:
        return _remembered_hash_of_long(key) % partitions_count
    return _remembered_hash(key) % partitions_count


def _positive_hash(key: str) -> int:
    value = java_string_hash(key)
    return value if value < 1 << 31 else ((1 << 32) - value) & 0x7FFFFFFF


_remembered_hash = lru_cache(maxsize=1024)(_positive_hash)
# The longest takes milliseconds, and one request needs it several times.
_remembered_hash_of_long = lru_cache(maxsize=8)(_positive_hash)
