"""Thousands of logs in one broker: folders that come late, files that are closed, short ticks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kraftpy.protocol.errors import KafkaError
from kraftpy.storage import checkpoints, manager
from kraftpy.storage.files import Files
from kraftpy.storage.log import Log

from .support import (
    SMALL,
    TOPIC_ID,
    FaultyFiles,
    Store,
    append,
    batch,
    build_stored,
    contents,
    fill,
    with_config,
)

CONFIG = with_config(SMALL, segment_bytes=1 << 20)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def folders(store: Store) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.is_dir())


# -- folders


def test_a_partition_has_no_folder_before_its_first_record(store: Store) -> None:
    idle, busy = store.log("t", 0), store.log("t", 1)
    for log in (idle, busy):
        log.assign_leader_epoch(3)
        assert log.read(0, 100, upper_offset=0).slices == []
        assert log.max_timestamp_offset() is None
        assert not log.advance_log_start(0)
        assert log.delete_records_before(0) == 0
        assert not log.truncate_to(0)
        log.roll()
        log.flush()
    store.clock.now_ms += 400_000
    store.tick()
    assert folders(store) == []
    append(busy, batch(), epoch=3)
    assert folders(store) == ["t-1"]
    text = (busy.folder / "partition.metadata").read_text()
    assert checkpoints.uuid_to_text(TOPIC_ID) in text
    store.manager.delete("t", 0)
    store.reopen(clean=True)
    assert folders(store) == ["t-1"]
    assert [str(log) for log in store.manager if log.stored] == ["t-1"]
    assert contents(store.log("t", 1)) != b""


def test_an_empty_log_that_starts_elsewhere_is_kept(store: Store) -> None:
    """It may be in sync: after a restart it must not begin at 0 again."""
    store.log().truncate_fully_and_start_at(700)
    for clean in (True, False):
        log = store.reopen(clean=clean)
        assert (log.log_start_offset, log.log_end_offset) == (700, 700)


def test_a_full_disk_at_the_first_record(tmp_path: Path) -> None:
    """Whatever fails on the way to the folder, the next append tries again."""
    for number in range(20):
        files = FaultyFiles(short=True)
        store = Store(tmp_path / str(number), files=files)
        log = store.log()
        files.fail_at = files.count + number
        data = batch()
        try:
            append(log, batch())
        except KafkaError:
            assert (log.log_end_offset, log.size_bytes) == (0, 0)
            append(log, data)
        assert files.failed or number > 3
        found = store.reopen(clean=False, files=Files())
        assert (found.log_end_offset, found.topic_id) == (1, TOPIC_ID)


def test_a_folder_that_somebody_put_there_is_checked(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other", CONFIG)
    whole = b"".join(fill(other.log(), 5))
    other.close()
    (tmp_path / "other" / "t-0").rename(store.folder / "t-0")
    assert contents(store.log()) == whole


# -- files


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", CONFIG)


@pytest.fixture
def tight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """At most 8 files are open for appends."""
    monkeypatch.setattr(manager, "_max_written_files", lambda: 8)
    return Store(tmp_path / "data", CONFIG)


def test_the_files_of_busy_logs_are_bounded(tight: Store) -> None:
    before = open_files()
    logs = [tight.log("t", number) for number in range(40)]
    expected = dict.fromkeys(range(40), b"")
    for _ in range(3):
        for number, log in enumerate(logs):
            expected[number] += append(log, batch(2))
            assert open_files() <= before + 8
    for number, log in enumerate(logs):
        assert contents(log) == expected[number]
        log.flush()
        assert log.recovery_point == 6
        log.roll()
        expected[number] += append(log, batch(1))
        log.truncate_to(7 if number % 2 else 6)
    for clean in (True, False):
        tight.reopen(clean=clean)
        for number in range(40):
            end = 7 if number % 2 else 6
            log = tight.log("t", number)
            assert log.log_end_offset == end
            assert contents(log) == expected[number][: len(contents(log))]


def test_a_log_in_use_mostly_keeps_its_file(tight: Store) -> None:
    """Closing in turn would close it once for every eight others; who is appended to once goes."""
    busy = tight.log("t", 0)
    append(busy, batch())
    files = [busy.segments[-1].file]
    for number in range(1, 400):
        append(tight.log("t", number), batch())
        append(busy, batch())
        if busy.segments[-1].file is not files[-1]:
            files.append(busy.segments[-1].file)
    assert len(files) == 1


def test_slices_outlive_the_files_of_their_log(tight: Store) -> None:
    log = tight.log("t", 0)
    data = append(log, batch(3, value=b"first"))
    (piece,) = log.read(0, 1000, upper_offset=3).slices
    for number in range(1, 40):
        append(tight.log("t", number), batch(3, value=b"other"))
    assert piece.read() == data
    assert log.segments[-1].file.fd != piece.fd


def test_a_failed_write_to_a_file_that_was_closed(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("write",), short=True)
    store = Store(tmp_path / "data", CONFIG, files)
    log = store.log()
    whole = append(log, batch())
    log.segments[-1].close()
    files.fail_at = files.count
    with pytest.raises(KafkaError):
        append(log, batch())
    assert contents(log) == whole
    log.segments[-1].close()
    whole += append(log, batch())
    assert contents(store.reopen(clean=False, files=Files())) == whole


# -- upkeep


def test_retention_comes_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = store.clock.now_ms
    config = with_config(CONFIG, retention_ms=1000)
    logs = [store.manager.get_or_create("t", number, TOPIC_ID, config) for number in range(5)]
    for log in logs:
        append(log, batch(timestamp=now - 5000))
    monkeypatch.setattr(manager, "_RETENTION_SLICE_S", 0.0)
    store.clock.now_ms += 300_000
    gone = []
    for _ in range(12):
        store.tick()
        gone.append(sum(log.log_start_offset == 1 for log in logs))
    assert gone[-1] == 5
    assert gone[0] < 5
    assert gone == sorted(gone)


class SlowFiles(Files):
    """Replacing a checkpoint takes until the test lets it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.allowed = threading.Event()
        self.slow = False

    def rename(self, source: Path, target: Path) -> None:
        if self.slow and target.name in (
            checkpoints.RECOVERY_POINT_FILE,
            checkpoints.LEADER_EPOCH_FILE,
        ):
            self.slow = False
            self.begun.set()
            assert self.allowed.wait(20)
        super().rename(source, target)


def two_flushed_logs(tmp_path: Path) -> tuple[Store, SlowFiles, Log, Log]:
    files = SlowFiles()
    store = Store(tmp_path / "data", CONFIG, files)
    del store.manager._checkpointer.start  # the real one, on a thread
    one, two = store.log("t", 1), store.log("t", 2)
    for log in (one, two):
        fill(log, 10)
        log.flush()
    return store, files, one, two


def test_a_checkpoint_keeps_nobody_waiting(tmp_path: Path) -> None:
    store, files, one, _ = two_flushed_logs(tmp_path)
    files.slow = True
    store.clock.now_ms += 60_000
    store.tick()
    assert files.begun.wait(20)
    for _ in range(3):  # other rounds wait for the one that is under way
        store.clock.now_ms += 60_000
        append(one, batch())
        store.tick()
    assert not (store.folder / checkpoints.RECOVERY_POINT_FILE).exists()
    files.allowed.set()
    store.manager._checkpointer.join()
    points = checkpoints.read_offsets(store.folder / checkpoints.RECOVERY_POINT_FILE)
    assert points == {("t", 1): 10, ("t", 2): 10}
    store.close()


def test_a_truncation_wins_over_a_round_that_began_before_it(tmp_path: Path) -> None:
    """Else the next start would refuse the log: more had been flushed than there is."""
    for slow_file in (checkpoints.LEADER_EPOCH_FILE, checkpoints.RECOVERY_POINT_FILE):
        store, files, one, two = two_flushed_logs(tmp_path / slow_file)
        one.directory.write_recovery_points()
        for log in (one, two):
            fill(log, 10, epoch=7 if slow_file == checkpoints.LEADER_EPOCH_FILE else 0)
            log.flush()
        files.slow = True
        store.clock.now_ms += 60_000
        store.tick()
        assert files.begun.wait(20)
        cutter = threading.Thread(target=one.truncate_to, args=(4,))
        cutter.start()
        if slow_file == checkpoints.LEADER_EPOCH_FILE:
            cutter.join(20)  # the round isn't at the file yet: nobody waits for it
        files.allowed.set()
        cutter.join(20)
        store.manager._checkpointer.join()
        points = checkpoints.read_offsets(store.folder / checkpoints.RECOVERY_POINT_FILE)
        assert points[("t", 1)] == 4
        store.reopen(clean=False, files=Files())
        assert store.log("t", 1).log_end_offset == 4
        assert store.log("t", 2).log_end_offset == 20
        store.crash()


def test_a_log_deleted_during_a_checkpoint_leaves_no_promise(tmp_path: Path) -> None:
    store, files, one, _ = two_flushed_logs(tmp_path)
    files.slow = True
    store.clock.now_ms += 60_000
    store.tick()
    assert files.begun.wait(20)
    store.manager.delete("t", 1)
    again = store.log("t", 1)
    again.append_as_follower(build_stored(1, 0, 9), 9)
    files.allowed.set()
    store.manager._checkpointer.join()
    assert again is not one
    store.reopen(clean=False, files=Files())
    assert store.log("t", 1).log_end_offset == 1


def test_leader_epochs_that_cant_be_written_hold_back_their_recovery_point(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(kinds=("write",))
    store = Store(tmp_path / "data", CONFIG, files)
    one, two = store.log("t", 1), store.log("t", 2)
    for log in (one, two):
        fill(log, 3, epoch=5)
        log.flush()
    files.fail_at = files.count  # the epochs of the first log
    store.clock.now_ms += 60_000
    store.tick()
    path = store.folder / checkpoints.RECOVERY_POINT_FILE
    assert checkpoints.read_offsets(path) == {("t", 1): 0, ("t", 2): 3}
    assert "can't write a checkpoint of t-1" in caplog.text
    fill(one, 1, epoch=5)
    one.flush()
    store.clock.now_ms += 60_000
    store.tick()
    assert checkpoints.read_offsets(path) == {("t", 1): 4, ("t", 2): 3}
    assert checkpoints.read_epochs(one.folder / checkpoints.LEADER_EPOCH_FILE) == [(5, 0)]


def test_ten_thousand_idle_partitions(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", CONFIG)
    before = open_files()
    for number in range(10_000):
        store.log("t", number)
    store.clock.now_ms += 400_000
    store.tick()
    assert open_files() <= before
    assert folders(store) == []
    store.close()
    assert len(store.reopen(clean=True).directory.logs) == 1  # the one that is asked for
