"""Message sets of magic 0 and 1, from before Kafka 0.11: read them, and turn them into a batch.

What producers of that age send is appended as the batch that `upconvert` returns; consumers of that
age get what `kraftpy.protocol.downconversion` makes of batches. Rules (Kafka's documentation, "Old
message format"; KIP-31, KIP-32):

* The checksum of a message is `zlib.crc32`, over magic to the end.
* A compressed message holds a message set of its own magic, whose messages are not compressed.
  With magic 1 their offsets count from 0 and the wrapper has the offset of the last of them; with
  magic 0 they are absolute.
* Magic 0 has no timestamps. A wrapper of magic 1 with LogAppendTime gives its timestamp to all.
* lz4 of magic 0 has a header checksum that was computed over too many bytes (KAFKA-3160). The
  message's own checksum covers it, so it is put right before decompressing.

Damage raises `DecodeError` and nothing else; all decompressed bytes together stay below the limit,
and so does the number of messages (docs/rules.md, rule 300).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import OversizedData, decompress, xxh32_short
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    Buffer,
    CorruptBatch,
    InvalidBatch,
)
from kraftpy.protocol.record_walk import MAX_BATCH_RECORDS, OversizedBatch
from kraftpy.protocol.records import (
    DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    Header,
    Record,
    build_batch,
)

LZ4_DESCRIPTOR_AT = 4

_ENTRY = struct.Struct(">qi")  # offset, size of the message
_MESSAGE = struct.Struct(">Ibb")  # crc, magic, attributes
_ATTRIBUTES_AT = _ENTRY.size + 5
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC_SIZE = 4


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def compression(self) -> str:
        codec = self.attributes & COMPRESSION_MASK
        # zstd came with magic 2 (KIP-110).
        if codec >= COMPRESSION_NAMES.index("zstd"):
            raise InvalidBatch(f"message of magic {self.magic} with compression codec {codec}")
        return COMPRESSION_NAMES[codec]


class _Budget:
    """How many decompressed bytes a message set may still have."""

    def __init__(self, size_bytes: int) -> None:
        self.left = size_bytes

    def decompress(self, message: _Message) -> bytes:
        if message.value is None:
            raise InvalidBatch("compressed message without a value")
        data: Buffer = message.value
        if message.compression == "lz4":
            data = _with_lz4_header_checksum(message.value)
        try:
            plain = decompress(message.compression, data, self.left)
        except OversizedData as error:
            raise OversizedBatch(str(error)) from None
        self.left -= len(plain)
        return plain


def iter_messages(
    buf: Buffer, *, max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES
) -> Iterator[Record]:
    """The messages of a message set, wrappers opened, with absolute offsets.

    `max_size_bytes` bounds what all wrappers decompress to. Raises `DecodeError`: `CorruptBatch`
    for damage, `InvalidBatch` for what breaks the format.
    """
    budget = _Budget(max_size_bytes)
    for message in _iter_entries(memoryview(buf)):
        if message.compression == "none":
            yield _record(message, message.offset)
        else:
            yield from _open_wrapper(message, budget)


def upconvert(
    buf: Buffer,
    *,
    max_size_bytes: int = DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    max_records: int = MAX_BATCH_RECORDS,
) -> bytes:
    """One batch of magic 2 with the messages of a producer's message set.

    Offsets run from 0, whatever the set says: old producers are free in what they put there. The
    batch is compressed with the codec of the set's last wrapper. The timestamp type is the topic's
    to say, so it is CreateTime here. Raises as `iter_messages`, `InvalidBatch` for an empty set,
    and `OversizedBatch` for one with more messages than that or more bytes.
    """
    if not len(buf):
        raise InvalidBatch("message set without messages")
    records = _counted(iter_messages(buf, max_size_bytes=max_size_bytes), max_records)
    try:
        return build_batch(records, compression=_compression_of(memoryview(buf)))
    except DecodeError:
        raise
    except ValueError as error:  # timestamps more than 64 bits apart
        raise InvalidBatch(f"message set does not fit into a record batch: {error}") from None


def _counted(
    records: Iterator[Record], max_records: int
) -> Iterator[tuple[int, bytes | None, bytes | None, list[Header]]]:
    for number, record in enumerate(records):
        if number == max_records:
            raise OversizedBatch(f"a message set of more than {max_records} messages")
        yield record.timestamp, record.key, record.value, record.headers


def _compression_of(view: memoryview) -> str:
    """Codec of the last wrapper; what can't be read is whoever reads the messages' to refuse."""
    codec = pos = 0
    while pos + _ATTRIBUTES_AT < len(view):
        codec = view[pos + _ATTRIBUTES_AT] & COMPRESSION_MASK or codec
        pos += _ENTRY.size + max(0, _ENTRY.unpack_from(view, pos)[1])
    return COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else "none"


def _iter_entries(view: memoryview) -> Iterator[_Message]:
    pos = 0
    try:
        while pos < len(view):
            offset, size = _ENTRY.unpack_from(view, pos)
            start = pos + _ENTRY.size
            pos = start + size
            if size < 0 or pos > len(view):
                raise CorruptBatch(f"message of {size} bytes with {len(view) - start} bytes left")
            yield _read_message(offset, view[start:pos])
    except struct.error:
        raise CorruptBatch("message set ends in the middle of a field") from None


def _read_message(offset: int, view: memoryview) -> _Message:
    crc, magic, attributes = _MESSAGE.unpack_from(view)
    if zlib.crc32(view[_CRC_SIZE:]) != crc:
        raise CorruptBatch(f"message at offset {offset} fails its CRC-32 check")
    pos = _MESSAGE.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(view, pos)
        pos += _TIMESTAMP.size
    elif magic != 0:
        raise CorruptBatch(f"message of magic {magic} in a message set of magic 0 or 1")
    key, pos = _read_bytes(view, pos)
    value, pos = _read_bytes(view, pos)
    if pos != len(view):
        raise InvalidBatch(f"message at offset {offset} has {len(view) - pos} bytes too many")
    return _Message(offset, magic, attributes, timestamp, key, value)


def _read_bytes(view: memoryview, pos: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(view, pos)
    pos += _LENGTH.size
    if length == -1:
        return None, pos
    if length < 0 or length > len(view) - pos:
        raise InvalidBatch(f"field of {length} bytes in a message with {len(view) - pos} left")
    return bytes(view[pos : pos + length]), pos + length


def _open_wrapper(wrapper: _Message, budget: _Budget) -> Iterator[Record]:
    plain = memoryview(budget.decompress(wrapper))
    if not plain:
        raise InvalidBatch("compressed message holds no messages")
    # A producer leaves the wrapper's offset at 0; a broker has set it to that of the last message.
    shift = max(0, wrapper.offset - _last_offset(plain)) if wrapper.magic == 1 else 0
    append_time = wrapper.timestamp if wrapper.attributes & TIMESTAMP_TYPE_BIT else None
    for message in _iter_entries(plain):
        if message.magic != wrapper.magic or message.compression != "none":
            raise InvalidBatch(
                f"message of magic {message.magic} and compression {message.compression} inside "
                f"of a compressed message of magic {wrapper.magic}"
            )
        record = _record(message, message.offset + shift)
        if append_time is not None and wrapper.magic == 1:
            record.timestamp = append_time
        yield record


def _last_offset(view: memoryview) -> int:
    """Offset of the set's last message, found without reading the messages.

    A message set can hold a few million; no list of them is ever made.
    """
    offset = pos = 0
    try:
        while pos < len(view):
            offset, size = _ENTRY.unpack_from(view, pos)
            if size < 0:
                raise CorruptBatch(f"message of {size} bytes")
            pos += _ENTRY.size + size
    except struct.error:
        raise CorruptBatch("message set ends in the middle of a field") from None
    return offset


def _record(message: _Message, offset: int) -> Record:
    return Record(offset, message.timestamp, message.key, message.value, [])


def lz4_descriptor_end(frame: bytes) -> int:
    """Where the header checksum of an lz4 frame is. Raises DecodeError."""
    if len(frame) <= LZ4_DESCRIPTOR_AT:
        raise DecodeError("lz4 frame ends early")
    flags = frame[LZ4_DESCRIPTOR_AT]
    return LZ4_DESCRIPTOR_AT + 2 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)


def _with_lz4_header_checksum(data: bytes) -> bytes:
    """The lz4 frame with the header checksum that its descriptor should have."""
    end = lz4_descriptor_end(data)
    checksum = xxh32_short(data[LZ4_DESCRIPTOR_AT:end]) >> 8 & 0xFF
    return data[:end] + bytes((checksum,)) + data[end + 1 :]
