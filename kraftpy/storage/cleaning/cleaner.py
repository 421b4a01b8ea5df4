"""One cleaning of one partition: reads its segments, writes compacted ones beside them.

It runs in a process of its own (architecture.md, decision 4) and touches no file that a reader has.

Rules that it keeps:

* Offsets never change. What stays of a batch keeps the batch's offsets, sequences, epoch and codec;
  a batch of which everything stays is copied byte for byte.
* The last batch of every new segment is that of its sources, empty if need be: so where the segment
  ends says which files it replaces (see `swap`).
* A new segment takes the name `.swap` when all of them are complete and on disk, the oldest first.
* Memory is bounded by the map of keys. When that is full the cleaning ends there; the next goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kraftpy.core.compaction import LastBatches, Transactions
from kraftpy.core.producers import ProducerStateManager
from kraftpy.protocol.errors import DecodeError, KafkaError
from kraftpy.protocol.record_filter import (
    RawRecord,
    empty_batch,
    filtered_batch,
    raw_records,
    records_data,
)
from kraftpy.protocol.records import BatchHeader, read_batch_header, read_end_txn_marker
from kraftpy.storage.batches import DamageError, checked_batches
from kraftpy.storage.cleaning.job import (
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    CleaningJob,
    CleaningResult,
)
from kraftpy.storage.cleaning.offset_map import OffsetMap, slots_for
from kraftpy.storage.files import Files
from kraftpy.storage.producer_snapshots import SNAPSHOT_SUFFIX, snapshot_offsets
from kraftpy.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    FileSlice,
    Segment,
    SegmentCache,
    file_name,
)

_WRITE_BYTES: Final = 1 << 20
_INDEX_ENTRY_BYTES: Final = 8


class Uncleanable(Exception):
    """The log can't be compacted as it is; the text says where and why."""


class Throttle:
    """Holds reading and writing to a rate; `sleep` may be a test's."""

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._bytes = 0

    def spend(self, size: int) -> None:
        self._bytes += size
        ahead_s = self._bytes / self._rate - (self._clock() - self._started)
        if ahead_s > 0:
            self._sleep(ahead_s)


class CleanedSegment(Segment):
    """A segment under names that end in `.cleaned`."""

    __slots__ = ()

    def path(self, suffix: str) -> Path:
        path = super().path(suffix)
        return path.with_name(path.name + CLEANED_SUFFIX)


class _Group(NamedTuple):
    """Neighbours that become one segment; `last_offset` is that of their last batch, or -1."""

    sources: list[Segment]
    last_offset: int


class Cleaner:
    """Does one job."""

    def __init__(self, job: CleaningJob, files: Files, throttle: Throttle | None = None) -> None:
        self._job = job
        self._files = files
        self._folder = Path(job.folder)
        self._throttle = throttle or Throttle(job.max_bytes_per_second)
        self._cache = SegmentCache(max_written=4, max_sealed=4)
        self._transactions = Transactions()
        self._last_batches = LastBatches()
        self._last_offsets: dict[Segment, int] = {}
        self._map = OffsetMap(2)
        self._clean_offset = job.dirty_offset

    def run(self) -> CleaningResult:
        """Afterwards the new segments lie beside the old ones, on disk and called `.swap`.

        Raises Uncleanable, OSError.
        """
        started = time.monotonic()
        segments = self._segments()
        sources = [s for s in segments if s.base_offset < self._job.end_base]
        self._survey(sources, segments[len(sources) :])
        self._clean_offset = self._fill_map(sources)
        rewritten = [s for s in sources if s.base_offset < self._clean_offset]
        made = [self._rewrite(group) for group in self._groups(rewritten)]
        self._publish(made)
        following = sources[len(rewritten) : len(rewritten) + 1]
        return CleaningResult(
            clean_offset=self._clean_offset,
            end_base=following[0].base_offset if following else self._job.end_base,
            bytes_before=sum(segment.size for segment in rewritten),
            bytes_after=sum(segment.size for segment in made),
            seconds=time.monotonic() - started,
        )

    # -- what is there

    def _segments(self) -> list[Segment]:
        segments = [
            Segment(
                self._folder,
                int(path.stem),
                size=path.stat().st_size,
                created_ms=0,
                files=self._files,
                cache=self._cache,
            )
            for path in self._folder.glob("*" + LOG_SUFFIX)
            if path.stem.isdigit()
        ]
        return sorted(segments, key=lambda segment: segment.base_offset)

    def _survey(self, sources: Sequence[Segment], later: Sequence[Segment]) -> None:
        """Learns from the headers of producers and transactions."""
        try:
            for segment in sources:
                self._last_offsets[segment] = -1
                for position, header in segment.batches(0):
                    self._last_offsets[segment] = header.last_offset
                    if header.producer_id >= 0:
                        self._last_batches.learn(header)
                    if header.is_transactional:
                        self._learn(segment, position, header)
            for segment in later:
                if not self._transactions.undecided:
                    break
                # What lies behind the high watermark may still be written.
                for position, header in segment.batches(0):
                    if header.base_offset >= self._job.high_watermark:
                        break
                    if header.is_transactional:
                        self._learn(segment, position, header)
        except (DecodeError, KafkaError) as error:
            raise Uncleanable(str(error)) from error
        self._forget_producers()

    def _learn(self, segment: Segment, position: int, header: BatchHeader) -> None:
        committed = None
        if header.is_control:
            data = FileSlice(segment.file, position, header.size_bytes).read()
            marker = read_end_txn_marker(data)
            committed = None if marker is None else marker.committed
        self._transactions.learn(header, committed)

    def _forget_producers(self) -> None:
        """A snapshot from behind what is cleaned tells which producers are still known."""
        offsets = [o for o in snapshot_offsets(self._folder) if o >= self._job.end_base]
        if not offsets:
            return
        producers = ProducerStateManager()
        try:
            path = self._folder / file_name(offsets[-1], SNAPSHOT_SUFFIX)
            producers.load(path.read_bytes(), offsets[-1], self._job.now_ms)
        except (DecodeError, FileNotFoundError):
            return  # then every producer's last batch is kept
        self._last_batches.keep_only(producers)

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        try:
            for _, header, batch in checked_batches(segment.file, segment.size):
                self._throttle.spend(len(batch))
                yield header, batch
        except DamageError as damage:
            raise Uncleanable(
                f"{segment} is damaged at position {damage.position}: {damage.reason}"
            ) from damage
        except DecodeError as error:
            raise Uncleanable(f"{segment}: {error}") from error

    # -- the newest offset of each key

    def _fill_map(self, sources: Sequence[Segment]) -> int:
        """Returns up to where the dirty part is in the map: all of it, or as much as fits."""
        job = self._job
        keys = max(1, job.end_base - job.dirty_offset)
        self._map = OffsetMap(slots_for(keys, job.map_bytes))
        put = self._map.put
        for segment in sources:
            if self._last_offsets[segment] < job.dirty_offset:
                continue
            for header, batch in self._batches(segment):
                base_offset = header.base_offset
                if (
                    header.last_offset < job.dirty_offset
                    or header.is_control
                    or (header.is_transactional and self._transactions.is_aborted(header))
                ):
                    continue
                for record in raw_records(header, records_data(header, batch)):
                    offset = base_offset + record.offset_delta
                    if offset < job.dirty_offset or record.key is None:
                        continue
                    if not put(record.key, offset):
                        return offset
        return job.end_base

    # -- writing

    def _groups(self, sources: Sequence[Segment]) -> list[_Group]:
        """As many neighbours together as one segment may hold."""
        groups: list[_Group] = []
        size = entries = 0
        for segment in sources:
            more = self._index_entries(segment)
            last_offset = self._last_offsets[segment]
            if (
                groups
                and size + segment.size <= self._job.segment_bytes
                and entries + more <= self._job.max_index_entries
                and last_offset - groups[-1].sources[0].base_offset <= MAX_RELATIVE_OFFSET
            ):
                before = groups.pop()
                groups.append(
                    _Group([*before.sources, segment], max(before.last_offset, last_offset))
                )
            else:
                size = entries = 0
                groups.append(_Group([segment], last_offset))
            size += segment.size
            entries += more
        return groups

    @staticmethod
    def _index_entries(segment: Segment) -> int:
        path = segment.path(INDEX_SUFFIX)
        return path.stat().st_size // _INDEX_ENTRY_BYTES if path.exists() else 0

    def _rewrite(self, group: _Group) -> CleanedSegment:
        """The new segment, on disk. Raises Uncleanable, OSError."""
        base_offset = group.sources[0].base_offset
        made = CleanedSegment(
            self._folder,
            base_offset,
            size=0,
            created_ms=0,
            files=self._files,
            cache=self._cache,
        )
        self._files.unlink(made.path(LOG_SUFFIX))
        made.unseal()
        made.reset_indexes()  # index files are written even if nothing stays
        pending = bytearray()
        batches: list[tuple[int, BatchHeader]] = []
        for source in group.sources:
            for header, batch in self._batches(source):
                kept = self._filter(header, batch, last=header.last_offset == group.last_offset)
                if kept is None:
                    continue
                batches.append((len(pending), read_batch_header(kept)))
                pending += kept
                if len(pending) >= _WRITE_BYTES:
                    self._append(made, pending, batches)
        if pending:
            self._append(made, pending, batches)
        for path in made.seal():
            self._files.sync(self._files.open(path))
        return made

    def _append(
        self, made: CleanedSegment, pending: bytearray, batches: list[tuple[int, BatchHeader]]
    ) -> None:
        if made.size + len(pending) > MAX_RELATIVE_OFFSET:
            raise Uncleanable(f"{made} would grow past 2 GiB; lower segment.bytes of the topic")
        made.append(pending, batches, self._job.index_interval_bytes)
        self._throttle.spend(len(pending))
        pending.clear()
        batches.clear()

    def _filter(
        self, header: BatchHeader, batch: memoryview, *, last: bool
    ) -> bytes | memoryview | None:
        """What stays of a batch; None for nothing. `last`: something has to."""
        if header.base_offset >= self._clean_offset:
            return batch
        if header.is_control:
            kept = self._filter_marker(header, batch)
        else:
            kept = self._filter_records(header, batch)
        if kept is None and (
            last or (header.producer_id >= 0 and self._last_batches.is_last(header))
        ):
            return empty_batch(header) if header.records_count else batch
        return kept

    def _filter_marker(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        if not header.records_count:
            return None
        is_spent = self._transactions.meet_marker(header)
        if not is_spent or header.last_offset >= self._clean_offset:
            return batch
        if header.has_delete_horizon:
            return None if self._job.now_ms >= header.base_timestamp else batch
        data = records_data(header, batch)
        return filtered_batch(header, data, list(raw_records(header, data)), self._horizon)

    @property
    def _horizon(self) -> int:
        return self._job.now_ms + self._job.delete_retention_ms

    def _filter_records(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        if header.is_transactional:
            self._transactions.meet_records(header)
            if self._transactions.is_aborted(header):
                return None
        if not header.records_count:
            return None
        data = records_data(header, batch)
        kept, tombstones = self._kept_records(header, data)
        if not kept:
            return None
        horizon = None
        if tombstones and not header.has_delete_horizon and header.last_offset < self._clean_offset:
            horizon = self._horizon
        if len(kept) == header.records_count and horizon is None:
            return batch
        return filtered_batch(header, data, kept, horizon)

    def _kept_records(self, header: BatchHeader, data: bytes) -> tuple[list[RawRecord], bool]:
        """The records that stay, and whether delete markers are among them."""
        base_offset, clean_offset = header.base_offset, self._clean_offset
        expired = header.has_delete_horizon and self._job.now_ms >= header.base_timestamp
        newest = self._map.get
        kept = []
        tombstones = False
        for record in raw_records(header, data):
            offset = base_offset + record.offset_delta
            if offset < clean_offset:
                key = record.key
                if key is None or (expired and record.is_tombstone) or newest(key) > offset:
                    continue
            kept.append(record)
            tombstones = tombstones or record.is_tombstone
        return kept, tombstones

    def _publish(self, made: Sequence[CleanedSegment]) -> None:
        """From here on a restart puts the new segments into the log. Raises OSError."""
        for segment in made:
            path = segment.path(LOG_SUFFIX)
            self._files.rename(path, path.with_suffix(SWAP_SUFFIX))
        self._files.sync_folder(self._folder)
