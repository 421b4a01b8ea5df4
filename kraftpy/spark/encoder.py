"""Arrow columns to record batches: the way back of `kraftpy.spark.decoder`.

A record's bytes are five pieces: the numbers before its key, the key, the length of its value, the
value, and its headers. The pieces of all records are Arrow arrays, and putting them in order is one
`take` of Arrow's, however many records there are. Only headers are put together one by one.

* Records of a partition keep their order, and batches are cut at about the wanted size.
* Partitions are chosen as `kraftpy.client.partitioner` does: by murmur2 of the key, and without a
  key one batch's worth after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kraftpy.client.batches import EncodedRecords
from kraftpy.client.partitioner import SEED
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.records import encode_varint
from kraftpy.spark.varints import Bytes, Numbers

_RECORD_OVERHEAD = 21
_NO_HEADERS = encode_varint(0)
_M = np.uint32(0x5BD1E995)


class Rows(NamedTuple):
    """Records to write, side by side.

    `headers` is None or a list of (key, value) for each; `timestamps_ms` is None where all have the
    time of writing.
    """

    key: pa.Array
    value: pa.Array
    headers: pa.Array | None
    timestamps_ms: Numbers | None = None

    def take(self, places: Any) -> Rows:
        return Rows(
            self.key.take(places),
            self.value.take(places),
            None if self.headers is None else self.headers.take(places),
            None if self.timestamps_ms is None else self.timestamps_ms[np.asarray(places)],
        )


def sizes_of(array: pa.Array) -> Numbers:
    """The length in bytes of every entry of a binary array; 0 for null."""
    edges = np.frombuffer(array.buffers()[1], np.int32)[
        array.offset : array.offset + len(array) + 1
    ]
    sizes = np.diff(edges).astype(np.int64)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return sizes


def bytes_of(array: pa.Array) -> tuple[Bytes, Numbers]:
    """(all the data that the array points into, where each entry begins)."""
    buffers = array.buffers()
    edges = np.frombuffer(buffers[1], np.int32)[array.offset : array.offset + len(array)]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    return data, edges.astype(np.int64)


def partitions_of_keys(keys: pa.Array, count: int) -> Numbers:
    """The partition of every key among `count`, -1 for null: murmur2 as Kafka's producer has it."""
    data, begins = bytes_of(keys)
    sizes = sizes_of(keys)
    hashes = np.uint32(SEED) ^ sizes.astype(np.uint32)
    with np.errstate(over="ignore"):
        for step in range(int(sizes.max(initial=0)) // 4):
            some = np.flatnonzero(sizes >= (step + 1) * 4)
            word = _word(data, begins[some] + step * 4, 4) * _M
            hashes[some] = (hashes[some] * _M) ^ ((word ^ word >> np.uint32(24)) * _M)
        tails = sizes & 3
        for length in (1, 2, 3):
            some = np.flatnonzero(tails == length)
            word = _word(data, begins[some] + sizes[some] - length, length)
            hashes[some] = (hashes[some] ^ word) * _M
        hashes = (hashes ^ hashes >> np.uint32(13)) * _M
        hashes ^= hashes >> np.uint32(15)
    chosen = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    if keys.null_count:
        chosen[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return chosen


def _word(data: Bytes, positions: Numbers, length: int) -> Any:
    word = np.zeros(len(positions), np.uint32)
    for index in range(length):
        word |= data[positions + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def encode_rows(rows: Rows, batch_size_bytes: int, now_ms: int) -> Iterator[EncodedRecords]:
    """The rows, which go to one partition, in batches of about this size."""
    count = len(rows.value)
    tails = _tails(rows.headers)
    tail_sizes = np.full(count, 1) if tails is None else sizes_of(tails)
    key_sizes, value_sizes = sizes_of(rows.key), sizes_of(rows.value)
    cuts = _cuts(_RECORD_OVERHEAD + key_sizes + value_sizes + tail_sizes, batch_size_bytes)
    firsts = np.repeat(cuts[:-1], np.diff(cuts))
    key_lengths = np.where(_nulls(rows.key), -1, key_sizes)
    value_lengths = np.where(_nulls(rows.value), -1, value_sizes)
    front = _Numbers(count)
    front.add_zero()  # attributes
    times = rows.timestamps_ms
    if times is None:
        front.add_zero()
    else:
        front.add(times - times[firsts])
    front.add(np.arange(count) - firsts)
    front.add(key_lengths)
    middle = _Numbers(count)
    middle.add(value_lengths)
    sizes = front.sizes() + key_sizes + middle.sizes() + value_sizes + tail_sizes
    whole = _Numbers(count)
    whole.add(sizes)
    whole.join(front)
    data, edges = _interleave(whole.array(), rows.key, middle.array(), rows.value, tails)
    for low, high in itertools.pairwise(cuts):
        records = data[edges[low] : edges[high]], int(high - low)
        if times is None:
            yield EncodedRecords(*records, now_ms)
        else:
            yield EncodedRecords(*records, int(times[low]), int(times[low:high].max()))


def _cuts(sizes: Numbers, batch_size_bytes: int) -> Numbers:
    """Where batches begin, and the end: none larger than the limit unless by a single record."""
    grown = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        start = cuts[-1]
        before = int(grown[start - 1]) if start else 0
        stop = int(np.searchsorted(grown, before + batch_size_bytes, "right"))
        cuts.append(max(stop, start + 1))
    return np.array(cuts, np.int64)


def _nulls(array: pa.Array) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False)


def _tails(headers: pa.Array | None) -> pa.Array | None:
    """The encoded headers of each row; None when no row has any."""
    if headers is None or headers.null_count == len(headers):
        return None
    return pa.array([_encode_headers(each) for each in headers.to_pylist()], pa.binary())


def _encode_headers(headers: Sequence[dict[str, Any]] | None) -> bytes:
    if not headers:
        return _NO_HEADERS
    parts = [encode_varint(len(headers))]
    for header in headers:
        if header is None or header["key"] is None:
            raise ValueError("a header's key is null; give every header a key")
        name, value = header["key"].encode(), header["value"]
        parts += (encode_varint(len(name)), name)
        parts.append(encode_varint(-1) if value is None else encode_varint(len(value)) + value)
    return b"".join(parts)


class _Numbers:
    """Zigzag varints of many records: some numbers for each, one after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bytes: list[Any] = []
        self._used: list[Any] = []

    def add_zero(self) -> None:
        """A number that is 0 for every record."""
        self._bytes.append(np.zeros(self._count, np.uint8))
        self._used.append(np.ones(self._count, bool))

    def add(self, numbers: Numbers) -> None:
        """A number for every record."""
        raw = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
        shown = np.ones(self._count, bool)
        while shown.any():
            rest = raw >> np.uint64(7)
            more = rest > 0
            self._bytes.append((raw & np.uint64(0x7F) | more * np.uint64(0x80)).astype(np.uint8))
            self._used.append(shown)
            raw, shown = rest, shown & more

    def join(self, other: _Numbers) -> None:
        """Puts another's numbers behind these."""
        self._bytes += other._bytes
        self._used += other._used

    def sizes(self) -> Numbers:
        """How many bytes each record's numbers take."""
        return np.sum(self._used, axis=0, dtype=np.int64)

    def array(self) -> pa.Array:
        """The numbers of each record as one entry of bytes."""
        edges = np.zeros(self._count + 1, np.int32)
        np.cumsum(self.sizes(), out=edges[1:])
        data = np.stack(self._bytes, axis=1)[np.stack(self._used, axis=1)]
        return pa.Array.from_buffers(
            pa.binary(), self._count, [None, pa.py_buffer(edges), pa.py_buffer(data)]
        )


def _interleave(
    front: pa.Array, key: pa.Array, middle: pa.Array, value: pa.Array, tails: pa.Array | None
) -> tuple[memoryview, Numbers]:
    """(the bytes of all records, where each begins and the last one ends)."""
    count = len(front)
    last = pa.array([_NO_HEADERS], pa.binary()) if tails is None else tails
    order = np.empty((count, 5), np.int64)
    for column in range(4):
        order[:, column] = np.arange(count) + column * count
    order[:, 4] = 4 * count if tails is None else np.arange(count) + 4 * count
    pieces = pa.concat_arrays([front, key, middle, value, last]).take(pa.array(order.ravel()))
    edges = np.frombuffer(pieces.buffers()[1], np.int32)[: 5 * count + 1 : 5].astype(np.int64)
    return memoryview(pieces.buffers()[2]), edges
