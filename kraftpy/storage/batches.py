"""Reading a segment's batches with their checksums, a chunk of the file at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import LENGTH_END, RECORD_BATCH_OVERHEAD, BatchHeader
from kraftpy.protocol.records import check_batch
from kraftpy.storage.files import OpenFile

CHUNK_BYTES: Final = 1 << 20
BATCH_PREFIX: Final = struct.Struct(">qi")  # base offset, length of what follows


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
        chunk = memoryview(os.pread(file.fd, min(CHUNK_BYTES, size - position), position))
        if not chunk:
            raise DamageError(position, "the file ends early")
        at = 0
        while at < len(chunk):
            left = len(chunk) - at
            length = RECORD_BATCH_OVERHEAD
            if left >= LENGTH_END:
                length = BATCH_PREFIX.unpack_from(chunk, at)[1] + LENGTH_END
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
