"""The two sparse indexes of a segment, in memory and in Kafka's file formats.

* `.index`: entries (int32 relative offset, int32 position), big-endian: the LAST offset of a batch
  and the position of that batch. Both rise strictly.
* `.timeindex`: entries (int64 timestamp, int32 relative offset): the largest timestamp so far and
  the last offset of the batch that has it. Timestamps rise strictly, offsets never fall.

Files are written as a whole and never mapped: a full or failing disk can then only fail a system
call, not send a signal.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_POSITION_MASK = 0xFFFFFFFF
_TIME_ENTRY = struct.Struct(">qi")


class IndexFileError(ValueError):
    """An index file that breaks its own rules; it is rebuilt from the segment."""


class OffsetIndex:
    """Relative offset → position; one 64-bit integer an entry, so that searches run in C."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = array("Q")

    @classmethod
    def load(cls, path: Path) -> OffsetIndex:
        """Raises IndexFileError, OSError."""
        data = path.read_bytes()
        if len(data) % OFFSET_ENTRY_BYTES:
            raise IndexFileError(f"{path} has {len(data)} bytes, which is no multiple of 8")
        index = cls()
        index._entries.frombytes(data)
        index._swap_to_native()
        entries = index._entries
        if len(entries) > 1 and any(
            after <= before or after & _POSITION_MASK <= before & _POSITION_MASK
            for before, after in ((entries[0], entries[1]), (entries[-2], entries[-1]))
        ):
            raise IndexFileError(f"entries of {path} do not rise")
        return index

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return len(self._entries) * OFFSET_ENTRY_BYTES

    def append(self, relative_offset: int, position: int) -> None:
        self._entries.append(relative_offset << 32 | position)

    def lookup(self, relative_offset: int) -> tuple[int, int]:
        """(relative offset, position) of the last entry ≤ `relative_offset`, or (-1, 0)."""
        index = bisect_right(self._entries, relative_offset << 32 | _POSITION_MASK) - 1
        if index < 0:
            return -1, 0
        entry = self._entries[index]
        return entry >> 32, entry & _POSITION_MASK

    def lookup_position(self, position: int) -> tuple[int, int]:
        """(relative offset, position) of the last entry at or below a position; (-1, 0) without."""
        index = bisect_right(self._entries, position, key=_POSITION_MASK.__and__) - 1
        if index < 0:
            return -1, 0
        entry = self._entries[index]
        return entry >> 32, entry & _POSITION_MASK

    def last(self) -> tuple[int, int]:
        """(relative offset, position) of the last entry; (-1, 0) without one."""
        if not self._entries:
            return -1, 0
        return self._entries[-1] >> 32, self._entries[-1] & _POSITION_MASK

    def truncate(self, size: int) -> None:
        """Drops the entries of batches at or after position `size`."""
        del self._entries[bisect_left(self._entries, size, key=_POSITION_MASK.__and__) :]

    def to_bytes(self) -> bytes:
        copy = OffsetIndex()
        copy._entries = self._entries[:]
        copy._swap_to_native()
        return copy._entries.tobytes()

    def _swap_to_native(self) -> None:
        if sys.byteorder == "little":
            self._entries.byteswap()


class TimeIndex:
    """Timestamp → relative offset; kept as the file's bytes, since it is rarely searched."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    @classmethod
    def load(cls, path: Path) -> TimeIndex:
        """Raises IndexFileError, OSError."""
        index = cls(path.read_bytes())
        if len(index._data) % TIME_ENTRY_BYTES:
            raise IndexFileError(f"{path} has {len(index._data)} bytes, which is no multiple of 12")
        if len(index) > 1 and index._timestamp(-1) <= index._timestamp(-2):
            raise IndexFileError(f"entries of {path} do not rise")
        return index

    def __len__(self) -> int:
        return len(self._data) // TIME_ENTRY_BYTES

    def _timestamp(self, entry: int) -> int:
        return self.entry(entry)[0]

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, relative offset) of an entry, counted from the end if negative."""
        timestamp, relative = _TIME_ENTRY.unpack_from(self._data, number * TIME_ENTRY_BYTES)
        return timestamp, relative

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry if the timestamp is larger than all before it; -1 is no timestamp."""
        if timestamp > (self._timestamp(-1) if self._data else -1):
            self._data += _TIME_ENTRY.pack(timestamp, relative_offset)

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry with a timestamp < `timestamp`, None without one.

        Every record up to that entry's batch is older than what is asked for.
        """
        number = bisect_left(range(len(self)), timestamp, key=self._timestamp) - 1
        return self.entry(number) if number >= 0 else None

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries at or after `relative_offset`."""
        keep = bisect_left(range(len(self)), relative_offset, key=lambda i: self.entry(i)[1])
        del self._data[keep * TIME_ENTRY_BYTES :]

    def to_bytes(self) -> bytes:
        return bytes(self._data)
