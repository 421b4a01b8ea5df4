"""How much of a Produce request is records, found out before it is decoded.

Records stay bytes; everything else becomes objects of over forty times its size. A request that
may be as large as `socket.request.max.bytes` therefore has to be large by its records.
"""

from __future__ import annotations

from struct import Struct, error

from kraftpy.protocol.varint import decode_uvarint

_INT16, _INT32 = Struct(">h").unpack_from, Struct(">i").unpack_from
_ACKS_AND_TIMEOUT_BYTES = 2 + 4
_INDEX_BYTES = 4
READS_MAX = 100_000
"""Of lengths and counts, two a partition: tens of milliseconds."""
FIRST_VERSION_WITH_TRANSACTIONS = 3
FIRST_FLEXIBLE_VERSION = 9


def is_large_by_records(frame: memoryview, position: int, version: int, limit: int) -> bool:
    """Whether all bytes from `position` (behind the header) on but `limit` are records.

    Bytes that make no sense are no records, nor those behind the first READS_MAX numbers.
    """
    walk = _Walk(frame, position, version >= FIRST_FLEXIBLE_VERSION, limit)
    try:
        if version >= FIRST_VERSION_WITH_TRANSACTIONS:
            walk.skip_string()
        walk.position += _ACKS_AND_TIMEOUT_BYTES
        for _ in range(walk.count()):
            walk.skip_string()
            for _ in range(walk.count()):
                walk.position += _INDEX_BYTES
                walk.skip_records()
                walk.skip_tags()
            walk.skip_tags()
    except (error, IndexError, ValueError):
        pass  # too much, or the decoder will say what is wrong
    return len(frame) - position - walk.records_bytes <= limit


class _Walk:
    """Goes over a frame; raises ValueError when more than `limit` bytes were no records."""

    __slots__ = ("_left", "_start", "flexible", "frame", "limit", "position", "records_bytes")

    def __init__(self, frame: memoryview, position: int, flexible: bool, limit: int) -> None:
        self.frame = frame
        self.position = self._start = position
        self.flexible = flexible
        self.limit = limit
        self.records_bytes = 0
        self._left = READS_MAX

    def _check(self) -> None:
        self._left -= 1
        if self._left < 0 or self.position - self._start - self.records_bytes > self.limit:
            raise ValueError

    def _uvarint(self) -> int:
        self._check()
        value, self.position = decode_uvarint(self.frame, self.position)
        return value

    def _int32(self) -> int:
        self._check()
        value: int = _INT32(self.frame, self.position)[0]
        self.position += 4
        return value

    def count(self) -> int:
        """An array's or a byte string's length, at most what is left; 0 for null."""
        value = self._uvarint() - 1 if self.flexible else self._int32()
        return max(0, min(value, len(self.frame) - self.position))

    def skip_string(self) -> None:
        if self.flexible:
            size_bytes = self.count()
            self.position += size_bytes
        else:
            self.position += 2 + max(0, _INT16(self.frame, self.position)[0])

    def skip_records(self) -> None:
        size_bytes = self.count()
        self.position += size_bytes
        self.records_bytes += size_bytes

    def skip_tags(self) -> None:
        if self.flexible:
            for _ in range(self._uvarint()):
                self._uvarint()
                size_bytes = self._uvarint()
                self.position += size_bytes
