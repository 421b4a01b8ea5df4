"""What takes away or replaces records that a log has: cuts, retention, compaction; and its end.

`Log` owns each way in which a segment leaves; `AppendableLog` and `ReadableLog` say how one is
written and read.

Rules that it keeps:

* Whoever cuts the log below the checkpointed recovery point writes a lower one first: a log that a
  crash finds half cut must not look like one that lost what was on disk.
* A cut takes segments from the newest on, so what a crash leaves of it is a log that ends anywhere
  between the old end and the new one: every such log is one that this replica had before.
* Segments leave by a rename; readers of them keep their file.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage import checkpoints
from kraftpy.storage.appendable_log import AppendableLog, FlushJob
from kraftpy.storage.clean_shutdown import LogNote, epochs_checksum
from kraftpy.storage.cleaning import swap
from kraftpy.storage.cleaning.job import SWAP_SUFFIX
from kraftpy.storage.deleting.policies import ALWAYS, OF_DELETE, LogFacts, deletable
from kraftpy.storage.deleting.process import ReportedSegment
from kraftpy.storage.files import storage_failure
from kraftpy.storage.producer_snapshots import (
    remove_snapshots,
    restore,
    snapshot_offsets,
    write_snapshot,
)
from kraftpy.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    Segment,
    file_name,
)

logger = logging.getLogger(__name__)


class _Deletable:
    """A segment as delete policies see it; its timestamps are read if one asks."""

    __slots__ = ("_segment", "bytes_behind", "end_offset")

    def __init__(self, segment: Segment, end_offset: int, bytes_behind: int) -> None:
        self._segment = segment
        self.end_offset = end_offset
        self.bytes_behind = bytes_behind

    @property
    def base_offset(self) -> int:
        return self._segment.base_offset

    @property
    def bounds(self) -> tuple[int, int]:
        return self._segment.base_offset, self.end_offset

    @property
    def size_bytes(self) -> int:
        return self._segment.size

    @property
    def newest_ms(self) -> int:
        segment = self._segment
        segment.load_timestamps()
        return segment.created_ms if segment.max_timestamp < 0 else segment.max_timestamp


class Log(AppendableLog):
    """The log of one partition; made by `LogDir`."""

    __slots__ = ()

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

        For a follower whose whole log lies outside of the leader's (docs/rules.md, rule 26).
        What says something of the records goes before them if recovery can find it in them (leader
        epochs), else after them. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        self._begin_cut(0)
        try:
            if not self.stored:
                self.store()
            self._remove_leader_epochs()
            self._remove_segments(0, len(self._segments))
            remove_snapshots(self._files, self.folder, snapshot_offsets(self.folder))
            self._take_active(self._create_segment(offset))
        except OSError as error:
            self._go_offline(f"starting anew at {offset} failed: {error}")
            raise storage_failure(f"can't start {self} at {offset}", error) from error
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self._segments_changed()
        self.leader_epochs.clear()
        self._latest_epoch = self.leader_epochs.latest
        self.producers.truncate(-1)
        self.producers.advance_log_start(offset)
        self._checkpoint_log_start()
        logger.info("%s starts anew at offset %d", self, offset)

    def _begin_cut(self, end_offset: int) -> None:
        """No checkpoint may promise what is about to go, and no running flush vouch for it."""
        self._check_online()
        self._generation += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        try:
            self.interrupt_cleaning()
            self.directory.lower_cleaner_offset(self, end_offset)
            if self.checkpointed_recovery_point > end_offset:
                self.directory.lower_recovery_point(self, end_offset)
            self.directory.lower_high_watermark(self, end_offset)
        except OSError as error:
            raise storage_failure(f"can't truncate {self}", error) from error
        self._append_starts.clear()
        self._read_ends.clear()
        self.directory.note_written(self)

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
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            path = segment.path(suffix)
            target = path.with_name(path.name + DELETED_SUFFIX)
            with contextlib.suppress(FileNotFoundError):  # indexes of the last segment aren't there
                self._files.rename(path, target)
                renamed.append(target)
        segment.forget()
        self.directory.remove_later(renamed, self.config.file_delete_delay_ms)

    def _end_cut(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self._segments_changed()
        self.leader_epochs.truncate_from_end(end_offset)
        self._latest_epoch = self.leader_epochs.latest
        snapshots = snapshot_offsets(self.folder)
        stale = [offset for offset in snapshots if offset > end_offset]
        if stale:
            remove_snapshots(self._files, self.folder, stale)
            self._files.sync_folder(self.folder)
        if not self.producers.truncate(end_offset):
            restore(
                self.producers,
                self.folder,
                snapshots[: len(snapshots) - len(stale)],
                self._segments,
                end_offset,
                self.uptime_ms(),
            )

    # -- cutting off the start

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are gone for readers; their segments leave with retention.

        For followers of the leader's log start, so not yet durable; one that is behind it goes to
        its own end, and starts anew when it hears OFFSET_OUT_OF_RANGE. Returns whether it moved.
        """
        offset = min(offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.advance_log_start(offset)
        for moved in list(self.start_watchers):
            moved()
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
        """Deletes what the built-in policies let go; returns how many segments left.

        Only segments that end at or below `upper_offset` (the high watermark) go. Raises
        KafkaError KAFKA_STORAGE_ERROR.
        """
        self._check_online()
        policies = OF_DELETE if "delete" in self.config.cleanup_policy else ALWAYS
        segments = self._below(upper_offset, len(self._segments))
        return self._delete_segments(deletable(policies, self.facts, segments, now_ms))

    def delete_reported(self, segments: Sequence[ReportedSegment], upper_offset: int) -> int:
        """The same of these segments, as far as they are the oldest, and aren't the last one."""
        self._check_online()
        count = 0
        for reported, segment in zip(segments, self._below(upper_offset), strict=False):
            if (reported.base_offset, reported.end_offset) != segment.bounds:
                break
            count += 1
        return self._delete_segments(count)

    @property
    def facts(self) -> LogFacts:
        """What a delete policy is told of it."""
        config = self.config
        return LogFacts(
            self.topic,
            self.partition,
            self.log_start_offset,
            self.size_bytes,
            config.retention_ms,
            config.retention_bytes,
        )

    def report(self, upper_offset: int, most: int) -> list[ReportedSegment]:
        """The oldest segments that end at or below an offset, but for the last one.

        Raises KafkaError.
        """
        found = []
        for each in islice(self._below(upper_offset), most):
            found.append(
                ReportedSegment(*each.bounds, each.size_bytes, each.bytes_behind, each.newest_ms)
            )
        return found

    def _below(self, upper_offset: int, count: int | None = None) -> Iterator[_Deletable]:
        """So many of the oldest segments (all but the last one), those below an offset."""
        behind = self.size_bytes
        for number, segment in enumerate(self._segments[: -1 if count is None else count]):
            last = number + 1 == len(self._segments)
            end_offset = self.log_end_offset if last else self._bases[number + 1]
            if end_offset > upper_offset or (last and not segment.size):
                return
            behind -= segment.size
            yield _Deletable(segment, end_offset, behind)

    def _delete_segments(self, count: int) -> int:
        if not count:
            return 0
        try:
            self.interrupt_cleaning()
        except OSError as error:
            raise storage_failure(f"can't end the compaction of {self}", error) from error
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
        self._segments_changed()
        self.advance_log_start(self._bases[0])
        self.recovery_point = max(self.recovery_point, self._bases[0])
        stale = [offset for offset in snapshot_offsets(self.folder) if offset < self._bases[0]]
        remove_snapshots(self._files, self.folder, stale)
        logger.info(
            "deleted %d segments of %s; it starts at offset %d", count, self, self.log_start_offset
        )
        return count

    # -- compaction

    @property
    def first_dirty_offset(self) -> int:
        """From here on nothing was compacted yet."""
        return max(self.clean_offset, self.log_start_offset)

    def interrupt_cleaning(self) -> None:
        """Whoever cuts or removes the log, or shuts it down, ends its cleaning. Raises OSError."""
        if self.cleaning is not None:
            cleaning, self.cleaning = self.cleaning, None
            cleaning.abort()

    def replace_segments(self, end_base: int, clean_offset: int) -> None:
        """Puts the compacted segments, now `.swap`, into the place of those below `end_base`.

        Whoever reads the old ones keeps their files. Everything below `clean_offset` is clean
        then. Raises KafkaError; a log whose swap failed half-way is offline, and the next start
        completes it.
        """
        self._check_online()
        count = bisect_left(self._bases, end_base)
        old = self._segments[:count]
        try:
            made = [self._compacted(base, end_base) for base in swap.swap_bases(self.folder)]
            for segment in reversed(old):
                self._rename_deleted(segment)
            for segment in made:
                swap.take_place(self._files, self.folder, segment.base_offset)
        except OSError as error:
            self._go_offline(f"putting compacted segments into it failed: {error}")
            raise storage_failure(f"can't swap the segments of {self}", error) from error
        self._segments[:count] = made
        self._bases[:count] = [segment.base_offset for segment in made]
        self._append_starts.clear()
        self._read_ends.clear()
        self._folder_unsynced = True
        self.directory.note_written(self)
        self._segments_changed()
        self.clean_offset = clean_offset
        kept = set(self._bases)
        stale = [segment.base_offset for segment in old if segment.base_offset not in kept]
        remove_snapshots(self._files, self.folder, stale)

    def _compacted(self, base_offset: int, end_base: int) -> Segment:
        """The segment that a `.swap` becomes: as old as the newest of those that it replaces."""
        created_ms = max(s.created_ms for s in self._segments if s.base_offset < end_base)
        path = self.folder / file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)
        return Segment(
            self.folder,
            base_offset,
            size=path.stat().st_size,
            created_ms=created_ms,
            files=self._files,
            cache=self.cache,
        )

    # -- shutting down

    def shutdown_note(self) -> LogNote:
        """What the next start has to find, once all of it is on disk."""
        filled = [segment for segment in self._segments if segment.size]
        return LogNote(
            topic_id="" if self.topic_id is None else checkpoints.uuid_to_text(self.topic_id),
            first_offset=filled[0].base_offset if filled else self.log_start_offset,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            segments=len(filled),
            size_bytes=sum(segment.size for segment in filled),
            epochs=epochs_checksum(self.leader_epochs.entries()),
        )

    def forget(self) -> None:
        """The log was deleted: whoever still reads keeps the files, everybody else is refused."""
        self._offline = "it was deleted"
        self.stored = False
        for segment in self._segments:
            segment.forget()

    def begin_close(self) -> FlushJob | None:
        """Writes all that the next start needs to skip recovery; returns what has to be synced.

        Raises OSError, KafkaError.
        """
        self._check_online()
        if not self.stored:
            return None
        self.interrupt_cleaning()
        if not self._active.sealed:
            self._active.free_reserve()
        self._sealed_unflushed += self._active.write_indexes()
        snapshots = snapshot_offsets(self.folder)
        if (snapshots or len(self.producers)) and self.log_end_offset not in snapshots:
            self._sealed_unflushed.append(
                write_snapshot(self._files, self.folder, self.log_end_offset, self.producers)
            )
        if self.leader_epochs.changed:
            self.write_leader_epochs(self.leader_epochs.snapshot(), durable=False)
            self._sealed_unflushed.append(self.folder / checkpoints.LEADER_EPOCH_FILE)
        if self._sealed_unflushed:
            self._folder_unsynced = True
        return self.begin_flush()
