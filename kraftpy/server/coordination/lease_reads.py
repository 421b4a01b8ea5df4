"""The batches of a read, as a lease table looks at them, and what of their bytes is sent.

Whole batches are sent, as slices of files: those in which the member got something. Headers are
read, records never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kraftpy.core.leases import Acquired, ReadBatch
from kraftpy.core.leases.found import NOTHING_ABORTED, Aborted, read_batch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD, read_batch_header
from kraftpy.storage.files import storage_failure
from kraftpy.storage.segment import FileSlice

BATCHES_MAX: Final = 1_000
"""So many batches are looked at in one go."""

_CHUNK_BYTES: Final = 4096


class _Seen(NamedTuple):
    first: int
    last: int
    piece: FileSlice
    at: int
    size: int


class LeaseRead:
    """Walks through what a read found, as far as somebody wants to know.

    `failure` is what kept it from going on, if that is so.
    """

    __slots__ = ("_aborted", "_pieces", "_seen", "failure")

    def __init__(self, pieces: Sequence[FileSlice], aborted: Aborted = NOTHING_ABORTED) -> None:
        self._pieces = pieces
        self._aborted = aborted
        self._seen: list[_Seen] = []
        self.failure: KafkaError | None = None

    def __iter__(self) -> Iterator[ReadBatch]:
        try:
            for piece in self._pieces:
                yield from self._batches(piece)
        except DecodeError as error:
            self.failure = KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error))
        except OSError as error:
            self.failure = storage_failure("can't read what is to be leased", error)

    def _batches(self, piece: FileSlice) -> Iterator[ReadBatch]:
        seen = self._seen
        at, chunk, chunk_at = 0, b"", 0
        while at < piece.size and len(seen) < BATCHES_MAX:
            if at + RECORD_BATCH_OVERHEAD > chunk_at + len(chunk):
                chunk = piece.read_part(at, min(_CHUNK_BYTES, piece.size - at))
                chunk_at = at
            header = read_batch_header(chunk, at - chunk_at)
            batch = read_batch(header, self._aborted)
            size = header.size_bytes
            seen.append(_Seen(batch.first, batch.last, piece, at, size))
            yield batch
            at += size

    def records(self, acquired: Sequence[Acquired]) -> list[memoryview | FileSlice]:
        """The batches that have any of these offsets, which ascend."""
        found: list[memoryview | FileSlice] = []
        runs = iter(acquired)
        run = next(runs, None)
        begins = ends = 0
        piece: FileSlice | None = None
        for each in self._seen:
            while run is not None and run.last < each.first:
                run = next(runs, None)
            if run is None:
                break
            if run.first > each.last:
                continue
            if piece is each.piece and ends == each.at:
                ends += each.size
                continue
            if piece is not None:
                found.append(FileSlice(piece.file, piece.position + begins, ends - begins))
            piece, begins, ends = each.piece, each.at, each.at + each.size
        if piece is not None:
            found.append(FileSlice(piece.file, piece.position + begins, ends - begins))
        return found
