"""One segment: a `.log` file of record batches with its two sparse indexes.

Rules that it keeps:

* Batches are opaque. Only headers are read here, and a header that makes no sense, or is not where
  an index said, raises CORRUPT_MESSAGE: wrong bytes are never handed out as records.
* A batch gets an index entry when more than `index.interval.bytes` lie between it and the last one
  that did; the entry names its last offset (Kafka's LogSegment).
* Indexes of the segment being written live in memory; their files are written when it is sealed,
  and synced by the next flush. What a power cut, or somebody, leaves of them is not believed: where
  they end before their segment does they are made anew, and are on disk before they are used.
* The aborted transactions whose markers are here are kept in the same way. Their file can't be made
  anew from the segment alone (`recovery` does it, with the producers): a damaged one is refused.
* What is open is bounded by `SegmentCache`, also among the segments being written: their files are
  opened again when an append comes. Whoever still sends from a file keeps its `OpenFile`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from kraftpy.core.producers import CompletedTransaction
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_batch import LENGTH_END
from kraftpy.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, read_batch_header
from kraftpy.storage.files import Files, OpenFile, storage_failure
from kraftpy.storage.index import TIME_ENTRY_BYTES, IndexFileError, OffsetIndex, TimeIndex
from kraftpy.storage.segment_cache import SegmentCache
from kraftpy.storage.transaction_index import TransactionIndex

logger = logging.getLogger(__name__)

Batches = Sequence[tuple[int, BatchHeader]]

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
DELETED_SUFFIX: Final = ".deleted"

MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
NO_TIMESTAMP: Final = -1

# Small logs reserve nothing; busy ones are this far ahead of their writes.
RESERVE_FROM_BYTES: Final = 1024 * 1024
RESERVE_BYTES: Final = 16 * 1024 * 1024

REBUILD_INDEX_INTERVAL_BYTES: Final = 4096
_WALK_CHUNK_BYTES: Final = 4096


def file_name(offset: int, suffix: str) -> str:
    """Kafka's name of a segment's file: the base offset in 20 digits."""
    return f"{offset:020d}{suffix}"


class FileSlice:
    """Whole record batches in a file: `size` bytes from `position`, which the holder reads.

    The descriptor `fd` stays valid as long as the slice is referenced.
    """

    __slots__ = ("fd", "file", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        self.file = file
        self.fd = file.fd
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes. OSError if they can't be read or are no longer all there."""
        return self.read_part(0, self.size)

    def read_part(self, at: int, size: int) -> bytes:
        """So many of them. OSError as for `read`."""
        position = self.position + at
        data = os.pread(self.fd, size, position)
        while len(data) < size:
            more = os.pread(self.fd, size - len(data), position + len(data))
            if not more:
                raise OSError(errno.EIO, f"{self.file.path} got shorter while it was read")
            data += more
        return data

    def skip(self, count: int) -> FileSlice:
        """What is left after the first `count` bytes."""
        return FileSlice(self.file, self.position + count, self.size - count)


class Segment:
    """Batches from `base_offset` on, `size` bytes of them; an empty one needs no file yet.

    `sealed` segments take no more appends. `max_timestamp` (-1: no record has one) and its batch's
    last offset `max_timestamp_offset` are known once `load_timestamps` or an append ran.
    """

    __slots__ = (
        "_aborted",
        "_aborted_changed",
        "_bytes_since_index",
        "_cache",
        "_file",
        "_files",
        "_folder",
        "_index",
        "_index_changed",
        "_reserved_size",
        "_time_index",
        "_timestamps_known",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "index_entries",
        "max_timestamp",
        "max_timestamp_offset",
        "sealed",
        "size",
        "uses",
    )

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        files: Files,
        cache: SegmentCache,
    ) -> None:
        self._folder = folder
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.sealed = True
        self.uses = 0
        self._files = files
        self._cache = cache
        self._file: OpenFile | None = None
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._index_changed = False
        self._aborted: TransactionIndex | None = None
        self._aborted_changed = False
        self._timestamps_known = False
        self._bytes_since_index = 0
        self._reserved_size = RESERVE_FROM_BYTES
        self.index_entries = 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    @classmethod
    def create(
        cls, folder: Path, base_offset: int, *, now_ms: int, files: Files, cache: SegmentCache
    ) -> Segment:
        """A new, empty segment, ready for appends. Raises OSError."""
        segment = cls(folder, base_offset, size=0, created_ms=now_ms, files=files, cache=cache)
        segment._file = files.open(segment.path(LOG_SUFFIX), create=True)
        segment._index, segment._time_index = OffsetIndex(), TimeIndex()
        segment._index_changed = segment._timestamps_known = True
        segment._aborted = TransactionIndex()
        segment.sealed = False
        cache.opened(segment)
        return segment

    def path(self, suffix: str) -> Path:
        return self._folder / file_name(self.base_offset, suffix)

    # -- what is open

    @property
    def file(self) -> OpenFile:
        """The `.log` file, opened if need be. KafkaError KAFKA_STORAGE_ERROR if that fails."""
        file = self._file
        if file is None:
            file = self._open(to_read=self.sealed and self.size > 0)
            if not self.sealed:
                self._cache.opened(self)
        if self.sealed:
            self._cache.touch(self)
        return file

    def _open(self, *, to_read: bool) -> OpenFile:
        path = self.path(LOG_SUFFIX)
        try:
            if to_read:
                self._file = self._files.open_to_read(path)
            else:
                self._file = self._files.open(path, create=not self.size)
        except OSError as error:
            raise storage_failure(f"can't open {path}", error) from error
        return self._file

    @property
    def loaded_index_bytes(self) -> int:
        times = self._time_index
        return (
            (self._index.size_bytes if self._index is not None else 0)
            + (len(times) * TIME_ENTRY_BYTES if times is not None else 0)
            + (self._aborted.size_bytes if self._aborted is not None else 0)
        )

    def close(self) -> None:
        """Lets go of the file, and when sealed of the indexes; they come back when needed."""
        self._file = None
        if self.sealed and not self._index_changed:
            self._index = self._time_index = None
        if self.sealed and not self._aborted_changed:
            self._aborted = None

    def forget(self) -> None:
        """The segment leaves its log."""
        self.sealed = True
        self._cache.forget(self)
        self._file = None

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        if not self.size and self._index is None:
            self._index, self._time_index = OffsetIndex(), TimeIndex()
        if self._index is None or self._time_index is None:
            try:
                self._index = OffsetIndex.load(self.path(INDEX_SUFFIX))
                self._time_index = TimeIndex.load(self.path(TIME_INDEX_SUFFIX))
                self.index_entries = len(self._index)
            except (IndexFileError, FileNotFoundError) as error:
                self.rebuild_indexes(str(error))
            except OSError as error:
                raise storage_failure(
                    f"can't read an index of {self} (if removed it is made anew)", error
                ) from error
            if self.sealed:
                self._cache.touch(self)
        assert self._index is not None
        assert self._time_index is not None
        return self._index, self._time_index

    @property
    def aborted(self) -> TransactionIndex:
        """The aborted transactions whose markers are here; to be read. Raises KafkaError."""
        aborted = self._aborted
        if aborted is None:
            path = self.path(TRANSACTION_INDEX_SUFFIX)
            try:
                aborted = self._aborted = TransactionIndex.load(path)
            except (IndexFileError, OSError) as error:
                raise storage_failure("can't tell aborted transactions", str(error)) from error
            if self.sealed:
                self._cache.touch(self)
        return aborted

    def __str__(self) -> str:
        return str(self.path(LOG_SUFFIX))

    # -- writing

    def unseal(self) -> None:
        """Makes the segment take appends. Raises KafkaError; it then stays sealed."""
        if self._file is None or self._file.read_only:
            self._open(to_read=False)
        index, _ = self._indexes()
        _ = self.aborted  # no append fails for want of it
        if self.size:
            self.first_timestamp = next(self.batches(0))[1].max_timestamp
        self._bytes_since_index = self.size - index.last()[1]
        self.sealed = False
        try:
            self.load_timestamps()
        except KafkaError:
            self.sealed = True
            raise
        self._cache.forget(self)
        self._cache.opened(self)

    def append(
        self, data: bytes | bytearray | memoryview, batches: Batches, index_interval_bytes: int
    ) -> None:
        """One write. Raises OSError and changes nothing in memory if it isn't complete."""
        size = len(data)
        file = self._file or self.file
        self.uses += 1
        if self.size + size > self._reserved_size:
            self._reserve(self.size + size)
        written = self._files.write(file.fd, data)
        if written != size:
            raise OSError(errno.ENOSPC, f"only {written} of {size} bytes could be written")
        self.extend(batches, index_interval_bytes)

    def _reserve(self, end: int) -> None:
        assert self._file is not None
        self._reserved_size = end + RESERVE_BYTES
        self._files.reserve(self._file, self.size, self._reserved_size - self.size)

    def free_reserve(self) -> None:
        """Gives back the blocks behind the end. Raises OSError."""
        if self._reserved_size > RESERVE_FROM_BYTES:
            self._files.truncate(self.file, self.size)
            self._reserved_size = RESERVE_FROM_BYTES

    def extend(self, batches: Batches, index_interval_bytes: int) -> None:
        """Takes account of `batches`, which lie at the end of the file."""
        start = self.size
        since = self._bytes_since_index
        for _, header in batches:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.base_offset + header.last_offset_delta
            if since > index_interval_bytes:
                self._add_index_entry(header.base_offset + header.last_offset_delta, start)
                since = 0
            elif not start:
                self.first_timestamp = header.max_timestamp
            size = header.batch_length + LENGTH_END
            since += size
            start += size
        self._bytes_since_index = since
        self.size = start

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        assert self._index is not None
        assert self._time_index is not None
        self._index.append(last_offset - self.base_offset, position)
        self._time_index.maybe_append(
            self.max_timestamp, self.max_timestamp_offset - self.base_offset
        )
        self.index_entries += 1
        self._index_changed = True

    def add_aborted(self, transaction: CompletedTransaction) -> None:
        """One whose marker was appended just now."""
        self.aborted.append(transaction)
        self._aborted_changed = True

    def restore_size(self) -> None:
        """Cuts off what a failed write left. Raises OSError: nothing may be appended then."""
        assert self._file is not None
        if self._file.size_bytes() != self.size:
            self._files.truncate(self._file, self.size)

    def seal(self) -> list[Path]:
        """Ends appending: writes the index files. Returns the files that a flush must sync.

        Raises OSError; the segment then still takes appends.
        """
        files = [self.path(LOG_SUFFIX), *self.write_indexes()]
        self.free_reserve()
        self.sealed = True
        self._cache.forget(self)
        self._cache.touch(self)
        return files

    def write_indexes(self, *, durable: bool = False) -> list[Path]:
        """Writes the index files if they differ from memory; returns them. Raises OSError.

        Without `durable` somebody has to sync them.
        """
        written = self._write_aborted(durable=durable)
        index, times = self._index, self._time_index
        if index is None or times is None:
            return written
        if self.max_timestamp > NO_TIMESTAMP and self._timestamps_known:
            before = len(times)
            times.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._index_changed = self._index_changed or len(times) != before
        if not self._index_changed:
            return written
        paths = [self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)]
        for path, data in zip(paths, (index.to_bytes(), times.to_bytes()), strict=True):
            self._files.replace_contents(path, data, durable=durable)
        self._index_changed = False
        return paths + written

    def _write_aborted(self, *, durable: bool) -> list[Path]:
        if not self._aborted_changed:
            return []
        path = self.path(TRANSACTION_INDEX_SUFFIX)
        if self.aborted:
            self._files.replace_contents(path, self.aborted.to_bytes(), durable=durable)
        else:
            self._files.unlink(path)
        self._aborted_changed = False
        return [path] if self.aborted else []

    def truncate(self, size: int) -> None:
        """Keeps the first `size` bytes, whole batches. Raises OSError, KafkaError."""
        index, times = self._indexes()
        self._files.truncate(self.file, size)
        self.size = size
        self._reserved_size = RESERVE_FROM_BYTES
        index.truncate(size)
        last_offset = self.base_offset - 1
        for _, header in self.batches(index.last()[1]):
            last_offset = header.last_offset
        times.truncate(last_offset + 1 - self.base_offset)
        self._aborted_changed = self.aborted.truncate(last_offset + 1) or self._aborted_changed
        self._index_changed = True
        self.index_entries = len(index)
        self._bytes_since_index = size - index.last()[1]
        self._timestamps_known = False
        self.load_timestamps()

    # -- reading headers

    def batches(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from a boundary on; checks headers, not checksums.

        Raises KafkaError: CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        size = self.size if end is None else end
        if position >= size:
            return
        file = self.file  # held: the cache may close the segment before the caller goes on
        chunk, chunk_start = b"", position
        expected_offset = self.base_offset
        while position < size:
            if position + RECORD_BATCH_OVERHEAD > chunk_start + len(chunk):
                try:
                    chunk = os.pread(file.fd, min(_WALK_CHUNK_BYTES, size - position), position)
                except OSError as error:
                    raise storage_failure(f"can't read {self} at {position}", error) from error
                chunk_start = position
            try:
                header = read_batch_header(chunk, position - chunk_start)
            except DecodeError as error:
                raise self.corrupt(position, str(error)) from error
            after = position + header.batch_length + LENGTH_END
            if (
                after > size
                or header.base_offset < expected_offset
                or header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET
            ):
                raise self.corrupt(position, "batch with an impossible length or offset")
            yield position, header
            position = after
            expected_offset = header.last_offset + 1

    def corrupt(self, position: int, reason: str) -> KafkaError:
        logger.error("%s is damaged at position %d: %s", self, position, reason)
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{self} is damaged at position {position}: {reason}"
        )

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch whose last offset is ≥ `offset`, or None. Raises KafkaError."""
        relative = min(max(offset - self.base_offset, 0), MAX_RELATIVE_OFFSET)
        index, _ = self._indexes()
        for at, header in self._batches_from(*index.lookup(relative)):
            if header.base_offset + header.last_offset_delta >= offset:
                return at, header
        return None

    def _batches_from(self, relative: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Batches from an index entry's position on if the entry is true, else from the start."""
        if relative < 0:
            return self.batches(0)
        try:
            batches = self.batches(position)
            first = next(batches, None)
        except KafkaError:
            first = None
        if first is not None and first[1].last_offset - self.base_offset == relative:
            return chain((first,), batches)
        self.rebuild_indexes(f"no batch that ends at relative offset {relative} is at {position}")
        return self.batches(0)

    def boundary(self, start: int, limit: int) -> tuple[int, BatchHeader]:
        """(position, header) of the first batch from `start` on that reaches past `limit`.

        `start` is a batch boundary, and `limit` < the segment's size. Raises KafkaError.
        """
        index, _ = self._indexes()
        relative, position = index.lookup_position(limit)
        nearer = position > start
        for at, header in self._batches_from(relative, position) if nearer else self.batches(start):
            if at + header.batch_length + LENGTH_END > limit:
                return at, header
        raise self.corrupt(start, f"no batch reaches past {limit}")

    def last_header(self) -> BatchHeader | None:
        """That of the last batch, if any: the headers behind the last index entry are read.

        Raises KafkaError.
        """
        index, _ = self._indexes()
        last = None
        for _, header in self._batches_from(*index.last()):
            last = header
        return last

    def checked_end(self, index_interval_bytes: int) -> int:
        """One more than the last offset; for a sealed segment. Raises KafkaError.

        The indexes are made anew if they don't reach to the segment's end (an entry is missing, or
        the largest timestamp behind the last entry is), or the largest timestamp isn't a batch's.
        """
        index, times = self._indexes()
        relative, start = index.last()
        newest, gap_bytes, end_offset = NO_TIMESTAMP, 0, self.base_offset
        for position, header in self._batches_from(relative, start):
            newest = max(newest, header.max_timestamp)
            gap_bytes = position - start
            end_offset = header.last_offset + 1
        last = times.entry(-1) if len(times) else None
        if self._index is index and (
            gap_bytes > max(index_interval_bytes, REBUILD_INDEX_INTERVAL_BYTES)
            or newest > (NO_TIMESTAMP if last is None else last[0])
            or (last is not None and last[0] != newest and not self._is_true(last))
        ):
            self.rebuild_indexes("they aren't the segment's, or end before it does")
        return end_offset

    # -- timestamps

    def load_timestamps(self) -> None:
        """Finds out `max_timestamp` of a segment that was there before. Raises KafkaError."""
        if self._timestamps_known:
            return
        index, times = self._indexes()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        if len(times):
            self.max_timestamp, relative = times.entry(-1)
            self.max_timestamp_offset = self.base_offset + relative
        if not self.sealed:
            # A sealed segment's last entry is its largest timestamp; here only what lies before the
            # last index entry has been taken into account.
            for _, header in self._batches_from(*index.last()):
                if header.max_timestamp > self.max_timestamp:
                    self.max_timestamp = header.max_timestamp
                    self.max_timestamp_offset = header.last_offset
        self._timestamps_known = True

    def batches_for_timestamp(
        self, timestamp: int, min_offset: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from the first on that may hold a record at or after `timestamp`."""
        _, times = self._indexes()
        entry = times.lookup(timestamp)
        if entry is not None and not self._is_true(entry):
            self.rebuild_indexes(f"no batch of timestamp {entry[0]} is at offset {entry[1]}")
            _, times = self._indexes()
            entry = times.lookup(timestamp)
        behind = self.base_offset + (-1 if entry is None else entry[1]) + 1
        found = self.find(max(min_offset, behind))
        return iter(()) if found is None else self.batches(found[0])

    def _is_true(self, time_entry: tuple[int, int]) -> bool:
        """Whether the batch of a time index's entry has its timestamp. Raises KafkaError."""
        timestamp, relative = time_entry
        found = self.find(self.base_offset + relative)
        return found is not None and found[1].max_timestamp == timestamp

    # -- rebuilding

    def reset_indexes(self) -> None:
        """Forgets every batch; `extend` then takes account of them one by one."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._index_changed = self._timestamps_known = True
        self._bytes_since_index = self.index_entries = self.size = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset

    def forget_aborted(self) -> None:
        """Forgets aborted transactions; who reads the log anew adds them again."""
        self._aborted, self._aborted_changed = TransactionIndex(), True

    def rebuild_indexes(self, why: str) -> None:
        """Makes the indexes anew from the batches' headers; durably if sealed. KafkaError."""
        logger.warning("rebuilding the indexes of %s: %s", self, why)
        self.walk_for_indexes(REBUILD_INDEX_INTERVAL_BYTES)
        if self.sealed:
            with contextlib.suppress(OSError):
                self.write_indexes(durable=True)

    def walk_for_indexes(self, index_interval_bytes: int) -> None:
        """Makes the indexes in memory anew from the batches' headers. Raises KafkaError."""
        size = self.size
        self.reset_indexes()
        try:
            for batch in self.batches(0, size):
                self.extend((batch,), index_interval_bytes)
        except KafkaError:
            self._index = self._time_index = None
            self._index_changed = self._timestamps_known = False
            raise
        finally:
            self.size = size
