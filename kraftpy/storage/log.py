"""One partition's log: a row of segments, its producers and leader epochs.

Everything here runs on one thread (the broker's event loop); only a `FlushJob` runs elsewhere.

Rules that it keeps:

* An append is one write. Offsets, indexes, epochs and producers change after the write succeeded
  and not otherwise; what a failed write left is cut off. If that fails too, the log is offline
  until the next start.
* The recovery point moves after the fsync of everything below it, and so does its checkpoint.
  Whoever cuts the log below the checkpointed recovery point writes a lower one first.
* A read hands out whole batches, never past the offset that the caller may see (consistency.md §3.5
  rules 10, 25), and never wrong bytes: a header that doesn't fit raises.
* Segments leave by a rename; readers of them keep their file.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import ProducerStateManager
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader
from kraftpy.storage import checkpoints
from kraftpy.storage.epochs import LeaderEpochs
from kraftpy.storage.files import Files, OpenFile, storage_failure
from kraftpy.storage.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kraftpy.storage.producer_snapshots import (
    learn,
    remove_snapshots,
    restore,
    snapshot_offsets,
    write_snapshot,
)
from kraftpy.storage.readable_log import REMEMBERED_POSITIONS, ReadableLog
from kraftpy.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    NO_TIMESTAMP,
    TIME_INDEX_SUFFIX,
    Batches,
    Segment,
    SegmentCache,
)

if TYPE_CHECKING:
    from kraftpy.storage.directory import LogDir

logger = logging.getLogger(__name__)


class FlushJob(NamedTuple):
    """What has to be synced for everything below `offset` to be on disk."""

    log: Log
    offset: int
    files: tuple[OpenFile, ...]
    generation: int
    sealed_count: int

    def run(self, files: Files) -> None:
        """The fsyncs, on any thread. Doesn't return if one fails."""
        for file in self.files:
            files.sync(file)


class Log(ReadableLog):
    """The log of one partition; made by `LogDir`. Offsets below `recovery_point` are on disk."""

    __slots__ = (
        "_clock_ms",
        "_files",
        "_generation",
        "_index_interval_bytes",
        "_latest_epoch",
        "_max_index_entries",
        "_roll_ms",
        "_sealed_unflushed",
        "_segment_bytes",
        "_unsynced_folders",
        "cache",
        "checkpointed_recovery_point",
        "config",
        "directory",
        "folder",
        "partition",
        "producers",
        "recovery_point",
        "size_bytes",
        "topic",
        "topic_id",
        "unflushed_since_ms",
    )

    def __init__(
        self,
        folder: Path,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        *,
        config: TopicConfig,
        directory: LogDir,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        leader_epochs: LeaderEpochs,
        producers: ProducerStateManager,
        unflushed: list[Path],
        unsynced_folders: set[Path],
    ) -> None:
        name = f"{topic}-{partition}"
        super().__init__(name, segments, log_start_offset, log_end_offset, leader_epochs)
        self.folder = folder
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self.cache: SegmentCache = directory.cache
        self._files = directory.files
        self._clock_ms: Callable[[], int] = directory.clock_ms
        self.recovery_point = recovery_point
        self.checkpointed_recovery_point = recovery_point
        self.producers = producers
        self.size_bytes = sum(segment.size for segment in segments)
        self.unflushed_since_ms = 0
        self._latest_epoch = leader_epochs.latest
        self._sealed_unflushed = unflushed
        self._unsynced_folders = unsynced_folders
        self._generation = 0
        self.update_config(config)

    def update_config(self, config: TopicConfig) -> None:
        """Takes a new configuration; it counts from the next append, read or tick on."""
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._max_index_entries = max(
            1,
            min(
                config.segment_index_bytes // OFFSET_ENTRY_BYTES,
                config.segment_index_bytes // TIME_ENTRY_BYTES - 1,
            ),
        )
        self._choose_roll_time()

    def _choose_roll_time(self) -> None:
        config = self.config
        jitter = min(config.segment_jitter_ms, config.segment_ms - 1)
        # Spreads the rolls of many partitions; nothing secret about it.
        self._roll_ms = config.segment_ms - (random.randint(0, jitter) if jitter > 0 else 0)  # noqa: S311

    @property
    def unflushed_messages(self) -> int:
        """Offsets that a crash of the machine may take: Kafka's measure for flush.messages."""
        return self.log_end_offset - self.recovery_point

    # -- appending

    def append(self, data: bytes | bytearray | memoryview, batches: Batches) -> None:
        """Appends `data`, whose `batches` (position, header) are checked and stamped; one write.

        Offsets may leave gaps (followers of a compacted log) but never go back. Rolls first when
        the segment is full, old, or can't hold the offsets. Raises KafkaError KAFKA_STORAGE_ERROR,
        after which the log is as it was before.
        """
        first, last = batches[0][1], batches[-1][1]
        base_offset = first.base_offset
        last_offset = last.base_offset + last.last_offset_delta
        if base_offset < self.log_end_offset:
            raise ValueError(f"{self} ends at {self.log_end_offset}; got a batch for {base_offset}")
        segment = self._active
        if segment.sealed:
            self._open_active()
        if self._offline is not None:
            raise storage_failure(f"{self} is offline", self._offline)
        size = len(data)
        if (
            segment.size + size > self._segment_bytes
            or last.max_timestamp - segment.first_timestamp > self._roll_ms
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or segment.index_entries >= self._max_index_entries
        ) and self._must_roll(segment, size, last.max_timestamp, last_offset):
            segment = self._roll_for_append(base_offset, last_offset)
        position = segment.size
        try:
            segment.append(data, batches, self._index_interval_bytes)
        except OSError as error:
            raise self._append_failed(segment, error) from error
        self.size_bytes += size
        self.log_end_offset = last_offset + 1
        starts = self._append_starts
        starts[base_offset] = (segment, position)
        if len(starts) > REMEMBERED_POSITIONS:
            del starts[next(iter(starts))]
        for at, header in batches:
            if header.producer_id >= 0:
                self._learn(header, data, at)
            if header.partition_leader_epoch != self._latest_epoch:
                self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
                self._latest_epoch = self.leader_epochs.latest

    def _must_roll(self, segment: Segment, size: int, max_timestamp: int, last_offset: int) -> bool:
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        return segment.size > 0 and (
            segment.size + size > self._segment_bytes
            or (
                max_timestamp - segment.first_timestamp > self._roll_ms
                and segment.first_timestamp > NO_TIMESTAMP
            )
            or segment.index_entries >= self._max_index_entries
        )

    def _learn(self, header: BatchHeader, data: bytes | bytearray | memoryview, at: int) -> None:
        learn(self.producers, header, data, at, self._clock_ms())

    def _open_active(self) -> None:
        """Segments are opened for appends when the first one comes: most partitions are idle."""
        self._check_online()
        try:
            self._active.unseal()
        except OSError as error:
            raise storage_failure(f"can't open {self._active}", error) from error

    def _append_failed(self, segment: Segment, error: OSError) -> KafkaError:
        logger.error("can't append to %s: %s", segment, error)
        try:
            segment.restore_size()
        except OSError as second:
            self._go_offline(f"can't cut off what a failed write left in {segment}: {second}")
        return storage_failure(f"can't append to {segment}", error)

    def _go_offline(self, why: str) -> None:
        self._offline = why
        logger.critical(
            "%s takes no more requests: %s. Mend the disk and restart the broker; the log is "
            "recovered then.",
            self,
            why,
        )

    def assign_leader_epoch(self, epoch: int) -> None:
        """This replica leads from now on with `epoch`, which starts at the log's end.

        Comes before the epoch's first append (consistency.md §3.5 rule 5).
        """
        self.leader_epochs.assign(epoch, self.log_end_offset)
        self._latest_epoch = self.leader_epochs.latest

    def set_topic_id(self, topic_id: bytes) -> None:
        """Notes whose partition this is, when a crash lost that. Raises OSError."""
        path = self.folder / checkpoints.PARTITION_METADATA_FILE
        checkpoints.write_partition_metadata(self._files, path, topic_id)
        self._unsynced_folders.add(self.folder)
        self.topic_id = topic_id

    def write_leader_epochs(self) -> None:
        """Brings `leader-epoch-checkpoint` up to date, durably. Raises OSError."""
        if self.leader_epochs.changed:
            self._write_leader_epochs(durable=True)

    def _write_leader_epochs(self, *, durable: bool) -> None:
        path = self.folder / checkpoints.LEADER_EPOCH_FILE
        entries = self.leader_epochs.entries()
        checkpoints.write_epochs(self._files, path, entries, durable=durable)
        self.leader_epochs.changed = False

    # -- rolling

    def roll(self) -> None:
        """Begins a new segment at the log's end unless the last is empty. Raises KafkaError."""
        if self._active.size:
            self._roll_to(self.log_end_offset)

    def _roll_for_append(self, base_offset: int, last_offset: int) -> Segment:
        # A follower's gap stays inside a segment unless the offsets wouldn't fit.
        fits = last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET
        self._roll_to(self.log_end_offset if fits else base_offset)
        return self._active

    def _roll_to(self, base_offset: int) -> None:
        self._check_online()
        active = self._active
        if active.sealed:
            self._open_active()
        try:
            fresh = self._create_segment(base_offset)
            try:
                snapshot = write_snapshot(self._files, self.folder, base_offset, self.producers)
                unflushed = active.seal()
            except OSError:
                self._files.unlink(fresh.path(LOG_SUFFIX))
                raise
        except OSError as error:
            if (self.folder / f"{base_offset:020d}{LOG_SUFFIX}").exists():
                self._go_offline(f"can't begin or give up a segment at {base_offset}: {error}")
            raise storage_failure(f"can't begin a new segment of {self}", error) from error
        self._sealed_unflushed += [*unflushed, snapshot]
        self._take_active(fresh)

    def _create_segment(self, base_offset: int) -> Segment:
        return Segment.create(
            self.folder, base_offset, now_ms=self._clock_ms(), files=self._files, cache=self.cache
        )

    def _take_active(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        self._unsynced_folders.add(self.folder)
        self._choose_roll_time()

    def roll_if_old(self, now_ms: int) -> None:
        """segment.ms for a log that gets no appends; those look at the records' timestamps."""
        if self._active.size and now_ms - self._active.created_ms > self._roll_ms:
            self.roll()

    # -- flushing

    @property
    def has_sealed_unflushed(self) -> bool:
        """Whether a completed segment isn't flushed yet; as in Kafka, that is done soon after."""
        return bool(self._sealed_unflushed)

    def begin_flush(self) -> FlushJob | None:
        """What to sync so that everything appended by now is on disk; None when it is already.

        Raises OSError when a file that has to be synced can't be opened.
        """
        if self.log_end_offset <= self.recovery_point and not (
            self._sealed_unflushed or self._unsynced_folders
        ):
            return None
        files = [self._files.open(path) for path in self._sealed_unflushed if path.exists()]
        if not self._active.sealed:
            files.append(self._active.file)
        folders = [self._files.open_folder(path) for path in self._unsynced_folders]
        metadata = self.folder / checkpoints.PARTITION_METADATA_FILE
        if folders and metadata.exists():
            files.append(self._files.open(metadata))
        self._unsynced_folders.clear()
        return FlushJob(
            self,
            self.log_end_offset,
            (*files, *folders),
            self._generation,
            len(self._sealed_unflushed),
        )

    def complete_flush(self, job: FlushJob) -> None:
        """`job` ran without failing: the recovery point moves, unless the log was cut meanwhile."""
        if job.generation != self._generation:
            return
        del self._sealed_unflushed[: job.sealed_count]
        self.recovery_point = max(self.recovery_point, job.offset)
        self.unflushed_since_ms = 0

    def flush(self) -> None:
        """fsync on this thread: for shutdown and tests; requests go through the `Flusher`."""
        job = self.begin_flush()
        if job is not None:
            job.run(self._files)
            self.complete_flush(job)

    # -- cutting off the end

    def truncate_to(self, offset: int) -> bool:
        """Removes every batch with an offset ≥ `offset`; whether there was any.

        The log may then end below `offset`, when that lay inside a batch. Raises KafkaError
        KAFKA_STORAGE_ERROR; a log whose truncation failed half-way is offline.
        """
        if offset >= self.log_end_offset:
            # We may have begun to lead here with an epoch that nobody else heard of.
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            self._latest_epoch = self.leader_epochs.latest
            return False
        number = self._segment_number(offset)
        segment = self._segments[number]
        found = segment.find(offset)
        end_offset = offset if found is None else min(offset, found[1].base_offset)
        if end_offset < self.log_start_offset:
            self.truncate_fully_and_start_at(end_offset)
            return True
        self._begin_cut(end_offset)
        try:
            self._remove_segments(number + 1, len(self._segments))
            self._active = segment
            if segment.sealed:
                segment.unseal()
            if found is not None:
                segment.truncate(found[0])
            self._end_cut(end_offset)
        except (OSError, KafkaError) as error:
            self._go_offline(f"truncating to {end_offset} failed: {error}")
            raise storage_failure(f"can't truncate {self}", str(error)) from error
        logger.info("truncated %s to offset %d", self, end_offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes everything; the log is empty then and starts at `offset`.

        For a follower whose whole log lies outside of the leader's (consistency.md §3.5 rule 26).
        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        self._begin_cut(0)
        try:
            self._remove_segments(0, len(self._segments))
            remove_snapshots(self._files, self.folder, snapshot_offsets(self.folder))
            self._take_active(self._create_segment(offset))
        except OSError as error:
            self._go_offline(f"starting anew at {offset} failed: {error}")
            raise storage_failure(f"can't start {self} at {offset}", error) from error
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.size_bytes = 0
        self.leader_epochs.clear()
        self._latest_epoch = self.leader_epochs.latest
        self.producers.truncate(-1)
        self._checkpoint_log_start()
        logger.info("%s starts anew at offset %d", self, offset)

    def _begin_cut(self, end_offset: int) -> None:
        """No checkpoint may promise what is about to go, and no running flush vouch for it."""
        self._check_online()
        self._generation += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        if self.checkpointed_recovery_point > end_offset:
            try:
                self.directory.write_recovery_points()
            except OSError as error:
                raise storage_failure(f"can't truncate {self}", error) from error
        self._append_starts.clear()
        self._read_ends.clear()

    def _remove_segments(self, first: int, last: int) -> None:
        """Takes segments out of the log, newest first. Raises OSError."""
        removed = self._segments[first:last]
        for segment in reversed(removed):
            self._rename_deleted(segment)
        del self._segments[first:last], self._bases[first:last]
        if removed:
            self._files.sync_folder(self.folder)

    def _rename_deleted(self, segment: Segment) -> None:
        renamed = []
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = segment.path(suffix)
            target = path.with_name(path.name + DELETED_SUFFIX)
            with contextlib.suppress(FileNotFoundError):  # indexes of the last segment aren't there
                self._files.rename(path, target)
                renamed.append(target)
        segment.forget()
        self.directory.remove_later(renamed, self.config.file_delete_delay_ms)

    def _end_cut(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.size_bytes = sum(segment.size for segment in self._segments)
        self.leader_epochs.truncate_from_end(end_offset)
        self._latest_epoch = self.leader_epochs.latest
        stale = [offset for offset in snapshot_offsets(self.folder) if offset > end_offset]
        if stale:
            remove_snapshots(self._files, self.folder, stale)
            self._files.sync_folder(self.folder)
        if not self.producers.truncate(end_offset):
            restore(self.producers, self.folder, self._segments, end_offset, self._clock_ms())

    # -- cutting off the start

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are gone for readers; their segments leave with retention.

        For followers of the leader's log start, so not yet durable. Returns whether it moved.
        """
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.advance_log_start(offset)
        return True

    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: moves the log start to `offset`, durably; returns the log start offset.

        The caller has checked `offset` against the high watermark. Raises KafkaError:
        OFFSET_OUT_OF_RANGE beyond the log's end, KAFKA_STORAGE_ERROR.
        """
        if not 0 <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self} ends at {self.log_end_offset}; can't delete records before {offset}",
            )
        self.advance_log_start(offset)
        self._checkpoint_log_start()
        return self.log_start_offset

    def _checkpoint_log_start(self) -> None:
        try:
            self.directory.write_log_starts()
        except OSError as error:
            raise storage_failure(f"can't note where {self} starts", error) from error

    def delete_old_segments(self, now_ms: int, upper_offset: int) -> int:
        """Applies retention.ms, retention.bytes and the log start; returns how many segments left.

        Only segments that end at or below `upper_offset` (the high watermark) go. Raises
        KafkaError KAFKA_STORAGE_ERROR.
        """
        self._check_online()
        count = self._count_old_segments(now_ms, upper_offset)
        if not count:
            return 0
        if count == len(self._segments):
            self.roll()
        removed = self._segments[:count]
        try:
            for segment in removed:
                self._rename_deleted(segment)
        except OSError as error:
            self._go_offline(f"deleting old segments failed: {error}")
            raise storage_failure(f"can't delete old segments of {self}", error) from error
        del self._segments[:count], self._bases[:count]
        self._append_starts.clear()
        self._read_ends.clear()
        self.size_bytes = sum(segment.size for segment in self._segments)
        self.advance_log_start(self._bases[0])
        self.recovery_point = max(self.recovery_point, self._bases[0])
        stale = [offset for offset in snapshot_offsets(self.folder) if offset < self._bases[0]]
        remove_snapshots(self._files, self.folder, stale)
        logger.info(
            "deleted %d segments of %s; it starts at offset %d", count, self, self.log_start_offset
        )
        return count

    def _count_old_segments(self, now_ms: int, upper_offset: int) -> int:
        config = self.config
        delete = "delete" in config.cleanup_policy
        excess = self.size_bytes - config.retention_bytes
        count = 0
        for number, segment in enumerate(self._segments):
            last = number + 1 == len(self._segments)
            end_offset = self.log_end_offset if last else self._bases[number + 1]
            if end_offset > upper_offset or (last and not segment.size):
                break
            excess -= segment.size
            if not (
                end_offset <= self.log_start_offset
                or (delete and config.retention_bytes >= 0 and excess >= 0)
                or (delete and config.retention_ms >= 0 and self._is_old(segment, now_ms))
            ):
                break
            count += 1
        return count

    def _is_old(self, segment: Segment, now_ms: int) -> bool:
        segment.load_timestamps()
        newest = segment.max_timestamp
        return now_ms - (segment.created_ms if newest < 0 else newest) > self.config.retention_ms

    # -- shutting down

    def forget(self) -> None:
        """The log was deleted: whoever still reads keeps the files, everybody else is refused."""
        self._offline = "it was deleted"
        for segment in self._segments:
            segment.forget()

    def close(self) -> None:
        """Flushes and writes all that the next start needs to skip recovery. Raises OSError."""
        self._check_online()
        self._active.free_reserve()
        self._sealed_unflushed += self._active.write_indexes()
        snapshots = snapshot_offsets(self.folder)
        if (snapshots or len(self.producers)) and self.log_end_offset not in snapshots:
            self._sealed_unflushed.append(
                write_snapshot(self._files, self.folder, self.log_end_offset, self.producers)
            )
        # For thousands of partitions that were never written to it would take long.
        epochs = self.folder / checkpoints.LEADER_EPOCH_FILE
        if self.leader_epochs.changed and (self.size_bytes or epochs.exists()):
            self._write_leader_epochs(durable=False)
            self._sealed_unflushed.append(epochs)
        if self._sealed_unflushed:
            self._unsynced_folders.add(self.folder)
        if self.unflushed_messages or self._sealed_unflushed:
            self.flush()
