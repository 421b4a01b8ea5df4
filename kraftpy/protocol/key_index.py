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

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import accumulate, chain, pairwise
from typing import Final

from kraftpy.protocol.compression import compress
from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import GOLDEN_RATIO, HASH_MAX, MASK
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    LENGTH_END,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidBatch,
)
from kraftpy.protocol.zigzag import read_varint

RECORD_BYTES: Final = 16
"""What an index takes of memory for each record."""

_MOST: Final = 0.75
_TOGETHER: Final = 2_000
_ZERO: Final = array("I", [0])
# What is left of so many products, 16 bytes each, and where the lower half of each is.
_HASHES_MAX: Final = int.from_bytes(HASH_MAX.to_bytes(16, "little") * _TOGETHER, "little")
_LOW: Final = 0 if sys.byteorder == "little" else 1
_LZ4: Final = COMPRESSION_NAMES.index("lz4")
# A batch's header, as `record_batch` has it; what the checksum is of and cutting leaves as it is.
_FIXED: Final = struct.Struct(">hiqqqhi")
_COUNT: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(f">qiibI{_FIXED.size}si")

KeyRanges = tuple[tuple[int, int], ...]
"""First and last hash of some slices, ascending, none of which overlap."""

Records = bytes | list[bytes]
"""A batch's uncompressed records: all in one piece, or one by one."""


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

    The hashes, sorted, the number of each one's record in the batch, and where each record of the
    batch ends in its uncompressed records.
    """

    __slots__ = ("_bounds", "_hashes", "_numbers", "_whole")

    def __init__(self, hashes: array[int], numbers: array[int], ends: array[int]) -> None:
        self._hashes = hashes
        self._numbers = numbers
        # A record begins where the one before it ends.
        self._bounds = _ZERO + ends
        self._whole = _MOST * len(hashes)

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._hashes)

    def numbers(self, ranges: KeyRanges) -> list[int]:
        """Which records have hashes in these ranges, in the order of the batch."""
        return self._at(self._places(ranges))

    def wanted(self, ranges: KeyRanges, most: int) -> list[int] | Part:
        """The same, `most` at most, if the batch is to be cut; else how much of it is wanted."""
        if len(ranges) != 1:
            places = self._places(ranges)
            count = sum([end - first for first, end in places])
            if 0 < count < self._whole and count <= most:
                return self._at(places)
            return self._part(count)
        # As nearly always: not a call more than it takes.
        ((low, high),) = ranges
        hashes = self._hashes
        first = bisect_left(hashes, low)
        end = bisect_right(hashes, high, first)
        if 0 < (count := end - first) < self._whole and count <= most:
            numbers = self._numbers[first:end].tolist()
            numbers.sort()
            return numbers
        return self._part(count)

    def _places(self, ranges: KeyRanges) -> list[tuple[int, int]]:
        """Where records with hashes in these ranges begin and end among the sorted ones."""
        hashes = self._hashes
        return [(bisect_left(hashes, low), bisect_right(hashes, high)) for low, high in ranges]

    def _at(self, places: list[tuple[int, int]]) -> list[int]:
        return sorted(chain.from_iterable(self._numbers[first:end] for first, end in places))

    def _part(self, count: int) -> Part:
        if not count:
            return Part.NONE
        return Part.WHOLE if count >= self._whole else Part.CUT

    def pieces(self, records: Records, numbers: Iterable[int]) -> list[bytes]:
        """The batch's records of these numbers."""
        if isinstance(records, list):
            return [records[number] for number in numbers]
        bounds = self._bounds
        return [records[bounds[number] : bounds[number + 1]] for number in numbers]

    def split(self, data: bytes, start: int = 0) -> list[bytes]:
        """The records one by one, of data in which the batch's `batch_data` begins at `start`."""
        bounds = [start + bound for bound in self._bounds] if start else self._bounds
        return [data[begin:end] for begin, end in pairwise(bounds)]

    def to_bytes(self) -> bytes:
        """What `from_bytes` takes, in the same machine."""
        return self._hashes.tobytes() + self._numbers.tobytes() + self._bounds[1:].tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyIndex:
        view = memoryview(data)
        hashes, numbers, ends = array("q"), array("I"), array("I")
        count = len(view) // RECORD_BYTES
        hashes.frombytes(view[: 8 * count])
        numbers.frombytes(view[8 * count : 12 * count])
        ends.frombytes(view[12 * count :])
        return cls(hashes, numbers, ends)


def key_index(header: BatchHeader, data: bytes) -> KeyIndex:
    """The index of a batch's `batch_data`. Raises InvalidBatch."""
    return _index(header, data, 0, None)


def index_records(header: BatchHeader, data: bytes, start: int = 0) -> tuple[KeyIndex, list[bytes]]:
    """The same of data in which that begins at `start`, and the records one by one."""
    records: list[bytes] = []
    return _index(header, data, start, records), records


def _index(header: BatchHeader, data: bytes, pos: int, kept: list[bytes] | None) -> KeyIndex:
    """Some records at a time, so that not all of them are there twice if they aren't `kept`."""
    count, base_offset = header.records_count, header.base_offset
    hashes: list[int] = []
    lengths: list[int] = []
    while (left := count - len(hashes)) > 0:
        try:
            records, keys, keyless, pos = _walk(data, pos, min(left, _TOGETHER))
        except IndexError:
            raise InvalidBatch("record ends in the middle of a field") from None
        spreads = list(map(crc32c, keys))
        for number, delta in keyless:
            spreads[number] = base_offset + delta & MASK
        hashes += _hashes(spreads)
        lengths += map(len, records)
        if kept is not None:
            kept += records
    if pos > len(data):
        raise InvalidBatch("a record reaches past the end of its batch")
    if pos < len(data):
        raise InvalidBatch(f"{len(data) - pos} bytes left after the records of the batch")
    numbers = sorted(range(count), key=hashes.__getitem__)
    return KeyIndex(
        # Of lists, as arrays reserve more than they take of what has no length.
        array("q", [hashes[number] for number in numbers]),
        array("I", numbers),
        array("I", list(accumulate(lengths))),
    )


def _walk(
    data: bytes, pos: int, count: int
) -> tuple[list[bytes], list[bytes], list[tuple[int, int]], int]:
    """So many records from `pos` on, their keys, and where they end.

    Of a record without a key there is an empty one, and its number here with its offset delta. One
    loop, without calls where numbers are short. Raises IndexError, InvalidBatch.
    """
    records: list[bytes] = []
    keys: list[bytes] = []
    keyless: list[tuple[int, int]] = []
    add, add_key = records.append, keys.append
    signs = 0
    for _ in range(count):
        length = data[pos]
        signs |= length
        if length < 0x80:
            at = 2  # Behind the attributes is the timestamp.
            end = pos + 1 + (length >> 1)
        else:
            size = (data[pos + 1] << 6) + (length >> 1) - 0x40
            if size < 0x2000:
                at = 3
                end = pos + 2 + size
            else:
                size, start = read_varint(data, pos)
                at = start - pos + 1
                end = start + size
        record = data[pos:end]
        pos = end
        if record[at] >= 0x80:
            at += 1
            stop = at + 9
            while record[at] >= 0x80:
                at += 1
                if at == stop:  # else a loop as long as the record holds up whoever indexes it
                    raise InvalidBatch("a timestamp of more than 64 bits")
        at = delta_at = at + 1
        if record[at] >= 0x80:
            at = at + 1 if record[at + 1] < 0x80 else read_varint(record, at)[1] - 1
        size = record[at + 1]
        at += 2
        if size >= 0x80:
            half, at = read_varint(record, at - 1)
            size = half << 1 if half >= 0 else 1
        if size & 1:
            keyless.append((len(keys), read_varint(record, delta_at)[0]))
            add_key(b"")
        else:
            start = at
            at += size >> 1
            add_key(record[start:at])
        if at >= len(record):
            raise InvalidBatch("a field reaches past the end of its record or its batch")
        add(record)
    if signs & 1:
        raise InvalidBatch("a record has less than no bytes")
    return records, keys, keyless, pos


def _hashes(spreads: list[int]) -> list[int]:
    """`key_hash` of each, which are _TOGETHER at most: one multiplication of 16 bytes for each."""
    count = len(spreads)
    lanes = bytearray(16 * count)
    memoryview(lanes).cast("Q")[_LOW::2] = memoryview(array("Q", spreads))
    products = int.from_bytes(lanes, sys.byteorder) * GOLDEN_RATIO >> 1 & _HASHES_MAX
    return memoryview(products.to_bytes(16 * count, sys.byteorder)).cast("Q")[_LOW::2].tolist()


class BatchCutter:
    """Makes batches of some of a batch's records: all but those is put together once."""

    __slots__ = ("_base_offset", "_compressed", "_fixed", "_fixed_crc", "_leader_epoch", "_magic")

    def __init__(self, header: BatchHeader) -> None:
        self._base_offset = header.base_offset
        self._leader_epoch = header.partition_leader_epoch
        self._magic = header.magic
        attributes = header.attributes
        self._compressed = bool(attributes & COMPRESSION_MASK)
        if self._compressed:
            attributes = attributes & ~COMPRESSION_MASK | _LZ4
        self._fixed = _FIXED.pack(
            attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        self._fixed_crc = crc32c(self._fixed)

    def cut(self, pieces: Sequence[bytes]) -> tuple[bytes, bytes]:
        """The header and the rest of the batch that has these records, at least one.

        Raises InvalidBatch.
        """
        records = b"".join(pieces)
        if self._compressed:
            records = compress("lz4", records)
        count = len(pieces)
        crc = crc32c(records, crc32c(_COUNT.pack(count), self._fixed_crc))
        try:
            header = _HEADER.pack(
                self._base_offset,
                RECORD_BATCH_OVERHEAD - LENGTH_END + len(records),
                self._leader_epoch,
                self._magic,
                crc,
                self._fixed,
                count,
            )
        except struct.error:
            raise InvalidBatch(f"{len(records)} bytes are too many for a batch") from None
        return header, records
