"""Records: open, search and build the batches that `kraftpy.protocol.record_batch` describes.

This is the module to import record things from; the batch's header and checks are offered here too.
Opening a batch is for compaction, time search and coordinators; the paths of produce and fetch
never do it. The format is that of KIP-98 (Kafka's documentation, "Message format").

* A record has to use exactly the bytes that its lengths claim, and the records exactly those of
  their batch; anything else is an `InvalidBatch`.
* A decompressed batch never grows past the limit that the caller gives.
* Control records (KIP-98: the end of a transaction) take an offset like any other record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import compress
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    CONTROL_BIT,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    InvalidBatch,
    UnsupportedMagic,
    assemble_batch,
    check_batch,
    check_producer_batch,
    read_batch_header,
    sound_batches,
    split_batches,
    stamp_batch,
    stamp_log_append_time,
)
from kraftpy.protocol.record_walk import (
    DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    batch_data,
    iter_times,
    open_batch,
)
from kraftpy.protocol.zigzag import encode_varint, read_varint, read_varlong

__all__ = [
    "COMPRESSION_NAMES",
    "CREATE_TIME",
    "DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES",
    "LOG_APPEND_TIME",
    "NO_PRODUCER_ID",
    "NO_TIMESTAMP",
    "RECORD_BATCH_OVERHEAD",
    "BatchHeader",
    "Buffer",
    "CorruptBatch",
    "EndTxnMarker",
    "Header",
    "InvalidBatch",
    "Record",
    "RecordInput",
    "UnsupportedMagic",
    "batch_data",
    "build_batch",
    "build_batch_of_data",
    "build_end_txn_marker",
    "check_batch",
    "check_producer_batch",
    "encode_varint",
    "find_timestamp",
    "iter_records",
    "max_timestamp_of",
    "read_batch_header",
    "read_end_txn_marker",
    "read_records",
    "read_varint",
    "read_varlong",
    "sound_batches",
    "split_batches",
    "stamp_batch",
    "stamp_log_append_time",
]

Header: TypeAlias = tuple[str, bytes | None]
RecordInput: TypeAlias = "Record | tuple[int, bytes | None, bytes | None, list[Header]]"

_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_END_TXN_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_ABORT, _COMMIT = 0, 1


@dataclass(slots=True)
class Record:
    """One record; `timestamp` in milliseconds since 1970, -1 when it has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def iter_records(
    buf: Buffer,
    pos: int = 0,
    *,
    max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
) -> Iterator[Record]:
    """Checks the batch at `pos` and gives its records, those of control batches too.

    `max_size_bytes` bounds the decompressed records. Raises `DecodeError` at once for a bad header,
    checksum or compressed stream, and while iterating for a bad record. Records that compaction
    has removed leave gaps in the offsets.
    """
    header = check_batch(buf, pos)
    return read_records(header, batch_data(header, buf, pos, max_size_bytes=max_size_bytes))


def read_records(header: BatchHeader, data: bytes) -> Iterator[Record]:
    """The records that a batch's `batch_data` consists of; raises `InvalidBatch` on the way."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_offset_delta = header.last_offset_delta
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    previous_delta = -1
    pos = 0
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            end = pos + length
            if length < 0 or end > len(data):
                raise InvalidBatch(f"record of {length} bytes reaches past the end of its batch")
            timestamp_delta, pos = read_varlong(data, pos + 1)
            offset_delta, pos = read_varint(data, pos)
            key, pos = _read_bytes(data, pos, end)
            value, pos = _read_bytes(data, pos, end)
            headers: list[Header] = []
            if data[pos]:
                headers, pos = _read_headers(data, pos, end)
            else:
                pos += 1
            if pos != end:
                raise InvalidBatch("record's fields do not add up to its length")
            timestamp = base_timestamp + timestamp_delta
            if not previous_delta < offset_delta <= last_offset_delta:
                raise InvalidBatch(
                    f"record with offset delta {offset_delta} after {previous_delta} "
                    f"in a batch that ends at {last_offset_delta}"
                )
            if not _MIN_INT64 <= timestamp <= _MAX_INT64:
                raise InvalidBatch(f"record's timestamp {timestamp} is outside of 64 bits")
            previous_delta = offset_delta
            yield Record(
                base_offset + offset_delta,
                timestamp if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
    if pos != len(data):
        raise InvalidBatch(
            f"{len(data) - pos} bytes left after the {header.records_count} records of the batch"
        )


def _read_bytes(data: bytes, pos: int, limit: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        if length == -1:
            return None, pos
        raise InvalidBatch(f"negative length {length} in a record")
    end = pos + length
    if end > limit:
        raise InvalidBatch(f"field of {length} bytes reaches past the end of its record")
    return data[pos:end], end


def _read_headers(data: bytes, pos: int, limit: int) -> tuple[list[Header], int]:
    count, pos = read_varint(data, pos)
    # A header has at least two bytes: the length of its key and that of its value.
    if count < 0 or count * 2 > limit - pos:
        raise InvalidBatch(f"{count} headers in a record with {limit - pos} bytes left")
    headers: list[Header] = []
    for _ in range(count):
        name, pos = _read_bytes(data, pos, limit)
        if name is None:
            raise InvalidBatch("record header without a key")
        value, pos = _read_bytes(data, pos, limit)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise InvalidBatch("record header's key is not UTF-8") from None
    return headers, pos


def find_timestamp(
    buf: Buffer,
    pos: int,
    timestamp_ms: int,
    *,
    min_offset: int = 0,
    max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the batch's first record at or after `timestamp_ms`, or None.

    Records below `min_offset` (the log start offset) do not count. Raises `DecodeError`.
    """
    header = check_batch(buf, pos)
    if header.max_timestamp < timestamp_ms:
        return None
    for timestamp, offset in iter_times(header, open_batch(header, buf, pos, max_size_bytes)):
        if timestamp >= timestamp_ms and offset >= min_offset:
            return timestamp, offset
    return None


def max_timestamp_of(
    buf: Buffer,
    pos: int = 0,
    *,
    min_offset: int = 0,
    max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with the batch's largest timestamp (KIP-734).

    Of those from `min_offset` on; None if there are none. Raises `DecodeError`.
    """
    header = check_batch(buf, pos)
    best: tuple[int, int] | None = None
    for found in iter_times(header, open_batch(header, buf, pos, max_size_bytes)):
        if found[1] >= min_offset and (best is None or found[0] > best[0]):
            best = found
    return best


_NULL = encode_varint(-1)
_NO_HEADERS = encode_varint(0)


def build_batch(
    records: Iterable[RecordInput],
    *,
    base_offset: int = 0,
    compression: str = "none",
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
) -> bytes:
    """Builds one batch from at least one record.

    A `Record` keeps its offset, which must rise from `base_offset` on; a (timestamp, key, value,
    headers) tuple gets the offset after the one before it. With `LOG_APPEND_TIME` readers see the
    largest timestamp for every record. `level` is the codec's, None for its usual one. Raises
    `ValueError` for an empty batch, offsets that do not rise and values that the format can't hold.
    """
    data = bytearray()
    base_timestamp = max_timestamp = NO_TIMESTAMP
    next_delta = count = 0
    for record in records:
        if isinstance(record, Record):
            timestamp, key, value, headers = (
                record.timestamp,
                record.key,
                record.value,
                record.headers,
            )
            delta = record.offset - base_offset
            if delta < next_delta:
                raise ValueError(
                    f"record at offset {record.offset}; expected {base_offset + next_delta} or more"
                )
        else:
            timestamp, key, value, headers = record
            delta = next_delta
        if not count:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        body = _encode_record(timestamp - base_timestamp, delta, key, value, headers)
        data += encode_varint(len(body))
        data += body
        next_delta = delta + 1
        count += 1
    if not count:
        raise ValueError("a batch needs at least one record")
    attributes = COMPRESSION_NAMES.index(compression) | timestamp_type << 3
    attributes |= (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    header = BatchHeader(
        (
            base_offset,
            0,
            leader_epoch,
            2,
            0,
            attributes,
            next_delta - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    )
    encoded = compress(compression, data, level) if attributes & COMPRESSION_MASK else data
    return assemble_batch(header, encoded)


def build_batch_of_data(
    data: Buffer,
    count: int,
    timestamp: int,
    max_timestamp: int | None = None,
    *,
    compression: str = "none",
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Builds one batch from records that are encoded already.

    Their offset deltas are from 0 on without gaps, their timestamp deltas from `timestamp` on; None
    for `max_timestamp` says that all deltas are 0.
    """
    latest = timestamp if max_timestamp is None else max_timestamp
    codec = COMPRESSION_NAMES.index(compression)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0)
    producer = (producer_id, producer_epoch, base_sequence)
    header = BatchHeader(
        (0, 0, -1, 2, 0, attributes, count - 1, timestamp, latest, *producer, count)
    )
    return assemble_batch(header, compress(compression, data) if codec else data)


def _encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[Header],
) -> bytes:
    return b"".join(
        (
            b"\0",
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            _NULL if key is None else encode_varint(len(key)) + key,
            _NULL if value is None else encode_varint(len(value)) + value,
            _encode_headers(headers) if headers else _NO_HEADERS,
        )
    )


def _encode_headers(headers: list[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        parts.append(_NULL if value is None else encode_varint(len(value)) + value)
    return b"".join(parts)


class EndTxnMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    committed: bool
    coordinator_epoch: int


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends the producer's open transaction (KIP-98)."""
    key = _CONTROL_KEY.pack(0, _COMMIT if marker.committed else _ABORT)
    value = _END_TXN_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, [])],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )


def read_end_txn_marker(buf: Buffer, pos: int = 0) -> EndTxnMarker | None:
    """The marker in the control batch at `pos`.

    None when the cleaner has emptied the batch or its control record is of another type, which
    readers skip. Fields that later versions append are ignored. Raises `DecodeError`.
    """
    record = next(iter_records(buf, pos), None)
    if record is None:
        return None
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise InvalidBatch("control record without a type")
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    if version < 0 or kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise InvalidBatch("end of transaction without its coordinator's epoch")
    _, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    return EndTxnMarker(kind == _COMMIT, coordinator_epoch)
