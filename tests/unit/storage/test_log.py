"""Appending and reading one log: offsets, boundaries, rolling, timestamps, epochs."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import split_batches
from kraftpy.storage.readable_log import TimestampOffset

from .support import (
    SMALL,
    Store,
    append,
    batch,
    contents,
    fill,
    log_files,
    records_of,
    with_config,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def test_append_gives_offsets_and_reads_back(store: Store) -> None:
    log = store.log()
    first = append(log, batch(3))
    second = append(log, batch(2))
    assert log.log_end_offset == 5
    assert log.size_bytes == len(first) + len(second)
    assert [record.offset for record in records_of(contents(log))] == [0, 1, 2, 3, 4]
    result = log.read(0, 1 << 20, upper_offset=5)
    assert [len(piece) for piece in result.slices] == [len(first) + len(second)]
    assert (result.size_bytes, result.next_offset, result.log_start_offset) == (
        len(first) + len(second),
        5,
        0,
    )


def test_an_append_is_one_write(tmp_path: Path) -> None:
    from .support import FaultyFiles

    files = FaultyFiles(kinds=("write",))
    log = Store(tmp_path / "data", files=files).log()
    append(log, batch())
    before = files.count
    append(log, batch(5))
    assert files.count == before + 1


def test_offsets_never_go_back(store: Store) -> None:
    log = store.log()
    append(log, batch(3))
    with pytest.raises(ValueError, match="ends at 3"):
        append(log, batch(), offset=2)
    append(log, batch(), offset=7)  # a follower of a compacted log
    assert log.log_end_offset == 8
    assert [record.offset for record in records_of(contents(log, 4))] == [7]


def test_fetch_inside_a_batch_returns_the_whole_batch(store: Store) -> None:
    """docs/rules.md, rule 25."""
    log = store.log()
    fill(log, 3, count=10)
    for offset in range(10, 20):
        result = log.read(offset, 1 << 20, upper_offset=20)
        assert [r.offset for r in records_of(result.slices[0].read())] == list(range(10, 20))


def test_at_least_one_batch_even_if_it_is_too_large(store: Store) -> None:
    log = store.log()
    data = fill(log, 2, count=5)
    result = log.read(0, 1, upper_offset=10)
    assert result.slices[0].read() == data[0]
    assert result.next_offset == 5
    assert log.read(0, 1, upper_offset=10, min_one=False).slices == []
    assert log.read(0, 0, upper_offset=10).slices[0].read() == data[0]


def test_every_limit_ends_on_a_batch_boundary(store: Store) -> None:
    log = store.log()
    fill(log, 40, count=3)
    assert len(log.segments) > 3
    whole = contents(log)
    for max_bytes in range(1, 3000, 37):
        assert contents(log, max_bytes=max_bytes) == whole
        for start in range(0, log.log_end_offset, 7):
            result = log.read(start, max_bytes, upper_offset=log.log_end_offset)
            data = b"".join(piece.read() for piece in result.slices)
            batches = split_batches(data)
            assert batches[0][1].base_offset <= start <= batches[0][1].last_offset
            assert result.next_offset == batches[-1][1].last_offset + 1
            assert result.size_bytes == len(data)
            assert len(data) <= max_bytes or len(batches) == 1


def test_nothing_at_or_above_the_upper_offset(store: Store) -> None:
    """docs/rules.md, rule 10: consumers see only what is below the high watermark."""
    log = store.log()
    fill(log, 30, count=4)
    for upper in range(log.log_end_offset + 1):
        seen = -1
        for start in (0, 5, 37, 80):
            result = log.read(start, 1 << 20, upper_offset=upper)
            for record in records_of(b"".join(piece.read() for piece in result.slices)):
                assert record.offset < upper
                seen = max(seen, record.offset)
        assert seen == upper // 4 * 4 - 1


def test_reads_span_segments(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=4)
    result = log.read(0, 1 << 20, upper_offset=log.log_end_offset)
    assert len(result.slices) == len(log.segments) > 2
    assert result.next_offset == log.log_end_offset


def test_out_of_range(store: Store) -> None:
    log = store.log()
    fill(log, 3)
    assert log.read(3, 100, upper_offset=3).slices == []
    assert log.read(2, 100, upper_offset=1).slices == []
    for offset in (-1, 4):
        with pytest.raises(KafkaError) as error:
            log.read(offset, 100, upper_offset=3)
        assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(2)
    with pytest.raises(KafkaError) as error:
        log.read(1, 100, upper_offset=3)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_sequential_reads_make_no_system_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.log()
    fill(log, 1)

    def refuse(*_: object) -> bytes:
        raise AssertionError("a read at the end looked into the file")

    monkeypatch.setattr(os, "pread", refuse)
    for _ in range(5):
        at = log.log_end_offset
        append(log, batch())
        assert log.read(at, 1 << 20, upper_offset=log.log_end_offset).size_bytes


def test_rolls_by_size_and_the_names_are_base_offsets(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=4)
    names = [path.name for path in log_files(log)]
    assert names == [f"{segment.base_offset:020d}.log" for segment in log.segments]
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    for segment in log.segments[:-1]:
        assert (log.folder / f"{segment.base_offset:020d}.index").stat().st_size % 8 == 0
        assert (log.folder / f"{segment.base_offset:020d}.timeindex").stat().st_size % 12 == 0
        assert (log.folder / f"{segment.base_offset:020d}.timeindex").stat().st_size


def test_rolls_by_record_time(tmp_path: Path) -> None:
    log = Store(tmp_path / "data", with_config(SMALL, segment_bytes=1 << 20, segment_ms=1000)).log()
    for timestamp, segments in ((5000, 1), (6000, 1), (6001, 2), (100, 2), (7001, 2), (7002, 3)):
        append(log, batch(timestamp=timestamp))
        assert len(log.segments) == segments, timestamp


def test_rolls_an_idle_log_by_the_clock(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", with_config(SMALL, segment_ms=1000, retention_ms=-1))
    log = store.log()
    store.clock.now_ms += 10_000_000
    store.tick()
    assert len(log.segments) == 1  # empty ones stay
    append(log, batch())
    store.clock.now_ms += 10_000_000
    store.tick()
    assert len(log.segments) == 2


def test_rolls_when_the_index_is_full(tmp_path: Path) -> None:
    config = with_config(
        SMALL, segment_bytes=1 << 20, segment_index_bytes=60, index_interval_bytes=0
    )
    log = Store(tmp_path / "data", config).log()
    fill(log, 30)
    assert len(log.segments) > 3
    for path in log.folder.glob("*index"):
        assert path.stat().st_size <= 60


def test_rolls_when_offsets_do_not_fit(store: Store) -> None:
    log = store.log()
    append(log, batch())
    append(log, batch(), offset=1 << 31)
    append(log, batch(), offset=1 << 33)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 1 << 33]
    assert [record.offset for record in records_of(contents(log))] == [0, 1 << 31, 1 << 33]


def test_config_counts_at_once(store: Store) -> None:
    log = store.log()
    fill(log, 5)
    assert len(log.segments) == 1
    log.update_config(with_config(SMALL, segment_bytes=200))
    fill(log, 5)
    assert len(log.segments) > 3


def test_index_entries_name_the_last_offset_of_the_batch_at_the_position(store: Store) -> None:
    """Kafka's dump-log checks exactly this."""
    log = store.log()
    fill(log, 60, count=5)
    store.close()
    entries = 0
    for path in log_files(log):
        data, base = path.read_bytes(), int(path.stem)
        by_position = dict(split_batches(data))
        index = path.with_suffix(".index").read_bytes()
        for at in range(0, len(index), 8):
            relative = int.from_bytes(index[at : at + 4], "big")
            position = int.from_bytes(index[at + 4 : at + 8], "big")
            assert by_position[position].last_offset == base + relative
            entries += 1
        times = path.with_suffix(".timeindex").read_bytes()
        last_timestamp = -1
        for at in range(0, len(times), 12):
            timestamp = int.from_bytes(times[at : at + 8], "big")
            relative = int.from_bytes(times[at + 8 : at + 12], "big")
            named = [h for h in by_position.values() if h.last_offset == base + relative]
            assert [h.max_timestamp for h in named] == [timestamp]
            assert timestamp > last_timestamp
            last_timestamp = timestamp
        assert last_timestamp == max(h.max_timestamp for h in by_position.values())
    assert entries > 10


def test_offsets_by_timestamp(store: Store) -> None:
    log = store.log()
    stamps = [100, 300, 200, 250, 900, 400, 400, 1000, 50, 1000, 1100]
    for number, stamp in enumerate(stamps * 5):
        append(log, batch(2, timestamp=stamp + number, step=5), epoch=number // 20)
    records = records_of(contents(log))
    assert len(log.segments) > 3
    for reopened in (False, True):
        if reopened:
            log = store.reopen(clean=True)
        for start in (0, 33, 71):
            log.delete_records_before(start)
            for timestamp in range(0, 1200, 7):
                expected = next(
                    (r for r in records if r.timestamp >= timestamp and r.offset >= start), None
                )
                found = log.offset_for_timestamp(timestamp)
                if expected is None:
                    assert found is None
                else:
                    epoch = expected.offset // 2 // 20
                    assert found == TimestampOffset(expected.timestamp, expected.offset, epoch)
        if not reopened:
            log.log_start_offset = 0


def test_largest_timestamp(store: Store) -> None:
    log = store.log()
    assert log.max_timestamp_offset() is None
    append(log, batch(timestamp=-1, step=0))
    assert log.max_timestamp_offset() is None
    for stamp in (100, 300, 200, 300, 50):
        append(log, batch(3, timestamp=stamp, step=-1))
    assert log.max_timestamp_offset() == TimestampOffset(300, 4, 0)
    log = store.reopen(clean=False)
    assert log.max_timestamp_offset() == TimestampOffset(300, 4, 0)


def test_the_largest_timestamp_is_none_of_a_deleted_record(store: Store) -> None:
    log = store.log()
    rng = random.Random(7)
    for _ in range(60):
        append(log, batch(rng.randint(1, 3), timestamp=rng.randint(0, 1000), step=-1))
    records = records_of(contents(log))
    assert len(log.segments) > 3
    for start in range(log.log_end_offset + 1):
        log.delete_records_before(start)
        left = [record for record in records if record.offset >= start]
        newest = max(left, key=lambda record: record.timestamp, default=None)
        assert log.max_timestamp_offset() == (
            None if newest is None else TimestampOffset(newest.timestamp, newest.offset, 0)
        )


def test_a_search_that_passes_over_many_batches_lets_others_have_their_turn(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "d", with_config(SMALL, segment_bytes=1 << 20))
    log = store.log()
    append(log, batch(timestamp=90_000))
    fill(log, 3000)
    log.delete_records_before(1)
    assert list(log.search_timestamp(80_000)) == [None] * 6
    assert list(log.search_max_timestamp()).count(None) == 6
    assert log.max_timestamp_offset() == TimestampOffset(1000 + 10 * 2999, 3000, 0)


def test_earliest_and_latest_offsets_have_their_epochs(store: Store) -> None:
    log = store.log()
    log.assign_leader_epoch(2)
    fill(log, 2, epoch=2)
    log.assign_leader_epoch(5)
    fill(log, 2, epoch=5)
    assert log.earliest_offset() == TimestampOffset(-1, 0, 2)
    assert log.latest_offset(4) == TimestampOffset(-1, 4, 5)
    assert log.latest_offset(1) == TimestampOffset(-1, 1, 2)


def test_epochs_come_from_leadership_and_from_batches(store: Store) -> None:
    """docs/rules.md, rule 5."""
    log = store.log()
    log.assign_leader_epoch(1)
    fill(log, 2, epoch=1)
    log.assign_leader_epoch(3)  # no record in epoch 3
    assert log.end_offset_for_epoch(3) == (3, 2)
    assert log.end_offset_for_epoch(2) == (1, 2)
    fill(log, 2, epoch=4)  # copied from another leader
    assert log.leader_epochs.entries() == [(1, 0), (4, 2)]
    assert log.end_offset_for_epoch(3) == (1, 2)
    assert log.end_offset_for_epoch(4) == (4, 4)
    assert log.end_offset_for_epoch(5) == (-1, -1)


def test_slices_outlive_the_segment(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", with_config(SMALL, retention_ms=0))
    log = store.log()
    data = b"".join(fill(log, 30, count=4))
    result = log.read(0, 1 << 20, upper_offset=log.log_end_offset)
    store.clock.now_ms += 10_000_000
    store.tick()
    store.tick()
    store.manager._removal.join()
    assert log.size_bytes == 0
    assert len(list(log.folder.glob("*.log*"))) == 1
    assert b"".join(piece.read() for piece in result.slices) == data


def test_open_files_and_index_memory_are_bounded(tmp_path: Path) -> None:
    gc.collect()  # of the tests before
    before = len(list(Path("/proc/self/fd").iterdir()))
    store = Store(tmp_path / "data", with_config(SMALL, segment_bytes=150))
    log = store.log()
    fill(log, 400)
    assert len(log.segments) > 300
    contents(log)
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 270
    whole = contents(log)
    assert [record.offset for record in records_of(whole)] == list(range(400))


def test_damage_found_while_reading_is_an_error_and_not_data(store: Store) -> None:
    log = store.log()
    data = fill(log, 30, count=4)
    path = log_files(log)[0]
    with path.open("r+b") as file:
        file.seek(len(data[0]))
        file.write(b"\xff" * 20)
    log = store.log()
    for _ in range(3):
        with pytest.raises(KafkaError) as error:
            log.read(9, 1, upper_offset=log.log_end_offset)
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_missing_segment_file_is_a_storage_error(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=4)
    log = store.reopen(clean=True)
    log.segments[1].close()
    log_files(log)[1].unlink()
    with pytest.raises(KafkaError) as error:
        log.read(log.segments[1].base_offset, 1, upper_offset=log.log_end_offset)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("how", ["remove", "garbage", "odd", "zeros"])
def test_bad_index_files_are_rebuilt(store: Store, how: str) -> None:
    log = store.log()
    whole = b"".join(fill(log, 60, count=5))
    log = store.reopen(clean=True)
    for path in [*log.folder.glob("*.index"), *log.folder.glob("*.timeindex")]:
        good = path.read_bytes()
        if how == "remove":
            path.unlink()
        elif how == "garbage":
            path.write_bytes(bytes(len(good) - 1) + b"\x07" if good else b"")
        elif how == "odd":
            path.write_bytes(good + b"\0")
        else:
            path.write_bytes(bytes(len(good)))
    log = store.reopen(clean=True)
    assert contents(log, max_bytes=300) == whole
    for start in range(0, log.log_end_offset, 3):
        piece = log.read(start, 1, upper_offset=log.log_end_offset).slices[0]
        assert start in {record.offset for record in records_of(piece.read())}
