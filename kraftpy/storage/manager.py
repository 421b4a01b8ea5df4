"""All logs of a broker: its log directories, what happens to logs by the clock, and clean shutdown.

Rules that it keeps:

* No log is written before `begin`. Until then the directories are as the last shutdown left them.
* Logs are made and removed on order only; the metadata says which ones exist.
* `tick` is called by the server, about once a second and at least as often as `flush.ms` is to be
  exact. It does short work: what takes long (fsyncs, checkpoints, removals) goes to a thread.
* A full disk fails one round of upkeep, not the broker: it is logged and tried again.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.core.producers import ProducerStateManager
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import KafkaError
from kraftpy.storage.appendable_log import AppendableLog
from kraftpy.storage.checkpointing import Checkpointer, Job
from kraftpy.storage.checkpoints import TopicPartition
from kraftpy.storage.cleaning.schedule import LogCleaner
from kraftpy.storage.deleting.process import (
    SEGMENTS_OF_LOG_MAX,
    PolicyProcess,
    ReportedSegment,
)
from kraftpy.storage.directory import DAMAGED_SUFFIX, LogDir
from kraftpy.storage.files import Files, StorageError, storage_failure
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.log import Log
from kraftpy.storage.placement import Nowhere, Placement
from kraftpy.storage.removal import DelayedRemoval
from kraftpy.storage.segment_cache import SegmentCache

logger = logging.getLogger(__name__)

HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS: Final = 5_000

# More open files than this bring nothing, whatever the process is allowed.
_MAX_OPEN_FILES: Final = 1 << 15

# How long upkeep may hold up the event loop at a time.
_RETENTION_SLICE_S: Final = 0.005

_NOWHERE: Final = Nowhere()

HighWatermarks = Callable[[], Mapping[TopicPartition, int]]


def _max_written_files() -> int:
    """Half of the files that this process may have open; the rest is for connections and reads."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(limit, _MAX_OPEN_FILES) // 2)


class LogDirDescription(NamedTuple):
    """One directory for DescribeLogDirs; `logs` are (topic, partition, size in bytes)."""

    path: str
    total_bytes: int
    usable_bytes: int
    logs: list[tuple[str, int, int]]


class _Every:
    """Says when `interval_ms` have passed; a clock that was set back delays it once."""

    __slots__ = ("_last_ms", "interval_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self.interval_ms = interval_ms
        self._last_ms = now_ms

    def due(self, now_ms: int) -> bool:
        if now_ms < self._last_ms:
            self._last_ms = now_ms
        if now_ms - self._last_ms < self.interval_ms:
            return False
        self._last_ms = now_ms
        return True


def _uptime_ms() -> int:
    return int(time.monotonic() * 1000)


class LogManager:
    """Locks the log directories when it is made; raises StorageError in plain words if it can't.

    `cluster_id` is None for new directories whose cluster is still to be found out. Data is deleted
    by `clock_ms`; producers are forgotten by `uptime_ms`, which nobody can set. `transactions`:
    whether somebody ends those that the logs' batches begin.

    That needs neither threads nor the metadata, so it can come before a node forks; `load` opens
    the logs once their topics' configuration is known, and `begin` lets them be written.
    """

    def __init__(
        self,
        log_dirs: Sequence[Path],
        *,
        config: BrokerConfig,
        cluster_id: str | None,
        node_id: int,
        clock_ms: Callable[[], int],
        uptime_ms: Callable[[], int] = _uptime_ms,
        files: Files | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self._node_id = node_id
        self._files = files or Files()
        self.clock_ms = clock_ms
        self._uptime_ms = uptime_ms
        self._flusher: Flusher
        self._removal = DelayedRemoval(self._files)
        self._checkpointer = Checkpointer()
        self._cleaner = LogCleaner(config, self._files)
        self._cache = SegmentCache(max_written=_max_written_files())
        now_ms = clock_ms()
        self._retention = _Every(config.log_retention_check_interval_ms, now_ms)
        self._recovery_points = _Every(config.log_flush_offset_checkpoint_interval_ms, now_ms)
        self._log_starts = _Every(config.log_flush_start_offset_checkpoint_interval_ms, now_ms)
        self._high_watermarks = _Every(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS, now_ms)
        self._logs: dict[TopicPartition, Log] = {}
        # Logs that this round of retention hasn't come to, each with its high watermark.
        self._retention_round: list[tuple[Log, int]] = []
        # Of the one that it has come to, until all of its producers have been looked at.
        self._expiring: ProducerStateManager | None = None
        self._policy: PolicyProcess | None = None
        # What a user's delete policy is asked of, and up to which offset that may go.
        self._reported: list[tuple[Log, list[ReportedSegment], int]] = []
        self.directories: list[LogDir] = []
        if config.kraftpy_delete_policy_class is not None:
            self._policy = PolicyProcess(config.kraftpy_delete_policy_class)
            self._policy.check()
        try:
            for path in log_dirs:
                self._check_other_folder(path)
                directory = LogDir(
                    path,
                    files=self._files,
                    cache=self._cache,
                    clock_ms=clock_ms,
                    uptime_ms=uptime_ms,
                    removal=self._removal,
                    producer_id_expiration_ms=config.producer_id_expiration_ms,
                )
                directory.open(cluster_id, node_id)
                self.directories.append(directory)
        except StorageError:
            self.release()
            raise

    def _check_other_folder(self, path: Path) -> None:
        """Raises StorageError for one that is open already: its lock would name this process."""
        for other in self.directories:
            if other.path.resolve() == path.resolve():
                raise StorageError(
                    f"log.dirs names one folder twice, as {other.path} and as {path}: leave one out"
                )

    def join_cluster(self, cluster_id: str) -> None:
        """Makes new directories, opened without a cluster id, this cluster's. StorageError."""
        for directory in self.directories:
            directory.join_cluster(cluster_id, self._node_id)
        self.cluster_id = cluster_id

    def load(
        self,
        config_for: Callable[[str], TopicConfig],
        flusher: Flusher,
        placement: Placement = _NOWHERE,
    ) -> None:
        """Opens the logs; only `begin` may be called next. Raises StorageError.

        `config_for(topic)` resolves the configuration that a log is opened with. A damaged log that
        is elsewhere, as `placement` says, is set aside; others are refused.
        """
        self._flusher = flusher
        try:
            for directory in self.directories:
                directory.load(config_for, placement)
                self._take_logs(directory)
            found = set().union(*(directory.found for directory in self.directories))
            for directory in self.directories:
                directory.look_for_missing(found, placement)
        except StorageError:
            self.release()
            raise

    def begin(self) -> None:
        """Logs may be written from here on: no shutdown is clean but by `close`. StorageError."""
        for directory in self.directories:
            directory.begin()

    def _take_logs(self, directory: LogDir) -> None:
        for key, log in directory.logs.items():
            other = self._logs.setdefault(key, log)
            if other is not log:
                raise StorageError(
                    f"both {other.folder} and {log.folder} claim to be partition {log}. Move the "
                    "one away that has fewer records."
                )

    # -- logs

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def get_or_create(
        self, topic: str, partition: int, topic_id: bytes, config: TopicConfig
    ) -> Log:
        """The partition's log, made if need be in the directory with the fewest logs.

        A log of another topic with the same name (deleted while this broker was down) is set
        aside first. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        log = self._logs.get((topic, partition))
        try:
            if log is not None:
                if log.topic_id is None:
                    log.set_topic_id(topic_id)
                if log.topic_id == topic_id:
                    log.update_config(config)
                    return log
                self._set_aside(log)
            directory = min(self.directories, key=lambda directory: len(directory.logs))
            log = directory.create_log(topic, partition, topic_id, config)
        except (OSError, StorageError) as error:
            raise storage_failure(f"can't create {topic}-{partition}", str(error)) from error
        self._logs[topic, partition] = log
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Takes the log out of service at once; its files go after file.delete.delay.ms.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        log = self._logs.get((topic, partition))
        if log is None:
            return
        try:
            log.directory.delete_log(log)
        except OSError as error:
            raise storage_failure(f"can't delete {log}", error) from error
        del self._logs[topic, partition]

    def set_aside_strays(self, known: Mapping[TopicPartition, bytes]) -> None:
        """Sets aside every log that isn't in `known` with its topic id. Raises KafkaError.

        Such a log belongs to a topic that was deleted while this broker was down, or the metadata
        is older than the logs: nobody can tell which, so nothing is removed (docs/rules.md, rule
        64). One whose topic isn't known goes by name.
        """
        for key, log in list(self._logs.items()):
            if log.topic_id is None and key in known:
                continue  # a crash tore the file that says it, and `get_or_create` had no room
            if known.get(key) != log.topic_id:
                try:
                    self._set_aside(log)
                except OSError as error:
                    raise storage_failure(f"can't set {log} aside", error) from error

    def _set_aside(self, log: Log) -> None:
        folder = log.directory.set_aside(log)
        del self._logs[log.key]
        if folder is None:
            return
        logger.warning(
            "%s is not in the metadata; its records are kept in %s: remove it if the topic was "
            "deleted on purpose",
            log,
            folder,
        )

    def set_damaged_aside(self, topic: str, partition: int) -> None:
        """Takes a damaged log out of service, for its replica to begin anew.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        log = self._logs[topic, partition]
        try:
            folder = log.directory.set_aside(log, DAMAGED_SUFFIX)
        except OSError as error:
            raise storage_failure(f"can't set {log} aside", error) from error
        del self._logs[log.key]
        logger.error("what was damaged of %s is kept in %s: remove it at will", log, folder)

    def checkpointed_high_watermark(self, log: Log) -> int:
        """The high watermark at the last checkpoint, within the log's bounds: a hint (rule 11)."""
        try:
            return log.directory.checkpointed_high_watermark(log)
        except OSError as error:
            raise storage_failure(f"can't note where {log} ends", error) from error

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown (-1: unknown), None if it wasn't clean."""
        epochs = [directory.clean_shutdown_epoch for directory in self.directories]
        known = [epoch for epoch in epochs if epoch is not None]
        return min(known) if len(known) == len(epochs) else None

    def describe(self) -> list[LogDirDescription]:
        """The directories with the sizes of their logs. Raises KafkaError KAFKA_STORAGE_ERROR."""
        descriptions = []
        for directory in self.directories:
            try:
                disk = os.statvfs(directory.path)
            except OSError as error:
                raise storage_failure(f"can't look at {directory.path}", error) from error
            descriptions.append(
                LogDirDescription(
                    str(directory.path.absolute()),
                    disk.f_blocks * disk.f_frsize,
                    disk.f_bavail * disk.f_frsize,
                    [(log.topic, log.partition, log.size_bytes) for log in directory.logs.values()],
                )
            )
        return descriptions

    @property
    def cleaner(self) -> LogCleaner:
        """For its numbers."""
        return self._cleaner

    def take_failed(self) -> list[AppendableLog]:
        """The logs of which a write has failed since the last call."""
        failed: list[AppendableLog] = []
        for directory in self.directories:
            failed += directory.failed_logs
            directory.failed_logs.clear()
        return failed

    # -- by the clock

    @property
    def shortest_flush_ms(self) -> int:
        """The smallest flush.ms that a log has had since the start: how often to tick."""
        return min(directory.shortest_flush_ms for directory in self.directories)

    def tick(self, now_ms: int, high_watermarks: HighWatermarks) -> None:
        """Flush by time, retention, rolling, checkpoints and removals, as far as they are due.

        `high_watermarks()` gives those of the logs that are in use; no other is shortened.
        """
        self._request_flushes(now_ms)
        if not self._retention_round and self._retention.due(now_ms):
            offsets = high_watermarks()
            self._retention_round = [
                (log, offsets[key]) for key, log in self._logs.items() if key in offsets
            ]
        if self._retention_round or self._expiring is not None:
            self._continue_retention(now_ms)
        if self._policy is not None:
            self._apply_policy(self._policy, now_ms)
        self._compact(now_ms, high_watermarks)
        if not self._checkpointer.busy:
            self._begin_checkpoints(now_ms, high_watermarks)
        self._removal.tick(now_ms)

    def _compact(self, now_ms: int, high_watermarks: HighWatermarks) -> None:
        """Takes over what a cleaning made, and begins the next if one is due."""
        self._cleaner.poll(now_ms)
        if not self._cleaner.look_due(now_ms):
            return
        compacted = [log for log in self if "compact" in log.config.cleanup_policy]
        offsets = high_watermarks() if compacted else {}
        self._cleaner.look(
            now_ms, [(log, offsets[log.key]) for log in compacted if log.key in offsets]
        )

    def _begin_checkpoints(self, now_ms: int, high_watermarks: HighWatermarks) -> None:
        jobs: list[Job] = []
        if self._recovery_points.due(now_ms):
            jobs += [directory.begin_recovery_points() for directory in self.directories]
            jobs += [directory.begin_cleaner_offsets() for directory in self.directories]
        if self._log_starts.due(now_ms):
            jobs += [directory.begin_log_starts() for directory in self.directories]
        if self._high_watermarks.due(now_ms):
            offsets = high_watermarks()
            jobs += [directory.begin_high_watermarks(offsets) for directory in self.directories]
        if jobs:
            self._checkpointer.start(jobs)

    def _request_flushes(self, now_ms: int) -> None:
        self._flusher.retry()
        for directory in self.directories:
            for log in directory.written_logs:
                if log.has_sealed_unflushed:
                    self._flusher.request(log, log.log_end_offset)
                elif log.log_end_offset > log.recovery_point:
                    since_ms = log.unflushed_since_ms
                    if not 0 < since_ms <= now_ms:
                        log.unflushed_since_ms = now_ms
                    elif now_ms - since_ms >= log.config.flush_ms:
                        self._flusher.request(log, log.log_end_offset)

    def _continue_retention(self, now_ms: int) -> None:
        """Some of the logs that are left in this round; whoever waits for the loop waits little."""
        policy = self._policy
        until = time.monotonic() + _RETENTION_SLICE_S
        while True:
            if self._expiring is not None:
                self._expiring.expire(self._uptime_ms())
                if not self._expiring.is_expiring:
                    self._expiring = None
                if time.monotonic() >= until:
                    return
                continue
            if not self._retention_round or (policy is not None and (policy.busy or policy.full)):
                return
            log, upper_offset = self._retention_round.pop()
            if log.offline:
                continue
            try:
                log.roll_if_old(now_ms)
                if log.cleaning is None:  # else in the next round: or it would never be cleaned
                    log.delete_old_segments(now_ms, upper_offset)
                    if policy is not None and "delete" in log.config.cleanup_policy:
                        self._report(policy, log, upper_offset)
            except KafkaError as error:
                logger.error("retention of %s failed: %s", log, error.message)
            self._expiring = log.producers

    def _report(self, policy: PolicyProcess, log: Log, upper_offset: int) -> None:
        segments = log.report(upper_offset, SEGMENTS_OF_LOG_MAX)
        if segments:
            policy.tell(log.facts, segments)
            self._reported.append((log, segments, upper_offset))

    def _apply_policy(self, policy: PolicyProcess, now_ms: int) -> None:
        """Deletes what a user's policy lets go, and asks it when it has been told of enough."""
        answer = policy.poll()
        if answer is not None:
            reported, self._reported = self._reported, []
            for (log, segments, upper_offset), count in zip(reported, answer, strict=False):
                if count and not log.offline and log.cleaning is None:
                    try:
                        log.delete_reported(segments[:count], upper_offset)
                    except KafkaError as error:
                        logger.error("retention of %s failed: %s", log, error.message)
        if self._reported and not policy.busy and (policy.full or not self._retention_round):
            policy.ask(now_ms)
            if not policy.busy:
                self._reported.clear()

    # -- ending

    def close(
        self,
        broker_epoch: int = -1,
        high_watermarks: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Clean shutdown: everything on disk, the marker left, the directories free.

        Whatever fails is logged; its directory then has no marker and is checked at the next start.
        """
        self._removal.join()
        self._checkpointer.join()
        for directory in self.directories:
            try:
                directory.close(broker_epoch, high_watermarks)
            except (OSError, KafkaError) as error:
                logger.error("%s could not be shut down cleanly: %s", directory.path, error)
        self.release()

    def release(self) -> None:
        """Lets go of the directories without a clean shutdown."""
        self._checkpointer.join()
        self._cleaner.kill()
        if self._policy is not None:
            self._policy.kill()
        self._reported.clear()
        for directory in self.directories:
            directory.release()
        self.directories.clear()
        self._logs.clear()
        self._retention_round.clear()
        self._expiring = None
        self._cache.clear()
