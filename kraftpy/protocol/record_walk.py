"""Records looked at where they lie: nothing is built of them, so that a batch costs what it weighs.

A record has seven bytes at least, and as objects it takes a hundred times that. Here numbers are
read and the rest is stepped over. Headers aren't looked into: nothing in a broker depends on them.

What one batch may hold is said here, for all who open batches: `MAX_BATCH_RECORDS` records, and
`max_uncompressed_bytes` of them. The door refuses more (MESSAGE_TOO_LARGE, upon which producers
send the records again in smaller batches); who finds more in a log leaves that batch closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import OversizedData, decompress, may_exceed
from kraftpy.protocol.errors import DecodeError, ErrorCode
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    LOG_APPEND_TIME,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    InvalidBatch,
)
from kraftpy.protocol.zigzag import read_varint, read_varlong

MAX_BATCH_RECORDS: Final = 1_000_000
# Enough for a batch of message.max.bytes' default that compressed 60-fold.
DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES: Final = 64 << 20


def max_uncompressed_bytes(max_message_bytes: int) -> int:
    """What a batch's records may take uncompressed, on a topic with that `max.message.bytes`."""
    return max(DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES, max_message_bytes)


class OversizedBatch(DecodeError):
    """A sound batch with more records or more bytes than anybody here opens."""

    code: ClassVar[ErrorCode] = ErrorCode.MESSAGE_TOO_LARGE


def check_records_count(header: BatchHeader) -> None:
    """Raises OversizedBatch."""
    if header.records_count > MAX_BATCH_RECORDS:
        raise OversizedBatch(
            f"a batch of {header.records_count} records; {MAX_BATCH_RECORDS} are the most"
        )


def open_batch(header: BatchHeader, batch: Buffer, pos: int, max_size_bytes: int) -> bytes:
    """`batch_data` within the limits of a broker. Raises OversizedBatch, DecodeError."""
    check_records_count(header)
    try:
        return batch_data(header, batch, pos, max_size_bytes=max_size_bytes)
    except OversizedData as error:
        raise OversizedBatch(str(error)) from None


def batch_data(
    header: BatchHeader,
    buf: Buffer,
    pos: int = 0,
    *,
    max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
) -> bytes:
    """The records' bytes of the batch at `pos`, whose header `check_batch` gave, uncompressed.

    Raises `DecodeError` for a bad compressed stream, `OversizedData` for one that holds too much.
    """
    data = memoryview(buf)[pos + RECORD_BATCH_OVERHEAD : pos + header.size_bytes]
    if header.attributes & COMPRESSION_MASK:
        return decompress(header.compression, data, max_size_bytes)
    return bytes(data)


def claims_too_much(header: BatchHeader, batch: Buffer, max_size_bytes: int) -> bool:
    """Whether a compressed batch may hold more than that, by what its stream says of itself.

    Doesn't decompress; costs a microsecond or two.
    """
    data = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    return may_exceed(header.compression, data, max_size_bytes)


class Summary(NamedTuple):
    """What there is to know of a batch's records for the rules of a topic.

    Timestamp deltas are relative to the batch's base timestamp, in ms. `keyless` has the numbers of
    the first records without a key.
    """

    min_timestamp_delta: int
    max_timestamp_delta: int
    keyless: list[int]


def summarize(header: BatchHeader, data: bytes, max_keyless: int) -> Summary:
    """Checks a producer's records: their lengths, and that their offset deltas are 0 to count-1.

    There is one at least, and `data` is what `open_batch` gave. Raises InvalidBatch.
    """
    try:
        return _summarize(header.records_count, data, max_keyless)
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None


def _summarize(count: int, data: bytes, max_keyless: int) -> Summary:
    """One loop, without calls where numbers take one byte: this is all that most batches cost."""
    keyless: list[int] = []
    pos = 0
    least, greatest = 1 << 63, -1 << 63
    size = len(data)
    for number in range(count):
        length = data[pos]
        if length < 0x80:
            end = pos + 1 + ((length >> 1) ^ -(length & 1))
            pos += 2  # attributes
        else:
            length, pos = read_varint(data, pos)
            end = pos + length
            pos += 1
        delta = data[pos]
        if delta < 0x80:
            delta = (delta >> 1) ^ -(delta & 1)
            pos += 1
        else:
            delta, pos = read_varlong(data, pos)
        if delta > greatest:
            greatest = delta
        if delta < least:
            least = delta
        delta, pos = read_varint(data, pos)
        if delta != number:
            raise InvalidBatch(f"record {number} of the batch has offset delta {delta}")
        length = data[pos]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        if length >= 0:
            pos += length
        elif len(keyless) < max_keyless:
            keyless.append(number)
        length = data[pos]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        if length > 0:
            pos += length
        if not pos < end <= size:  # the number of headers takes a byte at least
            raise InvalidBatch("a field reaches past the end of its record or its batch")
        pos = end
    if pos != size:
        raise InvalidBatch(f"{size - pos} bytes left after the {count} records of the batch")
    return Summary(least, greatest, keyless)


def iter_times(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of each record; raises InvalidBatch on the way."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    previous, last = -1, header.last_offset_delta
    pos, size = 0, len(data)
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            end = pos + length
            timestamp_delta, pos = read_varlong(data, pos + 1)
            offset_delta, pos = read_varint(data, pos)
            if not pos < end <= size:
                raise InvalidBatch("a field reaches past the end of its record or its batch")
            if not previous < offset_delta <= last:
                raise InvalidBatch(
                    f"record with offset delta {offset_delta} after {previous} "
                    f"in a batch that ends at {last}"
                )
            previous = offset_delta
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            yield timestamp, base_offset + offset_delta
            pos = end
    except IndexError:
        raise InvalidBatch("record ends in the middle of a field") from None
