"""Batches with records taken out, for compaction: everything that stays keeps its bytes.

What a filtered batch keeps, as Kafka's cleaner does: base offset, last offset delta, leader epoch,
producer id, epoch and sequence, attributes and codec. So offsets never change, and the sequence
state of a producer can be rebuilt from a batch that has lost all of its records.

A delete horizon (KIP-534) is the time from which a batch's delete markers may go. It stands in the
base timestamp, with bit 6 of the attributes; the records' timestamps are then relative to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import compress
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    InvalidBatch,
    assemble_batch,
)
from kraftpy.protocol.zigzag import encode_varint, read_varint, read_varlong

_EMPTY_ATTRIBUTES = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class RecordTable(NamedTuple):
    """The records of a batch without their values, a list for each thing to know of them.

    Record `i` has the bytes from `ends[i - 1]` (0 for the first) to `ends[i]` of the decompressed
    records. `tombstones` has the numbers of those without a value.
    """

    keys: list[bytes | None]
    offset_deltas: list[int]
    ends: list[int]
    tombstones: list[int]

    def spans(self) -> Iterator[tuple[int, int]]:
        """(start, end) of each record."""
        return zip([0, *self.ends], self.ends, strict=False)


def record_table(header: BatchHeader, data: bytes) -> RecordTable:
    """What there is in a batch's `batch_data`. Raises InvalidBatch."""
    try:
        table = _read_table(data, header.records_count)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    left = len(data) - (table.ends[-1] if table.ends else 0)
    if left:
        raise InvalidBatch(f"{left} bytes left after the records of the batch")
    deltas = table.offset_deltas
    if deltas != list(range(len(deltas))):
        _check_deltas(deltas)
    if deltas and deltas[-1] > header.last_offset_delta:
        raise InvalidBatch(f"record with offset delta {deltas[-1]} behind the end of its batch")
    return table


def _read_table(data: bytes, count: int) -> RecordTable:
    """One loop, without calls where numbers take at most two bytes: compaction does little else."""
    keys: list[bytes | None] = []
    deltas: list[int] = []
    ends: list[int] = []
    tombstones: list[int] = []
    add_key, add_delta, add_end = keys.append, deltas.append, ends.append
    pos = 0
    size = len(data)
    for number in range(count):
        length, delta = data[pos], data[pos + 1]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        elif delta < 0x80:
            length = (length & 0x7F | delta << 7) >> 1 ^ -(length & 1)
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
            add_delta((delta >> 1) ^ -(delta & 1))
            pos += 1
        elif length < 0x80:
            add_delta((delta & 0x7F | length << 7) >> 1 ^ -(delta & 1))
            pos += 2
            length = data[pos]
        else:
            delta, pos = read_varint(data, pos)
            add_delta(delta)
            length = data[pos]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        if length < 0:
            add_key(None)
        else:
            add_key(data[pos : pos + length])
            pos += length
        if not pos < end <= size:
            raise InvalidBatch("a field reaches past the end of its record or its batch")
        if data[pos] & 1:  # the sign of the value's length
            tombstones.append(number)
        pos = end
        add_end(end)
    return RecordTable(keys, deltas, ends, tombstones)


def _check_deltas(deltas: Sequence[int]) -> None:
    previous = -1
    for delta in deltas:
        if delta <= previous:
            raise InvalidBatch(f"record with offset delta {delta} after {previous}")
        previous = delta


def filtered_batch(
    header: BatchHeader,
    data: bytes,
    kept: Sequence[tuple[int, int]],
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch with only those of its records that are `kept`, at least one.

    Each is (start, end) in `data`, one record. With `delete_horizon_ms` the batch gets that
    horizon; one that it has stays otherwise. Raises InvalidBatch.
    """
    base_timestamp, attributes = header.base_timestamp, header.attributes
    max_timestamp = header.max_timestamp
    if header.timestamp_type != LOG_APPEND_TIME:
        max_timestamp = base_timestamp + max(_timestamp(data, start)[1] for start, _ in kept)
    if delete_horizon_ms is None:
        records = b"".join([data[start:end] for start, end in kept])
    else:
        shift = base_timestamp - delete_horizon_ms
        base_timestamp, attributes = delete_horizon_ms, attributes | DELETE_HORIZON_BIT
        records = b"".join([_shifted(data, start, end, shift) for start, end in kept])
    if attributes & COMPRESSION_MASK:
        records = compress(header.compression, records)
    changed = _changed(header, attributes, base_timestamp, max_timestamp, len(kept))
    try:
        return assemble_batch(changed, records)
    except ValueError as error:
        raise InvalidBatch(str(error)) from None


def _timestamp(data: bytes, start: int) -> tuple[int, int, int]:
    """(where its attributes are, timestamp delta, what follows that) of the record at `start`."""
    try:
        _, body = read_varint(data, start)
        delta, rest = read_varlong(data, body + 1)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    return body, delta, rest


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without its records: what tells of its producer and of its offsets."""
    attributes = header.attributes & _EMPTY_ATTRIBUTES
    return assemble_batch(_changed(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0), b"")


def _shifted(data: bytes, start: int, end: int, shift: int) -> bytes:
    body, delta, after = _timestamp(data, start)
    try:
        timestamp = encode_varint(delta + shift)
    except ValueError as error:
        raise InvalidBatch(str(error)) from None
    rest = data[after:end]
    attributes = data[body : body + 1]
    return encode_varint(1 + len(timestamp) + len(rest)) + attributes + timestamp + rest


def _changed(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> BatchHeader:
    return BatchHeader(
        (
            header.base_offset,
            0,
            header.partition_leader_epoch,
            header.magic,
            0,
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
    )
