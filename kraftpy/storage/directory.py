"""One log directory (an entry of `log.dirs`): its lock, whose it is, its checkpoints and its logs.

Rules that it keeps:

* One process at a time: `.lock` is held as long as the directory is open.
* `meta.properties` says whose directory this is; another cluster's or node's is never touched.
* `.kafka_cleanshutdown` stays until this life of the broker may write a record, and is removed,
  durably, before that: a start that is broken off costs nothing. What `load` does to a clean
  directory can be done again; a log that it sets aside is missed by the next start, too.
* What the shutdown noted in it is believed rather than the checkpoints, which have no checksums.
* A checkpointed recovery point never covers what isn't on disk: leader epochs below it are written
  first. Each point is written by the round that saw to its epochs, or stays as it was in the file.
* A damaged log stops the start, unless others are in sync and this replica isn't: it is then kept
  under another name, and fetched again. Nothing damaged is removed, nothing that had records is
  made anew without a word. A folder that is gone is damage; so is a wrong topic id, unless its
  checksum shows that the topic was another one.
* A deleted partition is renamed at once and removed later, on a thread that nothing waits for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import Final

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import ProducerStateManager
from kraftpy.storage import checkpoints, clean_shutdown
from kraftpy.storage.appendable_log import AppendableLog
from kraftpy.storage.checkpointing import Job, OffsetCheckpoint
from kraftpy.storage.checkpoints import MetaProperties, TopicPartition
from kraftpy.storage.clean_shutdown import CleanShutdown, LogNote
from kraftpy.storage.epochs import EpochSnapshot
from kraftpy.storage.files import Files, OpenFile, StorageError
from kraftpy.storage.flusher import run_together
from kraftpy.storage.log import Log
from kraftpy.storage.placement import Placement, check_topic
from kraftpy.storage.recovery import choices, new_log, open_log
from kraftpy.storage.removal import DelayedRemoval
from kraftpy.storage.segment_cache import SegmentCache

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
DAMAGED_SUFFIX: Final = "-damaged"


_LOG_FOLDER: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DELETED_FOLDER: Final = re.compile(r".+\.[0-9a-f]{32}-delete")
_MAX_NAME_BYTES: Final = 255
_TRIAL_FILE: Final = "trial.tmp"
_TRIAL_BYTES: Final = 1 << 16
_OF_THE_PROCESS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# What logs want synced is open at the same time, so they are shut down a few at a time.
_CLOSE_TOGETHER: Final = 64
_MAX_FLUSH_MS: Final = 2**63 - 1
# Kafka's own controller keeps its log beside the partitions.
_NOT_OURS: Final = frozenset({"__cluster_metadata-0"})


def lock_directory(path: Path, files: Files) -> OpenFile:
    """Holds the directory for this process until the result is let go.

    Raises StorageError when another process has it, OSError.
    """
    lock = files.open(path / LOCK_FILE, create=True)
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock.fd, 20, 0).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise StorageError(
            f"the log directory {path} is in use by {who}. Stop that one, or set log.dirs to "
            "another folder."
        ) from None
    files.truncate(lock, 0)
    files.write_all(lock, f"{os.getpid()}\n".encode())
    return lock


def partition_of(folder_name: str) -> TopicPartition | None:
    """(topic, partition) of a folder's name, None if it is no partition's."""
    name = _LOG_FOLDER.fullmatch(folder_name)
    return None if name is None or folder_name in _NOT_OURS else (name[1], int(name[2]))


class LogDir:
    """Opened by `LogManager`. `logs` is keyed by (topic, partition)."""

    def __init__(
        self,
        path: Path,
        *,
        files: Files,
        cache: SegmentCache,
        clock_ms: Callable[[], int],
        uptime_ms: Callable[[], int],
        removal: DelayedRemoval,
        producer_id_expiration_ms: int,
    ) -> None:
        self.path = path
        self.files = files
        self.cache = cache
        self.clock_ms = clock_ms
        self.uptime_ms = uptime_ms
        self.logs: dict[TopicPartition, Log] = {}
        self.directory_id = b""
        self.found: Set[TopicPartition] = frozenset()
        self._notes: dict[TopicPartition, LogNote] = {}
        self.clean_shutdown_epoch: int | None = None
        self._was_clean = False
        self._removal = removal
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._lock: OpenFile | None = None
        self.shortest_flush_ms = _MAX_FLUSH_MS
        # Logs that were opened for appends: the others have nothing to flush.
        self.written_logs: set[AppendableLog] = set()
        # Those that couldn't be written; whoever leads them elsewhere takes them out.
        self.failed_logs: set[AppendableLog] = set()
        self._recovery_points = self._checkpoint(checkpoints.RECOVERY_POINT_FILE)
        self._log_starts = self._checkpoint(checkpoints.LOG_START_FILE)
        # Only a hint (docs/rules.md, rule 11): it may get lost.
        self._high_watermarks = self._checkpoint(checkpoints.HIGH_WATERMARK_FILE, durable=False)
        self._cleaner_offsets = self._checkpoint(checkpoints.CLEANER_OFFSET_FILE)
        self._checkpoints = (
            self._recovery_points,
            self._log_starts,
            self._high_watermarks,
            self._cleaner_offsets,
        )

    def _checkpoint(self, name: str, *, durable: bool = True) -> OffsetCheckpoint:
        return OffsetCheckpoint(self.files, self.path / name, durable=durable)

    # -- opening

    def open(self, cluster_id: str | None, node_id: int) -> None:
        """Locks the directory and checks or writes `meta.properties`. Raises StorageError.

        A new directory whose cluster isn't known yet gets the file from `join_cluster`.
        """
        with self._released_on_failure():
            self.files.make_folder(self.path)
            self._lock = lock_directory(self.path, self.files)
            self._check_owner(cluster_id, node_id)

    def load(self, config_for: Callable[[str], TopicConfig], placement: Placement) -> None:
        """Opens the logs; recovers them after an unclean shutdown. Raises StorageError.

        A damaged one is set aside if `placement` says that nobody depends on it. `found` are those
        that have folders.
        """
        with self._released_on_failure():
            self._load_logs(config_for, placement)

    def begin(self) -> None:
        """Removes the marker of the clean shutdown, durably. Raises StorageError."""
        marker = self.path / checkpoints.CLEAN_SHUTDOWN_FILE
        with self._released_on_failure():
            for checkpoint in self._checkpoints:
                checkpoint.mend()
            if marker.exists():
                self.files.unlink(marker)
                self.files.sync_folder(self.path)

    @contextlib.contextmanager
    def _released_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.release()
            raise StorageError(
                f"can't use the log directory {self.path}: {error}. Put that right, or set "
                "log.dirs to another folder."
            ) from error
        except StorageError:
            self.release()
            raise

    def release(self) -> None:
        """Lets another process open the directory."""
        self._lock = None
        self.logs.clear()
        self.written_logs.clear()
        self.failed_logs.clear()

    def join_cluster(self, cluster_id: str, node_id: int) -> None:
        """Says durably whose directory this new one is. Raises StorageError."""
        with self._released_on_failure():
            meta = MetaProperties(cluster_id, node_id, self.directory_id)
            checkpoints.write_meta_properties(self.files, self.path, meta)

    def _check_owner(self, cluster_id: str | None, node_id: int) -> None:
        meta = checkpoints.read_meta_properties(self.path)
        if meta is None:
            if any(partition_of(path.name) for path in self.path.iterdir()):
                raise checkpoints.missing_meta_properties(
                    self.path / checkpoints.META_PROPERTIES_FILE
                )
            self.directory_id = uuid.uuid4().bytes
            if cluster_id is not None:
                self.join_cluster(cluster_id, node_id)
            return
        if (meta.cluster_id, meta.node_id) != (cluster_id, node_id):
            raise StorageError(
                f"the log directory {self.path} belongs to node {meta.node_id} of cluster "
                f"{meta.cluster_id}; this is node {node_id} of cluster {cluster_id}. Set log.dirs "
                f"to this node's folder, or remove {self.path} if nobody needs its records."
            )
        self.directory_id = meta.directory_id

    def _load_logs(self, config_for: Callable[[str], TopicConfig], placement: Placement) -> None:
        path = self.path
        left = clean_shutdown.read(path)
        clean = self._was_clean = left is not None
        self.clean_shutdown_epoch = None if left is None else left.broker_epoch
        self._load_checkpoints(left)
        folders = []
        for entry in os.scandir(path):
            if not entry.is_dir():
                continue
            if _DELETED_FOLDER.fullmatch(entry.name):
                self._removal.add(Path(entry.path), 0)
            elif (key := partition_of(entry.name)) is not None:
                folders.append((Path(entry.path), *key))
        self.found = {(topic, partition) for _, topic, partition in folders}
        started = time.monotonic()
        if not clean and folders:
            logger.info("%s was not shut down cleanly: checking %d logs", path, len(folders))
        for folder, topic, partition in sorted(folders):
            try:
                log = self._open_log(folder, topic, partition, config_for(topic), clean=clean)
                check_topic(log, placement)
            except StorageError as error:
                self.logs.pop((topic, partition), None)
                if not placement.is_elsewhere(topic, partition):
                    raise
                self._set_damaged_aside(folder, topic, partition, error)
        if not clean and folders:
            logger.info("checked %s in %.1f s", path, time.monotonic() - started)

    def _load_checkpoints(self, left: CleanShutdown | None) -> None:
        """The checkpoints, and what the last shutdown noted. Raises StorageError, OSError."""
        self._notes = {}
        if left is not None and left.logs is not None:
            if left.directory_id != checkpoints.uuid_to_text(self.directory_id):
                raise checkpoints.wrong_directory_id(
                    self.path / checkpoints.META_PROPERTIES_FILE, left.directory_id
                )
            for name, note in left.logs.items():
                if (key := partition_of(name)) is not None:
                    self._notes[key] = note
            ends = {key: note.log_end_offset for key, note in self._notes.items()}
            starts = {key: note.log_start_offset for key, note in self._notes.items()}
            # Whatever isn't known to be compacted is looked at again.
            for checkpoint, noted in zip(self._checkpoints, (ends, starts, {}, {}), strict=True):
                checkpoint.load_noted(left.files.get(checkpoint.name, 0), noted)
            return
        self._recovery_points.load()
        self._log_starts.load()
        self._cleaner_offsets.load()
        try:
            self._high_watermarks.load()
        except StorageError as error:
            logger.warning("going on without high watermarks: %s", error)

    def _set_damaged_aside(
        self, folder: Path, topic: str, partition: int, error: StorageError
    ) -> None:
        """Keeps a damaged log under another name; its replica begins anew. Raises OSError.

        It must not count as in sync then: this start is one after an unclean shutdown.
        """
        target = self._aside(topic, partition, DAMAGED_SUFFIX)
        self.files.rename(folder, target)
        self.files.sync_folder(self.path)
        self.clean_shutdown_epoch = None
        logger.error(
            "set %s-%d aside as %s; what is still in use of it comes from the other replicas: %s",
            topic,
            partition,
            target,
            error,
        )

    def look_for_missing(self, found: Set[TopicPartition], placement: Placement) -> None:
        """Looks for replicas that had records and are not among those `found` in any directory.

        They must not count as in sync (rules 16 to 18); one that is counted on stops the start.
        Raises StorageError.
        """
        if self._notes:
            bounds = {
                key: (note.log_start_offset, note.log_end_offset)
                for key, note in self._notes.items()
            }
        else:
            starts = self._log_starts.offsets
            ends = self._recovery_points.offsets
            bounds = {key: (starts.get(key, 0), end) for key, end in ends.items()}
        missing = [key for key, (start, end) in bounds.items() if end > start and key not in found]
        for key in missing:
            topic_id, note = placement.topic_id(*key), self._notes.get(key)
            if topic_id is None or placement.is_elsewhere(*key):
                continue
            if note is not None and note.topic_id not in ("", checkpoints.uuid_to_text(topic_id)):
                continue  # the topic was deleted and made anew since
            folder = self.path / f"{key[0]}-{key[1]}"
            raise StorageError(
                f"the folder {folder} is gone. It had records up to offset {bounds[key][1]}, and "
                f"no other broker is known to have them all. {choices(folder)}"
            )
        if missing and self._was_clean:
            logger.warning(
                "%s was shut down cleanly, but %d folders of partitions have disappeared since "
                "(%s%s). This broker counts as one that was not, and gets their records from other "
                "replicas if there are any.",
                self.path,
                len(missing),
                ", ".join(f"{topic}-{partition}" for topic, partition in missing[:5]),
                ", ..." if len(missing) > 5 else "",
            )
            self.clean_shutdown_epoch = None

    def _open_log(
        self, folder: Path, topic: str, partition: int, config: TopicConfig, *, clean: bool
    ) -> Log:
        key = (topic, partition)
        note = self._notes.get(key) if clean else None
        if note is None:
            recovery_point = self._recovery_points.offsets.get(key, 0)
            log_start_offset = self._log_starts.offsets.get(key, 0)
        else:
            recovery_point, log_start_offset = note.log_end_offset, note.log_start_offset
        log = self.logs[key] = open_log(
            self,
            folder,
            topic,
            partition,
            config,
            clean=clean,
            note=note,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=self._high_watermarks.offsets.get(key, 0),
            producers=self._new_producers(),
        )
        log.checkpointed_recovery_point = recovery_point
        log.clean_offset = min(self._cleaner_offsets.offsets.get(key, 0), log.log_end_offset)
        return log

    def _new_producers(self) -> ProducerStateManager:
        return ProducerStateManager(expiration_ms=self._producer_id_expiration_ms)

    def checkpointed_high_watermark(self, log: Log) -> int:
        """The high watermark of the last checkpoint, within the log's bounds; a hint.

        One beyond the log's end is lowered on disk as well. Raises OSError.
        """
        offset = self._high_watermarks.offsets.get(log.key, log.log_start_offset)
        if offset > log.log_end_offset:
            self.lower_high_watermark(log, log.log_end_offset)
        return min(max(offset, log.log_start_offset), log.log_end_offset)

    # -- logs

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: TopicConfig) -> Log:
        """A new, empty log. Raises OSError, StorageError."""
        name = f"{topic}-{partition}"
        if partition_of(name) != (topic, partition):
            raise ValueError(f"{name!r} is no name of a partition")
        key = (topic, partition)
        # What speaks of a deleted log of that name would be believed after a crash.
        for checkpoint in (self._recovery_points, self._log_starts, self._cleaner_offsets):
            checkpoint.remove(key)
        folder = self.path / name
        if folder.exists():
            log = self._open_log(folder, topic, partition, config, clean=False)
            log.set_topic_id(topic_id)
            return log
        log = self.logs[key] = new_log(
            self, folder, topic, partition, topic_id, config, producers=self._new_producers()
        )
        return log

    def delete_log(self, log: Log) -> None:
        """Takes a log out of service; its renamed folder is removed later. Raises OSError."""
        target = self._rename_away(log, DELETE_SUFFIX)
        if target is not None:
            self.remove_later([target], log.config.file_delete_delay_ms)

    def set_aside(self, log: Log, suffix: str = STRAY_SUFFIX) -> Path | None:
        """Takes a log out of service and keeps its folder, if any, under another name.

        Raises OSError.
        """
        return self._rename_away(log, suffix)

    def _aside(self, topic: str, partition: int, suffix: str) -> Path:
        """A name for a folder that no partition has any more."""
        tail = f"-{partition}.{uuid.uuid4().hex}{suffix}"
        return self.path / (topic[: _MAX_NAME_BYTES - len(tail)] + tail)

    def _rename_away(self, log: Log, suffix: str) -> Path | None:
        target = None
        log.interrupt_cleaning()
        if log.stored:
            target = self._aside(log.topic, log.partition, suffix)
            self.files.rename(log.folder, target)
        # A round of checkpoints that is under way knows of the log.
        self._recovery_points.begin()
        self._log_starts.begin()
        self._high_watermarks.begin()
        self._cleaner_offsets.begin()
        self.written_logs.discard(log)
        self.failed_logs.discard(log)
        del self.logs[log.key]
        log.forget()
        return target

    def remove_later(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Removes files that left a log after `delay_ms`."""
        due_ms = self.clock_ms() + delay_ms
        for path in paths:
            self._removal.add(path, due_ms)

    def note_config(self, config: TopicConfig) -> None:
        """A log has this configuration from now on."""
        self.shortest_flush_ms = min(self.shortest_flush_ms, config.flush_ms)

    def note_written(self, log: AppendableLog) -> None:
        """The log may have something to flush from now on."""
        self.written_logs.add(log)

    def try_writing(self) -> OSError | None:
        """Writes a file and removes it; what of the directory failed, None if nothing did."""
        path = self.path / _TRIAL_FILE
        try:
            self.files.write_all(self.files.open(path, create=True), bytes(_TRIAL_BYTES))
        except OSError as error:
            return None if error.errno in _OF_THE_PROCESS else error
        finally:
            with contextlib.suppress(OSError):
                self.files.unlink(path)
        return None

    # -- checkpoints

    def begin_recovery_points(self) -> Job:
        """Collects the recovery points; the job writes them durably, on any thread.

        The leader epochs below them come first. From now on the file may say what was collected.
        """
        points: dict[TopicPartition, int] = {}
        epochs: list[tuple[Log, EpochSnapshot]] = []
        for key, log in self.logs.items():
            if not log.stored:
                continue
            point = points[key] = log.recovery_point
            log.checkpointed_recovery_point = max(log.checkpointed_recovery_point, point)
            if log.leader_epochs.changed_below(point):
                epochs.append((log, log.leader_epochs.snapshot()))
        ticket = self._recovery_points.begin()
        return lambda: self._write_recovery_points(points, epochs, ticket)

    def _write_recovery_points(
        self,
        points: dict[TopicPartition, int],
        epochs: list[tuple[Log, EpochSnapshot]],
        ticket: int,
    ) -> None:
        for log, snapshot in epochs:
            try:
                log.write_leader_epochs(snapshot)
            except OSError as error:
                points[log.key] = min(
                    points[log.key], self._recovery_points.offsets.get(log.key, 0)
                )
                if not log.offline:
                    logger.error("can't write a checkpoint of %s, will try again: %s", log, error)
        self._recovery_points.write(points, ticket)

    def write_recovery_points(self) -> None:
        """Writes `recovery-point-offset-checkpoint` on this thread, durably. Raises OSError."""
        self.begin_recovery_points()()

    def lower_recovery_point(self, log: Log, offset: int) -> None:
        """The log is about to be cut at `offset`: on return no file promises more. OSError."""
        self._recovery_points.lower(log.key, offset)
        log.checkpointed_recovery_point = min(log.checkpointed_recovery_point, offset)

    def begin_log_starts(self) -> Job:
        """Collects where logs start; the job writes it durably, on any thread.

        As in Kafka only for logs whose start isn't the base offset of their first segment.
        """
        starts = {
            key: log.log_start_offset
            for key, log in self.logs.items()
            if log.log_start_offset > log.first_base_offset
        }
        ticket = self._log_starts.begin()
        return lambda: self._log_starts.write(starts, ticket)

    def lower_high_watermark(self, log: Log, offset: int) -> None:
        """The checkpoint vouches for nothing that `log` is given from `offset` on. OSError.

        Records that come in the place of those that are cut off have yet to be committed.
        """
        self._high_watermarks.lower(log.key, offset)

    def begin_cleaner_offsets(self) -> Job:
        """Collects up to where logs are compacted; the job writes it durably, on any thread."""
        offsets = {key: log.clean_offset for key, log in self.logs.items() if log.clean_offset}
        ticket = self._cleaner_offsets.begin()
        return lambda: self._cleaner_offsets.write(offsets, ticket)

    def lower_cleaner_offset(self, log: Log, offset: int) -> None:
        """What the log is given from `offset` on isn't compacted, whatever stood there. OSError.

        Else a delete marker might go before what it deletes.
        """
        self._cleaner_offsets.lower(log.key, offset)
        log.clean_offset = min(log.clean_offset, offset)

    def write_log_starts(self) -> None:
        """Writes `log-start-offset-checkpoint` on this thread, durably. Raises OSError."""
        self.begin_log_starts()()

    def begin_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> Job:
        """The job writes `replication-offset-checkpoint` for this directory's logs."""
        mine = {
            key: high_watermarks[key]
            for key, log in self.logs.items()
            if log.stored and key in high_watermarks
        }
        ticket = self._high_watermarks.begin()
        return lambda: self._high_watermarks.write(mine, ticket)

    def close(self, broker_epoch: int, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Shuts every log down cleanly and leaves the marker. Raises OSError, KafkaError."""
        logs = iter(self.logs.values())
        while some := list(islice(logs, _CLOSE_TOGETHER)):
            run_together([job for log in some if (job := log.begin_close())], self.files)
        self.write_recovery_points()
        self.write_log_starts()
        self.begin_cleaner_offsets()()
        self.begin_high_watermarks(high_watermarks)()
        marker = CleanShutdown(
            broker_epoch,
            checkpoints.uuid_to_text(self.directory_id),
            {log.folder.name: log.shutdown_note() for log in self.logs.values() if log.stored},
            {each.name: each.checksum() for each in self._checkpoints},
        )
        clean_shutdown.write(self.files, self.path, marker)
        self.release()
