"""One cleaning of one partition: reads its segments, writes compacted ones beside them.

It runs in a process of its own (docs/architecture.md, decision 4) and touches no file that a
reader has.

Rules that it keeps:

* Offsets never change. What stays of a batch keeps the batch's offsets, sequences, epoch and codec;
  a batch of which everything stays is copied byte for byte.
* The last batch of every new segment is that of its sources, empty if need be: so where the segment
  ends says which files it replaces (see `swap`).
* A new segment has the aborted transactions whose markers stay, and no others: without its marker
  one would reach to its producer's next.
* A new segment takes the name `.swap` when all of them are complete and on disk, the oldest first.
* Memory is bounded by the map of keys and the bits of their offsets. When one is full the cleaning
  ends there; the next goes on.
* A batch whose records can't be read, or aren't worth it (`record_walk`), is as its producer wrote
  it. It stays as it is, with all its keys, and keeps nothing else from being compacted.
* What the map was made of isn't looked at record by record again: a bit for each offset says what
  stays, so that a batch of which nothing does is passed over.
"""

from __future__ import annotations

import errno
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Final

from kraftpy.core.compaction import LastBatches, Transactions
from kraftpy.core.producers import ProducerStateManager
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_filter import (
    RecordTable,
    empty_batch,
    filtered_batch,
    record_table,
)
from kraftpy.protocol.record_walk import open_batch
from kraftpy.protocol.records import BatchHeader, read_batch_header, read_end_txn_marker
from kraftpy.storage.batches import DamageError, checked_batches
from kraftpy.storage.cleaning.job import (
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    CleaningJob,
    CleaningResult,
)
from kraftpy.storage.cleaning.offset_map import Budget, LiveOffsets, OffsetMap
from kraftpy.storage.files import Files
from kraftpy.storage.producer_snapshots import SNAPSHOT_SUFFIX, snapshot_offsets
from kraftpy.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TRANSACTION_INDEX_SUFFIX,
    FileSlice,
    Segment,
    file_name,
)
from kraftpy.storage.segment_cache import SegmentCache

_WRITE_BYTES: Final = 1 << 20
_THROTTLE_BYTES: Final = 1 << 16
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
        self._live = LiveOffsets(job.dirty_offset, job.dirty_offset, ())
        self._clean_offset = self._dirty_offset = job.dirty_offset
        self._unreadable: dict[int, str] = {}  # base offsets of batches: what is wrong with them
        self._markers: set[int] = set()  # offsets of those that stay, of the segment being made

    def run(self) -> CleaningResult:
        """Afterwards the new segments lie beside the old ones, on disk and called `.swap`.

        Raises Uncleanable, OSError.
        """
        started = time.monotonic()
        segments = self._segments()
        sources = [s for s in segments if s.base_offset < self._job.end_base]
        try:
            self._survey(sources, segments[len(sources) :])
            self._clean_offset = self._fill_map(sources)
            rewritten = [s for s in sources if s.base_offset < self._clean_offset]
            made = [self._rewrite(group) for group in self._groups(rewritten)]
        except DecodeError as error:
            raise Uncleanable(str(error)) from error
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                raise Uncleanable(error.message) from error
            raise OSError(errno.EIO, error.message) from error
        self._publish(made)
        following = sources[len(rewritten) : len(rewritten) + 1]
        return CleaningResult(
            clean_offset=self._clean_offset,
            end_base=following[0].base_offset if following else self._job.end_base,
            bytes_before=sum(segment.size for segment in rewritten),
            bytes_after=sum(segment.size for segment in made),
            seconds=time.monotonic() - started,
            unreadable=len(self._unreadable),
            first_unreadable=next(iter(self._unreadable.items()), None),
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
        """Learns from the headers of producers and transactions, and where there is more to do.

        What compaction took away elsewhere, on the leader for instance, may leave large gaps.
        """
        first_dirty = self._job.end_base
        for segment in sources:
            self._last_offsets[segment] = -1
            for position, header in segment.batches(0):
                self._last_offsets[segment] = header.last_offset
                if header.last_offset >= self._job.dirty_offset:
                    first_dirty = min(first_dirty, header.base_offset)
                if header.producer_id >= 0:
                    self._last_batches.learn(header)
                if header.is_transactional:
                    self._learn(segment, position, header)
        for segment in later:
            if not self._transactions.undecided:
                break
            try:
                for position, header in segment.batches(0):
                    if header.base_offset >= self._job.high_watermark:
                        break
                    if header.is_transactional:
                        self._learn(segment, position, header)
            except KafkaError as error:
                # What lies behind the high watermark may just be written, or never be whole.
                raise OSError(errno.EAGAIN, error.message) from error
        self._dirty_offset = max(first_dirty, self._job.dirty_offset)
        self._forget_producers()

    def _learn(self, segment: Segment, position: int, header: BatchHeader) -> None:
        committed = None
        if header.is_control:
            data = FileSlice(segment.file, position, header.size_bytes).read()
            try:
                marker = read_end_txn_marker(data)
            except DecodeError:
                marker = None  # it ends nothing, as for the partition's producers
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
        read = 0
        try:
            for _, header, batch in checked_batches(segment.file, segment.size):
                read += len(batch)
                if read >= _THROTTLE_BYTES:
                    self._throttle.spend(read)
                    read = 0
                yield header, batch
        except DamageError as damage:
            raise Uncleanable(
                f"{segment} is damaged at position {damage.position}: {damage.reason}"
            ) from damage
        self._throttle.spend(read)

    # -- the newest offset of each key

    def _fill_map(self, sources: Sequence[Segment]) -> int:
        """Returns up to where the dirty part is in the map: all of it, or as much as fits."""
        job = self._job
        budget = Budget(job.map_bytes)
        end = min(job.end_base, self._dirty_offset + budget.offsets)
        self._map = OffsetMap(budget.slots_for(end - self._dirty_offset))
        end = self._fill_map_up_to(end, sources)
        self._live = LiveOffsets(self._dirty_offset, end, self._map.offsets())
        return end

    def _fill_map_up_to(self, end: int, sources: Sequence[Segment]) -> int:
        dirty_offset = self._dirty_offset
        put = self._map.put
        for segment in sources:
            if self._last_offsets[segment] < dirty_offset:
                continue
            if segment.base_offset >= end:
                break
            for header, batch in self._batches(segment):
                base_offset, last_offset = header.base_offset, header.last_offset
                if (
                    last_offset < dirty_offset
                    or header.is_control
                    or (header.is_transactional and self._transactions.is_aborted(header))
                ):
                    continue
                try:
                    table = self._table(header, batch)[1]
                except DecodeError as error:
                    self._note_unreadable(header, error)
                    continue
                keys, deltas = table.keys, table.offset_deltas
                if base_offset < dirty_offset or last_offset >= end:
                    within = slice(
                        bisect_left(deltas, dirty_offset - base_offset),
                        bisect_left(deltas, end - base_offset),
                    )
                    keys, deltas = keys[within], deltas[within]
                refused = put(keys, [base_offset + delta for delta in deltas])
                if refused is not None:
                    return refused
        return end

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
        made.forget_aborted()
        self._markers.clear()
        pending = bytearray()
        batches: list[tuple[int, BatchHeader]] = []
        for source in group.sources:
            for header, batch in self._batches(source):
                kept = self._filter(header, batch, last=header.last_offset == group.last_offset)
                if kept is None:
                    continue
                batches.append((len(pending), header if kept is batch else read_batch_header(kept)))
                pending += kept
                if len(pending) >= _WRITE_BYTES:
                    self._append(made, pending, batches)
        if pending:
            self._append(made, pending, batches)
        aborted = [txn for source in group.sources for txn in source.aborted]
        for transaction in aborted:
            if transaction.last_offset in self._markers:
                made.add_aborted(transaction)
        paths = made.seal()
        if aborted and not made.aborted:  # a source's file must not stay in its place
            paths.append(made.path(TRANSACTION_INDEX_SUFFIX))
            self._files.replace_contents(paths[-1], b"", durable=False)
        for path in paths:
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
        kept: bytes | memoryview | None = batch
        if header.base_offset < self._clean_offset:
            filtered = self._filter_marker if header.is_control else self._filter_records
            kept = filtered(header, batch)
        if kept is None and (
            last or (header.producer_id >= 0 and self._last_batches.is_last(header))
        ):
            return empty_batch(header) if header.records_count else batch
        if kept is not None and header.is_control:
            self._markers.add(header.base_offset)
        return kept

    def _filter_marker(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        if not header.records_count:
            return None
        is_spent = self._transactions.meet_marker(header)
        if (
            not is_spent
            or header.last_offset >= self._clean_offset
            or self._last_batches.is_last(header)
        ):
            return batch
        if header.has_delete_horizon:
            return None if self._job.now_ms >= header.base_timestamp else batch
        try:
            data, table = self._table(header, batch)
            return filtered_batch(header, data, list(table.spans()), self._horizon)
        except DecodeError as error:
            self._note_unreadable(header, error)
            return batch

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
        if header.base_offset in self._unreadable:
            return batch
        decided = (
            header.base_offset >= self._dirty_offset and header.last_offset < self._clean_offset
        )
        if decided and not self._live.any_of(header.base_offset, header.last_offset):
            return None
        try:
            return self._filter_opened(header, batch, decided=decided)
        except DecodeError as error:
            self._note_unreadable(header, error)
            return batch

    def _filter_opened(
        self, header: BatchHeader, batch: memoryview, *, decided: bool
    ) -> bytes | memoryview | None:
        """`decided`: the map knows of all its records. Raises DecodeError."""
        data, table = self._table(header, batch)
        if decided:
            stays = self._live.flags(header.base_offset, table.offset_deltas)
        else:
            stays = self._look_up(header, table)
        if header.has_delete_horizon and self._job.now_ms >= header.base_timestamp:
            for number in table.tombstones:
                if header.base_offset + table.offset_deltas[number] < self._clean_offset:
                    stays[number] = False
        kept = list(compress(table.spans(), stays))
        if not kept:
            return None
        horizon = None
        if (
            not header.has_delete_horizon
            and header.last_offset < self._clean_offset
            and any(stays[number] for number in table.tombstones)
        ):
            horizon = self._horizon
        if len(kept) == header.records_count and horizon is None:
            return batch
        return filtered_batch(header, data, kept, horizon)

    def _table(self, header: BatchHeader, batch: memoryview) -> tuple[bytes, RecordTable]:
        """The records' bytes, and what there is in them. Raises DecodeError."""
        data = open_batch(header, batch, 0, self._job.max_uncompressed_bytes)
        return data, record_table(header, data)

    def _note_unreadable(self, header: BatchHeader, error: DecodeError) -> None:
        """The batch is as its producer wrote it: it stays whole, and the cleaning goes on."""
        if header.base_offset >= self._dirty_offset:  # else this was said before
            self._unreadable[header.base_offset] = str(error)

    def _look_up(self, header: BatchHeader, table: RecordTable) -> list[bool]:
        """Which records stay of a batch that isn't wholly in what the map was made of."""
        base_offset = header.base_offset
        untouched_delta = self._clean_offset - base_offset
        return [
            delta >= untouched_delta or (key is not None and newest <= base_offset + delta)
            for key, delta, newest in zip(
                table.keys, table.offset_deltas, self._map.newest(table.keys), strict=True
            )
        ]

    def _publish(self, made: Sequence[CleanedSegment]) -> None:
        """From here on a restart puts the new segments into the log. Raises OSError."""
        for segment in made:
            path = segment.path(LOG_SUFFIX)
            self._files.rename(path, path.with_suffix(SWAP_SUFFIX))
        self._files.sync_folder(self._folder)
