"""Compaction: the newest of each key stays, nothing else changes (docs/rules.md, rule 27)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.protocol.record_batch import assemble_batch
from kraftpy.protocol.records import build_batch, read_batch_header, split_batches
from kraftpy.storage.checkpoints import CLEANER_OFFSET_FILE, read_offsets
from kraftpy.storage.cleaning.cleaner import Throttle
from kraftpy.storage.cleaning.offset_map import LiveOffsets, OffsetMap
from kraftpy.storage.readable_log import TimestampOffset

from .cleaning import COMPACT, begin, clean, inline, latest, mark, put, visible, visible_in
from .support import Store, append, batch, contents, records_of, with_config

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", COMPACT)


def overwrite(store: Store, rounds: int = 20, keys: int = 5) -> None:
    log = store.log()
    for number in range(rounds):
        put(log, *((b"k%d" % key, b"%d-" % number + b"v" * 40) for key in range(keys)))


def test_only_the_newest_of_each_key_stays_below_the_active_segment(store: Store) -> None:
    inline(store)
    overwrite(store)
    log = store.log()
    before, end = latest(visible(log)), log.log_end_offset
    active = log.segments[-1]
    kept = contents(log, active.base_offset)
    size = log.size_bytes
    clean(store)
    assert log.size_bytes < size / 2
    assert log.size_bytes == sum(segment.size for segment in log.segments)
    assert log.log_end_offset == end
    assert log.segments[-1] is active
    assert contents(log, active.base_offset) == kept
    assert latest(visible(log)) == before
    below = [r.key for r in visible(log) if r.offset < active.base_offset]
    assert len(below) == len(set(below)) == 5
    assert log.clean_offset == active.base_offset


def test_offsets_stay_and_reading_at_a_gap_goes_on_behind_it(store: Store) -> None:
    inline(store)
    overwrite(store)
    log = store.log()
    records = {record.offset: record for record in visible(log)}
    clean(store)
    for record in visible(log):
        assert records[record.offset] == record
    assert visible(log)[0].offset > 50
    found = log.read(0, 1, upper_offset=log.log_end_offset)
    assert read_batch_header(found.slices[0].read()).base_offset > 0
    assert log.log_start_offset == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_stay(store: Store, codec: str) -> None:
    inline(store)
    log = store.log()
    for number in range(40):
        put(
            log, *((b"%d" % key, os.urandom(30)) for key in range(number % 7, 7)), compression=codec
        )
    before = latest(visible(log))
    clean(store)
    assert latest(visible(log)) == before
    data = contents(log)
    headers = [header for _, header in split_batches(data) if header.records_count]
    assert {header.compression for header in headers} == {codec}
    assert any(header.records_count <= header.last_offset_delta for header in headers)


def test_nothing_above_the_high_watermark_is_touched(store: Store) -> None:
    starts = inline(store)
    overwrite(store)
    log = store.log()
    whole = contents(log)
    clean(store, high_watermark=0)
    assert not starts.jobs
    bound = log.segments[3].base_offset
    clean(store, high_watermark=bound + 1)
    assert starts.jobs[0].end_base == bound
    assert contents(log, bound) == whole[-len(contents(log, bound)) :]
    assert len(contents(log)) < len(whole)


def test_an_open_transaction_holds_compaction_back(store: Store) -> None:
    starts = inline(store)
    log = store.log()
    put(log, (b"k", b"1" * 900))
    put(log, (b"k", b"2" * 900), producer_id=7, producer_epoch=0, base_sequence=0,
        transactional=True)  # fmt: skip
    overwrite(store)
    clean(store)
    assert log.clean_offset <= 1
    assert all(job.end_base <= 1 for job in starts.jobs)
    mark(log, 7, committed=False)
    log.producers.advance_high_watermark(log.log_end_offset)
    before = latest(visible(log))
    clean(store)
    assert log.clean_offset > 2
    assert latest(visible(log)) == before
    assert b"2" * 900 not in contents(log)


def test_a_marker_behind_the_last_stable_offset_counts(store: Store) -> None:
    inline(store)
    log = store.log()
    options = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    put(log, (b"k", b"old"))
    put(log, (b"k", b"never"), producer_id=7, **options)
    log.roll()
    put(log, (b"x", b"open"), producer_id=8, **options)
    mark(log, 7, committed=False)
    log.producers.advance_high_watermark(log.log_end_offset)
    assert log.producers.last_stable_offset(log.log_end_offset) == 2
    clean(store)
    assert log.clean_offset == 2
    assert latest(visible(log))[b"k"] == b"old"


def test_aborted_data_goes_first_and_its_marker_a_delete_horizon_later(store: Store) -> None:
    inline(store)
    log = store.log()
    put(log, (b"k", b"old"))
    put(log, (b"k", b"never"), producer_id=7, producer_epoch=0, base_sequence=0,
        transactional=True)  # fmt: skip
    mark(log, 7, committed=False)
    put(log, (b"x", b"y"), producer_id=7, producer_epoch=1, base_sequence=0)
    log.producers.advance_high_watermark(log.log_end_offset)

    def markers() -> list[bool]:
        data = contents(log)
        return [h.has_delete_horizon for _, h in split_batches(data) if h.is_control]

    expected = [[False], [True], [True], []]
    for number, marks in enumerate(expected):
        store.clock.now_ms += DAY_MS if number == 3 else 0
        overwrite(store)
        clean(store)
        assert markers() == marks
        assert latest(visible(log))[b"k"] == b"old"


def test_delete_markers_stay_until_their_horizon(store: Store) -> None:
    inline(store)
    log = store.log()
    put(log, (b"gone", b"value"), (b"other", b"value"))
    put(log, (b"gone", None), (b"gone2", None), timestamp=5000)
    overwrite(store)
    clean(store)
    found = [record for record in visible(log) if record.value is None]
    assert [(r.key, r.timestamp) for r in found] == [(b"gone", 5000), (b"gone2", 5001)]
    assert b"value" in contents(log)  # that of "other"
    data = contents(log)
    (horizon,) = [h.base_timestamp for _, h in split_batches(data) if h.has_delete_horizon]
    assert horizon == store.clock.now_ms + DAY_MS
    overwrite(store)
    clean(store)
    assert [r.key for r in visible(log) if r.value is None] == [b"gone", b"gone2"]
    store.clock.now_ms += DAY_MS
    overwrite(store)
    clean(store)
    assert not [record for record in visible(log) if record.value is None]
    assert b"gone" not in latest(visible(log))


def test_the_last_batch_of_each_producer_stays(store: Store) -> None:
    inline(store)
    log = store.log()
    for sequence in range(3):
        put(log, (b"k0", b"x"), producer_id=9, producer_epoch=2, base_sequence=sequence)
    overwrite(store)
    clean(store)
    data = contents(log)
    mine = [h for _, h in split_batches(data) if h.producer_id == 9]
    assert [(h.base_sequence, h.base_offset, h.records_count) for h in mine] == [(2, 2, 0)]
    for path in log.folder.glob("*.snapshot"):
        path.unlink()
    log = store.reopen(clean=False)
    assert 9 in log.producers
    log.producers.expire(store.clock.now_ms + 2 * DAY_MS)
    inline(store)
    overwrite(store)
    clean(store)
    data = contents(log)
    assert not [h for _, h in split_batches(data) if h.producer_id == 9]


def test_a_small_map_takes_several_passes(store: Store) -> None:
    starts = inline(store, map_bytes=24 * 8)
    log = store.log()
    for number in range(200):
        put(log, (b"k%d" % (number % 20), b"v%d" % number + b"x" * 30))
    before = latest(visible(log))
    for _ in range(60):
        clean(store)
        assert latest(visible(log)) == before
    assert len(starts.jobs) > 3
    assert log.clean_offset == log.segments[-1].base_offset
    # Each pass only knows the keys that it met.
    assert log.size_bytes < 200 * 110 / 2


def test_a_gap_in_the_offsets_is_one_step(store: Store) -> None:
    """As a follower gets it that copies a compacted log."""
    starts = inline(store, map_bytes=1000)
    log = store.log()
    offsets = [0, 2**33, 2**34, 2**34 + 1]
    for offset in offsets:
        batch = build_batch([(1000, b"k", b"v", [])], base_offset=offset)
        append(log, bytearray(batch), offset=offset)
    log.roll()
    for _ in range(10):
        clean(store)
    assert log.clean_offset == log.log_end_offset
    assert len(starts.jobs) <= len(offsets) + 1
    assert [record.offset for record in visible(log)] == offsets[-1:]


def test_who_reads_keeps_the_old_files(store: Store) -> None:
    inline(store)
    overwrite(store)
    log = store.log()
    whole = contents(log)
    result = log.read(0, 1 << 20, upper_offset=log.log_end_offset)
    clean(store)
    assert b"".join(piece.read() for piece in result.slices) == whole


def test_a_reader_half_way_hears_of_what_is_deleted_within_the_retention(store: Store) -> None:
    inline(store)
    log = store.log()
    put(log, (b"gone", b"value"))
    put(log, (b"other", b"value"))
    result = log.read(0, 1, upper_offset=log.log_end_offset)
    read = result.slices[0].read()
    put(log, (b"gone", None))
    for _ in range(4):
        overwrite(store)
        clean(store)
    read += contents(log, result.next_offset)
    assert b"gone" in latest(visible_in(read[: len(result.slices[0])]))
    assert latest(visible_in(read)) == latest(visible(log))
    assert b"gone" not in latest(visible(log))


def test_a_new_segment_ends_where_its_sources_did(store: Store) -> None:
    starts = inline(store)
    log = store.log()
    for number in range(100):
        put(log, (b"%d" % number if number % 9 == 0 else b"k", b"v" * 300))
    put(log, (b"k", None))
    log.roll()
    put(log, (b"x", b"y"))
    begin(store)
    starts.processes[0].poll()
    swaps = sorted(log.folder.glob("*.swap"))
    bases = [int(path.name.split(".")[0]) for path in swaps]
    assert len(bases) > 2
    ends = [split_batches(path.read_bytes())[-1][1].last_offset + 1 for path in swaps]
    assert ends == [*bases[1:], starts.jobs[0].end_base]


def test_the_checkpoint_is_kafkas_and_survives(store: Store) -> None:
    inline(store)
    overwrite(store)
    clean(store)
    clean_offset = store.log().clean_offset
    log = store.reopen(clean=True)
    assert log.clean_offset == clean_offset > 0
    assert read_offsets(store.folder / CLEANER_OFFSET_FILE) == {("t", 0): clean_offset}
    store.manager.delete("t", 0)
    log = store.log()
    assert log.clean_offset == 0
    assert read_offsets(store.folder / CLEANER_OFFSET_FILE) == {}


def test_a_cut_below_the_clean_offset_makes_it_dirty_again(store: Store) -> None:
    inline(store)
    overwrite(store)
    clean(store)
    store.clock.now_ms += 60_000
    store.tick()
    log = store.log()
    target = log.clean_offset - 7
    log.truncate_to(target)
    assert log.clean_offset <= target
    assert read_offsets(store.folder / CLEANER_OFFSET_FILE)["t", 0] <= target
    overwrite(store)
    before = latest(visible(log))
    clean(store)
    assert latest(visible(log)) == before


@pytest.mark.parametrize("what", ["truncate", "start anew", "delete records", "delete", "close"])
def test_whoever_changes_the_log_ends_its_cleaning(store: Store, what: str) -> None:
    starts = inline(store)
    overwrite(store)
    log = store.log()
    begin(store)
    (process,) = starts.processes
    process.poll()  # all is made, and the broker hasn't looked yet
    assert list(log.folder.glob("*.swap"))
    if what == "truncate":
        log.truncate_to(3)
    elif what == "start anew":
        log.truncate_fully_and_start_at(1000)
    elif what == "delete records":
        log.delete_records_before(log.log_end_offset)
        assert log.delete_old_segments(store.clock.now_ms, log.log_end_offset)
    elif what == "delete":
        store.manager.delete("t", 0)
        assert not list(store.folder.glob("*/*.swap"))
        assert process.killed
        store.tick()
        return
    else:
        store.close()
    assert process.killed
    assert not list(log.folder.glob("*.swap"))
    assert not list(log.folder.glob("*.cleaned"))
    if what != "close":
        data = contents(log)
        store.tick()
        assert contents(log) == data


def test_retention_waits_for_a_cleaning_and_comes_after_it(tmp_path: Path) -> None:
    config = with_config(
        COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000
    )
    store = Store(tmp_path / "data", config)
    starts = inline(store)
    overwrite(store)
    log = store.log()
    begin(store)
    starts.processes[0].poll = lambda: None  # type: ignore[method-assign]
    store.clock.now_ms += 300_000
    store.tick()
    assert log.log_start_offset == 0
    del starts.processes[0].poll
    store.tick()
    assert log.clean_offset
    store.clock.now_ms += 300_000
    store.tick()
    assert log.log_start_offset == log.log_end_offset


def test_a_batch_that_is_just_being_written_is_no_damage(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind an open transaction the cleaner looks at segments that take appends."""
    starts = inline(store)
    log = store.log()
    options = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    put(log, (b"k", b"1"), producer_id=7, **options)
    log.roll()
    put(log, (b"k", b"2"), producer_id=8, **options)
    mark(log, 7, committed=True)
    log.producers.advance_high_watermark(log.log_end_offset)
    begin(store)
    active = log.segments[-1].path(".log")
    whole = active.read_bytes()
    active.write_bytes(whole[:-5])
    store.tick()
    active.write_bytes(whole)
    store.clock.now_ms += 60_000
    clean(store)
    assert len(starts.jobs) == 2
    assert log.clean_offset == 1
    assert "will try again" in caplog.text


def test_a_damaged_segment_is_left_alone_with_one_line(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    starts = inline(store)
    overwrite(store)
    log = store.log()
    with log.segments[1].path(".log").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            overwrite(store)
            clean(store)
    assert len(starts.jobs) == 1
    (line,) = [record.message for record in caplog.records]
    assert "damaged at position" in line
    assert not list(log.folder.glob("*.cleaned*"))


def senseless() -> bytes:
    """The checksum is right, and the record is wrong."""
    batch = build_batch([(1000, b"k0", b"v" * 20, [])])
    return assemble_batch(read_batch_header(batch), batch[61:-1] + b"\x7f\x7f")


def bomb() -> bytes:
    """A few KB that are over 64 MiB."""
    value = b"v" * 9_600_000
    return build_batch([(1000, b"k%d" % n, value, []) for n in range(7)], compression="zstd")


def crowd() -> bytes:
    """More records than anybody opens, says the header."""
    header = read_batch_header(build_batch([(1000, b"k0", b"v", [])]))
    header.records_count = 1_000_001
    header.last_offset_delta = 1_000_000
    return assemble_batch(header, b"")


def ancient() -> bytes:
    """A delete marker whose timestamp can't be told from the horizon that it would get."""
    return build_batch([(-(2**63) + 5, b"gone", None, [])])


@pytest.mark.parametrize("made", [senseless, bomb, crowd, ancient])
def test_a_batch_that_cant_be_read_stays_and_keeps_nothing_from_compaction(
    store: Store, caplog: pytest.LogCaptureFixture, made: Callable[[], bytes]
) -> None:
    """A broker doesn't open most of what it is given."""
    inline(store)
    log = store.log()
    overwrite(store)
    offset = log.log_end_offset
    written = append(log, bytearray(made()))
    for _ in range(3):
        overwrite(store)
        clean(store)
    clean_offset = log.first_dirty_offset
    assert clean_offset > offset + 100
    data = contents(log)
    left = {header.base_offset: position for position, header in split_batches(data)}
    assert data[left[offset] : left[offset] + len(written)] == written
    assert sum(base < clean_offset for base in left) < 10  # of more than forty
    events = [line.message for line in caplog.records if "batches-not-compacted" in line.message]
    assert len(events) == 1
    assert f"batches=1 offset={offset}" in events[0]
    assert store.manager.cleaner.numbers.failed == 0


@pytest.mark.parametrize("made", [senseless, bomb, crowd])
def test_a_search_by_time_ends_where_a_batch_cant_be_read(
    store: Store, made: Callable[[], bytes]
) -> None:
    log = store.log()
    put(log, (b"k", b"v"), timestamp=10)
    append(log, bytearray(made()))
    put(log, (b"k", b"v"), timestamp=2000)
    assert log.offset_for_timestamp(500) == (1000, 1, 0)
    assert log.offset_for_timestamp(1500) == (2000, log.log_end_offset - 1, 0)


def test_lags_and_the_ratio_say_when(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", with_config(COMPACT, min_cleanable_dirty_ratio=0.5))
    starts = inline(store)
    log = store.log()
    now = store.clock.now_ms
    for number in range(100):
        put(log, (b"%d" % number, b"v" * 40), timestamp=now)
    clean(store)
    assert len(starts.jobs) == 1
    for number in range(30):
        put(log, (b"%d" % number, b"v" * 40), timestamp=now)
    clean(store)
    assert len(starts.jobs) == 1  # a quarter is dirty
    log.update_config(with_config(log.config, max_compaction_lag_ms=60_000))
    store.clock.now_ms += 61_000
    clean(store)
    assert len(starts.jobs) == 2
    log.update_config(with_config(COMPACT, min_compaction_lag_ms=DAY_MS))
    for number in range(100):
        put(log, (b"%d" % number, b"v" * 40), timestamp=store.clock.now_ms)
    clean(store)
    assert len(starts.jobs) == 2
    store.clock.now_ms += DAY_MS
    clean(store)
    assert len(starts.jobs) == 3


def test_the_dirtiest_log_comes_first(store: Store) -> None:
    starts = inline(store)
    for topic, rounds in (("a", 20), ("b", 20)):
        for number in range(rounds):
            put(store.log(topic), (b"k", b"%d" % number * 30))
    clean(store)
    clean(store)
    first = starts.jobs[0].folder
    assert {Path(job.folder).name for job in starts.jobs} == {"a-0", "b-0"}
    dirtier = "b" if first.endswith("a-0") else "a"
    for number in range(5):
        put(store.log("b" if dirtier == "a" else "a"), (b"k", b"%d" % number * 300))
    for number in range(50):
        put(store.log(dirtier), (b"k", b"%d" % number * 300))
    clean(store)
    assert Path(starts.jobs[2].folder).name == f"{dirtier}-0"


def test_an_offset_map_of_fixed_size() -> None:
    offsets = OffsetMap(100)
    size = offsets.size_bytes
    names: list[bytes | None] = [b"%d" % number for number in range(75)]
    assert offsets.put([None, *names], range(76)) is None
    assert offsets.put([b"3", b"one more", b"4"], [99, 100, 101]) == 100
    assert offsets.newest([b"3", b"4", b"74", b"one more", None]) == [99, 5, 75, -1, -1]
    assert offsets.size_bytes == size == 2400
    assert len(offsets) == 75
    assert sorted(offsets.offsets()) == [1, 2, 3, *range(5, 76), 99]


def test_bits_of_live_offsets() -> None:
    live = LiveOffsets(1000, 1100, [1000, 1007, 1008, 1099])
    assert [n for n in range(1000, 1100) if live.any_of(n, n)] == [1000, 1007, 1008, 1099]
    assert not live.any_of(1001, 1006)
    assert live.any_of(1001, 1007)
    assert live.any_of(1009, 1099)
    assert live.flags(1005, [2, 3, 4, 94]) == [True, True, False, True]


def test_the_throttle_holds_the_rate() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        throttle.spend(500)
    assert sum(slept) == pytest.approx(5.0)


def test_in_a_process_of_its_own(store: Store) -> None:
    overwrite(store, rounds=100)
    log = store.log()
    before = latest(visible(log))
    begin(store)
    deadline = time.monotonic() + 30
    while log.cleaning is not None:
        assert time.monotonic() < deadline
        store.tick()
        time.sleep(0.01)
    assert log.clean_offset == log.segments[-1].base_offset
    assert latest(visible(log)) == before
    log = store.reopen(clean=True)
    assert latest(visible(log)) == before


def test_settings_that_change_hold_for_the_next_log(store: Store) -> None:
    starts = inline(store)
    log = store.log()
    overwrite(store)
    clean(store)
    changed = {
        "log.cleaner.backoff.ms": "7",
        "log.cleaner.dedupe.buffer.size": "2000000",
        "log.cleaner.io.max.bytes.per.second": "5000000",
    }
    store.manager.cleaner.update_config(store.broker.with_dynamic(changed))
    overwrite(store)
    log.flush()
    store.clock.now_ms += 7
    store.tick(log.log_end_offset)
    assert [job.map_bytes for job in starts.jobs] == [134217728, 2000000]
    assert starts.jobs[1].max_bytes_per_second == 5_000_000


def test_the_largest_timestamp_is_found_when_its_record_was_compacted_away(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    inline(store)
    # The last batch of a producer stays, for its sequence numbers, though its record doesn't.
    append(log, batch(timestamp=9000, producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, batch(timestamp=8000))
    log.roll()
    clean(store)
    assert [record.offset for record in records_of(contents(log))] == [1]
    assert log.max_timestamp_offset() == TimestampOffset(8000, 1, 0)
