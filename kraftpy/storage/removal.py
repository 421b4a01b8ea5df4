"""Removing files some time after they left the log (`file.delete.delay.ms`).

Unlinking a segment can keep the kernel busy for a tenth of a second, so it happens on a short-lived
thread that nobody waits for. What is not removed when the process ends is removed after its next
start: the names `*.deleted` and `*-delete` say what it is.
"""

from __future__ import annotations

import heapq
import logging
import threading
from pathlib import Path

from kraftpy.storage.files import Files

logger = logging.getLogger(__name__)


class DelayedRemoval:
    """Files and flat folders with the time at which they go."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: list[tuple[int, Path]] = []
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, path: Path, due_ms: int) -> None:
        heapq.heappush(self._waiting, (due_ms, path))

    def tick(self, now_ms: int) -> None:
        """Begins to remove what is due, unless the last removal is still under way."""
        if not self._waiting or self._waiting[0][0] > now_ms:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due.append(heapq.heappop(self._waiting)[1])
        self._thread = threading.Thread(
            target=self._remove_all, args=(due,), name="file-removal", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits until the removal under way has ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _remove_all(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                if path.is_dir():
                    for child in path.iterdir():
                        self._files.unlink(child)
                    self._files.remove_folder(path)
                else:
                    self._files.unlink(path)
            except OSError as error:
                logger.warning("can't remove %s, will try after the next start: %s", path, error)
