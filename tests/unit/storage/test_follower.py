"""What replication needs of a log: appends as a follower, cuts that a crash may interrupt."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker, split_batches
from kraftpy.storage.files import Files
from kraftpy.storage.log import Log

from .support import (
    SMALL,
    DyingFiles,
    Stopped,
    Store,
    append,
    batch,
    build_stored,
    contents,
    epochs_of,
    fill,
    log_files,
    with_config,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", with_config(SMALL, segment_bytes=1 << 20))


class CountingFiles(Files):
    def __init__(self) -> None:
        self.writes = 0

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self.writes += 1
        return super().write(fd, data)


def lead_a_life(log: Log) -> None:
    """Batches of three epochs (one of them without records), producers, a transaction."""
    log.assign_leader_epoch(1)
    for number in range(6):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * number}
        append(log, batch(2, timestamp=1000 + number, **options), epoch=1)
    log.assign_leader_epoch(2)
    log.assign_leader_epoch(4)
    append(
        log,
        batch(1, producer_id=9, producer_epoch=3, base_sequence=0, transactional=True),
        epoch=4,
    )
    marker = build_end_txn_marker(
        EndTxnMarker(False, 0), producer_id=9, producer_epoch=3, timestamp_ms=2000
    )
    append(log, bytearray(marker), epoch=4)
    append(log, batch(5), epoch=5)


def test_a_follower_has_what_its_leader_has(tmp_path: Path) -> None:
    leader = Store(tmp_path / "leader", with_config(SMALL, segment_bytes=1 << 20)).log()
    lead_a_life(leader)
    files = CountingFiles()
    store = Store(tmp_path / "follower", with_config(SMALL, segment_bytes=1 << 20), files)
    log = store.log()
    data = contents(leader)
    append(log, batch(0 + 2, producer_id=7, producer_epoch=0, base_sequence=0), epoch=1)
    log.truncate_to(0)
    files.writes = 0
    assert log.append_as_follower(data, 5) == len(data)
    assert files.writes == 1
    assert contents(log) == data
    assert log.log_end_offset == leader.log_end_offset
    # The leader's epoch 2 has no records: nobody can have learned of it from a fetch.
    assert log.leader_epochs.entries() == [(1, 0), (4, 12), (5, 14)]
    assert log.producers.snapshot() == leader.producers.snapshot()
    assert log.aborted_transactions(0, 20) == leader.aborted_transactions(0, 20)
    assert log.max_timestamp_offset() == leader.max_timestamp_offset()
    log = store.reopen(clean=False)
    assert contents(log) == data
    assert log.leader_epochs.entries() == [(1, 0), (4, 12), (5, 14)]


def test_sequences_are_not_checked_again(store: Store) -> None:
    """The leader took them: it may have forgotten the producer in between (KIP-360)."""
    log = store.log()
    options = {"producer_id": 7, "producer_epoch": 1}
    data = build_stored(2, 0, 0, base_sequence=40, **options)
    data += build_stored(2, 2, 0, base_sequence=7, **options)
    log.append_as_follower(data, 0)
    assert log.log_end_offset == 4
    assert len(log.producers) == 1


def test_fetches_continue_over_many_segments(tmp_path: Path) -> None:
    leader = Store(tmp_path / "leader", with_config(SMALL, segment_bytes=1 << 20)).log()
    fill(leader, 60, count=3, epoch=2)
    store = Store(tmp_path / "follower", with_config(SMALL, segment_bytes=700))
    log = store.log()
    while log.log_end_offset < leader.log_end_offset:
        found = leader.read(log.log_end_offset, 3000, upper_offset=leader.log_end_offset)
        log.append_as_follower(b"".join(piece.read() for piece in found.slices), 2)
    assert contents(log) == contents(leader)
    assert all(segment.size <= 700 for segment in log.segments)
    for segment, following in itertools.pairwise(log.segments):
        assert segment.checked_end(200) == following.base_offset
    assert contents(store.reopen(clean=False)) == contents(leader)


def test_offsets_too_far_apart_for_one_segment(store: Store) -> None:
    """A compacted log leaves gaps; offsets in a segment are relative to its first, 31 bits."""
    log = store.log()
    offsets = [0, 2**31 - 1, 2**31, 2**33]
    log.append_as_follower(b"".join(build_stored(1, offset, 0) for offset in offsets), 0)
    assert [header.base_offset for _, header in split_batches(contents(log))] == offsets
    assert len(log.segments) == 3
    log.update_config(with_config(store.config, cleanup_policy=("compact",)))
    store.config = log.config
    assert contents(store.reopen(clean=False)) == contents(store.log())


def test_nothing_of_a_later_epoch_is_taken(store: Store) -> None:
    log = store.log()
    data = build_stored(2, 0, 3)
    assert log.append_as_follower(data + build_stored(2, 2, 5), 4) == len(data)
    assert (log.log_end_offset, log.leader_epochs.entries()) == (2, [(3, 0)])
    assert log.append_as_follower(build_stored(2, 2, 5), 4) == 0
    assert log.append_as_follower(b"", 4) == 0
    assert contents(log) == data


@pytest.mark.parametrize(("base_offset", "epoch"), [(3, 6), (0, 6), (4, 5), (4, -1)], ids=repr)
def test_batches_that_dont_continue_the_log_are_refused(
    store: Store, base_offset: int, epoch: int
) -> None:
    log = store.log()
    log.append_as_follower(build_stored(4, 0, 6), 6)
    before = contents(log)
    for data in (
        build_stored(2, base_offset, epoch),
        build_stored(2, 4, 6) + build_stored(2, base_offset + 2, epoch),
    ):
        if base_offset == 4 and epoch == 6:
            continue
        with pytest.raises(KafkaError) as error:
            log.append_as_follower(data, 9)
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE
    assert (contents(log), log.log_end_offset) == (before, 4)
    assert log.leader_epochs.entries() == [(6, 0)]


def test_a_damaged_batch_is_refused(store: Store) -> None:
    log = store.log()
    data = bytearray(build_stored(2, 0, 1))
    for position in (16, 30, len(data) - 1):
        damaged = data[:]
        damaged[position] ^= 0x55
        with pytest.raises(DecodeError):
            log.append_as_follower(damaged, 1)
    with pytest.raises(DecodeError):
        log.append_as_follower(data[:-1], 1)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    assert log.append_as_follower(data, 1) == len(data)


@pytest.mark.parametrize("position", [16, 30, -1, None])
def test_what_lies_before_a_damaged_batch_is_taken(store: Store, position: int | None) -> None:
    """Two replicas may be damaged, each elsewhere: who follows gets what it can from either."""
    log = store.log()
    sound, more = build_stored(2, 0, 1), build_stored(2, 2, 1)
    damaged = bytearray(more)
    if position is None:
        del damaged[-2]
    else:
        damaged[position] ^= 0x55
    assert log.append_as_follower(sound + damaged + build_stored(2, 4, 1), 1) == len(sound)
    assert log.log_end_offset == 2
    with pytest.raises(DecodeError):
        log.append_as_follower(damaged, 1)
    assert log.append_as_follower(more, 1) == len(more)
    assert contents(log) == sound + more


def test_an_epoch_that_nobody_heard_of_goes_when_following(store: Store) -> None:
    """It led for a moment, wrote nothing, and follows now: epoch 5 is not what it has last."""
    log = store.log()
    fill(log, 3, epoch=2)
    log.assign_leader_epoch(5)
    assert log.end_offset_for_epoch(5) == (5, 3)
    assert not log.truncate_to(3)
    assert log.leader_epochs.latest == 2
    log.append_as_follower(build_stored(1, 3, 4), 6)
    assert log.leader_epochs.entries() == [(2, 0), (4, 3)]


def test_an_epoch_without_records_outlives_a_clean_stop_and_answers(store: Store) -> None:
    """KIP-279: the end of an epoch is where the next one began, records or not."""
    log = store.log()
    fill(log, 3, epoch=2)
    log.assign_leader_epoch(5)
    log.assign_leader_epoch(7)
    log = store.reopen(clean=True)
    assert log.leader_epochs.entries() == [(2, 0), (7, 3)]
    assert log.end_offset_for_epoch(5) == (2, 3)
    assert log.end_offset_for_epoch(7) == (7, 3)


def test_the_leaders_log_start(store: Store) -> None:
    log = store.log()
    fill(log, 10, count=3, epoch=1)
    assert log.advance_log_start(12)
    assert not log.advance_log_start(7)
    assert log.log_start_offset == 12
    assert log.advance_log_start(100)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert not log.advance_log_start(100)


# -- killed on the way

Cut = Callable[[Log], object]


def life(store: Store) -> tuple[Log, list[bytes], list[bytes]]:
    """A log with all of it flushed and checkpointed: its batches, and the producers before each."""
    log = store.log()
    stored, producers = [], []
    for number in range(24):
        producers.append(log.producers.snapshot())
        options = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number}
        stored.append(append(log, batch(3, **options), epoch=number // 4))
    producers.append(log.producers.snapshot())
    log.flush()
    log.directory.write_recovery_points()
    log.directory.begin_high_watermarks({("t", 0): log.log_end_offset})()
    return log, stored, producers


def survivors(store: Store, stored: list[bytes], producers: list[bytes], least: int) -> Log:
    """Reopened after the crash: the first batches, at least `least`, and nothing of any other."""
    log = store.reopen(clean=False, files=Files())
    found = contents(log)
    count = len(split_batches(found))
    assert count >= least
    assert found == b"".join(stored[:count])
    assert log.log_end_offset == 3 * count
    assert log.leader_epochs.entries() == epochs_of(found)
    assert log.producers.snapshot() == producers[count]
    assert store.manager.checkpointed_high_watermark(log) <= log.log_end_offset
    assert log.size_bytes == sum(path.stat().st_size for path in log_files(log))
    return log


def killed_at_every_call(
    tmp_path: Path, cut: Cut, check: Callable[[Store, list[bytes], list[bytes]], None]
) -> int:
    """Kills the process before the first, the second ... call of the cut; returns how many."""
    for number in itertools.count():
        files = DyingFiles()
        store = Store(tmp_path / str(number), files=files)
        log, stored, producers = life(store)
        files.fail_at = files.count + number
        finished = False
        try:
            cut(log)
            finished = True
        except Stopped:
            pass
        check(store, stored, producers)
        store.crash()
        if finished:
            return number
    raise AssertionError


@pytest.mark.parametrize("target", [0, 3, 31, 48, 69, 71])
def test_killed_while_truncating(tmp_path: Path, target: int) -> None:
    def check(store: Store, stored: list[bytes], producers: list[bytes]) -> None:
        log = survivors(store, stored, producers, target // 3)
        # The leader is asked again and says the same.
        log.truncate_to(target)
        assert log.log_end_offset == target // 3 * 3
        new = build_stored(2, log.log_end_offset, 9)
        log.append_as_follower(new, 9)
        log = store.reopen(clean=False)
        assert contents(log) == b"".join(stored[: target // 3]) + new
        assert log.leader_epochs.latest == 9

    calls = killed_at_every_call(tmp_path, lambda log: log.truncate_to(target), check)
    assert calls >= 5


@pytest.mark.parametrize("start", [1000, 5])
def test_killed_while_starting_anew(tmp_path: Path, start: int) -> None:
    def check(store: Store, stored: list[bytes], producers: list[bytes]) -> None:
        log = store.reopen(clean=False, files=Files())
        if log.log_end_offset != start:
            log = survivors(store, stored, producers, 0)
            log.truncate_fully_and_start_at(start)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (start, start, 0)
        assert log.leader_epochs.entries() == []
        assert len(log.producers) == 0
        new = build_stored(2, start, 9)
        log.append_as_follower(new, 9)
        log = store.reopen(clean=False)
        assert (log.log_start_offset, contents(log)) == (start, new)
        assert log.leader_epochs.entries() == [(9, start)]

    calls = killed_at_every_call(
        tmp_path, lambda log: log.truncate_fully_and_start_at(start), check
    )
    assert calls >= 20


def test_killed_while_checkpointing_new_epochs(tmp_path: Path) -> None:
    """Those of segments that recovery doesn't read have to be in the file."""

    def lead_on(log: Log) -> None:
        log.truncate_to(30)
        for epoch in (9, 10):
            fill(log, 12, epoch=epoch)
            log.flush()
            log.directory.write_recovery_points()

    def check(store: Store, _stored: list[bytes], _producers: list[bytes]) -> None:
        log = store.reopen(clean=False, files=Files())
        assert log.leader_epochs.entries() == epochs_of(contents(log))

    assert killed_at_every_call(tmp_path, lead_on, check) >= 40
