"""Fetched record batches to Arrow, a whole response at once.

What comes out is exactly the table of Spark's Kafka source: `COLUMNS`, in Spark's types. What goes
in is what a broker sent, so everything is checked before it is believed.

* No loop here runs per record: `kraftpy.spark.varints` finds the records of all batches together,
  and each field is read from all of them at once. Keys and values are copied once, by Arrow.
* CRC-32C, sizes and counts are checked as in `kraftpy.protocol.records`; damage raises
  `DecodeError`. Magic 0 and 1 (before Kafka 0.11) is refused by name: today's brokers convert it.
* Control batches and, under read_committed, those of aborted transactions are left out; the
  position moves past them (KIP-98). Which ones were aborted, the broker's list says.
* Records are opened only for columns that need it. Offsets of a batch without gaps, and timestamps
  that the broker set, are in its header.
* Of a slice of the keys each record is looked at, whoever has cut the batches: more may have come.
* What a response decompresses to is bounded batch by batch, and taken in chunks, so that memory
  depends on neither the number nor the density of the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kraftpy.client.isolation import Aborted, Admission
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import decompress
from kraftpy.protocol.record_batch import COMPRESSION_MASK, LOG_APPEND_TIME
from kraftpy.protocol.records import (
    DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    InvalidBatch,
    check_batch,
    read_batch_header,
    read_varint,
)
from kraftpy.spark.key_slices import hashes_of_keys
from kraftpy.spark.varints import LOCKSTEP_MIN, Bytes, Numbers, find_records, pairs_of, varints

COLUMNS: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}

# Spark takes Arrow batches as they come: larger ones only cost the JVM memory.
BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 4 << 20
CHUNK_BYTES = 16 << 20

_MIN_RECORD_SIZE_BYTES = 7
_ROW_SIZE_BYTES = 16  # of the arrays that a record takes while it is decoded, at least
_TIMESTAMP_MS_MAX = (1 << 63) // 1000 - 1  # Arrow's microseconds have 64 bits


class Found(NamedTuple):
    """A batch to decode: its checked header and where it is in the response."""

    header: BatchHeader
    position: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Whose records: a partition's offsets from `start` (in) to `end` (out).

    `hashes`, the first and the last, say of which keys (`kraftpy.protocol.key_hash`); None is all.
    """

    topic: str
    partition: int
    start: int
    end: int
    hashes: tuple[int, int] | None = None


def find_batches(
    records: Buffer, wanted: Slice, aborted: Sequence[Aborted] = ()
) -> tuple[list[Found], int]:
    """The data batches that reach into `wanted`, and the offset behind all that was looked at.

    A batch that the response cuts off is left for the next one. Raises DecodeError for damage.
    """
    found: list[Found] = []
    next_offset = wanted.start
    admission = Admission(aborted)
    position, size = 0, len(records)
    while size - position > 16 and next_offset < wanted.end:
        # The magic stands at byte 16 in all formats: an old one is told before its size matters.
        if size - position < RECORD_BATCH_OVERHEAD and records[position + 16] == 2:
            break
        header = read_batch_header(records, position)
        if position + header.size_bytes > size:
            break
        if header.last_offset >= next_offset:
            if header.base_offset >= wanted.end:
                return found, wanted.end
            check_batch(records, position)
            if header.base_offset < next_offset and next_offset > wanted.start:
                raise CorruptBatch(
                    f"record batch at offset {header.base_offset} after one that ends at "
                    f"{next_offset - 1}"
                )
            if admission.admits(header, records, position):
                found.append(Found(header, position))
            next_offset = header.last_offset + 1
        position += header.size_bytes
    return found, min(next_offset, wanted.end)


def decode(
    records: Buffer, found: Sequence[Found], wanted: Slice, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of these batches as Arrow batches with the named `COLUMNS`.

    Those before `wanted.start` and from `wanted.end` on are cut off, and those of other keys are
    left out. Raises DecodeError for bytes that break the format.
    """
    chunk: list[Found] = []
    parts: list[Buffer] = []
    size = 0
    opened = wanted.hashes is not None or opens_records(columns, found)
    for each in found if opened else _pieces(found, wanted):
        part: Buffer = _body(records, each)
        if not part and not each.header.records_count:
            continue  # emptied by a cleaner, which may have left the codec in its header
        packed = each.header.attributes & COMPRESSION_MASK
        if opened and packed:
            name = each.header.compression
            part = decompress(name, part, DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES)
        chunk.append(each)
        parts.append(part)
        # What isn't opened may have any number of records in a few bytes.
        size += max(len(part), each.header.records_count * _ROW_SIZE_BYTES)
        if size >= CHUNK_BYTES:
            yield from _decode_chunk(_Chunk(records, chunk, parts, opened), wanted, columns)
            chunk, parts, size = [], [], 0
    if chunk:
        yield from _decode_chunk(_Chunk(records, chunk, parts, opened), wanted, columns)


def _pieces(found: Sequence[Found], wanted: Slice) -> Iterator[Found]:
    """The batches, which won't be opened, cut up so that none has more records than a chunk."""
    most = CHUNK_BYTES // _ROW_SIZE_BYTES
    for each in found:
        header = each.header
        _check_count(header)
        if header.records_count <= most:
            yield each
            continue
        first, end = max(header.base_offset, wanted.start), min(header.last_offset + 1, wanted.end)
        for start in range(first, end, most):
            piece = copy(header)
            piece.base_offset = start
            piece.records_count = min(most, end - start)
            piece.last_offset_delta = piece.records_count - 1
            yield Found(piece, each.position)


def _check_count(header: BatchHeader) -> None:
    """What isn't opened can't be counted, but no record takes fewer bytes than this."""
    room = header.size_bytes - RECORD_BATCH_OVERHEAD
    if header.attributes & COMPRESSION_MASK:
        room = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES
    if header.records_count * _MIN_RECORD_SIZE_BYTES > room:
        raise InvalidBatch("more records than there can be in a batch of its size")


def _body(records: Buffer, found: Found) -> memoryview:
    start, size = found.position, found.header.size_bytes
    return memoryview(records)[start + RECORD_BATCH_OVERHEAD : start + size]


def opens_records(columns: Sequence[str], found: Sequence[Found]) -> bool:
    """Whether the columns need more than what the batches' headers tell."""
    if not {"key", "value", "headers"}.isdisjoint(columns):
        return True
    return any(
        header.records_count != header.last_offset_delta + 1
        or ("timestamp" in columns and header.timestamp_type != LOG_APPEND_TIME)
        for header, _ in found
    )


class _Chunk:
    """Some batches side by side: an array for each thing to know of them, one entry per batch."""

    def __init__(
        self, records: Buffer, found: Sequence[Found], parts: Sequence[Buffer], opened: bool
    ) -> None:
        headers = [each.header for each in found]
        self.opened = opened
        self.counts = _numbers(header.records_count for header in headers)
        self.base_offsets = _numbers(header.base_offset for header in headers)
        self.last_deltas = _numbers(header.last_offset_delta for header in headers)
        self.base_timestamps = _numbers(header.base_timestamp for header in headers)
        self.max_timestamps = _numbers(header.max_timestamp for header in headers)
        self.types = _numbers(header.timestamp_type for header in headers)
        sizes = _numbers(len(part) for part in parts)
        packed = np.array([header.attributes & COMPRESSION_MASK != 0 for header in headers])
        if opened and packed.any():
            self.buffer: Any = b"".join(parts)
            self.last = np.cumsum(sizes)
            self.first = self.last - sizes
        else:
            self.buffer = records
            self.first = _numbers(each.position + RECORD_BATCH_OVERHEAD for each in found)
            self.last = self.first + sizes
        if opened and np.any(self.counts * _MIN_RECORD_SIZE_BYTES > sizes):
            raise InvalidBatch("more records than there can be in a batch of its size")


def _numbers(values: Iterator[int] | Any) -> Numbers:
    return np.fromiter(values, np.int64)


class _Fields:
    """The records of a chunk that are wanted, an array for each field."""

    def __init__(self, chunk: _Chunk, wanted: Slice) -> None:
        self.data: Bytes = np.frombuffer(chunk.buffer, np.uint8)
        self.pairs = pairs_of(self.data)
        self.batch = np.repeat(np.arange(len(chunk.counts)), chunk.counts)
        self.timestamps = chunk.max_timestamps[self.batch]
        if chunk.opened:
            begins, self.ends = find_records(self.data, chunk.first, chunk.last, chunk.counts)
            # A byte of attributes, unused, comes first.
            deltas, rest = varints(self.data, self.pairs, begins + 1, 64)
            self._set_timestamps(chunk, deltas)
            deltas, self.rest = varints(self.data, self.pairs, rest)
            _check_deltas(chunk, self.batch, deltas)
        else:
            firsts = np.cumsum(chunk.counts) - chunk.counts
            deltas = np.arange(len(self.batch)) - firsts[self.batch]
            self.rest = self.ends = np.zeros(len(self.batch), np.int64)
        self.offsets = chunk.base_offsets[self.batch] + deltas
        low, high = np.searchsorted(self.offsets, (wanted.start, wanted.end))
        self._keep(slice(int(low), int(high)))
        if wanted.hashes is not None:
            key = _Texts(self, self.rest)
            if np.any(key.ends >= self.ends):
                raise InvalidBatch("a field reaches past the end of its record")
            hashes = hashes_of_keys(self.data, key.begins, key.ends, key.nulls, self.offsets)
            first, last = wanted.hashes
            self._keep((hashes >= first) & (hashes <= last))

    def _keep(self, chosen: Any) -> None:
        self.batch, self.timestamps = self.batch[chosen], self.timestamps[chosen]
        self.rest, self.ends = self.rest[chosen], self.ends[chosen]
        self.offsets = self.offsets[chosen]

    def _set_timestamps(self, chunk: _Chunk, deltas: Numbers) -> None:
        """Those that the producers gave, unless the broker set one for the whole batch."""
        bases = chunk.base_timestamps[self.batch]
        given = bases + deltas
        if np.any(((bases ^ given) & (deltas ^ given)) < 0):
            raise InvalidBatch("record's timestamp is outside of 64 bits")
        by_broker = chunk.types[self.batch] == LOG_APPEND_TIME
        self.timestamps = np.where(by_broker, self.timestamps, given)


def _check_deltas(chunk: _Chunk, batch: Numbers, deltas: Numbers) -> None:
    rises = (np.diff(deltas) > 0) | (np.diff(batch) > 0)
    if not rises.all() or np.any((deltas < 0) | (deltas > chunk.last_deltas[batch])):
        raise InvalidBatch("the offsets of a batch's records do not rise up to its last offset")


def _decode_chunk(chunk: _Chunk, wanted: Slice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        fields = _Fields(chunk, wanted)
        made = _columns(chunk, fields, wanted, columns)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    table = pa.RecordBatch.from_arrays([made[name] for name in columns], schema=schema)
    yield from _cut(table, fields)


def _cut(table: pa.RecordBatch, fields: _Fields) -> Iterator[pa.RecordBatch]:
    """The table in batches of at most `BATCH_ROWS_MAX` rows and about `BATCH_BYTES_MAX` bytes."""
    grown = np.cumsum(fields.ends - fields.rest)
    start, rows = 0, table.num_rows
    while start < rows:
        before = int(grown[start - 1]) if start else 0
        stop = int(np.searchsorted(grown, before + BATCH_BYTES_MAX, "right"))
        stop = min(max(stop, start + 1), start + BATCH_ROWS_MAX, rows)
        yield table.slice(start, stop - start)
        start = stop


def _columns(
    chunk: _Chunk, fields: _Fields, wanted: Slice, columns: Sequence[str]
) -> dict[str, pa.Array]:
    rows = len(fields.offsets)
    made: dict[str, pa.Array] = {}
    if "topic" in columns:
        made["topic"] = pa.repeat(pa.scalar(wanted.topic), rows)
    if "partition" in columns:
        made["partition"] = pa.repeat(pa.scalar(wanted.partition, pa.int32()), rows)
    if "offset" in columns:
        made["offset"] = pa.array(fields.offsets)
    if "timestamp" in columns:
        times = fields.timestamps
        if np.any((times > _TIMESTAMP_MS_MAX) | (times < -_TIMESTAMP_MS_MAX)):
            raise InvalidBatch("record's timestamp does not fit into Spark's microseconds")
        made["timestamp"] = pa.array(times * 1000).cast(COLUMNS["timestamp"])
    if "timestampType" in columns:
        made["timestampType"] = pa.array(chunk.types[fields.batch].astype(np.int32))
    if not {"key", "value", "headers"}.isdisjoint(columns):
        key = _Texts(fields, fields.rest)
        value = _Texts(fields, key.ends)
        if np.any(value.ends >= fields.ends):
            raise InvalidBatch("a field reaches past the end of its record")
        if "key" in columns:
            made["key"] = key.array(fields.data)
        if "value" in columns:
            made["value"] = value.array(fields.data)
        headers = _Headers(fields, value.ends)
        if "headers" in columns:
            made["headers"] = headers.array(fields)
    return made


class _Texts:
    """A field of bytes, or null, of every record: where each begins and ends."""

    def __init__(self, fields: _Fields, positions: Numbers) -> None:
        lengths, self.begins = varints(fields.data, fields.pairs, positions)
        if np.any(lengths < -1):
            raise InvalidBatch(f"negative length {lengths.min()} in a record")
        self.nulls = lengths < 0
        self.ends = self.begins + np.maximum(lengths, 0)

    def array(self, data: Bytes) -> pa.Array:
        return _gather(data, self.begins, self.ends, self.nulls)


def _gather(data: Bytes, begins: Numbers, ends: Numbers, nulls: Any) -> pa.Array:
    """A binary array of pieces of the data, which follow each other; Arrow copies them.

    The pieces and what lies between them are one array over the data; every second entry is taken.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = begins
    edges[1::2] = ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    every_second = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(every_second, mask=nulls if nulls.any() else None))


class _Headers:
    """The headers of every record; null in Arrow for a record that has none, as in Spark."""

    def __init__(self, fields: _Fields, positions: Numbers) -> None:
        # The count may be the last byte there is, so `varints` can't look at a byte behind it.
        first = fields.data[positions].astype(np.int64)
        self.counts, self.begins = first >> 1, positions + 1
        self.some = np.flatnonzero(first)
        if len(self.some):
            counts, begins = varints(fields.data, fields.pairs, positions[self.some])
            # A header has at least two bytes: the length of its key and that of its value.
            if np.any((counts < 0) | (counts * 2 > fields.ends[self.some] - begins)):
                raise InvalidBatch("more headers than their record has room for")
            self.counts[self.some], self.begins[self.some] = counts, begins
        if np.any((self.counts == 0) & (self.begins != fields.ends)):
            raise InvalidBatch("record's fields do not add up to its length")

    def array(self, fields: _Fields) -> pa.Array:
        names, values = self._find(fields)
        edges = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=edges[1:])
        empty = self.counts == 0
        keys = _names(_gather(fields.data, names[0], names[1], np.zeros(len(names[0]), bool)))
        pairs = pa.StructArray.from_arrays(
            [keys, _gather(fields.data, values[0], values[1], values[2])], ["key", "value"]
        )
        bits = None
        if empty.any():
            bits = pa.py_buffer(np.packbits(~empty, bitorder="little"))
        return pa.Array.from_buffers(
            COLUMNS["headers"],
            len(self.counts),
            [bits, pa.py_buffer(edges)],
            children=[pairs.cast(COLUMNS["headers"].value_type)],
        )

    def _find(self, fields: _Fields) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Where the names and the values of all headers are, in order of their records.

        All records look at their first header, then those that have one at their second, and so on.
        """
        slots = np.cumsum(self.counts) - self.counts
        total = int(self.counts.sum())
        name_begins, name_ends, begins, ends = (np.empty(total, np.int64) for _ in range(4))
        nulls = np.empty(total, bool)
        order = self.some[np.argsort(-self.counts[self.some], kind="stable")]
        falling, position = -self.counts[order], self.begins[order]
        step = 0
        while active := int(np.searchsorted(falling, -step)):
            # One record with very many headers would take a numpy step for each of them.
            if active < LOCKSTEP_MIN and step >= LOCKSTEP_MIN:
                break
            place = slots[order[:active]] + step
            length, begin = varints(fields.data, fields.pairs, position[:active])
            size, start = self._second(fields, begin + length, length)
            name_begins[place], name_ends[place] = begin, begin + length
            begins[place], nulls[place] = start, size < 0
            position = start + np.maximum(size, 0)
            ends[place] = position
            self._check_end(fields, order[:active], step, position)
            step += 1
        for index in range(active):
            record = int(order[index])
            place = slice(int(slots[record]) + step, int(slots[record] + self.counts[record]))
            found = _walk_headers(fields, int(position[index]), int(fields.ends[record]), place)
            name_begins[place], name_ends[place], begins[place], ends[place], nulls[place] = found
        return (name_begins, name_ends), (begins, ends, nulls)

    def _second(
        self, fields: _Fields, positions: Numbers, lengths: Numbers
    ) -> tuple[Numbers, Numbers]:
        """(length, begin) of the headers' values, which follow names of these lengths."""
        if np.any(lengths < 0):
            raise InvalidBatch("record header without a key")
        # A null or empty value may be the last byte there is.
        short = fields.data[positions].astype(np.int64)
        sizes, begins = (short >> 1) ^ -(short & 1), positions + 1
        long = np.flatnonzero(short >= 0x80)
        if len(long):
            sizes[long], begins[long] = varints(fields.data, fields.pairs, positions[long])
        if np.any(sizes < -1):
            raise InvalidBatch(f"negative length {sizes.min()} in a record")
        return sizes, begins

    def _check_end(self, fields: _Fields, records: Numbers, step: int, positions: Numbers) -> None:
        ends = fields.ends[records]
        last = self.counts[records] == step + 1
        if np.any(positions > ends) or np.any(positions[last] != ends[last]):
            raise InvalidBatch("record's fields do not add up to its length")


def _walk_headers(fields: _Fields, start: int, end: int, place: slice) -> tuple[Any, ...]:
    """Name begins, name ends, value begins, value ends and nulls of one record's headers."""
    raw = fields.data[start:end].tobytes()
    rows: list[tuple[int, int, int, int, bool]] = []
    pos = 0
    for _ in range(place.stop - place.start):
        length, begin = read_varint(raw, pos)
        if length < 0:
            raise InvalidBatch("record header without a key")
        size, value = read_varint(raw, begin + length)
        if size < -1:
            raise InvalidBatch(f"negative length {size} in a record")
        pos = value + max(size, 0)
        rows.append((begin, begin + length, value, pos, size < 0))
    if pos != len(raw):
        raise InvalidBatch("record's fields do not add up to its length")
    table = np.array(rows, np.int64).reshape(-1, 5).T
    return (*(table[:4] + start), table[4].astype(bool))


def _names(raw: pa.Array) -> pa.Array:
    """Header keys as text; what is no UTF-8 is replaced as Java's decoder does."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.as_py().decode(errors="replace") for each in raw], pa.string())
