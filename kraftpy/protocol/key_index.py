"""Which records of a batch have keys in which slices, and the batch with those records alone.

Rules:

* An index is made of a batch once and serves all who share its partition: whoever wants a slice
  finds its records by bisection, so members hardly count. It takes RECORD_BYTES a record.
* A batch that is cut keeps base offset, last offset, epochs, producer and timestamps, as a
  compacted one does: offsets never change, and neither does what is read from the header. (The
  largest timestamp may be that of a record that isn't there.) New are count, codec, and checksum.
* A plain batch stays plain, and any other is compressed with lz4, which costs least.
* A batch goes whole if most of its records are wanted: it then needn't be copied, and whoever asked
  filters again. Control batches aren't for here: whoever reads a slice needs them all.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from kraftpy.protocol.compression import compress
from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import GOLDEN_RATIO, HASH_MAX, MASK
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    BatchHeader,
    InvalidBatch,
    assemble_batch,
)
from kraftpy.protocol.zigzag import read_varint

RECORD_BYTES: Final = 16
"""What an index takes of memory for each record."""

_MOST: Final = 0.75
_LZ4: Final = COMPRESSION_NAMES.index("lz4")

KeyRanges = tuple[tuple[int, int], ...]
"""First and last hash of some slices, ascending, none of which overlap."""


def checked_key_ranges(ranges: Iterable[tuple[int, int]]) -> KeyRanges:
    """What a client wants, in order; DecodeError if that is nothing or not what hashes can be."""
    wanted = tuple(sorted((low, high) for low, high in ranges))
    previous = -1
    for low, high in wanted:
        if not previous < low <= high <= HASH_MAX:
            raise DecodeError(f"hashes {low} to {high} behind {previous} are no slice")
        previous = high
    if not wanted:
        raise DecodeError("no slices are wanted")
    return wanted


class Part(Enum):
    """How much of a batch is wanted, as it is counted in metrics."""

    NONE = "none"
    CUT = "cut"
    WHOLE = "whole"


class KeyIndex:
    """The records of a batch by the hash of their key.

    Three arrays of the same length, sorted by hash: the hash, and where the record begins and ends
    in the batch's uncompressed records.
    """

    __slots__ = ("_ends", "_hashes", "_starts")

    def __init__(self, hashes: array[int], starts: array[int], ends: array[int]) -> None:
        self._hashes = hashes
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._hashes)

    def count(self, ranges: KeyRanges) -> int:
        """How many records have hashes in these ranges."""
        hashes = self._hashes
        return sum(bisect_right(hashes, high) - bisect_left(hashes, low) for low, high in ranges)

    def part(self, ranges: KeyRanges) -> Part:
        """How much of the batch goes to who wants these ranges."""
        count = self.count(ranges)
        if not count:
            return Part.NONE
        return Part.WHOLE if count >= _MOST * len(self) else Part.CUT

    def spans(self, ranges: KeyRanges) -> list[tuple[int, int]]:
        """Where these records begin and end, in the order of the batch."""
        starts: list[int] = []
        ends: list[int] = []
        for low, high in ranges:
            first, end = bisect_left(self._hashes, low), bisect_right(self._hashes, high)
            starts += self._starts[first:end]
            ends += self._ends[first:end]
        # Records don't overlap, so the n-th start and the n-th end are of the same one.
        starts.sort()
        ends.sort()
        return list(zip(starts, ends, strict=True))

    def to_bytes(self) -> bytes:
        """What `from_bytes` takes, in the same machine."""
        return self._hashes.tobytes() + self._starts.tobytes() + self._ends.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyIndex:
        view = memoryview(data)
        hashes, starts, ends = array("q"), array("I"), array("I")
        count = len(view) // RECORD_BYTES
        hashes.frombytes(view[: 8 * count])
        starts.frombytes(view[8 * count : 12 * count])
        ends.frombytes(view[12 * count :])
        return cls(hashes, starts, ends)


def key_index(header: BatchHeader, data: bytes) -> KeyIndex:
    """The index of a batch's `batch_data`. Raises InvalidBatch."""
    try:
        hashes, ends = _read(data, header.records_count, header.base_offset)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    left = len(data) - (ends[-1] if ends else 0)
    if left:
        raise InvalidBatch(f"{left} bytes left after the records of the batch")
    starts = [0, *ends]
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    return KeyIndex(
        # Of lists, as arrays reserve more than they take of what has no length.
        array("q", [hashes[number] for number in order]),
        array("I", [starts[number] for number in order]),
        array("I", [ends[number] for number in order]),
    )


def _read(data: bytes, count: int, base_offset: int) -> tuple[list[int], list[int]]:
    """Hash and end of each record. One loop, without calls where numbers are short."""
    hashes: list[int] = []
    ends: list[int] = []
    add_hash, add_end = hashes.append, ends.append
    pos = 0
    size = len(data)
    for _ in range(count):
        length, more = data[pos], data[pos + 1]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        elif more < 0x80:
            length = (length & 0x7F | more << 7) >> 1 ^ -(length & 1)
            pos += 2
        else:
            length, pos = read_varint(data, pos)
        end = pos + length
        pos += 1  # attributes
        while data[pos] >= 0x80:  # timestamp
            pos += 1
        pos += 1
        delta, length = data[pos], data[pos + 1]
        if delta < 0x80:
            delta = (delta >> 1) ^ -(delta & 1)
            pos += 1
        elif length < 0x80:
            delta = (delta & 0x7F | length << 7) >> 1 ^ -(delta & 1)
            pos += 2
            length = data[pos]
        else:
            delta, pos = read_varint(data, pos)
            length = data[pos]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        if length < 0:
            spread = base_offset + delta
        else:
            spread = crc32c(data[pos : pos + length])
            pos += length
        if not pos < end <= size:
            raise InvalidBatch("a field reaches past the end of its record or its batch")
        add_hash((spread * GOLDEN_RATIO & MASK) >> 1)
        add_end(end)
        pos = end
    return hashes, ends


def cut_batch(header: BatchHeader, data: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    """The batch with those of its records alone, at least one; `data` is its `batch_data`.

    Raises InvalidBatch.
    """
    records = b"".join([data[start:end] for start, end in spans])
    attributes = header.attributes
    if attributes & COMPRESSION_MASK:
        records = compress("lz4", records)
        attributes = attributes & ~COMPRESSION_MASK | _LZ4
    changed = BatchHeader(
        (
            header.base_offset,
            0,
            header.partition_leader_epoch,
            header.magic,
            0,
            attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            len(spans),
        )
    )
    try:
        return assemble_batch(changed, records)
    except ValueError as error:
        raise InvalidBatch(str(error)) from None
