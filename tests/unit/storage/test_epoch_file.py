"""`leader-epoch-checkpoint` and the recovery points: none is on disk before the epochs below it.

Recovery reads only from the recovery point's segment on, so what the file doesn't say of the
segments before is lost: a follower would be told a wrong end of an epoch, and not be cut.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.protocol.records import split_batches
from kraftpy.storage import checkpoints
from kraftpy.storage.files import Files
from kraftpy.storage.log import Log

from .support import NoRoomForEpochs, Store, append, batch, contents, epochs_of, fill, log_files

EPOCHS = [(1, 0), (2, 15), (3, 30)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def lead(log: Log, *epochs: int) -> None:
    """Fifteen flushed batches in each of `epochs`: some segments."""
    for epoch in epochs:
        log.assign_leader_epoch(epoch)
        fill(log, 15, epoch=epoch)
    log.flush()


def recovery_point(store: Store) -> int | None:
    path = store.folder / checkpoints.RECOVERY_POINT_FILE
    return checkpoints.read_offsets(path).get(("t", 0))


def saved_epochs(log: Log) -> list[tuple[int, int]]:
    return checkpoints.read_epochs(log.folder / checkpoints.LEADER_EPOCH_FILE)


def test_a_point_waits_for_epochs_that_could_not_be_written(tmp_path: Path) -> None:
    files = NoRoomForEpochs()
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    lead(log, 1, 2, 3)
    files.full = True
    for _ in range(2):
        log.directory.write_recovery_points()
        assert recovery_point(store) == 0
    files.full = False
    log.directory.write_recovery_points()  # the log has nothing new: the epochs have to come still
    assert (recovery_point(store), saved_epochs(log)) == (45, EPOCHS)
    log = store.reopen(clean=False)
    assert log.leader_epochs.entries() == EPOCHS
    assert log.end_offset_for_epoch(2) == (2, 30)


def test_a_topic_made_again_brings_no_point_before_its_epochs(store: Store) -> None:
    gone = store.log("gone")
    lead(gone, 1)
    gone.directory.write_recovery_points()
    store.manager.delete("gone", 0)  # the files still speak of it
    log = store.log()
    lead(log, 1, 2, 3)
    log.directory.begin_recovery_points()  # a thread has that, and is at another log's fsync
    store.log("gone")
    assert recovery_point(store) is None
    assert store.reopen(clean=False).leader_epochs.entries() == EPOCHS


def test_a_round_beside_one_that_is_under_way_sees_to_the_epochs_itself(store: Store) -> None:
    log = store.log()
    lead(log, 1, 2, 3)
    log.directory.begin_recovery_points()
    log.directory.write_recovery_points()
    assert (recovery_point(store), saved_epochs(log)) == (45, EPOCHS)
    assert store.reopen(clean=False).leader_epochs.entries() == EPOCHS


def test_a_late_round_neither_brings_old_epochs_back_nor_hides_new_ones(store: Store) -> None:
    log = store.log()
    lead(log, 1, 2)
    late = log.directory.begin_recovery_points()
    log.truncate_to(10)
    lead(log, 3)
    log.directory.write_recovery_points()
    late()
    assert (recovery_point(store), saved_epochs(log)) == (25, [(1, 0), (3, 10)])
    lead(log, 4)
    late = log.directory.begin_recovery_points()
    lead(log, 5)
    late()
    assert saved_epochs(log) == [(1, 0), (3, 10), (4, 25)]
    log.directory.write_recovery_points()
    assert saved_epochs(log) == [(1, 0), (3, 10), (4, 25), (5, 40)]
    assert store.reopen(clean=False).leader_epochs.entries() == epochs_of(contents(store.log()))


def test_a_late_round_leaves_no_epochs_to_a_log_that_began_anew(store: Store) -> None:
    log = store.log()
    lead(log, 1, 2, 7)
    late = log.directory.begin_recovery_points()
    log.truncate_fully_and_start_at(1000)
    late()
    assert saved_epochs(log) == []
    log.directory.write_recovery_points()
    append(log, batch(2), epoch=3)
    assert store.reopen(clean=False).leader_epochs.entries() == [(3, 1000)]


def test_a_late_round_leaves_no_epochs_to_the_next_topic_of_the_name(store: Store) -> None:
    lead(store.log(), 1, 2, 7)
    late = store.log().directory.begin_recovery_points()
    store.manager.delete("t", 0)
    log = store.log()
    lead(log, 1)
    late()
    assert saved_epochs(log) == []
    assert store.reopen(clean=False).leader_epochs.entries() == [(1, 0)]


def test_epochs_that_were_cut_off_do_not_come_back(store: Store) -> None:
    log = store.log()
    lead(log, 1, 2, 3)
    log.directory.write_recovery_points()
    log.truncate_to(20)
    lead(log, 5)
    log.directory.write_recovery_points()
    assert saved_epochs(log) == [(1, 0), (2, 15), (5, 20)]
    assert store.reopen(clean=False).leader_epochs.entries() == [(1, 0), (2, 15), (5, 20)]


class CountedEpochs(Files):
    written = 0

    def replace_contents(self, path: Path, data: bytes | bytearray, *, durable: bool) -> None:
        self.written += path.name == checkpoints.LEADER_EPOCH_FILE
        super().replace_contents(path, data, durable=durable)


def test_epochs_that_no_point_covers_cost_no_write(tmp_path: Path) -> None:
    """A change of leaders hits thousands of logs at once, and so does retention."""
    files = CountedEpochs()
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    lead(log, 1, 2)
    log.directory.write_recovery_points()
    assert files.written == 1
    log.assign_leader_epoch(3)
    log.delete_records_before(20)
    log.directory.write_recovery_points()
    assert files.written == 1
    lead(log, 3)
    for _ in range(2):
        log.directory.write_recovery_points()
    assert files.written == 2
    assert saved_epochs(log) == [(2, 20), (3, 30)]
    store.reopen(clean=False)
    assert store.log().leader_epochs.entries() == [(2, 20), (3, 30)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [None, "0\n1\n1 0\n", "0\n2\n1 0\n3 30\n"])
def test_epochs_that_the_file_lacks_are_read_from_the_batches(
    store: Store, left: str | None, clean: bool
) -> None:
    log = store.log()
    lead(log, 1, 2, 3)
    log.directory.write_recovery_points()
    assert len(log_files(log)) > 3
    path = log.folder / checkpoints.LEADER_EPOCH_FILE
    (store.close if clean else store.crash)()
    if left is None:
        path.unlink()
    else:
        path.write_text(left)
    store.manager = store._open()
    log = store.log()
    assert log.leader_epochs.entries() == EPOCHS
    log.directory.write_recovery_points()
    assert saved_epochs(log) == EPOCHS


def test_epochs_before_a_log_start_that_was_not_durable_are_read_again(store: Store) -> None:
    """A follower's log start follows the leader's; its own note of it comes later."""
    log = store.log()
    lead(log, 1, 2, 3)
    log.advance_log_start(20)
    log.directory.write_recovery_points()
    assert saved_epochs(log) == [(2, 20), (3, 30)]
    log = store.reopen(clean=False)
    assert (log.log_start_offset, log.leader_epochs.entries()) == (0, EPOCHS)


def test_a_batch_whose_epoch_is_damaged_changes_no_epochs(store: Store) -> None:
    log = store.log()
    lead(log, 1, 2, 3)
    path = log_files(log)[0]
    store.close()
    data = bytearray(path.read_bytes())
    position = split_batches(data)[-1][0]
    data[position + 12] = 64  # the first byte of the epoch, which no checksum covers
    path.write_bytes(data)
    store.manager = store._open()
    assert store.log().leader_epochs.entries() == EPOCHS
