"""What members of a group tell each other of parts of partitions, in their user data.

Rules:
* It begins with `kpks`, a version (int16) and its kind (int8). Later versions add at the end alone,
  so that every reader knows what stands before. User data that begins otherwise is another
  program's.
* A subscription (kind 0) has allow_key_share (int8), share_host (a string with a 16-bit length) and
  the shares that the member has; an assignment (kind 1) has the shares that the member is given.
* A leader on librdkafka gives each member its subscription's user data back, with whole partitions:
  as an assignment that says nothing of shares.
* Shares are an array of topics (name, array of partitions (int32, array of slot ranges (first and
  last slot, uint16 each))), each array with a 32-bit length. The slot ranges of a partition ascend
  and don't touch. A whole partition is slots 0 to 65,535.
* A partition that only the message itself names, and not this, is meant whole.

Source: seed 001, "Rebalance support for concurrent assignment" (`allowKeyShare`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import SLOTS

MAGIC = b"kpks"
VERSION = 0

SlotRanges = tuple[tuple[int, int], ...]
"""First and last slots, ascending, neither overlapping nor touching."""

Shares = dict[tuple[str, int], SlotRanges]
"""Parts of partitions, by topic and partition."""

ALL_SLOTS: SlotRanges = ((0, SLOTS - 1),)
"""A whole partition."""

_HEAD = struct.Struct(">4shb")
_SUBSCRIBED, _ASSIGNED = 0, 1
_SUBSCRIPTION = struct.Struct(">bh")
_INT16 = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">ii")
_RANGE = struct.Struct(">HH")


class ShareSubscription(NamedTuple):
    """What a member says of sharing when it joins."""

    allow_key_share: bool
    share_host: str = ""
    owned: Shares = {}  # noqa: RUF012 - nobody writes to it


def encode_share_subscription(subscription: ShareSubscription) -> bytes:
    """A subscription's user data."""
    host = subscription.share_host.encode()
    return b"".join(
        (
            _HEAD.pack(MAGIC, VERSION, _SUBSCRIBED),
            _SUBSCRIPTION.pack(subscription.allow_key_share, len(host)),
            host,
            _encode(subscription.owned),
        )
    )


def decode_share_subscription(data: bytes) -> ShareSubscription | None:
    """What a subscription's user data says of sharing, None if it is something else.

    Raises `DecodeError` for what can't have been written so.
    """
    if not data.startswith(MAGIC):
        return None
    reader = _Reader(data)
    if reader.kind != _SUBSCRIBED:
        return None
    allow, length = reader.take(_SUBSCRIPTION)
    host = reader.text(length)
    return ShareSubscription(bool(allow), host, reader.shares())


def encode_shares(shares: Mapping[tuple[str, int], Iterable[tuple[int, int]]]) -> bytes:
    """An assignment's user data."""
    return _HEAD.pack(MAGIC, VERSION, _ASSIGNED) + _encode(shares)


def decode_shares(data: bytes) -> Shares | None:
    """The shares of an assignment's user data, None if it is something else.

    Raises `DecodeError` for what can't have been written so.
    """
    if not data.startswith(MAGIC):
        return None
    reader = _Reader(data)
    return reader.shares() if reader.kind == _ASSIGNED else None


def _encode(shares: Mapping[tuple[str, int], Iterable[tuple[int, int]]]) -> bytes:
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), slots in sorted(shares.items()):
        ranges = [_RANGE.pack(first, last) for first, last in slots]
        entry = _PARTITION.pack(partition, len(ranges)) + b"".join(ranges)
        topics.setdefault(topic, []).append(entry)
    parts = [_COUNT.pack(len(topics))]
    for topic, entries in topics.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, _COUNT.pack(len(entries)), *entries]
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        _, version, self.kind = self.take(_HEAD)
        if version < VERSION:
            raise DecodeError(f"shares have no version {version}")

    def take(self, kind: struct.Struct) -> tuple[int, ...]:
        try:
            found = kind.unpack_from(self._data, self._at)
        except struct.error:
            raise DecodeError(f"shares end after {len(self._data)} bytes") from None
        self._at += kind.size
        return found

    def text(self, length: int) -> str:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise DecodeError(f"shares have a text of {length} bytes at byte {self._at}")
        try:
            found = self._data[self._at : end].decode()
        except UnicodeDecodeError:
            raise DecodeError("shares have a text that isn't UTF-8") from None
        self._at = end
        return found

    def count(self) -> int:
        (count,) = self.take(_COUNT)
        if count < 0:
            raise DecodeError(f"shares have an array of {count}")
        return count

    def shares(self) -> Shares:
        found: Shares = {}
        for _ in range(self.count()):
            topic = self.text(*self.take(_INT16))
            for _ in range(self.count()):
                partition, count = self.take(_PARTITION)
                if partition < 0 or count <= 0 or (topic, partition) in found:
                    raise DecodeError(f"{topic!r}-{partition} can't have {count} slot ranges here")
                found[topic, partition] = self._slots(count)
        return found

    def _slots(self, count: int) -> SlotRanges:
        ranges: list[tuple[int, int]] = []
        expected = 0
        for _ in range(count):
            first, last = self.take(_RANGE)
            if not expected <= first <= last:
                raise DecodeError(f"slots {first} to {last} can't follow those below {expected}")
            ranges.append((first, last))
            expected = last + 2
        return tuple(ranges)
