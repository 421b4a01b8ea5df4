"""Snapshots of the replicated state, and recovery from snapshots and journal.

A snapshot is one file `<index>-<term>.checkpoint` (Kafka's naming, KIP-630): a header
`marker(4) | format version(1) | CRC-32C(4) | three lengths(8 each)`, then the msgpack of `[index,
term]`, of the sessions and of the state machine.  The last part is sent to followers as it is.

Rules:

* A snapshot gets its name only when it is complete, durable and has been read back and verified.
* Two snapshots are kept, and the journal from the older one on.  So if the newest turns out to be
  damaged, the older one and the journal give exactly the same state; the damaged file is renamed to
  `*.damaged`, and a log line says so.
* If what is left can't give the whole state, `recover` refuses with a sentence.  An empty state is
  only ever made in a folder that holds neither journal nor snapshot.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import NO_SPACE, Journal, JournalDamagedError, JournalFailedError
from kraftpy.quorum.packing import pack, unpack
from kraftpy.quorum.port import MachineType
from kraftpy.quorum.state import ReplicatedState

__all__ = [
    "JOURNAL_NAME",
    "Recovered",
    "Snapshot",
    "SnapshotDamagedError",
    "SnapshotFullError",
    "SnapshotName",
    "SnapshotStore",
    "SnapshotVersionError",
    "recover",
]

logger = logging.getLogger(__name__)

JOURNAL_NAME = "quorum.journal"
SNAPSHOTS_KEPT = 2
_FORMAT_VERSION = 1
_MARKER = b"\xf5kpS"
_HEADER = struct.Struct(">4sBIQQQ")
_LENGTHS = struct.Struct(">QQQ")
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotDamagedError(Exception):
    """A snapshot file does not hold what was written.  Names the file."""


class SnapshotVersionError(Exception):
    """A snapshot was written by another version of kraftpy.  Names the file and what to do."""


class SnapshotFullError(Exception):
    """No space for a snapshot; nothing changed."""


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """A snapshot on disk, ordered by index."""

    index: int
    term: int
    path: Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A verified snapshot's content; `sessions` and `machine` are msgpack."""

    index: int
    term: int
    sessions: bytes
    machine: bytes


class SnapshotStore:
    """The snapshots in one folder."""

    def __init__(self, folder: Path, files: FileLayer) -> None:
        self.folder = folder
        self._files = files

    def list(self) -> list[SnapshotName]:
        """All snapshots, oldest first, unverified."""
        found = []
        for path in self.folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.append(SnapshotName(int(match[1]), int(match[2]), path))
        return sorted(found)

    def load(self, path: Path) -> Snapshot:
        """The verified content of `path`; raises `SnapshotDamagedError` or `OSError`."""
        data = path.read_bytes()
        damaged = SnapshotDamagedError(f"quorum snapshot {path} is damaged")
        if len(data) < _HEADER.size:
            raise damaged
        marker, version, crc, *lengths = _HEADER.unpack_from(data)
        if marker != _MARKER or len(data) != _HEADER.size + sum(lengths):
            raise damaged
        if version != _FORMAT_VERSION:
            raise SnapshotVersionError(
                f"quorum snapshot {path} has format version {version}; this kraftpy reads version "
                f"{_FORMAT_VERSION}: start the version that wrote it"
            )
        body = memoryview(data)[_HEADER.size :]
        if crc32c(body, crc32c(_LENGTHS.pack(*lengths))) != crc:
            raise damaged
        index, term = unpack(body[: lengths[0]])
        sessions = bytes(body[lengths[0] : lengths[0] + lengths[1]])
        return Snapshot(index, term, sessions, bytes(body[lengths[0] + lengths[1] :]))

    def write(self, snapshot: Snapshot) -> None:
        """Write, verify and name a snapshot.

        Raises `SnapshotFullError` if there is no space, `JournalFailedError` if the disk fails.
        """
        meta = pack([snapshot.index, snapshot.term])
        parts = (meta, snapshot.sessions, snapshot.machine)
        body = b"".join(parts)
        lengths = [len(part) for part in parts]
        crc = crc32c(body, crc32c(_LENGTHS.pack(*lengths)))
        target = self.folder / f"{snapshot.index:020d}-{snapshot.term:010d}.checkpoint"
        temporary = target.with_name(target.name + ".tmp")
        try:
            fd = self._files.create(temporary)
            try:
                header = _HEADER.pack(_MARKER, _FORMAT_VERSION, crc, *lengths)
                self._files.write(fd, header + body, 0)
                self._files.datasync(fd)
            finally:
                os.close(fd)
            if self.load(temporary) != snapshot:
                raise JournalFailedError(
                    f"{temporary} reads back differently from what was written"
                )
            self._files.replace(temporary, target)
        except OSError as error:
            if error.errno in NO_SPACE:
                self._files.unlink(temporary)
                raise SnapshotFullError(f"no space for the snapshot {target}: {error}") from None
            raise JournalFailedError(f"writing the snapshot {target} failed: {error}") from error
        except SnapshotDamagedError as error:
            raise JournalFailedError(f"the disk changed what was written: {error}") from None

    def remove_old(self) -> None:
        """Keep the newest two; raises `OSError`."""
        for name in self.list()[:-SNAPSHOTS_KEPT]:
            self._files.unlink(name.path)

    def set_aside(self, path: Path) -> Path:
        """Rename a damaged snapshot so that it counts no more; returns the new path."""
        target = path.with_name(path.name + ".damaged")
        self._files.replace(path, target)
        return target


class Recovered(NamedTuple):
    """What a folder gave: all of the journal's entries are applied in `state`.

    `snapshot_index` is where the replay started; `stale` are the indexes of the entries after it
    that changed nothing (see `Applied.fresh`).
    """

    journal: Journal
    state: ReplicatedState
    snapshot_index: int
    stale: set[int]


def recover(folder: Path, machine_type: MachineType, files: FileLayer) -> Recovered:
    """Open journal and snapshots in `folder` (made if missing) and rebuild the state.

    Raises `JournalDamagedError`, `SnapshotDamagedError` or `SnapshotVersionError` (each says what
    to do), `JournalFullError`, `JournalFailedError`.  Needs exclusive use of the folder.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        files.sync_directory(folder.parent)
    for leftover in folder.glob("*.tmp"):
        files.unlink(leftover)
    store = SnapshotStore(folder, files)
    path = folder / JOURNAL_NAME
    if not path.exists():
        if other := sorted(p.name for p in folder.glob("*.checkpoint*")):
            raise JournalDamagedError(
                f"quorum journal {path} is missing though {other[0]} exists, so entries and the "
                f"vote are lost. Restore the folder {folder} from a backup, or move it away to "
                "start over"
            )
        return Recovered(Journal.create(path, files), ReplicatedState(machine_type), 0, set())
    journal = Journal.open(path, files)
    try:
        state = _newest_state(store, journal, machine_type)
        snapshot_index = state.applied_index
        stale: set[int] = set()
        for entry in journal.entries_from(snapshot_index + 1, sys.maxsize) or ():
            if not state.apply(entry).fresh:
                stale.add(entry.index)
    except BaseException:
        journal.close()
        raise
    return Recovered(journal, state, snapshot_index, stale)


def _newest_state(
    store: SnapshotStore, journal: Journal, machine_type: MachineType
) -> ReplicatedState:
    """The state of the newest snapshot that is sound and that the journal continues."""
    for name in reversed(store.list()):
        if name.index > journal.last_index:
            raise JournalDamagedError(
                f"quorum journal {journal.path} ends at index {journal.last_index} but snapshot "
                f"{name.path.name} is newer: the journal is an old copy or was cut. Restore the "
                f"folder {name.path.parent} from one backup as a whole"
            )
        if name.index < journal.base_index:
            break
        try:
            snapshot = store.load(name.path)
        except SnapshotDamagedError as error:
            if name.index == journal.base_index and journal.base_index > 0:
                raise SnapshotDamagedError(_beyond_repair(str(error), name.path.parent)) from None
            moved = store.set_aside(name.path)
            logger.error(
                "%s; moved it to %s and rebuild the same state from the older snapshot and the "
                "journal; check the disk",
                error,
                moved.name,
            )
            continue
        if snapshot.term != journal.term_at(snapshot.index):
            raise JournalDamagedError(
                f"quorum journal {journal.path} and snapshot {name.path.name} have different terms "
                f"at index {snapshot.index}: they do not belong together. Restore the folder "
                f"{name.path.parent} from one backup as a whole"
            )
        return ReplicatedState.restore(
            machine_type, snapshot.index, snapshot.sessions, snapshot.machine
        )
    if journal.base_index > 0:
        missing = f"the quorum snapshot at index {journal.base_index} is missing"
        raise SnapshotDamagedError(_beyond_repair(missing, store.folder))
    return ReplicatedState(machine_type)


def _beyond_repair(what: str, folder: Path) -> str:
    return (
        f"{what}, and the journal goes back no further. Restore the folder {folder} from a "
        "backup; if the other voters are healthy, move the folder away and this node copies theirs"
    )
