"""What a voter keeps of the quorum's state: journal, snapshots, and the state applied so far.

Rules:

* Only durable, committed entries are applied, in log order, and the `on_apply` listeners see each
  batch after it.
* A snapshot is written by a helper that sees a copy of this process's memory (`forking.Helper`), so
  it takes as long as it takes without delaying a commit. Small states go the same way: one way,
  and no fsync of a snapshot ever stands between a proposal and its answer.
* When the helper has verified its file, the journal drops what the snapshot *before* covers (see
  `snapshot.py`: the newest one is never the only one).
* A snapshot that arrives from the leader is verified and restored before anything that was there
  gives way to it. At each point of the change a crash leaves a folder from which
  `snapshot.recover` gets either the old state or the new one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import JournalFailedError, JournalFullError
from kraftpy.quorum.port import (
    Applied,
    ApplyListener,
    Entry,
    MachineSnapshot,
    MachineType,
)
from kraftpy.quorum.snapshot import (
    Snapshot,
    SnapshotDamagedError,
    SnapshotFullError,
    SnapshotName,
    SnapshotStore,
    recover,
)
from kraftpy.quorum.state import ReplicatedState

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_BYTES = 4 << 20
"""Bytes of commands between snapshots (or the size of the last snapshot if that is larger)."""
INCOMPLETE_NAME = "quorum.incomplete"
"""In the folder of a voter that began with nothing, until it has caught up with a leader."""
_ENTRY_OVERHEAD_BYTES = 16
_WRITTEN, _FULL, _DISK_FAILED = 0, 1, 2


class SnapshotHelper(Protocol):
    """Runs one job at a time on a copy of this process's memory."""

    @property
    def busy(self) -> bool: ...
    def start(self, job: Callable[[], int], done: Callable[[int], None]) -> None:
        """Runs `job` elsewhere and calls `done` here with what it returned, or with 70 or minus a
        signal's number if it did not end well. Raises `OSError` if it can't."""

    def stop(self) -> None:
        """Kills the job that runs, if any; `done` is not called."""


class Replica:
    """The replicated state in `folder`; see the module.

    With `replay` all of the journal is applied at once (a lone voter: what it holds is committed);
    without it nothing after the newest snapshot is. `on_fatal` gets a failure of the disk that
    shows outside a call. Raises what `snapshot.recover` raises.
    """

    def __init__(
        self,
        folder: Path,
        machine_type: MachineType,
        files: FileLayer,
        helper: SnapshotHelper,
        on_fatal: Callable[[Exception], None],
        *,
        replay: bool,
        snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
    ) -> None:
        self.store = SnapshotStore(folder, files)
        self.journal, self.state, self._kept_after, self._stale = recover(
            folder, machine_type, files, replay=replay
        )
        self._files = files
        self._machine_type = machine_type
        self._helper = helper
        self._on_fatal = on_fatal
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self._snapshot_size_bytes = 0
        self._new_bytes = sum(
            _size_bytes(entry)
            for entry in self.journal.entries_from(self._kept_after + 1, 1 << 62) or ()
            if entry.index <= self.applied_index
        )
        self._apply_listeners: list[ApplyListener] = []
        self.settle: Callable[[], None] = lambda: None
        """Waits for a write to the journal that another thread is doing, if there is one."""

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    def close(self) -> None:
        self._helper.stop()
        self.journal.close()

    def is_incomplete(self) -> bool:
        """Whether the folder began with nothing and `completed` was not called since.

        That it begins with nothing is noted in it, durably, for this process's successors.
        """
        marker = self.store.folder / INCOMPLETE_NAME
        if self.journal.last_index == 0 and not marker.exists():
            os.close(self._files.create(marker))
            self._files.sync_directory(self.store.folder)
        return marker.exists()

    def completed(self) -> None:
        """All that a leader had committed has arrived."""
        self._files.unlink(self.store.folder / INCOMPLETE_NAME)
        self._files.sync_directory(self.store.folder)

    # -- applying

    def on_apply(self, listener: ApplyListener) -> None:
        """See `port.Quorum.on_apply`."""
        self._apply_listeners.append(listener)

    def apply(self, entries: Sequence[Entry]) -> list[Applied]:
        """Applies the next entries, which are durable and committed, and tells the listeners."""
        applied = []
        for entry in entries:
            one = self.state.apply(entry)
            applied.append(one)
            self._new_bytes += _size_bytes(entry)
            if not one.fresh:
                self._stale.add(entry.index)
        for listener in self._apply_listeners:
            listener(applied)
        if not self._helper.busy and self._new_bytes >= max(
            self._snapshot_interval_bytes, self._snapshot_size_bytes
        ):
            self._start_snapshot()
        return applied

    # -- catching up

    def snapshot(self) -> MachineSnapshot:
        """See `port.Quorum.snapshot`: the newest file if there is one, else the state in memory."""
        names = self.store.list()
        if names and names[-1].index >= self._kept_after:
            try:
                snapshot = self.store.load(names[-1].path)
                return MachineSnapshot(snapshot.index, snapshot.machine)
            except (SnapshotDamagedError, OSError) as error:
                logger.error("%s; sending the state in memory instead; check the disk", error)
        return MachineSnapshot(self.applied_index, self.state.pack_machine())

    def entries_from(self, index: int, max_bytes: int) -> list[tuple[Entry, bool]] | None:
        """See `port.Quorum.entries_from`."""
        if index <= self._kept_after:
            return None
        entries = self.journal.entries_from(index, max_bytes)
        if entries is None:
            return None
        applied_index = self.applied_index
        return [
            (entry, entry.index not in self._stale)
            for entry in entries
            if entry.index <= applied_index
        ]

    def install(self, index: int, term: int, data: bytes) -> None:
        """Replaces the state with the leader's snapshot, whose file is `data`.

        Raises `SnapshotDamagedError` (nothing changed), `SnapshotFullError`, `JournalFullError` or
        `JournalFailedError`.
        """
        assert index > self.applied_index
        snapshot = self.store.receive(index, term, data)
        state = ReplicatedState.restore(
            self._machine_type, index, snapshot.sessions, snapshot.machine
        )
        self.journal = self.journal.restart(index, term)
        self.store.accept(index, term)
        self.state = state
        self._kept_after = index
        self._stale.clear()
        self._new_bytes = 0
        self._snapshot_size_bytes = len(data)
        self.store.remove_old()

    # -- snapshots

    def snapshot_file(self) -> tuple[SnapshotName, bytes] | None:
        """A sound snapshot that the journal continues, with the bytes of its file.

        None if the disk lost it: a new one is then under way.
        """
        found = self.store.newest_file()
        if found is not None and found[0].index >= self.journal.base_index:
            return found
        if not self._helper.busy:
            self._start_snapshot()
        return None

    def _start_snapshot(self) -> None:
        self._new_bytes = 0
        self.settle()
        try:
            self._helper.start(self._write_snapshot, self._snapshot_done)
        except OSError as error:
            logger.error(
                "no process can be had to write a snapshot (%s); the journal is kept", error
            )

    def _write_snapshot(self) -> int:
        """The helper's job."""
        index = self.applied_index
        term = self.journal.term_at(index)
        state = self.state
        try:
            self.store.write(Snapshot(index, term, state.pack_sessions(), state.pack_machine()))
        except SnapshotFullError as error:
            logger.error("%s; the journal is kept", error)
            return _FULL
        except JournalFailedError as error:
            logger.critical("%s", error)
            return _DISK_FAILED
        return _WRITTEN

    def _snapshot_done(self, code: int) -> None:
        try:
            if code == _WRITTEN:
                self.settle()
                self._drop_covered()
            elif code == _DISK_FAILED:
                raise JournalFailedError("the disk failed while a snapshot was written")
            else:
                logger.error("the snapshot helper ended with %d; the journal is kept", code)
        except JournalFullError as error:
            logger.error("%s; the old journal stays in use", error)
        except (JournalFailedError, OSError) as error:
            self._on_fatal(error)

    def _drop_covered(self) -> None:
        names = self.store.list()
        self._snapshot_size_bytes = names[-1].path.stat().st_size
        if len(names) > 1 and names[-2].index > self.journal.base_index:
            self.journal = self.journal.compact(names[-2].index)
        self._kept_after = max(self._kept_after, self.journal.base_index)
        self._stale = {index for index in self._stale if index > self._kept_after}
        self.store.remove_old()


def _size_bytes(entry: Entry) -> int:
    return len(entry.command) + _ENTRY_OVERHEAD_BYTES
