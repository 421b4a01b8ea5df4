"""What makes a log grow, and reach the disk: appends, segments that follow, flushes.

`AppendableLog` owns whatever an append or an fsync moves: the end, the producers, the latest leader
epoch, the recovery point, and the files that say so.

Everything here runs on one thread (the broker's event loop); only a `FlushJob` runs elsewhere.

Rules that it keeps:

* An append is one write. Offsets, indexes, epochs and producers change after the write succeeded
  and not otherwise; what a failed write left is cut off. If that fails too, the log is offline
  until the next start.
* A follower's batches are kept byte for byte, with the leader's offsets and epochs; what they say
  of producers is taken as it is (docs/rules.md, rules 6, 28). None is taken of an epoch that
  began after the leader's that is followed: it would be of another history.
* The recovery point moves after the fsync of everything below it, and so does its checkpoint.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import ProducerStateManager
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader, sound_batches
from kraftpy.storage import checkpoints
from kraftpy.storage.checkpoints import PartitionMetadata
from kraftpy.storage.epochs import EpochSnapshot, LeaderEpochs
from kraftpy.storage.files import Files, OpenFile, storage_failure
from kraftpy.storage.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kraftpy.storage.producer_snapshots import learn, write_snapshot
from kraftpy.storage.readable_log import REMEMBERED_POSITIONS, ReadableLog
from kraftpy.storage.segment import (
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    NO_TIMESTAMP,
    Batches,
    Segment,
    file_name,
)
from kraftpy.storage.segment_cache import SegmentCache

if TYPE_CHECKING:
    from kraftpy.storage.directory import LogDir

logger = logging.getLogger(__name__)


class FlushJob(NamedTuple):
    """What has to be synced for everything below `offset` to be on disk."""

    log: AppendableLog
    offset: int
    files: tuple[OpenFile, ...]
    generation: int
    sealed_count: int

    def run(self, files: Files) -> None:
        """The fsyncs, on any thread. Doesn't return if one fails."""
        for file in self.files:
            files.sync(file)


class Cleaning(Protocol):
    """A cleaning of this log that is under way in another process."""

    def abort(self) -> None:
        """Ends it at once and removes what it made. Raises OSError."""


class AppendableLog(ReadableLog):
    """What `Log` appends and flushes. Offsets below `recovery_point` are on disk.

    `appended_bytes` counts from when the log was opened, and never back. `stored` says whether it
    has a folder; the first append makes one. The recovery point's file may promise up to
    `checkpointed_recovery_point`, and so may one that is being written. `topic_id` is None if the
    file with it was lost; `topic_id_checked`: it had a checksum. `start_watchers` are called when
    the log start has moved.
    """

    __slots__ = (
        "_clock_ms",
        "_epoch_file_lock",
        "_files",
        "_folder_unsynced",
        "_generation",
        "_gone_bytes",
        "_index_interval_bytes",
        "_latest_epoch",
        "_max_index_entries",
        "_parent_unsynced",
        "_roll_ms",
        "_sealed_unflushed",
        "_segment_bytes",
        "appended_bytes",
        "cache",
        "checkpointed_recovery_point",
        "clean_offset",
        "cleaning",
        "config",
        "directory",
        "folder",
        "key",
        "partition",
        "producers",
        "recovery_point",
        "start_watchers",
        "stored",
        "topic",
        "topic_id",
        "topic_id_checked",
        "unflushed_since_ms",
        "uptime_ms",
    )

    def __init__(
        self,
        folder: Path,
        topic: str,
        partition: int,
        identity: PartitionMetadata,
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
        stored: bool,
        has_aborted: bool = False,
    ) -> None:
        super().__init__(
            f"{topic}-{partition}",
            segments,
            log_start_offset,
            log_end_offset,
            leader_epochs,
            has_aborted=has_aborted,
        )
        self.folder = folder
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.topic_id, self.topic_id_checked = identity
        self.directory = directory
        self.cache: SegmentCache = directory.cache
        self._files = directory.files
        self._clock_ms: Callable[[], int] = directory.clock_ms
        self.uptime_ms: Callable[[], int] = directory.uptime_ms
        self.recovery_point = recovery_point
        self.checkpointed_recovery_point = recovery_point
        # Records below were compacted; the cleaning that is under way, if any.
        self.clean_offset = 0
        self.cleaning: Cleaning | None = None
        self.producers = producers
        self.appended_bytes = 0
        self._segments_changed()
        self.unflushed_since_ms = 0
        self._latest_epoch = leader_epochs.latest
        self._epoch_file_lock = threading.Lock()
        self._sealed_unflushed = unflushed
        self.start_watchers: dict[Callable[[], None], None] = {}
        self.stored = stored
        self._folder_unsynced = self._parent_unsynced = False
        self._generation = 0
        self.update_config(config)

    def update_config(self, config: TopicConfig) -> None:
        """Takes a new configuration; it counts from the next append, read or tick on."""
        self.config = config
        self.directory.note_config(config)
        self._segment_bytes = config.roll_size_bytes
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
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        jitter = min(config.segment_jitter_ms, segment_ms - 1)
        # Spreads the rolls of many partitions; nothing secret about it.
        self._roll_ms = segment_ms - (random.randint(0, jitter) if jitter > 0 else 0)  # noqa: S311

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return self.appended_bytes - self._gone_bytes

    def _segments_changed(self) -> None:
        """Other than by an append."""
        self._gone_bytes = self.appended_bytes - sum(segment.size for segment in self._segments)

    @property
    def unflushed_messages(self) -> int:
        """Offsets that a crash of the machine may take: Kafka's measure for flush.messages."""
        return self.log_end_offset - self.recovery_point

    # -- appending

    def append(self, data: bytes | bytearray | memoryview, batches: Batches) -> None:
        """Appends `data`, whose `batches` (position, header) are checked and stamped; one write.

        For a leader; followers come in by `append_as_follower`. Offsets may leave gaps (a
        follower's, of a compacted log) but never go back. Rolls first when the segment can't hold
        the offsets, or has records and is full or old. Raises KafkaError KAFKA_STORAGE_ERROR, after
        which the log is as it was before.
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
        position = segment.size
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET or (
            position
            and (
                position + size > self._segment_bytes
                or (
                    last.max_timestamp - segment.first_timestamp > self._roll_ms
                    and segment.first_timestamp > NO_TIMESTAMP
                )
                or segment.index_entries >= self._max_index_entries
            )
        ):
            segment = self._roll_for_append(base_offset, last_offset)
            position = segment.size
        try:
            segment.append(data, batches, self._index_interval_bytes)
        except OSError as error:
            raise self._append_failed(segment, error) from error
        except KafkaError:
            self.directory.failed_logs.add(self)
            raise
        self.appended_bytes += size
        self.log_end_offset = last_offset + 1
        starts = self._append_starts
        starts[base_offset] = (segment, position)
        if len(starts) > REMEMBERED_POSITIONS:
            del starts[next(iter(starts))]
        for at, header in batches:
            if header.producer_id >= 0:
                self._learn(header, data, at, segment)
            if header.partition_leader_epoch != self._latest_epoch:
                self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
                self._latest_epoch = self.leader_epochs.latest

    def append_as_follower(self, records: bytes | bytearray | memoryview, leader_epoch: int) -> int:
        """Appends the batches that a fetch from the leader in `leader_epoch` brought, as they are.

        Returns how many bytes were: batches of a later epoch than `leader_epoch` and what follows
        them are left for a fetch that knows of it. So is what isn't sound, for a fetch that begins
        with it: another leader may have it whole, and be damaged elsewhere. Mostly one write; one
        for each segment where the batches don't fit into one. Raises DecodeError if the first batch
        isn't sound, and KafkaError: CORRUPT_MESSAGE for batches that don't continue this log (it is
        unchanged then), KAFKA_STORAGE_ERROR.
        """
        batches, size = sound_batches(records)
        offset = self.log_end_offset
        epoch = self.leader_epochs.epoch_for(offset - 1)
        for number, (position, header) in enumerate(batches):
            if header.base_offset < offset or header.partition_leader_epoch < epoch:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"the leader of {self} sent a batch with offset {header.base_offset} and epoch "
                    f"{header.partition_leader_epoch} behind offset {offset - 1} and epoch {epoch}",
                )
            offset, epoch = header.last_offset + 1, header.partition_leader_epoch
            if epoch > leader_epoch:
                del batches[number:]
                size = position
                break
        if not batches:
            return 0
        view = memoryview(records)[:size]
        if (
            size <= self._segment_bytes
            and offset - batches[0][1].base_offset <= MAX_RELATIVE_OFFSET
        ):
            self.append(view, batches)
            return size
        for start, end, part in self._parts(batches):
            self.append(view[start:end], part)
        return size

    def _parts(self, batches: Batches) -> Iterator[tuple[int, int, Batches]]:
        """(start, end, batches with positions from start on) that each fit into a segment."""
        part: list[tuple[int, BatchHeader]] = []
        start = end = 0
        for position, header in batches:
            if part and (
                position + header.size_bytes - start > self._segment_bytes
                or header.last_offset - part[0][1].base_offset > MAX_RELATIVE_OFFSET
            ):
                yield start, end, part
                part, start = [], position
            part.append((position - start, header))
            end = position + header.size_bytes
        yield start, end, part

    def _learn(
        self,
        header: BatchHeader,
        data: bytes | bytearray | memoryview,
        at: int,
        segment: Segment,
    ) -> None:
        ended = learn(self.producers, header, data, at, self.uptime_ms())
        if ended is not None and not ended.committed:
            segment.add_aborted(ended)
            self.has_aborted = True

    def _open_active(self) -> None:
        """Segments are opened for appends when the first one comes: most partitions are idle."""
        self._check_online()
        try:
            if not self.stored:
                self.store()
            self._active.unseal()
            self.directory.note_written(self)
        except (OSError, KafkaError) as error:
            self.directory.failed_logs.add(self)
            raise storage_failure(f"can't open {self._active}", str(error)) from error

    def _append_failed(self, segment: Segment, error: OSError) -> KafkaError:
        logger.error("can't append to %s: %s", segment, error)
        self.directory.failed_logs.add(self)
        try:
            segment.restore_size()
        except OSError as second:
            self._go_offline(f"can't cut off what a failed write left in {segment}: {second}")
        return storage_failure(f"can't append to {segment}", error)

    def _go_offline(self, why: str) -> None:
        self._offline = why
        self.directory.failed_logs.add(self)
        emit(
            logger,
            logging.CRITICAL,
            "log-offline",
            log=str(self),
            reason=why,
            advice="mend the disk and restart the broker; the log is recovered then",
        )

    def assign_leader_epoch(self, epoch: int) -> None:
        """This replica leads from now on with `epoch`, which starts at the log's end.

        Comes before the epoch's first append (docs/rules.md, rule 5).
        """
        self.leader_epochs.assign(epoch, self.log_end_offset)
        self._latest_epoch = self.leader_epochs.latest

    def store(self) -> None:
        """Makes the folder of a log that has none yet. Raises OSError."""
        self._files.make_folder(self.folder)
        if self.topic_id is not None:
            self.set_topic_id(self.topic_id)
        self.stored = True
        self.sync_folders_later()

    def sync_folders_later(self) -> None:
        """Has the next flush sync the folder and its name as well."""
        self._folder_unsynced = self._parent_unsynced = True

    def set_topic_id(self, topic_id: bytes) -> None:
        """Notes whose partition this is, when a crash lost that. Raises OSError."""
        path = self.folder / checkpoints.PARTITION_METADATA_FILE
        checkpoints.write_partition_metadata(self._files, path, topic_id)
        self._folder_unsynced = True
        self.topic_id, self.topic_id_checked = topic_id, True

    def write_leader_epochs(self, snapshot: EpochSnapshot, *, durable: bool = True) -> None:
        """Has `leader-epoch-checkpoint` say what `snapshot` says, or something newer.

        On any thread; raises OSError.
        """
        path = self.folder / checkpoints.LEADER_EPOCH_FILE
        with self._epoch_file_lock:
            # A deleted log's folder may have another log in it by now.
            if self.stored and snapshot.version > self.leader_epochs.saved_version:
                checkpoints.write_epochs(self._files, path, snapshot.entries, durable=durable)
                self.leader_epochs.saved_version = snapshot.version

    def _remove_leader_epochs(self) -> None:
        """Removes `leader-epoch-checkpoint`; no round that is under way brings it back. OSError."""
        with self._epoch_file_lock:
            self._files.unlink(self.folder / checkpoints.LEADER_EPOCH_FILE)
            self.leader_epochs.note_file_removed()

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
        fresh: Segment | None = None
        try:
            fresh = self._create_segment(base_offset)
            snapshot = write_snapshot(self._files, self.folder, base_offset, self.producers)
            unflushed = active.seal()
        except (OSError, KafkaError) as error:
            self._give_up_segment(fresh, base_offset)
            self.directory.failed_logs.add(self)
            raise storage_failure(f"can't begin a new segment of {self}", str(error)) from error
        self._sealed_unflushed += [*unflushed, snapshot]
        self._take_active(fresh)

    def _give_up_segment(self, fresh: Segment | None, base_offset: int) -> None:
        """The log goes on in its last segment: a file of a next one would be damage to a start."""
        if fresh is not None:
            fresh.forget()
        path = self.folder / file_name(base_offset, LOG_SUFFIX)
        try:
            if path.exists():
                self._files.unlink(path)
        except OSError as error:
            self._go_offline(f"can't begin or give up {path}: {error}")

    def _create_segment(self, base_offset: int) -> Segment:
        return Segment.create(
            self.folder, base_offset, now_ms=self._clock_ms(), files=self._files, cache=self.cache
        )

    def _take_active(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        self._folder_unsynced = True
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
        """What to sync so that everything appended by now is on disk.

        None when it is already, or the log was deleted. Raises OSError or KafkaError when a file
        that has to be synced can't be opened.
        """
        if not self.stored or (
            self.log_end_offset <= self.recovery_point
            and not (self._sealed_unflushed or self._folder_unsynced)
        ):
            return None
        files = [self._files.open(path) for path in self._sealed_unflushed if path.exists()]
        if not self._active.sealed:
            files.append(self._active.file)
        if self._folder_unsynced:
            metadata = self.folder / checkpoints.PARTITION_METADATA_FILE
            if metadata.exists():
                files.append(self._files.open(metadata))
            files.append(self._files.open_folder(self.folder))
            if self._parent_unsynced:
                files.append(self._files.open_folder(self.folder.parent))
            self._folder_unsynced = self._parent_unsynced = False
        return FlushJob(
            self,
            self.log_end_offset,
            tuple(files),
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
