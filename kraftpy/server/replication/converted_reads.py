"""Reads for consumers from before Kafka 0.11: batches become message sets of magic 0 or 1.

Rules (docs/rules.md, rule 301):

* A read ends at its limit of bytes to send, or where there is nothing below the high watermark.
  Batches without messages, markers among them, are gone through, and take none of the limit.
* The first message set comes however large it is. So does a read's first while what was converted
  and isn't sent yet takes HELD_MAX_BYTES, but nothing behind it.
* All reads together have the event loop for TURN_S, then others have it. What would take longer at
  a stretch is done in the process that opens batches. A batch's checksum is checked before.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from kraftpy.protocol.downconversion import check_codec, downconvert
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    LENGTH_END,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    check_batch,
    read_batch_header,
)
from kraftpy.protocol.record_walk import max_uncompressed_bytes, open_batch
from kraftpy.server.network.long_answers import Turns
from kraftpy.server.replication.record_policy import opens_quickly
from kraftpy.storage.files import storage_failure
from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    from kraftpy.server.replication.opening import BatchOpener
    from kraftpy.server.replication.partition import Partition

TURN_S: Final = 0.002
HELD_MAX_BYTES: Final = 64 << 20
# So much is looked for in the log at a time.
_CHUNK_BYTES: Final = 1 << 20
# What is converted on the event loop: it takes a millisecond or two.
_QUICK_RECORDS: Final = 250
_QUICK_BYTES: Final = 256 << 10
_QUICK_BYTES_TO_COMPRESS: Final = {"gzip": 32 << 10}


class ConvertedRead:
    """How far one read has come.

    `offset` is the next to look at, `messages` is what was found, `size_bytes` of it; `full`: there
    is more than may be answered.
    """

    __slots__ = ("full", "limit_bytes", "magic", "messages", "offset", "size_bytes")

    def __init__(self, magic: int, offset: int, limit_bytes: int) -> None:
        self.magic = magic
        self.offset = offset
        self.limit_bytes = limit_bytes
        self.messages: list[bytes] = []
        self.size_bytes = 0
        self.full = False


class ConvertedReads:
    """Such reads at one broker: what they share."""

    def __init__(self, opener: BatchOpener) -> None:
        self._opener = opener
        self._turns = Turns()
        self._turn_ends_s = 0.0
        self._held_bytes = 0

    def release(self, size_bytes: int) -> None:
        """So much of what was converted counts elsewhere from now on, or is gone."""
        self._held_bytes -= size_bytes

    async def go_on(self, read: ConvertedRead, partition: Partition, *, min_one: bool) -> None:
        """Takes the read to its limit or to the high watermark; the caller releases what it found.

        With `min_one` a first message set larger than the limit comes all the same. Raises
        KafkaError as `ReadableLog.read` does and UNSUPPORTED_COMPRESSION_TYPE, if nothing was found
        before.
        """
        try:
            while not read.full:
                found = partition.log.read(
                    read.offset, _CHUNK_BYTES, upper_offset=partition.high_watermark
                )
                if not found.slices:
                    break
                for piece in found.slices:
                    await self._take(read, partition, piece, min_one)
                    if read.full:
                        break
                else:
                    read.offset = max(read.offset, found.next_offset)
        except KafkaError:
            if not read.size_bytes:
                raise
            read.full = True

    async def _take(
        self, read: ConvertedRead, partition: Partition, piece: FileSlice, min_one: bool
    ) -> None:
        """Takes the messages of some batches; ends where the read is full. Raises KafkaError."""
        at = 0
        while at < piece.size:
            if perf_counter() >= self._turn_ends_s:
                await self._turns.next()
                self._turn_ends_s = perf_counter() + TURN_S
            try:
                header = read_batch_header(piece.read_part(at, RECORD_BATCH_OVERHEAD))
                size = header.batch_length + LENGTH_END
                if header.records_count and not header.is_control:
                    if self._is_full(read, size, min_one):
                        read.full = True
                        return
                    check_codec(header)
                    messages, count = await self._convert(read, partition, header, piece, at)
                    if self._is_full(read, len(messages), min_one):
                        read.full = True
                        return
                    if messages:
                        self._add(read, messages)
                        partition.numbers.downconverted_records += count
            except DecodeError as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition}: {error}") from None
            except OSError as error:
                raise storage_failure(f"can't read {partition}", error) from error
            read.offset = max(read.offset, header.last_offset + 1)
            at += size

    def _is_full(self, read: ConvertedRead, more_bytes: int, min_one: bool) -> bool:
        if not read.size_bytes and min_one:
            return False
        return read.size_bytes + more_bytes > read.limit_bytes or self._held_bytes >= HELD_MAX_BYTES

    def _add(self, read: ConvertedRead, messages: bytes) -> None:
        read.messages.append(messages)
        read.size_bytes += len(messages)
        self._held_bytes += len(messages)

    async def _convert(
        self,
        read: ConvertedRead,
        partition: Partition,
        header: BatchHeader,
        piece: FileSlice,
        at: int,
    ) -> tuple[bytes, int]:
        """The message set of a batch, and how many messages.

        Raises OSError, DecodeError, KafkaError.
        """
        size = header.size_bytes
        quick_bytes = _QUICK_BYTES_TO_COMPRESS.get(header.compression, _QUICK_BYTES)
        if header.records_count <= _QUICK_RECORDS and size <= quick_bytes:
            batch = piece.read_part(at, size)
            if opens_quickly(header, batch, quick_bytes):
                check_batch(batch)
                data = open_batch(header, batch, 0, max(quick_bytes, size))
                return downconvert(header, data, read.magic, read.offset)
            del batch  # it's read again when there is a place for it
        limit = max_uncompressed_bytes(partition.config.max_message_bytes)

        async def convert() -> tuple[bytes, int]:
            part = piece.read_part(at, size)
            return await self._opener.downconvert(part, read.magic, read.offset, limit)

        return await self._opener.read_and_open(convert)
