"""Opening a partition's folder: trust after a clean shutdown, check after any other.

Without the clean-shutdown marker every batch from the segment of the recovery point on is checked
(magic, size, CRC-32C, rising offsets), and indexes, leader epochs and producer state are made anew
(docs/rules.md, rule 23):

* A torn tail, damage with no valid batch after it and above the recovery point, is what an append
  leaves that a crash interrupted: it is cut off, with one line in the log. A tail of zeros is one,
  and so is one whose records hold valid batches.
* Damage before a valid batch, or below the recovery point, is the loss of acknowledged records. It
  is never cut silently: `StorageError` names the place and what can be done.

Segments that aren't checked batch by batch must at least join: each ends where the next one begins
(a compacted log has gaps). After a clean shutdown they are as many and as large as that noted, and
begin where it noted. So a segment that was removed or cut short is found at the start, and not by a
consumer that skips it.

What was noted of leader epochs has to know the first batch and the last one of each segment. If it
doesn't (somebody removed the file, a crash left it empty or brought an older log start back), they
are made anew from the headers of all batches.

Indexes have to reach to the end of their segment, or are made anew. Those of the segment that ends
at the recovery point are not believed at all after a crash: that point may be older than they are.

Which transactions were aborted is read anew, with the producers from their snapshot, for the
segments whose indexes aren't believed, and from the first one whose file of them is damaged.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import ProducerStateManager
from kraftpy.protocol.errors import KafkaError
from kraftpy.storage import checkpoints
from kraftpy.storage.batches import DamageError, checked_batches, find_follower, find_valid_batch
from kraftpy.storage.checkpoints import PartitionMetadata
from kraftpy.storage.clean_shutdown import LogNote, epochs_checksum
from kraftpy.storage.cleaning import swap
from kraftpy.storage.epochs import UNDEFINED_EPOCH, LeaderEpochs
from kraftpy.storage.files import TEMPORARY_SUFFIX, Files, StorageError
from kraftpy.storage.log import Log
from kraftpy.storage.producer_snapshots import SNAPSHOT_SUFFIX, remove_snapshots, restore
from kraftpy.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
)

if TYPE_CHECKING:
    from kraftpy.storage.directory import LogDir

logger = logging.getLogger(__name__)


def open_log(
    directory: LogDir,
    folder: Path,
    topic: str,
    partition: int,
    config: TopicConfig,
    *,
    clean: bool,
    note: LogNote | None,
    recovery_point: int,
    log_start_offset: int,
    high_watermark: int,
    producers: ProducerStateManager,
) -> Log:
    """The log in `folder`, which exists; `producers` is empty. Raises StorageError, OSError.

    `note` is what a clean shutdown noted of it, if it did. Everything below `high_watermark` is
    committed, and maybe more.
    """
    files = directory.files
    unflushed: list[Path] = []
    try:
        swap.complete(files, folder, directory.cache)
        identity = checkpoints.read_partition_metadata(folder / checkpoints.PARTITION_METADATA_FILE)
        segments, snapshots, has_aborted = _find_files(directory, folder)
        epochs = LeaderEpochs(_noted_epochs(folder, note))
        segments_found = bool(segments)
        aborted_from = _first_damaged(segments) if has_aborted else None
        if not segments:
            end_offset = _check_empty(folder, recovery_point, log_start_offset)
        elif clean:
            end_offset = _trust(segments, note, recovery_point, log_start_offset, config)
        else:
            recovery = _Recovery(segments, epochs, files, recovery_point, config)
            recovery.run()
            end_offset, unflushed = recovery.end_offset, recovery.unflushed
            if aborted_from is None or recovery.indexes_from < aborted_from:
                aborted_from = recovery.indexes_from
        if end_offset < log_start_offset or not segments:
            _restart_at(log_start_offset, folder, segments, directory)
            recovery_point = end_offset = log_start_offset
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        _settle_epochs(epochs, folder, segments, log_start_offset, end_offset)
        snapshots = _useful_snapshots(snapshots, files, folder, segments, end_offset)
        producers.advance_high_watermark(min(high_watermark, end_offset))
        producers.advance_log_start(log_start_offset)
        uptime_ms = directory.uptime_ms()
        anew = [s for s in segments if aborted_from is not None and s.base_offset >= aborted_from]
        restore(producers, folder, snapshots, segments, end_offset, uptime_ms, anew)
        has_aborted = has_aborted or any(segment.aborted for segment in anew)
        # Those of the last one stay in memory, with its other indexes.
        unflushed += [path for segment in anew[:-1] for path in segment.write_indexes()]
    except KafkaError as error:
        raise StorageError(f"{error.message}. {choices(folder)}") from error
    log = Log(
        folder,
        topic,
        partition,
        identity,
        config=config,
        directory=directory,
        segments=segments,
        log_start_offset=log_start_offset,
        log_end_offset=end_offset,
        recovery_point=max(min(recovery_point, end_offset), segments[0].base_offset),
        leader_epochs=epochs,
        producers=producers,
        unflushed=unflushed,
        stored=True,
        has_aborted=has_aborted,
    )
    if not (clean and segments_found):
        log.sync_folders_later()
    _see_to_unflushed(log, config)
    return log


def _see_to_unflushed(log: Log, config: TopicConfig) -> None:
    if log.unflushed_messages or log.has_sealed_unflushed:
        log.directory.note_written(log)
    if log.unflushed_messages >= config.flush_messages:
        log.flush()


def new_log(
    directory: LogDir,
    folder: Path,
    topic: str,
    partition: int,
    topic_id: bytes,
    config: TopicConfig,
    *,
    producers: ProducerStateManager,
) -> Log:
    """A log that has nothing on disk until its first append."""
    return Log(
        folder,
        topic,
        partition,
        PartitionMetadata(topic_id, checked=True),
        config=config,
        directory=directory,
        segments=[_empty_segment(0, folder, directory)],
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        leader_epochs=LeaderEpochs(),
        producers=producers,
        unflushed=[],
        stored=False,
    )


def _empty_segment(offset: int, folder: Path, directory: LogDir) -> Segment:
    return Segment(
        folder,
        offset,
        size=0,
        created_ms=directory.clock_ms(),
        files=directory.files,
        cache=directory.cache,
    )


def _first_damaged(segments: Sequence[Segment]) -> int | None:
    """The base offset of the first segment whose aborted transactions can't be read."""
    for segment in segments:
        try:
            _ = segment.aborted
        except KafkaError as error:
            logger.warning("reading the aborted transactions of %s anew: %s", segment, error)
            return segment.base_offset
    return None


def _find_files(directory: LogDir, folder: Path) -> tuple[list[Segment], list[int], bool]:
    """The segments by their file names, and the producer snapshots' offsets; both rising.

    And whether any has a file of aborted transactions. Removes what an earlier life left half-done.
    """
    segments: list[Segment] = []
    snapshots: list[int] = []
    indexes: list[Path] = []
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if path.suffix in (TEMPORARY_SUFFIX, DELETED_SUFFIX):
            directory.files.unlink(path)
        elif path.suffix == LOG_SUFFIX and path.stem.isdigit():
            stat = entry.stat()
            segments.append(
                Segment(
                    folder,
                    int(path.stem),
                    size=stat.st_size,
                    created_ms=int(stat.st_mtime * 1000),
                    files=directory.files,
                    cache=directory.cache,
                )
            )
        elif path.suffix in INDEX_SUFFIXES:
            indexes.append(path)
        elif path.suffix == SNAPSHOT_SUFFIX and path.stem.isdigit():
            snapshots.append(int(path.stem))
    segments.sort(key=lambda segment: segment.base_offset)
    names = {file_name(segment.base_offset, "") for segment in segments}
    for path in indexes:
        if path.stem not in names:
            directory.files.unlink(path)
    has_aborted = any(path.suffix == TRANSACTION_INDEX_SUFFIX for path in indexes)
    return segments, sorted(snapshots), has_aborted


def _trust(
    segments: Sequence[Segment],
    note: LogNote | None,
    recovery_point: int,
    log_start_offset: int,
    config: TopicConfig,
) -> int:
    """The log's end after a clean shutdown. Raises StorageError, KafkaError."""
    _check_first(segments[0], log_start_offset)
    _check_joints(segments, config)
    end_offset = _trusted_end(segments[-1], recovery_point, config)
    _check_noted(segments, note)
    return end_offset


def _check_empty(folder: Path, recovery_point: int, log_start_offset: int) -> int:
    """Where a log without segments ends. Raises StorageError if it had any."""
    if recovery_point > log_start_offset:
        raise StorageError(
            f"{folder} has no segment files, but offsets up to {recovery_point} had been "
            f"flushed to disk: records are missing. {choices(folder)}"
        )
    return log_start_offset


def _check_first(first: Segment, log_start_offset: int) -> None:
    # A start that was noted lies inside the first segment; there is no note of any other (0).
    if first.base_offset > log_start_offset > 0:
        raise StorageError(
            f"the log started at offset {log_start_offset} when the broker was shut down cleanly, "
            f"but its first segment is {first}: records are missing. "
            + choices(first.path(LOG_SUFFIX).parent)
        )


def _check_joints(segments: Sequence[Segment], config: TopicConfig) -> None:
    """Reads only headers behind each segment's last index entry. Raises StorageError, KafkaError.

    As in `_Recovery`, only a compacted topic may skip offsets.
    """
    may_skip_offsets = "compact" in config.cleanup_policy
    for segment, following in pairwise(segments):
        end_offset = segment.checked_end(config.index_interval_bytes)
        next_offset = following.base_offset
        if end_offset != next_offset and not (may_skip_offsets and end_offset < next_offset):
            raise StorageError(
                f"{segment} ends at offset {end_offset}, but the next segment, {following}, begins "
                f"at {next_offset}: one of them is damaged, or a file between them is missing. "
                + choices(segment.path(LOG_SUFFIX).parent)
            )


def _trusted_end(last: Segment, recovery_point: int, config: TopicConfig) -> int:
    """The log's end after a clean shutdown: only headers behind the last index entry are read."""
    end_offset = last.checked_end(config.index_interval_bytes)
    if end_offset < recovery_point:
        raise StorageError(
            f"{last} ends at offset {end_offset}, but the log ended at {recovery_point} when the "
            "broker was shut down cleanly: records are missing. "
            + choices(last.path(LOG_SUFFIX).parent)
        )
    return end_offset


def _check_noted(segments: Sequence[Segment], note: LogNote | None) -> None:
    """Compares the files with what the clean shutdown noted. Raises StorageError.

    Nothing else tells that the first segment is gone, or any of a log that may have gaps.
    """
    filled = [segment for segment in segments if segment.size]
    if note is None or (not filled and not note.segments):
        return
    found = len(filled), sum(segment.size for segment in filled), filled[:1]
    if (note.segments, note.size_bytes) == found[:2] and filled[0].base_offset == note.first_offset:
        return
    folder = segments[0].path(LOG_SUFFIX).parent
    raise StorageError(
        f"{folder} had {note.segments} segments with records, {note.size_bytes} bytes from offset "
        f"{note.first_offset} on, when the broker was shut down cleanly. Now it has {found[0]}, "
        f"{found[1]} bytes from {filled[0].base_offset if filled else 'nowhere'} on: files are "
        f"missing, or not from this log. {choices(folder)}"
    )


def _noted_epochs(folder: Path, note: LogNote | None) -> list[tuple[int, int]]:
    """What `leader-epoch-checkpoint` says, nothing if that can't be true. Raises StorageError."""
    path = folder / checkpoints.LEADER_EPOCH_FILE
    try:
        entries = checkpoints.read_epochs(path)
    except checkpoints.MalformedError as error:
        logger.warning("passing over what was noted of leader epochs: %s", error)
        return []
    if note is not None and epochs_checksum(entries) != note.epochs:
        logger.warning("passing over %s: it isn't what the last shutdown left", path)
        return []
    return entries


def _settle_epochs(
    epochs: LeaderEpochs,
    folder: Path,
    segments: Sequence[Segment],
    log_start_offset: int,
    end_offset: int,
) -> None:
    """Cuts `epochs` to the log, and makes them anew if they don't know its batches. KafkaError."""
    # An epoch that starts at the end has no records yet, and stays.
    epochs.truncate_from_end(end_offset + 1)
    epochs.truncate_from_start(log_start_offset)
    if not _knows_batches(epochs, segments, log_start_offset):
        logger.warning("reading the leader epochs of %s from its batches", folder)
        _read_epochs(epochs, segments)
        epochs.truncate_from_start(log_start_offset)


def _knows_batches(
    epochs: LeaderEpochs, segments: Sequence[Segment], log_start_offset: int
) -> bool:
    """Whether the first batch and each segment's last are of the epochs that `epochs` says."""
    filled = [segment for segment in segments if segment.size]
    first = filled[0].find(log_start_offset) if filled else None
    headers = [first[1] if first else None, *(segment.last_header() for segment in filled)]
    return all(
        epochs.epoch_for(max(header.base_offset, log_start_offset)) == header.partition_leader_epoch
        for header in headers
        if header is not None and header.last_offset >= log_start_offset
    )


def _read_epochs(epochs: LeaderEpochs, segments: Sequence[Segment]) -> None:
    """Has `epochs` say what the batches' headers say, unless that is impossible. KafkaError."""
    found: list[tuple[int, int]] = []
    latest = UNDEFINED_EPOCH
    for segment in segments:
        for position, header in segment.batches(0):
            epoch = header.partition_leader_epoch
            if epoch < latest:
                # The checksum doesn't cover what the leader writes into a batch.
                logger.warning(
                    "%s has a batch of leader epoch %d behind one of %d at position %d: what was "
                    "noted of the epochs stays",
                    segment,
                    epoch,
                    latest,
                    position,
                )
                return
            if epoch > latest:
                found.append((epoch, header.base_offset))
                latest = epoch
    epochs.clear()
    for epoch, start_offset in found:
        epochs.assign(epoch, start_offset)


def _restart_at(offset: int, folder: Path, segments: list[Segment], directory: LogDir) -> None:
    """An empty log at `offset`: a new one, or one whose unflushed end lay below its log start."""
    if segments:
        logger.warning("all records left in %s lie before its start %d", folder, offset)
    for segment in reversed(segments):
        _remove(segment, directory.files)
    segments[:] = [_empty_segment(offset, folder, directory)]


def _remove(segment: Segment, files: Files) -> None:
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        files.unlink(segment.path(suffix))
    segment.forget()


def _useful_snapshots(
    offsets: list[int], files: Files, folder: Path, segments: list[Segment], end_offset: int
) -> list[int]:
    """Removes the producer snapshots that no restart will want; returns the others."""
    newest = max((offset for offset in offsets if offset <= end_offset), default=-1)
    useful = {newest, *(segment.base_offset for segment in segments)}
    stray = [offset for offset in offsets if offset > end_offset or offset not in useful]
    remove_snapshots(files, folder, stray)
    return [offset for offset in offsets if offset not in stray]


# -- recovery


class _Recovery:
    """Checks the segments from the recovery point's on; cuts a torn tail, refuses other damage."""

    def __init__(
        self,
        segments: list[Segment],
        epochs: LeaderEpochs,
        files: Files,
        recovery_point: int,
        config: TopicConfig,
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._files = files
        self._recovery_point = recovery_point
        self._config = config
        self._index_interval_bytes = config.index_interval_bytes
        self._may_skip_offsets = "compact" in config.cleanup_policy
        self.end_offset = 0
        self.indexes_from = 0
        self.unflushed: list[Path] = []

    def run(self) -> None:
        """Afterwards `end_offset` is the log's end. Raises StorageError, KafkaError, OSError.

        From the segment at `indexes_from` on no index is believed.
        """
        segments = self._segments
        bases = [segment.base_offset for segment in segments]
        first = max(bisect_right(bases, self._recovery_point) - 1, 0)
        self.indexes_from = bases[first]
        if first and bases[first] == self._recovery_point:
            # When that point was noted this segment was the last: its indexes were in memory only.
            self.indexes_from = bases[first - 1]
            segments[first - 1].walk_for_indexes(self._index_interval_bytes)
            self.unflushed += segments[first - 1].write_indexes()
        _check_joints(segments[: first + 1], self._config)
        self.end_offset = bases[first]
        self._epochs.truncate_from_end(self.end_offset)
        for number in range(first, len(segments)):
            damage = self._gap_before(number)
            if damage is not None:
                self._cut(number - 1, damage)
                break
            damage = self._check(segments[number])
            if damage is not None:
                self._cut(number, damage)
                break
        if self.end_offset < self._recovery_point:
            raise self._refusal(
                segments[-1],
                DamageError(segments[-1].size, "the file ends there"),
                f"everything before offset {self._recovery_point} had been flushed to disk",
            )
        if self.end_offset > self._recovery_point:
            self.unflushed += [segment.path(LOG_SUFFIX) for segment in segments[first:]]
        for segment in segments[first:-1]:
            self.unflushed += segment.write_indexes()

    def _gap_before(self, number: int) -> DamageError | None:
        """Whether the segment before this one lost its end; compaction leaves gaps as well."""
        segment, previous = self._segments[number], self._segments[number - 1]
        base_offset = segment.base_offset
        if base_offset < self.end_offset:
            raise StorageError(
                f"{segment} begins before {previous} ends, at offset {self.end_offset}: one of "
                "them is not from this log. Restore the folder, or move the wrong file away."
            )
        if base_offset > self.end_offset and not self._may_skip_offsets:
            reason = f"the file ends, and the next one begins at offset {base_offset}"
            return DamageError(previous.size, reason)
        self.end_offset = base_offset
        return None

    def _check(self, segment: Segment) -> DamageError | None:
        """Takes account of the segment's batches up to the first that is damaged."""
        size = segment.size
        segment.reset_indexes()
        try:
            for position, header, _ in checked_batches(segment.file, size):
                last_offset = header.last_offset
                if (
                    header.base_offset < self.end_offset
                    or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                ):
                    # An interrupted write leaves no batch with a good checksum: never a torn tail.
                    raise self._refusal(
                        segment,
                        DamageError(
                            position,
                            f"batch with offsets {header.base_offset} to "
                            f"{last_offset} where {self.end_offset} comes next",
                        ),
                        "the batch's checksum is good",
                    )
                epoch = header.partition_leader_epoch
                if epoch < self._epochs.latest:
                    # The checksum doesn't cover what the leader writes into a batch.
                    raise self._refusal(
                        segment,
                        DamageError(
                            position,
                            f"batch of leader epoch {epoch} behind one of {self._epochs.latest}",
                        ),
                        "epochs never fall in a log",
                    )
                if header.base_offset > self.end_offset and not self._may_skip_offsets:
                    logger.warning(
                        "%s has no offsets %d to %d before position %d, although its topic is not "
                        "compacted",
                        segment,
                        self.end_offset,
                        header.base_offset - 1,
                        position,
                    )
                segment.extend(((position, header),), self._index_interval_bytes)
                if epoch >= 0 and epoch != self._epochs.latest:
                    self._epochs.assign(epoch, header.base_offset)
                self.end_offset = last_offset + 1
        except DamageError as damage:
            return damage
        return None

    def _cut(self, number: int, damage: DamageError) -> None:
        """Cuts the log at the damage if only a torn tail goes. Raises StorageError otherwise."""
        segment, later = self._segments[number], self._segments[number + 1 :]
        size = segment.file.size_bytes()
        for other in (segment, *later):
            if other is segment:
                position = find_follower(other.file, damage.position, size, self.end_offset)
            else:
                position = find_valid_batch(other.file, other.size, self.end_offset)
            if position is not None:
                raise self._refusal(
                    segment, damage, f"a valid batch follows in {other} at position {position}"
                )
        if self.end_offset < self._recovery_point:
            raise self._refusal(
                segment,
                damage,
                f"everything before offset {self._recovery_point} had been flushed to disk",
            )
        for after in reversed(later):
            _remove(after, self._files)
        del self._segments[number + 1 :]
        self._files.truncate(segment.file, damage.position)
        logger.warning(
            "cut a torn tail of %d bytes off %s at position %d (offset %d): %s",
            size - damage.position,
            segment,
            damage.position,
            self.end_offset,
            damage.reason,
        )

    def _refusal(self, segment: Segment, damage: DamageError, why: str) -> StorageError:
        return StorageError(
            f"{segment} is damaged at position {damage.position} (offset {self.end_offset}): "
            f"{damage.reason}. That is no torn end of a write: {why}, so cutting the log here "
            f"would lose acknowledged records. {choices(segment.path(LOG_SUFFIX).parent)}"
        )


def choices(folder: Path) -> str:
    """What somebody can do about a damaged log, for the end of a message."""
    return (
        "Either restore the file from a copy; or, if other brokers have this partition, start them "
        "first, and this one sets its folder aside and fetches it again; or keep only the records "
        f"before the damage: python -m kraftpy.storage.repair {folder}"
    )
