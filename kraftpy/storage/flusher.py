"""Group commit: one thread that sits in fdatasync, so that the event loop never does.

While an fsync runs, requests for the log collect; the next fsync of it covers all of them. So with
`flush.messages=1` the number of fsyncs is bounded by the disk and not by the number of producers.

Rules that it keeps:

* The thread runs `FlushJob`s and nothing else. Logs are looked at and changed on the event loop.
* At most one job of a log is under way. Another log's job may wait behind the one that runs, so
  that the disk isn't idle while the loop is busy.
* A log that can't be flushed now keeps nobody waiting but its own: it tries again behind the others
  (`retry`).
* A callback is called after the fsync of its offset succeeded, never otherwise. A failed fsync
  stops the process (`Files.fsync_failed`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import perf_counter
from typing import Final

from kraftpy.metrics.instruments import DISK_BUCKETS, Histogram
from kraftpy.protocol.errors import KafkaError
from kraftpy.storage.appendable_log import AppendableLog, FlushJob
from kraftpy.storage.files import Files

logger = logging.getLogger(__name__)

Post = Callable[..., object]
Flushed = Callable[[int], object]

_MAX_JOBS_UNDER_WAY: Final = 2
# Of one call: whatever it is may hit all of thousands of logs, each with a line in the log.
_MAX_FAILURES: Final = 4
_JOBS_FOR_ONE_THREAD: Final = 4
_FSYNC_THREADS: Final = 4


def run_together(jobs: Sequence[FlushJob], files: Files) -> None:
    """Runs `jobs` and completes them, with fsyncs that overlap: for the shutdown of many logs.

    A journaling file system writes its journal once for all who wait for it: in four threads
    thousands of fsyncs take a sixth of the time. Doesn't return if one fails.
    """
    if len(jobs) <= _JOBS_FOR_ONE_THREAD:
        for job in jobs:
            job.run(files)
    else:
        with ThreadPoolExecutor(_FSYNC_THREADS) as threads:
            for done in [threads.submit(job.run, files) for job in jobs]:
                done.result()
    for job in jobs:
        job.log.complete_flush(job)


class Flusher:
    """`post(function, *args)` must run a function on the event loop from another thread.

    It is `loop.call_soon_threadsafe` in the broker. All methods are called on the event loop.
    """

    def __init__(self, post: Post, files: Files | None = None) -> None:
        self._post = post
        self._files = files or Files()
        self._jobs: SimpleQueue[FlushJob | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Logs in the order of their first request, each with the callbacks to call.
        self._requests: dict[AppendableLog, dict[Flushed, None]] = {}
        self._under_way: dict[AppendableLog, dict[Flushed, None]] = {}
        self._closed = False
        self.fsyncs = Histogram(DISK_BUCKETS)

    def request(
        self, log: AppendableLog, up_to_offset: int, callback: Flushed | None = None
    ) -> None:
        """Has everything in `log` below `up_to_offset` flushed soon.

        `callback(flushed_offset)` is called on the event loop after an fsync, with the recovery
        point that is the result. The same callback given again before its call is called once.
        """
        if self._closed:
            return
        if up_to_offset <= log.recovery_point and not log.has_sealed_unflushed:
            if callback is not None:
                self._post(callback, log.recovery_point)
            return
        callbacks = self._requests.setdefault(log, {})
        if callback is not None:
            callbacks[callback] = None
        self._start_jobs()

    def retry(self) -> None:
        """Tries again what couldn't be begun; for the tick."""
        self._start_jobs()

    def _start_jobs(self) -> None:
        failed: set[AppendableLog] = set()
        while len(self._under_way) < _MAX_JOBS_UNDER_WAY and len(failed) < _MAX_FAILURES:
            busy = failed.union(self._under_way)
            log = next((log for log in self._requests if log not in busy), None)
            if log is None:
                return
            callbacks = self._requests.pop(log)
            try:
                job = log.begin_flush()
            except (OSError, KafkaError) as error:
                # Out of file descriptors, say: nothing was flushed, so nothing is answered.
                logger.error("can't flush %s yet: %s", log, error)
                failed.add(log)
                self._requests[log] = callbacks
                continue
            if job is None:
                self._post(self._call, log, callbacks)
                continue
            self._under_way[log] = callbacks
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
                self._thread.start()
            self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            started_s = perf_counter()
            job.run(self._files)
            self._post(self._done, job, perf_counter() - started_s)

    def _done(self, job: FlushJob, took_s: float) -> None:
        self.fsyncs.observe(took_s)
        job.log.complete_flush(job)
        callbacks = self._under_way.pop(job.log)
        self._start_jobs()
        self._call(job.log, callbacks)

    @staticmethod
    def _call(log: AppendableLog, callbacks: dict[Flushed, None]) -> None:
        for callback in callbacks:
            callback(log.recovery_point)

    def close(self) -> None:
        """Ends the thread after the job that runs; requests that wait are dropped."""
        self._closed = True
        self._requests.clear()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
