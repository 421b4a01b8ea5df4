"""Snapshots and recovery: the whole state or a refusal, never an empty or partial one."""

from __future__ import annotations

import contextlib
import logging
import pickle
from pathlib import Path

import pytest

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import CONFIRMED_SUFFIX, Journal, JournalDamagedError
from kraftpy.quorum.port import Entry
from kraftpy.quorum.snapshot import (
    JOURNAL_NAME,
    Snapshot,
    SnapshotDamagedError,
    SnapshotFullError,
    SnapshotStore,
    SnapshotVersionError,
    recover,
)
from kraftpy.quorum.state import ReplicatedState, pack_envelope

from .faults import NEVER, NO_SPACE, Crash, CrashingLayer, FailingLayer
from .standin import Values
from .test_journal import Poison

CLIENT = b"c" * 16


def command(n: int) -> bytes:
    return pack_envelope(CLIENT, n, n, 0, {"add": n})


def grow(
    folder: Path,
    through: int,
    files: FileLayer,
    snapshots: tuple[int, ...],
    confirmed: list[int] | None = None,
) -> None:
    """Append entries up to `through`; snapshot and compact at some indexes, as a voter does."""
    journal, state, _, _ = recover(folder, Values, files, replay=True)
    store = SnapshotStore(folder, files)
    try:
        for n in range(state.applied_index + 1, through + 1):
            entry = Entry(n, 1, command(n))
            journal.append([entry])
            if confirmed is not None:
                confirmed.append(n)
            state.apply(entry)
            if n in snapshots:
                store.write(Snapshot(n, 1, state.pack_sessions(), state.pack_machine()))
                names = store.list()
                if len(names) > 1 and names[-2].index > journal.base_index:
                    journal = journal.compact(names[-2].index)
                store.remove_old()
    finally:
        journal.close()


def values_in(folder: Path) -> list[int]:
    journal, state, _, _ = recover(folder, Values, FileLayer(), replay=True)
    journal.close()
    assert isinstance(state.machine, Values)
    return state.machine.values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metadata"


def test_recovery_needs_only_the_last_snapshot_and_the_entries_after_it(folder: Path) -> None:
    grow(folder, 40, FileLayer(), snapshots=(10, 20, 30))
    journal, state, snapshot_index, stale = recover(folder, Values, FileLayer(), replay=True)
    assert (snapshot_index, journal.base_index, state.applied_index) == (30, 20, 40)
    assert stale == set()
    journal.close()
    assert values_in(folder) == list(range(1, 41))
    assert [n.index for n in SnapshotStore(folder, FileLayer()).list()] == [20, 30]


def test_a_crash_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """Journal creation, appends, snapshots and compaction, stopped between any two system calls."""
    for step in range(1000):
        folder = tmp_path / str(step)
        files = CrashingLayer(step)
        confirmed: list[int] = []
        try:
            grow(folder, 12, files, (4, 8, 10), confirmed)
            done = True
        except Crash:
            done = False
        files.lose_unsynced()
        found = values_in(folder) if folder.exists() else []
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= len(confirmed)
        grow(folder, 14, FileLayer(), snapshots=(13,))
        assert values_in(folder) == list(range(1, 15))
        if done:
            break
    assert done
    assert step > 50


def test_what_a_killed_process_left_in_the_page_cache_is_durable_once_it_was_read(
    tmp_path: Path,
) -> None:
    """The next process acknowledges what it read; a power loss after that must not take it."""
    for step in range(1000):
        folder = tmp_path / str(step)
        files = CrashingLayer(step)
        try:
            grow(folder, 12, files, (4, 8, 10))
            done = True
        except Crash:
            done = False
        files.crash_after(NEVER)  # killed, but the machine goes on
        journal, state, _, _ = recover(folder, Values, files, replay=True)
        journal.close()
        files.lose_unsynced()
        assert isinstance(state.machine, Values)
        assert values_in(folder) == state.machine.values, f"step {step}"
        if done:
            break
    assert done


def test_a_damaged_newest_snapshot_is_set_aside_and_the_older_one_gives_the_same_state(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grow(folder, 40, FileLayer(), snapshots=(10, 20, 30))
    newest = SnapshotStore(folder, FileLayer()).list()[-1].path
    whole = newest.read_bytes()
    for position in (0, 5, 9, 20, 33, 40, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        newest.write_bytes(damaged)
        caplog.clear()
        assert values_in(folder) == list(range(1, 41))
        assert [r.levelno for r in caplog.records] == [logging.ERROR]
        assert newest.name in caplog.text
        assert newest.with_name(newest.name + ".damaged").read_bytes() == bytes(damaged)
    newest.write_bytes(whole[:-1])
    assert values_in(folder) == list(range(1, 41))


def test_without_any_sound_snapshot_it_refuses(folder: Path) -> None:
    grow(folder, 40, FileLayer(), snapshots=(10, 20, 30))
    for name in SnapshotStore(folder, FileLayer()).list():
        name.path.write_bytes(name.path.read_bytes()[:-1])
    with pytest.raises(
        SnapshotDamagedError, match=r"20-0000000001\.checkpoint is damaged.*Restore"
    ):
        values_in(folder)
    for name in SnapshotStore(folder, FileLayer()).list():
        name.path.unlink()
    with pytest.raises(SnapshotDamagedError, match=r"snapshot at index 20 is missing.*Restore"):
        values_in(folder)


def test_a_damaged_first_snapshot_is_no_loss_while_the_journal_is_whole(folder: Path) -> None:
    grow(folder, 8, FileLayer(), snapshots=(5,))
    (name,) = SnapshotStore(folder, FileLayer()).list()
    name.path.write_bytes(b"")
    assert values_in(folder) == list(range(1, 9))


def test_a_missing_or_older_journal_is_refused(folder: Path) -> None:
    grow(folder, 5, FileLayer(), snapshots=())
    old = (folder / JOURNAL_NAME).read_bytes()
    grow(folder, 8, FileLayer(), snapshots=(7,))
    (folder / JOURNAL_NAME).write_bytes(old)
    with pytest.raises(JournalDamagedError, match="what it has lost was confirmed"):
        values_in(folder)
    (folder / JOURNAL_NAME).with_suffix(CONFIRMED_SUFFIX).unlink()
    with pytest.raises(JournalDamagedError, match=r"ends at index 5 but snapshot .* is newer"):
        values_in(folder)
    (folder / JOURNAL_NAME).unlink()
    with pytest.raises(JournalDamagedError, match=r"quorum\.journal is missing though"):
        values_in(folder)
    assert not (folder / JOURNAL_NAME).exists()


def test_snapshot_and_journal_of_different_terms_are_refused(folder: Path) -> None:
    grow(folder, 5, FileLayer(), snapshots=())
    state = ReplicatedState(Values)
    store = SnapshotStore(folder, FileLayer())
    store.write(Snapshot(5, 2, state.pack_sessions(), state.pack_machine()))
    with pytest.raises(JournalDamagedError, match="do not belong together"):
        values_in(folder)


def test_a_snapshot_of_another_version_is_left_alone(folder: Path) -> None:
    grow(folder, 8, FileLayer(), snapshots=(5,))
    (name,) = SnapshotStore(folder, FileLayer()).list()
    data = bytearray(name.path.read_bytes())
    data[4] = 9
    name.path.write_bytes(data)
    with pytest.raises(SnapshotVersionError, match="format version 9"):
        values_in(folder)
    assert name.path.read_bytes() == bytes(data)


def test_a_full_disk_leaves_no_trace_of_a_snapshot(folder: Path) -> None:
    grow(folder, 5, FileLayer(), snapshots=())
    files = FailingLayer()
    files.failures["write"] = NO_SPACE
    before = sorted(folder.iterdir())
    with pytest.raises(SnapshotFullError):
        SnapshotStore(folder, files).write(Snapshot(5, 1, b"\x90", b"\x80" * 1000))
    assert sorted(folder.iterdir()) == before


def test_a_pickled_snapshot_is_never_loaded(folder: Path, tmp_path: Path) -> None:
    grow(folder, 40, FileLayer(), snapshots=(10, 20))
    poison = pickle.dumps(Poison(str(tmp_path / "marker")))
    store = SnapshotStore(folder, FileLayer())
    store.list()[-1].path.write_bytes(poison)
    store.write(Snapshot(35, 1, poison, poison))  # even with a valid checksum around it
    with pytest.raises(ValueError, match="msgpack"):
        values_in(folder)
    assert not (tmp_path / "marker").exists()


def test_leftovers_of_interrupted_writes_are_removed(folder: Path) -> None:
    grow(folder, 5, FileLayer(), snapshots=())
    (folder / "quorum.journal.tmp").write_bytes(b"half")
    (folder / "00000000000000000004-0000000001.checkpoint.tmp").write_bytes(b"half")
    assert values_in(folder) == [1, 2, 3, 4, 5]
    assert {p.name for p in folder.iterdir()} == {JOURNAL_NAME, f"quorum{CONFIRMED_SUFFIX}"}


def test_an_open_journal_is_released_when_recovery_refuses(folder: Path) -> None:
    grow(folder, 5, FileLayer(), snapshots=())
    data = bytearray((folder / JOURNAL_NAME).read_bytes())
    data[60] ^= 1
    (folder / JOURNAL_NAME).write_bytes(data)
    with (folder / JOURNAL_NAME).open():
        assert len(open_below(folder)) == 1
    for _ in range(3):
        with pytest.raises(JournalDamagedError):
            values_in(folder)
    with pytest.raises(JournalDamagedError):
        Journal.open(folder / JOURNAL_NAME, FileLayer())
    assert not open_below(folder)


def open_below(folder: Path) -> list[str]:
    """The files of this process there; what else it opens and closes meanwhile is its own."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(each.readlink()))
    return [each for each in found if each.startswith(str(folder))]
