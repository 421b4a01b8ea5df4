"""A segment's batches with their checksums, a chunk of the file at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import (
    LENGTH_END,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    read_batch_header,
)
from kraftpy.protocol.records import check_batch
from kraftpy.storage.files import OpenFile
from kraftpy.storage.segment import MAX_RELATIVE_OFFSET

_CHUNK_BYTES: Final = 1 << 20
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21  # the checksum's first byte
_BATCH_PREFIX: Final = struct.Struct(">qi")  # base offset, length of what follows


class DamageError(Exception):
    """The first bytes of a segment that are no valid batch: where, and what is wrong with them."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def checked_batches(file: OpenFile, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch, checksum and all. Raises DamageError, OSError."""
    position = 0
    while position < size:
        chunk = memoryview(os.pread(file.fd, min(_CHUNK_BYTES, size - position), position))
        if not chunk:
            raise DamageError(position, "the file ends early")
        at = 0
        while at < len(chunk):
            left = len(chunk) - at
            length = RECORD_BATCH_OVERHEAD
            if left >= LENGTH_END:
                length = _BATCH_PREFIX.unpack_from(chunk, at)[1] + LENGTH_END
            if length > left and position + left < size:
                if at:
                    break
                if length <= size - position:
                    chunk = memoryview(os.pread(file.fd, length, position))
            try:
                header = check_batch(chunk, at)
            except DecodeError as error:
                raise DamageError(position, str(error).replace(f" at byte {at}", "", 1)) from error
            size_bytes = header.batch_length + LENGTH_END
            yield position, header, chunk[at : at + size_bytes]
            at += size_bytes
            position += size_bytes


def find_follower(file: OpenFile, damaged: int, size: int, min_offset: int) -> int | None:
    """The position of a valid batch behind a damaged one, with offsets ≥ `min_offset`, or None.

    What lies in the damaged one isn't behind it: any producer may send records that hold batches.
    Its length says where it ends, if its header makes sense; or that is what is damaged, and then
    the rest of it, up to where the valid one begins, has its checksum. Raises OSError.
    """
    end, crc, expected = 0, 0, -1
    try:
        header = read_batch_header(os.pread(file.fd, RECORD_BATCH_OVERHEAD, damaged))
    except DecodeError:
        pass
    else:
        if (
            header.base_offset == min_offset
            and header.records_count == header.last_offset_delta + 1
        ):
            end, expected = damaged + header.size_bytes, header.crc
    summed = damaged + _ATTRIBUTES_AT
    for position in _valid_batches(file, damaged + 1, size, min_offset):
        if position >= end:
            return position
        if position > summed:
            crc = crc32c(os.pread(file.fd, position - summed, summed), crc)
            summed = position
        if crc == expected:
            return position
    return None


def find_valid_batch(file: OpenFile, size: int, min_offset: int) -> int | None:
    """The position of the first valid batch with offsets ≥ `min_offset`, or None. OSError."""
    return next(_valid_batches(file, 0, size, min_offset), None)


def _valid_batches(file: OpenFile, start: int, size: int, min_offset: int) -> Iterator[int]:
    """Positions at or after `start` of valid batches with offsets ≥ `min_offset`.

    Looks at every place where the magic byte could be, so nothing before it needs to be sane.
    Raises OSError.
    """
    for chunk_start in range(start, size, _CHUNK_BYTES):
        chunk = os.pread(file.fd, _CHUNK_BYTES + _MAGIC_AT, chunk_start)
        magic_at = chunk.find(b"\2", _MAGIC_AT)
        while magic_at >= 0:
            at = magic_at - _MAGIC_AT
            base_offset, length = _BATCH_PREFIX.unpack_from(chunk, at)
            position = chunk_start + at
            if (
                min_offset <= base_offset <= min_offset + MAX_RELATIVE_OFFSET
                and RECORD_BATCH_OVERHEAD <= length + LENGTH_END <= size - position
            ):
                try:
                    check_batch(os.pread(file.fd, length + LENGTH_END, position))
                except DecodeError:
                    pass
                else:
                    yield position
            magic_at = chunk.find(b"\2", magic_at + 1)
