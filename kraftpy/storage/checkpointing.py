"""Writing offset checkpoints without holding up the event loop: thousands of logs, a few fsyncs.

Rules that it keeps:

* What a round writes is collected on the event loop; a short-lived thread writes it.
* Of two writers of one file the one that began last wins, whichever of them the disk serves first:
  a truncation that lowers a recovery point is never undone by a round that began before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kraftpy.storage import checkpoints
from kraftpy.storage.checkpoints import TopicPartition
from kraftpy.storage.clean_shutdown import file_checksum
from kraftpy.storage.files import Files

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class OffsetCheckpoint:
    """One of a log directory's offset checkpoints; `offsets` is what the file says."""

    def __init__(self, files: Files, path: Path, *, durable: bool) -> None:
        self.offsets: Mapping[TopicPartition, int] = {}
        self._files = files
        self._path = path
        self._durable = durable
        self._lock = threading.Lock()
        self._newest = 0
        self._damaged = False

    def load(self) -> None:
        """Raises StorageError, OSError."""
        self.offsets = checkpoints.read_offsets(self._path)

    def load_noted(self, checksum: int, noted: Mapping[TopicPartition, int]) -> None:
        """Loads the file as a clean shutdown left it; one with another checksum says `noted`.

        Its contents are put right by `mend`. Raises StorageError, OSError.
        """
        if file_checksum(self._path) == checksum:
            self.load()
            return
        logger.warning("%s isn't what the last shutdown left: going by its notes", self._path)
        self.offsets = noted
        self._damaged = True

    def mend(self) -> None:
        """Has a file that `load_noted` passed over say what it ought to. Raises OSError."""
        if self._damaged:
            self.begin()
            with self._lock:
                self._replace(self.offsets, durable=True)

    @property
    def name(self) -> str:
        """Of the file."""
        return self._path.name

    def checksum(self) -> int:
        """`file_checksum` of what the file says now. Raises OSError."""
        return file_checksum(self._path)

    def begin(self) -> int:
        """A ticket for `write`; earlier ones are void from now on. On the event loop."""
        self._newest += 1
        return self._newest

    def write(self, offsets: Mapping[TopicPartition, int], ticket: int) -> None:
        """Replaces the file unless it says so already or somebody began later. Any thread.

        Raises OSError.
        """
        with self._lock:
            if ticket == self._newest and offsets != self.offsets:
                self._replace(offsets, durable=self._durable)

    def lower(self, key: TopicPartition, offset: int) -> None:
        """Has the file promise no more than `offset` for one log, durably. Raises OSError."""
        self.begin()
        with self._lock:
            if self.offsets.get(key, 0) > offset:
                self._replace({**self.offsets, key: offset}, durable=True)

    def remove(self, key: TopicPartition) -> None:
        """Has the file say nothing of one log, and nothing new of others, durably. OSError."""
        with self._lock:
            if key in self.offsets:
                self.begin()
                offsets = {other: offset for other, offset in self.offsets.items() if other != key}
                self._replace(offsets, durable=True)

    def _replace(self, offsets: Mapping[TopicPartition, int], *, durable: bool) -> None:
        checkpoints.write_offsets(self._files, self._path, offsets, durable=durable)
        self.offsets = offsets
        self._damaged = False


class Checkpointer:
    """Runs one round of checkpoints at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, jobs: Sequence[Job]) -> None:
        """Runs `jobs` one after the other on a thread. Not to be called while `busy`."""
        self._thread = threading.Thread(
            target=self._run, args=(jobs,), name="checkpoints", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the round that is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @staticmethod
    def _run(jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job()
            except OSError as error:
                logger.error("can't write a checkpoint, will try again: %s", error)
