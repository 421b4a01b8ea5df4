"""Cutting a log at its end (followers) and at its start (DeleteRecords, retention)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage.log import Log

from .support import SMALL, Store, append, batch, contents, fill, log_files, records_of, with_config


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records_of(contents(log))]


# -- the end


@pytest.mark.parametrize("clean", [True, False])
def test_truncate_everywhere(tmp_path: Path, clean: bool) -> None:
    for target in (60, 57, 56, 30, 29, 3, 1, 0):
        store = Store(tmp_path / str(target))
        log = store.log()
        for number in range(20):
            append(log, batch(3, timestamp=1000 + number * 7 % 11), epoch=number // 4)
        assert log.truncate_to(target) == (target < 60)
        end = target // 3 * 3  # a batch around the target goes as a whole
        assert log.log_end_offset == end
        assert offsets(log) == list(range(end))
        assert log.size_bytes == sum(path.stat().st_size for path in log_files(log))
        assert all(start < max(end, 1) for _, start in log.leader_epochs.entries())
        append(log, batch(2, timestamp=5000), epoch=9)
        log = store.reopen(clean=clean)
        assert offsets(log) == list(range(end + 2))
        assert log.leader_epochs.latest == 9
        found = log.max_timestamp_offset()
        assert found is not None
        assert found.offset == end + 1


def test_truncation_lowers_the_checkpointed_recovery_point_first(store: Store) -> None:
    log = store.log()
    fill(log, 20, count=3)
    log.flush()
    log.directory.write_recovery_points()
    log.truncate_to(31)
    assert log.recovery_point == 30
    log = store.reopen(clean=False)  # would refuse: 60 had been flushed
    assert log.log_end_offset == 30


def test_a_flush_that_began_before_a_truncation_promises_nothing(store: Store) -> None:
    log = store.log()
    fill(log, 5)
    job = log.begin_flush()
    assert job is not None
    log.truncate_to(3)
    fill(log, 5)
    job.run(store.files)
    log.complete_flush(job)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 8


def test_producers_are_cut_with_the_log(store: Store) -> None:
    log = store.log()
    states = []
    for number in range(40):
        states.append(log.producers.snapshot())
        append(log, batch(1, producer_id=number % 3, producer_epoch=0, base_sequence=number))
    for target in (39, 25, 24, 2, 0):
        log.truncate_to(target)
        assert log.producers.snapshot() == states[target]
    assert store.reopen(clean=False).producers.snapshot() == states[0]


def test_start_anew_elsewhere(store: Store) -> None:
    """docs/rules.md, rule 26: a follower below the leader's log start."""
    log = store.log()
    for number in range(30):
        append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=3 * number))
    log.flush()
    log.directory.write_recovery_points()
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert len(log.producers) == 0
    assert log.leader_epochs.entries() == []
    append(log, batch(2), epoch=7)
    log = store.reopen(clean=False)
    assert offsets(log) == [1000, 1001]
    assert log.leader_epochs.entries() == [(7, 1000)]
    log.truncate_to(500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert store.reopen(clean=True).log_end_offset == 500


# -- the start


def test_delete_records_is_durable_before_it_is_answered(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=3, epoch=2)
    assert log.delete_records_before(40) == 40
    assert log.delete_records_before(10) == 40
    log = store.reopen(clean=False)
    assert log.log_start_offset == 40
    assert offsets(log)[0] == 39  # the batch around the start
    assert log.leader_epochs.entries() == [(2, 40)]
    for bad in (-1, 91):
        with pytest.raises(KafkaError) as error:
            log.delete_records_before(bad)
        assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleted_records_free_their_segments(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=3)
    before = log.size_bytes
    log.delete_records_before(50)
    store.clock.now_ms += 10_000_000
    store.tick()
    assert log.size_bytes < before
    assert log.log_start_offset == 50
    assert log.segments[0].base_offset <= 50 < log.segments[1].base_offset
    log.delete_records_before(90)
    store.clock.now_ms += 10_000_000
    store.tick()
    assert (log.size_bytes, log.log_start_offset, log.log_end_offset) == (0, 90, 90)
    log = store.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (90, 90)


def retention_store(tmp_path: Path, **config: object) -> tuple[Store, Log]:
    values = {"retention_ms": -1, "retention_bytes": -1} | config
    store = Store(tmp_path / "data", with_config(SMALL, **values))
    return store, store.log()


def test_retention_by_time(tmp_path: Path) -> None:
    store, log = retention_store(tmp_path, retention_ms=1000)
    now = store.clock.now_ms
    for number in range(40):
        append(log, batch(3, timestamp=now + 100 * number, step=0))
    assert log.delete_old_segments(now + 1000, 120) == 0
    assert log.delete_old_segments(now + 3000, 120) > 0
    assert records_of(contents(log))[0].timestamp > now + 1000
    oldest = log.segments[0]
    assert now + 3000 - oldest.max_timestamp <= 1000
    assert log.delete_old_segments(now + 100_000, 120) > 0
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (120, 120, 0)
    assert len(log.segments) == 1
    assert log.delete_old_segments(now + 200_000, 120) == 0


def test_retention_by_time_uses_the_file_time_without_timestamps(tmp_path: Path) -> None:
    store, log = retention_store(tmp_path, retention_ms=1000)
    for _ in range(40):
        append(log, batch(3, timestamp=-1, step=0))
    assert log.delete_old_segments(store.clock.now_ms, 120) == 0
    assert log.delete_old_segments(store.clock.now_ms + 2000, 120) > 0


def test_retention_by_size(tmp_path: Path) -> None:
    _, log = retention_store(tmp_path, retention_bytes=3000)
    fill(log, 60, count=3)
    sizes = [segment.size for segment in log.segments]
    log.delete_old_segments(0, log.log_end_offset)
    assert log.size_bytes >= 3000
    assert log.size_bytes - log.segments[0].size < 3000
    assert [segment.size for segment in log.segments] == sizes[-len(log.segments) :]


def test_retention_stops_at_the_high_watermark(tmp_path: Path) -> None:
    store, log = retention_store(tmp_path, retention_ms=0)
    fill(log, 40, count=3)
    limit = log.segments[3].base_offset + 1
    log.delete_old_segments(store.clock.now_ms, limit)
    assert log.segments[0].base_offset <= limit
    assert log.log_start_offset == log.segments[0].base_offset > 0


def test_retention_leaves_compacted_topics_alone(tmp_path: Path) -> None:
    store, log = retention_store(
        tmp_path, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"})
    )
    fill(log, 40, count=3)
    assert log.delete_old_segments(store.clock.now_ms, 120) == 0
    log.update_config(with_config(log.config, cleanup_policy=frozenset({"compact", "delete"})))
    assert log.delete_old_segments(store.clock.now_ms, 120) > 0


def test_retention_cuts_epochs_and_snapshots(tmp_path: Path) -> None:
    store, log = retention_store(tmp_path, retention_bytes=1500)
    for number in range(60):
        data = batch(2, producer_id=5, producer_epoch=0, base_sequence=2 * number)
        append(log, data, epoch=number // 10)
    log.delete_old_segments(0, 120)
    start = log.log_start_offset
    assert log.leader_epochs.entries()[0] == (log.leader_epochs.epoch_for(start), start)
    assert all(int(path.stem) >= start for path in log.folder.glob("*.snapshot"))
    before = log.producers.snapshot()
    assert store.reopen(clean=False).producers.snapshot() == before
