"""Batches with records taken out, for compaction: everything that stays keeps its bytes.

What a filtered batch keeps, as Kafka's cleaner does: base offset, last offset delta, leader epoch,
producer id, epoch and sequence, attributes and codec. So offsets never change, and the sequence
state of a producer can be rebuilt from a batch that has lost all of its records.

A delete horizon (KIP-534) is the time from which a batch's delete markers may go. It stands in the
base timestamp, with bit 6 of the attributes; the records' timestamps are then relative to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kraftpy.protocol.compression import compress, decompress
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    InvalidBatch,
    assemble_batch,
)
from kraftpy.protocol.records import (
    DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    encode_varint,
    read_varint,
    read_varlong,
)

_EMPTY_ATTRIBUTES = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class RawRecord(NamedTuple):
    """One record inside of a batch's decompressed records.

    It takes the bytes from `start` to `end`; its attributes are at `body`, and what follows its
    timestamp begins at `rest`.
    """

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def records_data(header: BatchHeader, batch: Buffer) -> bytes:
    """The decompressed records of a checked batch. Raises DecodeError."""
    data = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    if header.attributes & COMPRESSION_MASK:
        return decompress(header.compression, data, DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES)
    return bytes(data)


def raw_records(header: BatchHeader, data: bytes) -> Iterator[RawRecord]:
    """The records in `records_data`, without their values. Raises InvalidBatch."""
    pos = 0
    size = len(data)
    try:
        for _ in range(header.records_count):
            start = pos
            length, body = read_varint(data, pos)
            end = body + length
            if length < 0 or end > size:
                raise InvalidBatch(f"record of {length} bytes reaches past the end of its batch")
            timestamp_delta, rest = read_varlong(data, body + 1)
            offset_delta, pos = read_varint(data, rest)
            key_length, pos = read_varint(data, pos)
            key = None
            if key_length >= 0:
                key = data[pos : pos + key_length]
                pos += key_length
            value_length, pos = read_varint(data, pos)
            if pos + max(value_length, 0) > end:
                raise InvalidBatch("a field reaches past the end of its record")
            yield RawRecord(
                start, body, rest, end, timestamp_delta, offset_delta, key, value_length < 0
            )
            pos = end
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    if pos != size:
        raise InvalidBatch(f"{size - pos} bytes left after the records of the batch")


def filtered_batch(
    header: BatchHeader,
    data: bytes,
    kept: Sequence[RawRecord],
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch with only the `kept` of its records, at least one.

    With `delete_horizon_ms` it gets that horizon; one that it has stays otherwise.
    """
    max_timestamp = header.max_timestamp
    if header.timestamp_type != LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in kept)
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if delete_horizon_ms is None:
        records = b"".join(data[record.start : record.end] for record in kept)
    else:
        shift = base_timestamp - delete_horizon_ms
        base_timestamp, attributes = delete_horizon_ms, attributes | DELETE_HORIZON_BIT
        records = b"".join(_shifted(data, record, shift) for record in kept)
    if attributes & COMPRESSION_MASK:
        records = compress(header.compression, records)
    return assemble_batch(
        _changed(header, attributes, base_timestamp, max_timestamp, len(kept)), records
    )


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without its records: what tells of its producer and of its offsets."""
    attributes = header.attributes & _EMPTY_ATTRIBUTES
    return assemble_batch(_changed(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0), b"")


def _shifted(data: bytes, record: RawRecord, shift: int) -> bytes:
    timestamp = encode_varint(record.timestamp_delta + shift)
    rest = data[record.rest : record.end]
    attributes = data[record.body : record.body + 1]
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
