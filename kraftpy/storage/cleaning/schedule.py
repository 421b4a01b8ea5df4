"""Chooses the log that needs cleaning most, has it cleaned, and puts the result in its place.

Rules that it keeps:

* One log at a time, in a process of its own, which is started afresh: it takes no copy of the
  broker's memory, and starting it holds up the event loop for about a millisecond.
* A log that was cut or removed meanwhile has ended its cleaning before (`Log.interrupt_cleaning`),
  so a result is always of the log as it is, but for what was appended.
* Only what is on disk is cleaned, so that a crash can't take what made older records superfluous.
* A log that can't be cleaned is said so once and left alone until the next start.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kraftpy.core.compaction import Cleanable
from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.kinds import LONG_MAX
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_walk import max_uncompressed_bytes
from kraftpy.storage.cleaning import swap
from kraftpy.storage.cleaning.job import (
    EXIT_UNCLEANABLE,
    CleaningJob,
    CleaningResult,
)
from kraftpy.storage.files import Files
from kraftpy.storage.index import OFFSET_ENTRY_BYTES
from kraftpy.storage.log import Log
from kraftpy.storage.segment import Segment

logger = logging.getLogger(__name__)

_RETRY_MS: Final = 60_000


class CleaningProcess(Protocol):
    """A job that runs elsewhere."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""

    def output(self) -> str:
        """What it printed; only after it has ended."""

    def kill(self) -> None:
        """Ends it; on return it has ended."""


class PythonProcess:
    """A `CleaningProcess` in an interpreter of its own."""

    def __init__(self, job: CleaningJob) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [
                sys.executable,
                "-P",
                "-m",
                "kraftpy.storage.cleaning",
                job.to_text(),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return self._process.communicate()[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Running:
    """The cleaning of one log; its `Log.cleaning`."""

    def __init__(self, log: Log, process: CleaningProcess, files: Files) -> None:
        self.log = log
        self.process = process
        self.aborted = False
        self._files = files

    def abort(self) -> None:
        self.aborted = True
        self.process.kill()
        swap.discard(self._files, self.log.folder)


class _Choice(NamedTuple):
    overdue: bool
    ratio: float
    log: Log
    end_base: int
    high_watermark: int


@dataclass(slots=True)
class CleanerNumbers:
    """What the cleaner has done since the start, for metrics."""

    cleaned: int = 0
    failed: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


class LogCleaner:
    """`start` begins a job; it is a test's, or `PythonProcess`. On the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        start: Callable[[CleaningJob], CleaningProcess] = PythonProcess,
    ) -> None:
        self._config = config
        self._files = files
        self._start = start
        self._running: _Running | None = None
        self._next_look_ms = 0
        self._not_before_ms: dict[Log, int] = {}
        self.numbers = CleanerNumbers()

    def update_config(self, config: BrokerConfig) -> None:
        """Takes changed settings; they hold for the next log, and for when to look for it."""
        self._config = config

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def uncleanable(self) -> int:
        """Logs whose cleaning failed, and has not succeeded since."""
        return sum(
            not log.offline and "compact" in log.config.cleanup_policy
            for log in self._not_before_ms
        )

    def look_due(self, now_ms: int) -> bool:
        """Whether `tick` wants to choose a log now."""
        if now_ms < self._next_look_ms - self._config.log_cleaner_backoff_ms:
            self._next_look_ms = now_ms  # the clock was set back
        return (
            self._config.log_cleaner_enable
            and self._running is None
            and now_ms >= self._next_look_ms
        )

    def kill(self) -> None:
        """Ends the process that runs, if any; the next start removes what it made."""
        if self._running is not None and not self._running.aborted:
            self._running.process.kill()
        self._running = None

    def poll(self, now_ms: int) -> None:
        """Takes over the result of a cleaning that has ended."""
        running = self._running
        if running is None:
            return
        if running.aborted:
            self._running = None
            return
        code = running.process.poll()
        if code is None:
            return
        self._running = running.log.cleaning = None
        self._next_look_ms = now_ms
        output = running.process.output()
        if code == 0:
            self._take_over(running.log, CleaningResult.from_text(output))
            return
        self.numbers.failed += 1
        try:
            swap.discard(self._files, running.log.folder)
        except OSError as error:
            output = f"{output}; can't remove what it left: {error}"
        if code == EXIT_UNCLEANABLE:
            logger.error(
                "can't compact %s, and won't try again before the next start: %s",
                running.log,
                output,
            )
            self._not_before_ms[running.log] = LONG_MAX
        else:
            logger.error(
                "compacting %s failed (exit code %d), will try again: %s",
                running.log,
                code,
                output or "it printed nothing",
            )
            self._not_before_ms[running.log] = now_ms + _RETRY_MS

    def _take_over(self, log: Log, result: CleaningResult) -> None:
        try:
            log.replace_segments(result.end_base, result.clean_offset)
        except (OSError, KafkaError) as error:
            logger.error("can't put the compacted segments of %s into their place: %s", log, error)
            self.numbers.failed += 1
            return
        self._not_before_ms.pop(log, None)
        numbers = self.numbers
        numbers.cleaned += 1
        numbers.read_bytes += result.bytes_before
        numbers.written_bytes += result.bytes_after
        numbers.seconds += result.seconds
        if result.first_unreadable is not None:
            offset, reason = result.first_unreadable
            emit(
                logger,
                logging.WARNING,
                "batches-not-compacted",
                log=str(log),
                batches=result.unreadable,
                offset=offset,
                reason=reason,
            )
        logger.info(
            "compacted %s up to offset %d: %d bytes of %d are left, after %.1f s",
            log,
            result.clean_offset,
            result.bytes_after,
            result.bytes_before,
            result.seconds,
        )

    # -- choosing

    def look(self, now_ms: int, logs: Iterable[tuple[Log, int]]) -> None:
        """Begins to clean the log that needs it most, if any; `logs` come with high watermarks."""
        self._next_look_ms = now_ms + self._config.log_cleaner_backoff_ms
        self._not_before_ms = {
            log: until for log, until in self._not_before_ms.items() if not log.offline
        }
        choices = [
            choice
            for log, high_watermark in logs
            if "compact" in log.config.cleanup_policy and log.stored and not log.offline
            if now_ms >= self._not_before_ms.get(log, 0)
            if (choice := self._look_at(log, high_watermark, now_ms)) is not None
        ]
        if not choices:
            return
        choice = max(choices, key=lambda choice: choice[:2])
        log = choice.log
        try:
            swap.discard(self._files, log.folder)
            process = self._start(self._job(choice, now_ms))
        except OSError as error:
            logger.error("can't begin to compact %s, will try again: %s", log, error)
            return
        self._running = log.cleaning = _Running(log, process, self._files)

    def _look_at(self, log: Log, high_watermark: int, now_ms: int) -> _Choice | None:
        stable_offset = min(high_watermark, log.producers.last_stable_offset(high_watermark))
        try:
            end = self._end(log, min(stable_offset, log.recovery_point), now_ms)
            segments = log.segments[:end]
            bases = [segment.base_offset for segment in log.segments[1 : end + 1]]
            dirty = [
                segment
                for segment, end_base in zip(segments, bases, strict=True)
                if end_base > log.first_dirty_offset
            ]
            cleanable = self._cleanable(log, segments, dirty)
        except KafkaError as error:
            damaged = error.code is ErrorCode.CORRUPT_MESSAGE
            when = "and won't try again before the next start" if damaged else "will try again"
            logger.error("can't compact %s, %s: %s", log, when, error.message)
            self._not_before_ms[log] = LONG_MAX if damaged else now_ms + _RETRY_MS
            return None
        if not cleanable.is_due(log.config, now_ms):
            return None
        return _Choice(
            cleanable.overdue(log.config, now_ms),
            cleanable.dirty_ratio,
            log,
            log.segments[end].base_offset,
            high_watermark,
        )

    @staticmethod
    def _end(log: Log, limit: int, now_ms: int) -> int:
        """How many of the log's segments lie below `limit`; none that is too young, nor the last.

        Raises KafkaError.
        """
        segments = log.segments
        lag_ms = log.config.min_compaction_lag_ms
        end = 0
        while end + 1 < len(segments) and segments[end + 1].base_offset <= limit:
            if lag_ms:
                segments[end].load_timestamps()
                if segments[end].max_timestamp > now_ms - lag_ms:
                    break
            end += 1
        return end

    @staticmethod
    def _cleanable(log: Log, segments: Iterable[Segment], dirty: list[Segment]) -> Cleanable:
        timestamp = -1
        if dirty and dirty[0].size and log.config.max_compaction_lag_ms < LONG_MAX:
            timestamp = next(dirty[0].batches(0))[1].max_timestamp
        dirty_bytes = sum(segment.size for segment in dirty)
        return Cleanable(
            sum(segment.size for segment in segments) - dirty_bytes, dirty_bytes, timestamp
        )

    def _job(self, choice: _Choice, now_ms: int) -> CleaningJob:
        log = choice.log
        config = log.config
        return CleaningJob(
            folder=str(Path(log.folder).absolute()),
            dirty_offset=log.first_dirty_offset,
            end_base=choice.end_base,
            high_watermark=choice.high_watermark,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.roll_size_bytes,
            index_interval_bytes=config.index_interval_bytes,
            max_index_entries=config.segment_index_bytes // OFFSET_ENTRY_BYTES,
            map_bytes=self._config.log_cleaner_dedupe_buffer_size,
            max_uncompressed_bytes=max_uncompressed_bytes(config.max_message_bytes),
            max_bytes_per_second=self._config.log_cleaner_io_max_bytes_per_second,
        )
