"""The aborted transactions of a segment, in memory and in Kafka's `.txnindex`.

A transaction belongs to the segment that has its marker. An entry has 34 bytes, big-endian: int16
version 0, int64 producer id, offsets of the first record and of the marker, and the last stable
offset behind the marker. The markers' offsets rise strictly. A segment without any has no file.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kraftpy.core.producers import CompletedTransaction
from kraftpy.storage.index import IndexFileError

_VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
# An entry in memory: producer id, first offset, marker's offset, last stable offset.
_FIELDS: Final = 4
_FIRST, _LAST, _STABLE = 1, 2, 3


class TransactionIndex:
    """The entries, 32 bytes each; all of them are of aborted transactions."""

    __slots__ = ("_fields",)

    def __init__(self, transactions: Iterable[CompletedTransaction] = ()) -> None:
        self._fields = array("q")
        for transaction in transactions:
            self.append(transaction)

    @classmethod
    def load(cls, path: Path) -> TransactionIndex:
        """That of the file, an empty one if it isn't there. Raises IndexFileError, OSError."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        if len(data) % _ENTRY.size:
            raise IndexFileError(
                f"{path} has {len(data)} bytes, which is no multiple of {_ENTRY.size}"
            )
        index = cls()
        end = -1
        for version, producer_id, first, last, stable in _ENTRY.iter_unpack(data):
            if (
                version != _VERSION
                or producer_id < 0
                or not 0 <= first < last
                or not end < last
                or not 0 <= stable <= last + 1
            ):
                raise IndexFileError(
                    f"{path} has an entry of version {version} that says producer {producer_id}, "
                    f"offsets {first} to {last}, last stable offset {stable}, behind one that "
                    f"ends at {end}"
                )
            index._fields.extend((producer_id, first, last, stable))
            end = last
        return index

    def __len__(self) -> int:
        return len(self._fields) // _FIELDS

    def __iter__(self) -> Iterator[CompletedTransaction]:
        return map(self._entry, range(len(self)))

    def _entry(self, number: int) -> CompletedTransaction:
        at = number * _FIELDS
        producer_id, first, last, stable = self._fields[at : at + _FIELDS]
        return CompletedTransaction(producer_id, first, last, stable, committed=False)

    def _search(self, last_offset: int) -> int:
        """The number of the first entry whose marker is at or above the offset."""
        fields = self._fields
        return bisect_left(
            range(len(self)), last_offset, key=lambda number: fields[number * _FIELDS + _LAST]
        )

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return len(self._fields) * self._fields.itemsize

    def append(self, transaction: CompletedTransaction) -> None:
        """An aborted transaction; its marker comes behind those of all others."""
        self._fields.extend(transaction[:_FIELDS])

    def truncate(self, end_offset: int) -> bool:
        """Drops the transactions whose markers are at or above; whether there were any."""
        keep = self._search(end_offset)
        dropped = keep < len(self)
        del self._fields[keep * _FIELDS :]
        return dropped

    def collect(
        self, fetch_offset: int, upper_offset: int, found: list[CompletedTransaction]
    ) -> bool:
        """Adds to `found` those that a read of [`fetch_offset`, `upper_offset`) may meet.

        Returns whether no later segment has any: all that began below ended before the last one.
        """
        fields = self._fields
        for number in range(self._search(fetch_offset), len(self)):
            at = number * _FIELDS
            if fields[at + _FIRST] < upper_offset:
                found.append(self._entry(number))
            if fields[at + _STABLE] >= upper_offset:
                return True
        return False

    def to_bytes(self) -> bytes:
        fields = iter(self._fields)
        return b"".join(
            _ENTRY.pack(_VERSION, *entry)
            for entry in zip(fields, fields, fields, fields, strict=True)
        )
