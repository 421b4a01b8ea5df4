"""Record batches of magic 2 as opaque bytes: find, check and stamp them.

The paths of produce and fetch never open a batch: `split_batches` checks what can be checked from
outside, `check_producer_batch` holds Kafka's rules for what a client may send, `stamp_batch`
writes the two fields that the leader owns. Those two lie outside of the checksum, so nothing is
recomputed. `kraftpy.protocol.records` opens batches; import from there.

The format is that of KIP-98 (Kafka's documentation, "Message format"). Rules kept here:

* CRC-32C covers attributes to the end of the batch; `zlib.crc32` is another checksum.
* Bytes that are not a batch raise `DecodeError` or one of its subclasses and nothing else. A
  subclass carries the error code that a producer gets: a damaged batch is worth a retry
  (CORRUPT_MESSAGE), a batch that breaks the rules is not (INVALID_RECORD).
"""

from __future__ import annotations

import struct
from typing import ClassVar, TypeAlias

from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview

RECORD_BATCH_OVERHEAD = 61

CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")
_pack_base_offset = _BASE_OFFSET.pack_into
_pack_leader_epoch = _LEADER_EPOCH.pack_into

LENGTH_END = 12  # base offset and length; the length counts what follows
_LEADER_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_MIN_LENGTH = RECORD_BATCH_OVERHEAD - LENGTH_END
_MIN_RECORD_SIZE_BYTES = 7  # seven varints and bytes of at least one byte each
_MAX_SEQUENCE = 0x7FFFFFFF


class CorruptBatch(DecodeError):
    """The bytes are damaged or cut off; a client may send them again."""

    code: ClassVar[ErrorCode] = ErrorCode.CORRUPT_MESSAGE


class InvalidBatch(CorruptBatch):
    """The bytes are as they were written, and what was written breaks the format."""

    code: ClassVar[ErrorCode] = ErrorCode.INVALID_RECORD


class UnsupportedMagic(DecodeError):
    """A message set of magic 0 or 1, from before Kafka 0.11; see `kraftpy.protocol.legacy`."""

    code: ClassVar[ErrorCode] = ErrorCode.INVALID_RECORD


class BatchHeader:
    """The fixed 61 bytes at the front of a batch.

    Mutable, because the leader changes some fields: whoever stamps the buffer sets `base_offset`
    and `partition_leader_epoch` here too, so that both keep saying the same.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "records_count",
    )

    def __init__(
        self, fields: tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
    ) -> None:
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        ) = fields

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"BatchHeader({fields})"

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_END

    @property
    def compression(self) -> str:
        """Kafka's name of the codec; "unknown" for the ids 5 to 7, which nobody has defined."""
        codec = self.attributes & COMPRESSION_MASK
        return COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else "unknown"

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME` (0) or `LOG_APPEND_TIME` (1)."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the cleaner put the delete horizon into `base_timestamp` (KIP-534)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; 2^31-1 is followed by 0. -1 without a base sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def read_batch_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Reads the header at `pos`; the rest of the batch need not be in `buf`.

    Checks what a reader needs before it trusts the lengths, and no checksum. Raises `CorruptBatch`
    or `UnsupportedMagic`.
    """
    try:
        header = BatchHeader(_unpack_header(buf, pos))
    except struct.error:
        raise _refuse_short(buf, pos) from None
    if header.magic != 2:
        raise _refuse_magic(header.magic, pos)
    if (
        header.batch_length < _MIN_LENGTH
        or header.base_offset < 0
        or header.last_offset_delta < 0
        or header.records_count < 0
    ):
        raise CorruptBatch(
            f"no record batch at byte {pos}: length {header.batch_length}, base offset "
            f"{header.base_offset}, last offset delta {header.last_offset_delta}, "
            f"{header.records_count} records"
        )
    return header


def check_batch(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Checks the whole batch at `pos`: magic, size within `buf`, CRC-32C; returns its header.

    Raises `CorruptBatch` for damage, `InvalidBatch` for fields that no checksum error explains,
    and `UnsupportedMagic` for magic 0 and 1.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    try:
        header = BatchHeader(_unpack_header(view, pos))
    except struct.error:
        raise _refuse_short(view, pos) from None
    if header.magic != 2:
        raise _refuse_magic(header.magic, pos)
    end = pos + LENGTH_END + header.batch_length
    if header.batch_length < _MIN_LENGTH or end > len(view):
        raise CorruptBatch(
            f"record batch at byte {pos} says it is {header.size_bytes} bytes long; "
            f"{len(view) - pos} are there and {RECORD_BATCH_OVERHEAD} is the least"
        )
    if crc32c(view[pos + _ATTRIBUTES_AT : end]) != header.crc:
        raise CorruptBatch(f"record batch at byte {pos} fails its CRC-32C check")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.records_count < 0:
        raise InvalidBatch(
            f"record batch at byte {pos} has base offset {header.base_offset}, last offset delta "
            f"{header.last_offset_delta} and {header.records_count} records"
        )
    return header


def split_batches(buf: Buffer) -> list[tuple[int, BatchHeader]]:
    """Checks every batch of `buf`; returns (position, header) of each, in order.

    The batches must cover `buf` exactly. An empty buffer gives an empty list. Raises as
    `check_batch` does.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    size = len(view)
    batches = []
    pos = 0
    while pos < size:
        header = check_batch(view, pos)
        batches.append((pos, header))
        pos += LENGTH_END + header.batch_length
    return batches


def sound_batches(buf: Buffer) -> tuple[list[tuple[int, BatchHeader]], int]:
    """The batches of `buf` before the first that is no good, as `split_batches` gives them, and
    their size. Raises as `check_batch` does if there are none before it.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    size = len(view)
    batches: list[tuple[int, BatchHeader]] = []
    pos = 0
    while pos < size:
        try:
            header = check_batch(view, pos)
        except DecodeError:
            if not batches:
                raise
            break
        batches.append((pos, header))
        pos += LENGTH_END + header.batch_length
    return batches, pos


def _refuse_short(buf: Buffer, pos: int) -> DecodeError:
    # Messages of magic 0 and 1 may be shorter than a batch's header.
    if len(buf) - pos > _MAGIC_AT and buf[pos + _MAGIC_AT] in (0, 1):
        return _refuse_magic(buf[pos + _MAGIC_AT], pos)
    return CorruptBatch(
        f"{len(buf) - pos} bytes at byte {pos}; a record batch has at least {RECORD_BATCH_OVERHEAD}"
    )


def _refuse_magic(magic: int, pos: int) -> DecodeError:
    if magic in (0, 1):
        return UnsupportedMagic(
            f"message set of magic {magic} at byte {pos}; record batches have magic 2 "
            "(any client since Kafka 0.11 sends them)"
        )
    return CorruptBatch(f"unknown magic {magic} at byte {pos}")


def check_producer_batch(header: BatchHeader) -> None:
    """Holds a checked batch against what a client may send; raises `KafkaError` if it may not.

    The rules are those of Kafka's LogValidator as far as the header tells. A producer id of -1
    with an epoch or sequence of 0 is fine: kafkajs and sarama write that. Which codec an API
    version allows and how far a timestamp may be off is the caller's to know.
    """
    count = header.records_count
    attributes = header.attributes
    if count <= 0 or header.last_offset_delta != count - 1 or header.base_offset != 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"a producer's batch has offsets 0 to count-1; this one has base offset "
            f"{header.base_offset}, last offset delta {header.last_offset_delta} and {count} "
            "records",
        )
    if header.producer_id != NO_PRODUCER_ID and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer id {header.producer_id} comes with epoch {header.producer_epoch} and "
            f"sequence {header.base_sequence}; none of them may be negative",
        )
    if attributes:
        _check_producer_attributes(header)
    if (
        not attributes & COMPRESSION_MASK
        and count * _MIN_RECORD_SIZE_BYTES > header.batch_length - _MIN_LENGTH
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{count} records can't fit into a batch of {header.size_bytes} bytes",
        )


def _check_producer_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.compression == "unknown":
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {header.attributes & COMPRESSION_MASK} is not one of "
            f"{', '.join(COMPRESSION_NAMES)}",
        )
    if header.timestamp_type == LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            "only the broker sets the timestamp type LogAppendTime; "
            "set message.timestamp.type on the topic instead",
        )
    if header.has_delete_horizon:
        raise KafkaError(ErrorCode.INVALID_RECORD, "only the broker sets a delete horizon")
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")


def stamp_batch(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the batch at `pos`; the checksum stays valid."""
    _pack_base_offset(buf, pos, base_offset)
    _pack_leader_epoch(buf, pos + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Turns the checked batch at `pos` into one with LogAppendTime, and `header` with it.

    All its records then have `timestamp_ms` (KIP-32). Recomputes the checksum.
    """
    header.attributes |= TIMESTAMP_TYPE_BIT
    header.max_timestamp = timestamp_ms
    _ATTRIBUTES.pack_into(buf, pos + _ATTRIBUTES_AT, header.attributes)
    _BASE_OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_AT, timestamp_ms)
    _stamp_crc(buf, pos, header)


def _stamp_crc(buf: bytearray | memoryview, pos: int, header: BatchHeader) -> None:
    end = pos + header.size_bytes
    header.crc = crc32c(memoryview(buf)[pos + _ATTRIBUTES_AT : end])
    _CRC.pack_into(buf, pos + _CRC_AT, header.crc)


def stamp_max_timestamp(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Has the checked batch at `pos` and `header` say that largest timestamp; new checksum."""
    header.max_timestamp = timestamp_ms
    _BASE_OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_AT, timestamp_ms)
    _stamp_crc(buf, pos, header)


def assemble_batch(header: BatchHeader, data: Buffer) -> bytes:
    """The batch of `header` and its encoded records; sets the header's length and checksum.

    Raises `ValueError` when a field is too large for the format.
    """
    header.batch_length = _MIN_LENGTH + len(data)
    try:
        front = bytearray(
            _HEADER.pack(
                header.base_offset,
                header.batch_length,
                header.partition_leader_epoch,
                header.magic,
                0,
                header.attributes,
                header.last_offset_delta,
                header.base_timestamp,
                header.max_timestamp,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.records_count,
            )
        )
    except struct.error as error:
        raise ValueError(f"{header} does not fit the format: {error}") from None
    header.crc = crc32c(data, crc32c(memoryview(front)[_ATTRIBUTES_AT:]))
    _CRC.pack_into(front, _CRC_AT, header.crc)
    front += data
    return bytes(front)
