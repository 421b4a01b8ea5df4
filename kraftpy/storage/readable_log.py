"""What a log has and where: its segments, the offsets between them, reads by offset and timestamp.

`ReadableLog` owns the segments and the offsets between which they may be read, and changes no file;
`AppendableLog` makes a log grow and reach the disk; `Log` takes away and replaces what is there.

Rules that it keeps (docs/rules.md, rules 10 and 25):

* A read hands out whole batches: from the one that contains the offset, even if it is larger than
  what was asked for, and never one with an offset that the reader may not see.
* Records that can't be read though their checksum is right are as their producer wrote them; a
  search by timestamp then ends at the batch's first offset.
* Who reads committed records only is told of every aborted transaction that it may meet (KIP-98),
  whichever segment has the marker.
* No record is read for a fetch; the slices are for sendfile. A header that doesn't fit raises.
* Reading on where the last read ended, or where an append began, takes no search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator
from typing import Final, TypeAlias

from kraftpy.core.producers import CompletedTransaction
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_batch import LENGTH_END
from kraftpy.protocol.record_walk import OversizedBatch
from kraftpy.protocol.records import (
    DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES,
    BatchHeader,
    check_batch,
    find_timestamp,
    max_timestamp_of,
)
from kraftpy.storage.epochs import LeaderEpochs
from kraftpy.storage.files import storage_failure
from kraftpy.storage.segment import NO_TIMESTAMP, FileSlice, Segment

REMEMBERED_POSITIONS: Final = 64


class ReadResult:
    """What a read found: file slices of whole batches, `size_bytes` in all.

    `next_offset` is where the next read goes on; it is the asked offset when there is nothing.
    """

    __slots__ = ("log_start_offset", "next_offset", "size_bytes", "slices")

    def __init__(
        self, slices: list[FileSlice], size_bytes: int, next_offset: int, log_start_offset: int
    ) -> None:
        self.slices = slices
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.log_start_offset = log_start_offset


class TimestampOffset(NamedTuple):
    """An answer to ListOffsets; timestamp and leader epoch are -1 when they aren't known."""

    timestamp: int
    offset: int
    leader_epoch: int


TimestampSearch: TypeAlias = (
    "Generator[BatchToOpen | None, tuple[int, int] | None, TimestampOffset | None]"
)
"""None where others may have their turn."""

_HEADERS_TOGETHER: Final = 500


class ReadableLog:
    """Segments, oldest first, with the offsets between which they may be read.

    `has_aborted` is false as long as no segment has had an aborted transaction.
    """

    __slots__ = (
        "_active",
        "_append_starts",
        "_bases",
        "_name",
        "_offline",
        "_read_ends",
        "_segments",
        "has_aborted",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(
        self,
        name: str,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        leader_epochs: LeaderEpochs,
        *,
        has_aborted: bool,
    ) -> None:
        self._name = name
        self.has_aborted = has_aborted
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.leader_epochs = leader_epochs
        # Offset → (segment, position) of batches that begin with that offset.
        self._append_starts: dict[int, tuple[Segment, int]] = {}
        self._read_ends: dict[int, tuple[Segment, int]] = {}
        self._offline: str | None = None

    def __str__(self) -> str:
        return self._name

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one takes the appends."""
        return tuple(self._segments)

    @property
    def first_base_offset(self) -> int:
        """Where the oldest segment begins, at or below the log start offset."""
        return self._bases[0]

    @property
    def offline(self) -> bool:
        """Whether the disk failed this log so that it takes no request until the next start."""
        return self._offline is not None

    def _check_online(self) -> None:
        if self._offline is not None:
            raise storage_failure(f"{self} is offline", self._offline)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch ≤ asked, its end offset), (-1, -1) when unknown (KIP-101, KIP-279)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool = True
    ) -> ReadResult:
        """Whole batches from the one that contains `offset`, up to `max_bytes` of them.

        Nothing at or above `upper_offset` (high watermark, last stable offset, or log end offset)
        is included. With `min_one` a first batch larger than `max_bytes` comes all the same. No
        record is read here: the slices are for sendfile. Raises KafkaError: OFFSET_OUT_OF_RANGE
        outside of the log, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self} has offsets {self.log_start_offset} to {log_end_offset}, not {offset}",
            )
        upper_offset = min(upper_offset, log_end_offset)
        if offset >= upper_offset:
            return ReadResult([], 0, offset, self.log_start_offset)
        self._check_online()
        at = self._append_starts.get(offset) or self._read_ends.get(offset) or self._locate(offset)
        slices: list[FileSlice] = []
        segment, position = at
        left, next_offset = max_bytes, offset
        while True:
            limit, limit_offset = self._limit(segment, upper_offset)
            size = limit - position
            if size > left:
                end, header = segment.boundary(position, position + left)
                limit_offset = header.base_offset
                if end == position and min_one and not slices:
                    end += header.batch_length + LENGTH_END
                    limit_offset = header.base_offset + header.last_offset_delta + 1
                size, limit = end - position, end
                left = 0
            if size > 0:
                slices.append(FileSlice(segment.file, position, size))
                next_offset, left = limit_offset, left - size
            if left <= 0 or limit < segment.size or segment is self._active:
                break
            following = self._segments[bisect_right(self._bases, segment.base_offset)]
            if following.base_offset >= upper_offset:
                break
            segment, position = following, 0
        if not slices:
            return ReadResult([], 0, offset, self.log_start_offset)
        if limit < segment.size or segment is self._active:
            self._remember_end(next_offset, segment, limit)
        return ReadResult(
            slices, sum(piece.size for piece in slices), next_offset, self.log_start_offset
        )

    def _remember_end(self, offset: int, segment: Segment, position: int) -> None:
        ends = self._read_ends
        ends[offset] = (segment, position)
        if len(ends) > REMEMBERED_POSITIONS:
            del ends[next(iter(ends))]

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """Where the first batch with records at or after `offset` begins."""
        number = self._segment_number(offset)
        segment = self._segments[number]
        found = segment.find(offset)
        while found is None and number + 1 < len(self._segments):
            number += 1
            segment = self._segments[number]
            found = segment.find(offset)
        return segment, segment.size if found is None else found[0]

    def _segment_number(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def _limit(self, segment: Segment, upper_offset: int) -> tuple[int, int]:
        """(position, offset) where who may see below `upper_offset` stops in `segment`."""
        if segment is self._active:
            end_offset = self.log_end_offset
        else:
            end_offset = self._bases[bisect_right(self._bases, segment.base_offset)]
        if upper_offset >= end_offset:
            return segment.size, end_offset
        known = self._append_starts.get(upper_offset) or self._read_ends.get(upper_offset)
        if known is not None and known[0] is segment:
            return known[1], upper_offset
        found = segment.find(upper_offset)
        if found is None:
            return segment.size, end_offset
        self._remember_end(found[1].base_offset, segment, found[0])
        return found[0], min(upper_offset, found[1].base_offset)

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int
    ) -> list[CompletedTransaction]:
        """Those that a read of [`fetch_offset`, `upper_offset`) may meet, by their markers.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        found: list[CompletedTransaction] = []
        if self.has_aborted:
            for segment in self._segments[self._segment_number(fetch_offset) :]:
                if segment.aborted.collect(fetch_offset, upper_offset, found):
                    break
        return found

    # -- timestamps

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after the log start with a timestamp ≥ `timestamp` (ms), or None.

        Raises KafkaError: CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        return _search(self.search_timestamp(timestamp))

    def search_timestamp(self, timestamp: int) -> TimestampSearch:
        """`offset_for_timestamp` for who opens batches elsewhere; see `BatchToOpen`."""
        start = self.log_start_offset
        for segment in self._segments[self._segment_number(start) :]:
            segment.load_timestamps()
            if segment.max_timestamp < timestamp:
                continue
            batches = segment.batches_for_timestamp(timestamp, start)
            for number, (position, header) in enumerate(batches, 1):
                if not number % _HEADERS_TOGETHER:
                    yield None
                if header.max_timestamp < timestamp:
                    continue
                found = yield _to_open(segment, position, header, timestamp, start)
                if found is not None:
                    return TimestampOffset(*found, header.partition_leader_epoch)
        return None

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp (ListOffsets -3), None without timestamps.

        Raises KafkaError: CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        return _search(self.search_max_timestamp())

    def search_max_timestamp(self) -> TimestampSearch:
        """`max_timestamp_offset` for who opens batches elsewhere; see `BatchToOpen`."""
        start = self.log_start_offset
        segments = self._segments[self._segment_number(start) :]
        for segment in segments:
            segment.load_timestamps()
        best = TimestampOffset(NO_TIMESTAMP, -1, -1)
        for segment in sorted(segments, key=lambda each: -each.max_timestamp):
            if segment.max_timestamp <= best.timestamp:
                break
            found = segment.find(max(segment.max_timestamp_offset, start))
            if found is None:
                continue
            best = yield from self._newest_of(segment, [found], start, best)
            if best.timestamp < segment.max_timestamp:
                # Its newest record is below the log's start, or was compacted away.
                found = segment.find(start)
                batches: list[tuple[int, BatchHeader]] = []
                for each in segment.batches(found[0]) if found is not None else ():
                    batches.append(each)
                    if not len(batches) % _HEADERS_TOGETHER:
                        yield None
                batches.sort(key=lambda batch: -batch[1].max_timestamp)
                best = yield from self._newest_of(segment, batches, start, best)
        return None if best.offset < 0 else best

    @staticmethod
    def _newest_of(
        segment: Segment,
        batches: list[tuple[int, BatchHeader]],
        start: int,
        best: TimestampOffset,
    ) -> Generator[BatchToOpen | None, tuple[int, int] | None, TimestampOffset]:
        """The newest record of these, of which the newest comes first, or `best`."""
        for position, header in batches:
            if header.max_timestamp <= best.timestamp:
                break
            record = yield _to_open(segment, position, header, None, start)
            if record is not None and record[0] > best.timestamp:
                # What was opened elsewhere may say a record below the start of its batch's.
                offset = max(record[1], start)
                best = TimestampOffset(record[0], offset, header.partition_leader_epoch)
        return best

    def earliest_offset(self) -> TimestampOffset:
        """The log start offset (ListOffsets -2)."""
        start = self.log_start_offset
        return TimestampOffset(NO_TIMESTAMP, start, self.leader_epochs.epoch_for(start))

    def starts_before(self, offset: int, count: int) -> list[int]:
        """Where segments begin below `offset`, at most `count` of them, the latest first.

        The last one is the log start offset, unless there are more.
        """
        end = bisect_left(self._bases, offset)
        bases = reversed(self._bases[max(0, end - count) : end])
        start = self.log_start_offset
        return [*dict.fromkeys(max(base, start) for base in bases if offset > start)]

    def latest_offset(self, upper_offset: int) -> TimestampOffset:
        """`upper_offset` (what the asker may see) with its leader epoch (ListOffsets -1)."""
        return TimestampOffset(
            NO_TIMESTAMP, upper_offset, self.leader_epochs.epoch_for(upper_offset)
        )


class BatchToOpen(NamedTuple):
    """A batch in which a search by timestamp goes on.

    It is sent the answer of `open`, or of the same elsewhere. Without `timestamp` the first record
    with the largest one is looked for.
    """

    header: BatchHeader
    segment: Segment
    piece: FileSlice
    timestamp: int | None
    log_start_offset: int

    def read(self) -> bytes:
        """The batch, its checksum checked. Raises KafkaError."""
        try:
            data = self.piece.read()
            check_batch(data)
        except OSError as error:
            where = f"{self.segment} at {self.piece.position}"
            raise storage_failure(f"can't read {where}", error) from error
        except DecodeError as error:
            raise self.segment.corrupt(self.piece.position, str(error)) from error
        return data

    def open(self, batch: bytes, max_size_bytes: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the record, None if it isn't here. Raises OversizedBatch."""
        try:
            if self.timestamp is None:
                return max_timestamp_of(
                    batch, min_offset=self.log_start_offset, max_size_bytes=max_size_bytes
                )
            return find_timestamp(
                batch,
                0,
                self.timestamp,
                min_offset=self.log_start_offset,
                max_size_bytes=max_size_bytes,
            )
        except OversizedBatch:
            raise
        except DecodeError:
            return self.unopened

    @property
    def unopened(self) -> tuple[int, int]:
        """The answer if the records can't be read: who begins there misses none."""
        return self.header.max_timestamp, max(self.header.base_offset, self.log_start_offset)


def _to_open(
    segment: Segment, position: int, header: BatchHeader, timestamp: int | None, start: int
) -> BatchToOpen:
    """What is read later, though the segment may have left its log then. Raises KafkaError."""
    try:
        piece = FileSlice(segment.file, position, header.size_bytes)
    except OSError as error:
        raise storage_failure(f"can't read {segment} at {position}", error) from error
    return BatchToOpen(header, segment, piece, timestamp, start)


def _search(search: TimestampSearch) -> TimestampOffset | None:
    try:
        wanted = next(search)
        while True:
            found_here = None
            if wanted is not None:
                try:
                    found_here = wanted.open(wanted.read(), DEFAULT_MAX_DECOMPRESSED_SIZE_BYTES)
                except OversizedBatch:
                    found_here = wanted.unopened
            wanted = search.send(found_here)
    except StopIteration as end:
        found: TimestampOffset | None = end.value
        return found
