"""Snapshots of the replicated state, and recovery from snapshots and journal.

A snapshot is one file `<index>-<term>.checkpoint` (Kafka's naming, KIP-630): a header
`marker(4) | format version(1) | CRC-32C(4) | three lengths(8 each)`, then the msgpack of `[index,
term]`, of the sessions and of the state machine. The last part is sent to followers as it is.

Rules:

* A snapshot gets its name only when it is complete, durable and has been read back and verified.
* One that arrives from the leader waits as `*.received` until the journal starts at it: which of
  the two came to pass before a crash, the journal's base index tells.
* Two snapshots are kept, and the journal from the older one on. So if the newest turns out to be
  damaged, the older one and the journal give exactly the same state; the damaged file is renamed to
  `*.damaged`, and a log line says so.
* If what is left can't give the whole state, `recover` refuses with a sentence. An empty state is
  only ever made in a folder that holds no file of an earlier life.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.crc import crc32c
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import NO_SPACE, Journal, JournalDamagedError, JournalFailedError
from kraftpy.quorum.packing import pack, unpack
from kraftpy.quorum.port import MachineType
from kraftpy.quorum.state import ReplicatedState

logger = logging.getLogger(__name__)

JOURNAL_NAME = "quorum.journal"
VOTERS_NAME = "quorum.voters"
"""Whose folder it is; see `voter.py`. It is written once there is a journal."""
SNAPSHOTS_KEPT = 2
_FORMAT_VERSION = 1
_MARKER = b"\xf5kpS"
_HEADER = struct.Struct(">4sBIQQQ")
_LENGTHS = struct.Struct(">QQQ")
_RECEIVED = ".received"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotDamagedError(Exception):
    """A snapshot file does not hold what was written. Names the file."""


class SnapshotVersionError(Exception):
    """A snapshot was written by another version of kraftpy. Names the file and what to do."""


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
        return self._parse(path, path.read_bytes())

    def newest_file(self) -> tuple[SnapshotName, bytes] | None:
        """The newest sound snapshot with the bytes of its file. Raises `OSError`."""
        for name in reversed(self.list()):
            data = name.path.read_bytes()
            try:
                self._parse(name.path, data)
                return name, data
            except SnapshotDamagedError as error:
                logger.error("%s; it is not sent to other voters; check the disk", error)
        return None

    def _parse(self, path: Path, data: bytes) -> Snapshot:
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
        """Writes, verifies and names a snapshot.

        Raises `SnapshotFullError` if there is no space, `JournalFailedError` if the disk fails.
        """
        meta = pack([snapshot.index, snapshot.term])
        parts = (meta, snapshot.sessions, snapshot.machine)
        body = b"".join(parts)
        lengths = [len(part) for part in parts]
        crc = crc32c(body, crc32c(_LENGTHS.pack(*lengths)))
        target = self._path(snapshot.index, snapshot.term)
        header = _HEADER.pack(_MARKER, _FORMAT_VERSION, crc, *lengths)
        written = self._write_file(target.with_name(target.name + ".tmp"), header + body, target)
        if written != snapshot:
            raise JournalFailedError(f"{target} reads back differently from what was written")

    def receive(self, index: int, term: int, data: bytes) -> Snapshot:
        """Makes another voter's snapshot file durable, without using it yet; returns its content.

        Raises `SnapshotDamagedError` if it is not the sound snapshot of that entry (nothing is
        left behind), else as `write` does.
        """
        target = self._path(index, term)
        snapshot = self._parse(target, data)
        if (snapshot.index, snapshot.term) != (index, term):
            raise SnapshotDamagedError(f"what came as {target.name} is another snapshot")
        temporary = target.with_name(target.name + ".tmp")
        return self._write_file(temporary, data, target.with_name(target.name + _RECEIVED))

    def accept(self, index: int, term: int) -> None:
        """Uses the snapshot that `receive` wrote. Raises `JournalFailedError`."""
        target = self._path(index, term)
        try:
            self._files.replace(target.with_name(target.name + _RECEIVED), target)
        except OSError as error:
            raise JournalFailedError(f"renaming to {target} failed: {error}") from error

    def settle_received(self, base_index: int, base_term: int) -> None:
        """After a restart: use a received snapshot if the journal starts at it, else remove it."""
        base = self._path(base_index, base_term)
        for path in self.folder.glob("*" + _RECEIVED):
            if path.name == base.name + _RECEIVED:
                self.accept(base_index, base_term)
            else:
                self._files.unlink(path)

    def _path(self, index: int, term: int) -> Path:
        return self.folder / f"{index:020d}-{term:010d}.checkpoint"

    def _write_file(self, temporary: Path, data: bytes, target: Path) -> Snapshot:
        try:
            fd = self._files.create(temporary)
            try:
                self._files.write(fd, data, 0)
                self._files.datasync(fd)
            finally:
                os.close(fd)
            snapshot = self.load(temporary)
            self._files.replace(temporary, target)
            return snapshot
        except OSError as error:
            if error.errno in NO_SPACE:
                self._files.unlink(temporary)
                raise SnapshotFullError(f"no space for the snapshot {target}: {error}") from None
            raise JournalFailedError(f"writing the snapshot {target} failed: {error}") from error
        except SnapshotDamagedError as error:
            raise JournalFailedError(f"the disk changed what was written: {error}") from None

    def remove_old(self) -> None:
        """Keeps the newest two; raises `OSError`."""
        for name in self.list()[:-SNAPSHOTS_KEPT]:
            self._files.unlink(name.path)

    def set_aside(self, path: Path) -> Path:
        """Renames a damaged snapshot so that it counts no more; returns the new path."""
        target = path.with_name(path.name + ".damaged")
        self._files.replace(path, target)
        return target


class Recovered(NamedTuple):
    """What a folder gave.

    `snapshot_index` is where the replay, if one was asked for, started; `stale` are the indexes of
    the replayed entries that changed nothing (see `Applied.fresh`).
    """

    journal: Journal
    state: ReplicatedState
    snapshot_index: int
    stale: set[int]


def recover(
    folder: Path, machine_type: MachineType, files: FileLayer, *, replay: bool
) -> Recovered:
    """Opens journal and snapshots in `folder` (made if missing) and rebuilds the state.

    With `replay` all entries of the journal are applied, without it the state is the newest
    snapshot's (a Raft voter doesn't know yet which entries after it are committed).
    Raises `JournalDamagedError`, `SnapshotDamagedError` or `SnapshotVersionError` (each says what
    to do), `JournalFullError`, `JournalFailedError`. Needs exclusive use of the folder.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        files.sync_directory(folder.parent)
    for leftover in folder.glob("*.tmp"):
        files.unlink(leftover)
    files.sync_directory(folder)  # a process that was killed may not have come to it
    store = SnapshotStore(folder, files)
    path = folder / JOURNAL_NAME
    if not path.exists():
        if other := sorted(p.name for p in folder.glob("*.checkpoint*")) or [
            p.name for p in folder.glob(VOTERS_NAME)
        ]:
            raise JournalDamagedError(
                f"quorum journal {path} is missing though {other[0]} exists, so entries and the "
                f"vote are lost. Restore the folder {folder} from a backup, or move it away to "
                "start over"
            )
        return Recovered(Journal.create(path, files), ReplicatedState(machine_type), 0, set())
    journal = Journal.open(path, files)
    try:
        store.settle_received(journal.base_index, journal.base_term)
        state = _newest_state(store, journal, machine_type)
        snapshot_index = state.applied_index
        stale: set[int] = set()
        entries = journal.entries_from(snapshot_index + 1, sys.maxsize) if replay else None
        for entry in entries or ():
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
