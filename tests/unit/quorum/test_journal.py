"""The journal: what is on disk after a crash, damage, or a failing disk."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import pytest

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import (
    CONFIRMED_SUFFIX,
    Journal,
    JournalDamagedError,
    JournalFailedError,
    JournalFullError,
)
from kraftpy.quorum.port import Entry

from .faults import IO_ERROR, NEVER, NO_SPACE, Crash, CrashingLayer, FailingLayer

FILES = FileLayer()


def entry(index: int, term: int = 1, command: bytes | None = None) -> Entry:
    return Entry(index, term, b"command %d" % index if command is None else command)


def indexes(journal: Journal) -> list[int]:
    return [e.index for e in journal.entries_from(journal.base_index + 1, 1 << 30) or []]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quorum.journal"


def write(path: Path, *appends: list[Entry], confirmed: bool = False) -> list[int]:
    """A journal with these appends; returns where each of their records starts, and the end.

    Unless `confirmed`, the process died before the last one was durable, as far as it has noted.
    """
    journal = Journal.create(path, FILES)
    note = path.with_suffix(CONFIRMED_SUFFIX)
    noted = note.read_bytes()
    starts = []
    for entries in appends:
        starts.append(journal.size_bytes)
        noted = note.read_bytes()
        journal.append(entries)
    starts.append(journal.size_bytes)
    journal.close()
    if not confirmed:
        note.write_bytes(noted)
    return starts


def reopened(path: Path) -> list[int]:
    journal = Journal.open(path, FILES)
    journal.close()
    return indexes(journal)


def test_what_was_appended_is_there_after_reopening(path: Path) -> None:
    journal = Journal.create(path, FILES)
    journal.set_vote(3, 7)
    journal.append([entry(1, 3), entry(2, 3, b"")])
    journal.append([entry(3, 4, b"\x00\xff" * 50_000)])
    journal.close()
    again = Journal.open(path, FILES)
    assert again.entries_from(1, 1 << 30) == [
        entry(1, 3),
        entry(2, 3, b""),
        entry(3, 4, b"\x00\xff" * 50_000),
    ]
    assert (again.term, again.voted_for, again.last_index, again.last_term) == (3, 7, 3, 4)
    again.append([entry(4, 4)])
    again.close()
    assert reopened(path) == [1, 2, 3, 4]


def test_entries_from_is_bounded_but_makes_progress(path: Path) -> None:
    journal = Journal.create(path, FILES)
    journal.append([entry(n, command=bytes(100)) for n in range(1, 11)])
    assert [e.index for e in journal.entries_from(3, 250) or []] == [3, 4]
    assert [e.index for e in journal.entries_from(3, 1) or []] == [3]
    assert journal.entries_from(11, 1) == []
    assert journal.entries_from(0, 1) is None
    journal.close()


@pytest.mark.parametrize("rest", ["cut", "zeros", "garbage"])
def test_a_write_torn_at_any_byte_is_dropped_and_nothing_else(
    path: Path, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, start, end = write(path, [entry(1), entry(2)], [entry(3)], [entry(4), entry(5)])
    whole, note = path.read_bytes(), path.with_suffix(CONFIRMED_SUFFIX)
    noted = note.read_bytes()
    for torn_at in range(start, end):
        caplog.clear()
        note.write_bytes(noted)
        tail = {"cut": b"", "zeros": bytes(end - torn_at + 100), "garbage": b"\xf5kpJ\x07" * 9}
        path.write_bytes(whole[:torn_at] + tail[rest])
        journal = Journal.open(path, FILES)
        assert indexes(journal) == [1, 2, 3]
        clean = torn_at == start and rest != "garbage"
        assert [r.levelno for r in caplog.records] == ([] if clean else [logging.WARNING])
        journal.append([entry(4, 2)])
        journal.close()
        caplog.clear()
        assert reopened(path) == [1, 2, 3, 4]
        assert not caplog.records


def test_damage_before_the_last_record_refuses_to_open_and_changes_nothing(path: Path) -> None:
    starts = write(path, [entry(1), entry(2)], [entry(3)], [entry(4)])
    whole = path.read_bytes()
    for position in range(starts[-2]):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(JournalDamagedError) as caught:
            Journal.open(path, FILES)
        at = max(start for start in (0, *starts) if start <= position)
        assert f"{path} is damaged at byte {at}:" in str(caught.value)
        assert "Restore the folder" in str(caught.value)
        assert path.read_bytes() == bytes(damaged)


def test_zeroed_block_in_the_middle_is_damage(path: Path) -> None:
    starts = write(path, [entry(1)], [entry(2)], [entry(3)])
    data = bytearray(path.read_bytes())
    data[starts[1] : starts[2]] = bytes(starts[2] - starts[1])
    path.write_bytes(data)
    with pytest.raises(JournalDamagedError, match="no interrupted write"):
        Journal.open(path, FILES)


def test_a_lost_last_record_is_an_interrupted_write(path: Path) -> None:
    """The documented limit: after a power failure, which may take what is noted along."""
    *_, start, _ = write(path, [entry(1)], [entry(2)], confirmed=True)
    data = bytearray(path.read_bytes())
    data[start + 20] ^= 1
    path.write_bytes(data)
    path.with_suffix(CONFIRMED_SUFFIX).unlink()
    assert reopened(path) == [1]


def test_what_was_confirmed_and_is_gone_is_damage_to_the_last_byte(path: Path) -> None:
    """Zeros from anywhere on, a cut or a flipped bit: an interrupted write would look the same."""
    starts = write(path, [entry(1)], [entry(2)], [entry(3)], confirmed=True)
    whole = path.read_bytes()
    for position in range(starts[0], starts[-1]):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        zeroed = whole[:position] + bytes(len(whole) - position)
        for damaged in (zeroed, whole[:position], bytes(flipped)):
            path.write_bytes(damaged)
            with pytest.raises(JournalDamagedError) as caught:
                Journal.open(path, FILES)
            assert f"{path} is damaged at byte" in str(caught.value)
            assert "move the folder away and this node copies theirs" in str(caught.value)
            assert path.read_bytes() == damaged


def test_what_is_noted_of_another_file_says_nothing_of_this_one(path: Path) -> None:
    """A crash between a compaction's rename and its note."""
    note = path.with_suffix(CONFIRMED_SUFFIX)
    journal = Journal.create(path, FILES)
    journal.append([entry(n) for n in range(1, 21)])
    noted = note.read_bytes()
    journal.compact(19).close()
    for other in (noted, b"", noted[:-1], bytes(len(noted)), b"\xff" * len(noted)):
        note.write_bytes(other)
        assert reopened(path) == [20]


def test_a_note_that_cant_be_taken_stops_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = path.with_suffix(CONFIRMED_SUFFIX)
    note.mkdir()
    journal = Journal.create(path, FILES)
    journal.append([entry(1)])
    journal.close()
    assert [r.message for r in caplog.records if "can't note" in r.message]
    note.rmdir()
    assert reopened(path) == [1]


def test_a_record_quoted_in_a_torn_command_does_not_pass_as_a_later_record(path: Path) -> None:
    first, second, _ = write(path, [entry(1)], [entry(2)])
    quoted = path.read_bytes()[first:second]
    path.unlink()
    *_, end = write(path, [entry(1)], [entry(2, command=bytes(50) + quoted + bytes(50))])
    whole = path.read_bytes()
    path.write_bytes(whole[: end - 10])
    assert reopened(path) == [1]


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    for content in (b"", b"\0" * 100, b"hello\n" * 100, pickle.dumps([1, 2, 3])):
        path.write_bytes(content)
        with pytest.raises(JournalDamagedError, match="opening record"):
            Journal.open(path, FILES)


def test_pickled_data_is_never_loaded(path: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    poison = pickle.dumps(Poison(str(marker)))
    write(path, [entry(1, command=poison)])
    journal = Journal.open(path, FILES)
    assert [e.command for e in journal.entries_from(1, 1000) or []] == [poison]
    journal.close()
    path.write_bytes(poison)
    with pytest.raises(JournalDamagedError):
        Journal.open(path, FILES)
    assert not marker.exists()
    pickle.loads(poison)
    assert marker.exists(), "the poison works, so the test above could have failed"


class Poison:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("operation", ["allocate", "write"])
def test_a_full_disk_fails_the_append_and_leaves_the_journal_as_it_was(
    path: Path, operation: str
) -> None:
    files = FailingLayer()
    journal = Journal.create(path, files)
    journal.append([entry(1)])
    files.failures[operation] = NO_SPACE
    with pytest.raises(JournalFullError, match=r"quorum\.journal"):
        journal.append([entry(2, command=bytes(3 << 20))])
    assert journal.last_index == 1
    files.failures.clear()
    journal.append([entry(2)])
    journal.close()
    assert reopened(path) == [1, 2]


@pytest.mark.parametrize(
    ("operation", "number"),
    [("datasync", IO_ERROR), ("datasync", NO_SPACE), ("write", IO_ERROR), ("allocate", IO_ERROR)],
)
def test_any_other_disk_error_is_final(path: Path, operation: str, number: int) -> None:
    files = FailingLayer()
    journal = Journal.create(path, files)
    files.failures[operation] = number
    with pytest.raises(JournalFailedError, match=r"quorum\.journal"):
        journal.append([entry(1)])
    journal.close()


def test_full_disk_that_cannot_be_undone_is_final(path: Path) -> None:
    files = FailingLayer()
    journal = Journal.create(path, files)
    files.failures = {"write": NO_SPACE, "truncate": IO_ERROR}
    with pytest.raises(JournalFailedError):
        journal.append([entry(1)])
    journal.close()


def test_compaction_keeps_the_rest_the_vote_and_the_term_of_the_base(path: Path) -> None:
    journal = Journal.create(path, FILES)
    journal.set_vote(5, 2)
    journal.append([entry(n, 5) for n in range(1, 21)])
    journal = journal.compact(15)
    journal.append([entry(21, 5)])
    journal.close()
    again = Journal.open(path, FILES)
    assert indexes(again) == [16, 17, 18, 19, 20, 21]
    assert (again.base_index, again.base_term, again.term, again.voted_for) == (15, 5, 5, 2)
    assert again.entries_from(15, 1000) is None
    again = again.compact(21)
    assert (again.last_index, again.last_term) == (21, 5)
    again.close()


def test_compaction_on_a_full_disk_keeps_the_old_journal_in_use(path: Path) -> None:
    files = FailingLayer()
    journal = Journal.create(path, files)
    journal.append([entry(n) for n in range(1, 6)])
    files.failures["write"] = NO_SPACE
    with pytest.raises(JournalFullError):
        journal.compact(3)
    files.failures.clear()
    journal.append([entry(6)])
    journal.close()
    assert reopened(path) == [1, 2, 3, 4, 5, 6]
    names = {path.name, path.with_suffix(CONFIRMED_SUFFIX).name}
    assert {p.name for p in path.parent.iterdir()} == names


def test_compaction_may_crash_at_every_step(path: Path) -> None:
    outcomes = set()
    for step in range(100):
        path.unlink(missing_ok=True)
        journal = Journal.create(path, FILES)
        journal.set_vote(2, 1)
        journal.append([entry(n, 2) for n in range(1, 21)])
        journal.close()
        files = CrashingLayer(NEVER)
        journal = Journal.open(path, files)
        files.crash_after(step)
        try:
            journal = journal.compact(12)
            done = True
        except Crash:
            done = False
        files.lose_unsynced()
        again = Journal.open(path, FILES)
        assert again.last_index == 20
        assert again.base_index in (0, 12)
        assert (again.term, again.voted_for) == (2, 1)
        outcomes.add(again.base_index)
        again.append([entry(21, 2)])
        again.close()
        journal.close()
        if done:
            assert again.base_index == 12
            break
    assert done
    assert step >= 4
    assert outcomes == {0, 12}


def test_append_may_crash_at_every_step(path: Path) -> None:
    for step in range(100):
        path.unlink(missing_ok=True)
        write(path, [entry(1)])
        with path.open("r+b") as file:  # so that the append has to allocate
            file.truncate(file.seek(0, os.SEEK_END) - (1 << 19))
        files = CrashingLayer(NEVER)
        journal = Journal.open(path, files)
        files.crash_after(step)
        try:
            journal.append([entry(2, command=bytes(1 << 20))])
            done = True
        except Crash:
            done = False
        journal.close()
        files.lose_unsynced()
        assert reopened(path) == ([1, 2] if done else [1])
        if done:
            break
    assert done
    assert step >= 3
