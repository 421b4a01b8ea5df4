"""Batches of magic 2 as message sets of magic 0 and 1, for consumers from before Kafka 0.11.

Rules, as in Kafka before it dropped these formats (KIP-31, KIP-32, KIP-283):

* Headers, producer ids and leader epochs have no place there and are left out. Of a batch with
  LogAppendTime every message has that time; magic 0 has no timestamps.
* A compressed batch becomes one compressed message. With magic 1 the offsets inside count from its
  first message on, with magic 0 they are absolute; either has the offset of its last message.
* lz4 of magic 0 has the wrong header checksum that its readers expect (KAFKA-3160).
* zstd came with magic 2: UNSUPPORTED_COMPRESSION_TYPE.
* Messages below the offset that was asked for are left out.

Nothing of this looks at whether a batch is a control batch, which has no messages for anybody.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from kraftpy.protocol.compression import compress, xxh32_short
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.legacy import lz4_descriptor_end
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    InvalidBatch,
)
from kraftpy.protocol.zigzag import read_varint, read_varlong

_ENTRY = struct.Struct(">qiI")  # offset, size of what follows, crc
_FRONTS = (struct.Struct(">bb"), struct.Struct(">bbq"))  # magic, attributes, timestamp
_LENGTH = struct.Struct(">i").pack
_CRC_SIZE = 4

_Fields = tuple[int, int, bytes | None, bytes | None]


def check_codec(header: BatchHeader) -> None:
    """Raises UNSUPPORTED_COMPRESSION_TYPE."""
    if header.compression not in ("none", "gzip", "snappy", "lz4"):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"clients of this age can't read {header.compression}",
        )


def downconvert(
    header: BatchHeader, data: bytes, magic: int, first_offset: int
) -> tuple[bytes, int]:
    """A message set with the batch's messages from `first_offset` on, and how many they are.

    `data` is the batch's `batch_data`. Raises InvalidBatch and what `check_codec` does.
    """
    check_codec(header)
    codec = header.attributes & COMPRESSION_MASK
    kind = TIMESTAMP_TYPE_BIT if magic and header.timestamp_type == LOG_APPEND_TIME else 0
    base = count = 0
    last = latest = NO_TIMESTAMP
    parts: list[bytes] = []
    try:
        for offset, timestamp, key, value in _iter_fields(header, data):
            if offset < first_offset:
                continue
            if not count:
                base = offset if codec and magic else 0
            count += 1
            last, latest = offset, max(latest, timestamp)
            parts += _message(offset - base, magic, kind, timestamp, key, value)
        if codec and parts:
            packed = compress(header.compression, b"".join(parts))
            if header.compression == "lz4" and magic == 0:
                packed = _with_old_lz4_checksum(packed)
            parts = [*_message(last, magic, kind | codec, latest, None, packed)]
    except struct.error as error:
        raise InvalidBatch(
            f"a record has no place in a message of magic {magic}: {error}"
        ) from None
    return b"".join(parts), count


def _message(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> tuple[bytes, bytes]:
    front = _FRONTS[magic]
    body = b"".join(
        (
            front.pack(magic, attributes, timestamp) if magic else front.pack(magic, attributes),
            _LENGTH(-1) if key is None else _LENGTH(len(key)) + key,
            _LENGTH(-1) if value is None else _LENGTH(len(value)) + value,
        )
    )
    return _ENTRY.pack(offset, _CRC_SIZE + len(body), zlib.crc32(body)), body


def _iter_fields(header: BatchHeader, data: bytes) -> Iterator[_Fields]:
    """(offset, timestamp, key, value) of each record; raises InvalidBatch on the way.

    Headers aren't looked into: a record whose headers make no sense is good for this.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    pos, size = 0, len(data)
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            end = pos + length
            timestamp_delta, pos = read_varlong(data, pos + 1)
            offset_delta, pos = read_varint(data, pos)
            length, pos = read_varint(data, pos)
            key = None if length < 0 else data[pos : pos + length]
            length, pos = read_varint(data, pos if key is None else pos + length)
            value = None if length < 0 else data[pos : pos + length]
            if value is not None:
                pos += length
            if not pos < end <= size:
                raise InvalidBatch("a field reaches past the end of its record or its batch")
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            yield base_offset + offset_delta, timestamp, key, value
            pos = end
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None


def _with_old_lz4_checksum(frame: bytes) -> bytes:
    """The lz4 frame with the checksum of its descriptor and of the magic number before that."""
    end = lz4_descriptor_end(frame)
    checksum = xxh32_short(frame[:end]) >> 8 & 0xFF
    return frame[:end] + bytes((checksum,)) + frame[end + 1 :]
