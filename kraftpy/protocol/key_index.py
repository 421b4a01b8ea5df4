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
from itertools import chain
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

    __slots__ = ("_bounds", "_hashes", "_numbers")

    def __init__(self, hashes: array[int], numbers: array[int], ends: array[int]) -> None:
        self._hashes = hashes
        self._numbers = numbers
        # A record begins where the one before it ends.
        self._bounds = _ZERO + ends

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._hashes)

    def places(self, ranges: KeyRanges) -> list[tuple[int, int]]:
        """Where records with hashes in these ranges begin and end among the sorted ones."""
        hashes = self._hashes
        return [(bisect_left(hashes, low), bisect_right(hashes, high)) for low, high in ranges]

    def part(self, count: int) -> Part:
        """How much of the batch goes to who wants so many of its records."""
        if not count:
            return Part.NONE
        return Part.WHOLE if count >= _MOST * len(self._hashes) else Part.CUT

    def pieces(self, data: bytes, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The records at these places, in the order of the batch, which has this `batch_data`."""
        bounds = self._bounds
        if len(places) == 1:
            ((first, end),) = places
            numbers = sorted(self._numbers[first:end])
        else:
            numbers = sorted(chain.from_iterable(self._numbers[a:z] for a, z in places))
        return [data[bounds[number] : bounds[number + 1]] for number in numbers]

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
    try:
        hashes, ends = _read(data, header.records_count, header.base_offset)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    left = len(data) - (ends[-1] if ends else 0)
    if left < 0:
        raise InvalidBatch("a record reaches past the end of its batch")
    if left:
        raise InvalidBatch(f"{left} bytes left after the records of the batch")
    numbers = sorted(range(len(hashes)), key=hashes.__getitem__)
    return KeyIndex(
        # Of lists, as arrays reserve more than they take of what has no length.
        array("q", [hashes[number] for number in numbers]),
        array("I", numbers),
        array("I", ends),
    )


def _read(data: bytes, count: int, base_offset: int) -> tuple[list[int], list[int]]:
    """Hash and end of each record. Some at a time, so that their keys aren't all there at once."""
    hashes: list[int] = []
    ends: list[int] = []
    while (left := count - len(ends)) > 0:
        keys, keyless = _walk(data, ends, min(left, _TOGETHER))
        spreads = list(map(crc32c, keys))
        for number, delta in keyless:
            spreads[number] = base_offset + delta & MASK
        hashes += _hashes(spreads)
    return hashes, ends


def _walk(data: bytes, ends: list[int], count: int) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The keys of so many records behind those that end at `ends`, which gets their ends.

    Of a record without a key there is an empty one, and its number here with its offset delta. One
    loop, without calls where numbers are short. Raises IndexError, InvalidBatch.
    """
    keys: list[bytes] = []
    keyless: list[tuple[int, int]] = []
    add_key, add_end = keys.append, ends.append
    pos = ends[-1] if ends else 0
    for _ in range(count):
        length = data[pos]
        if length < 0x80:
            pos += 1
        else:
            more = data[pos + 1]
            if more < 0x80:
                length += (more << 7) - 0x80
                pos += 2
            else:
                half, pos = read_varint(data, pos)
                length = half << 1
        end = pos + (length >> 1)
        pos += 1  # attributes
        while data[pos] >= 0x80:  # timestamp
            pos += 1
        at = pos = pos + 1  # offset delta
        if data[pos] >= 0x80:
            if data[pos + 1] < 0x80:
                pos += 1
            else:
                pos = read_varint(data, pos)[1] - 1
        size = data[pos + 1]
        pos += 2
        if size >= 0x80:
            half, pos = read_varint(data, pos - 1)
            size = half << 1 if half >= 0 else 1
        if size & 1:
            keyless.append((len(keys), read_varint(data, at)[0]))
            add_key(b"")
        else:
            start = pos
            pos += size >> 1
            add_key(data[start:pos])
        if pos >= end or length & 1:
            raise InvalidBatch("a field reaches past the end of its record or its batch")
        add_end(end)
        pos = end
    return keys, keyless


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
