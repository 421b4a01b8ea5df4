"""The aborted transactions of a segment, in memory and in Kafka's `.txnindex`.

A transaction belongs to the segment that has its marker. An entry has 34 bytes, big-endian: int16
version 0, int64 producer id, offsets of the first record and of the marker, and the last stable
offset behind the marker. The markers' offsets rise strictly. A segment without any has no file.

A transaction that stays open holds back the last stable offset of all that end before it does, so a
read below looks at all of these. It passes over a block of them of which none began below its end.
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
_BLOCK: Final = 512


class TransactionIndex:
    """The entries, 32 bytes each; all of them are of aborted transactions."""

    __slots__ = ("_fields", "_lowest")

    def __init__(self, transactions: Iterable[CompletedTransaction] = ()) -> None:
        self._fields = array("q")
        # The lowest first offset of each block.
        self._lowest = array("q")
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
            index._add((producer_id, first, last, stable))
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
        self._add(transaction[:_FIELDS])

    def _add(self, entry: tuple[int, int, int, int]) -> None:
        lowest, first = self._lowest, entry[_FIRST]
        if not len(self) % _BLOCK:
            lowest.append(first)
        elif first < lowest[-1]:
            lowest[-1] = first
        self._fields.extend(entry)

    def truncate(self, end_offset: int) -> bool:
        """Drops the transactions whose markers are at or above; whether there were any."""
        keep = self._search(end_offset)
        dropped = keep < len(self)
        del self._fields[keep * _FIELDS :]
        blocks, rest = divmod(keep, _BLOCK)
        del self._lowest[blocks:]
        if rest:
            self._lowest.append(min(self._fields[blocks * _BLOCK * _FIELDS + _FIRST :: _FIELDS]))
        return dropped

    def collect(
        self, fetch_offset: int, upper_offset: int, found: list[CompletedTransaction]
    ) -> bool:
        """Adds to `found` those that a read of [`fetch_offset`, `upper_offset`) may meet.

        Returns whether no later segment has any: all that began below ended before the last one.
        """
        fields = self._fields
        number, count = self._search(fetch_offset), len(self)
        while number < count:
            block = number // _BLOCK
            end = min((block + 1) * _BLOCK, count)
            if self._lowest[block] >= upper_offset:
                number = end - 1  # whose last stable offset is the highest of the block
            for each in range(number, end):
                at = each * _FIELDS
                if fields[at + _FIRST] < upper_offset:
                    found.append(self._entry(each))
                if fields[at + _STABLE] >= upper_offset:
                    return True
            number = end
        return False

    def to_bytes(self) -> bytes:
        fields = iter(self._fields)
        return b"".join(
            _ENTRY.pack(_VERSION, *entry)
            for entry in zip(fields, fields, fields, fields, strict=True)
        )
