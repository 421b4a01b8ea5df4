"""Aborted transactions in a log: their file, and what becomes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker, split_batches
from kraftpy.storage.log import Log

from .cleaning import COMPACT, begin, clean, inline, mark, put
from .support import SMALL, PowerLossFiles, Store, append, contents, with_config

DAY_MS = 86_400_000
KEY = "t", 0
LARGE = with_config(SMALL, segment_bytes=1 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", LARGE)


def write(log: Log, producer_id: int, sequence: int = 0, *, epoch: int = 0) -> None:
    put(
        log,
        (b"k%d" % producer_id, b"v" * 20),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def abort(log: Log, producer_id: int, *, epoch: int = 0, coordinator: int = 0) -> None:
    marker = build_end_txn_marker(
        EndTxnMarker(False, coordinator),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=1000,
    )
    append(log, bytearray(marker))


def a_life(log: Log) -> None:
    """Aborted: 7 from 0 to 3, 8 from 1 to 4, 7 from 5 to 8; the segment ends behind 5."""
    write(log, 7)
    write(log, 8)
    write(log, 9)
    abort(log, 7)
    abort(log, 8)
    write(log, 7, 1)
    log.roll()
    write(log, 7, 2)
    mark(log, 9, committed=True)
    abort(log, 7)
    log.producers.advance_high_watermark(log.log_end_offset)


A_LIFE = [(7, 0, 3, 1), (8, 1, 4, 2), (7, 5, 8, 9)]


def aborted(log: Log, start: int = 0, end: int = 100) -> list[tuple[int, ...]]:
    """Producer, first offset, marker's offset and last stable offset of each."""
    return [found[:4] for found in log.aborted_transactions(start, end)]


def on_disk(log: Log) -> dict[int, list[tuple[int, ...]]]:
    """What the files say, by base offsets."""
    return {
        int(path.stem): [entry[1:] for entry in struct.iter_unpack(">hqqqq", path.read_bytes())]
        for path in log.folder.glob("*.txnindex")
    }


def test_who_reads_is_told_what_it_may_meet(store: Store) -> None:
    log = store.log()
    assert aborted(log) == []
    a_life(log)
    assert aborted(log) == A_LIFE
    assert aborted(log, 0, 1) == A_LIFE[:1]
    assert aborted(log, 4) == A_LIFE[1:]
    assert aborted(log, 5, 6) == A_LIFE[2:]
    assert aborted(log, 9) == []


def test_the_file_is_kafkas(store: Store) -> None:
    """It comes with the segment's other indexes, and only where there is something to say."""
    log = store.log()
    write(log, 7)
    log.roll()
    a_life(log)
    assert on_disk(log) == {1: [(7, 0, 4, 2), (8, 2, 5, 3)]}
    log = store.reopen(clean=True)
    assert on_disk(log) == {1: [(7, 0, 4, 2), (8, 2, 5, 3)], 7: [(7, 6, 9, 10)]}
    data = (log.folder / f"{7:020d}.txnindex").read_bytes()
    assert data == struct.pack(">hqqqq", 0, 7, 6, 9, 10)


def restarted(store: Store) -> Log:
    return store.reopen(clean=True)


def crashed(store: Store) -> Log:
    return store.reopen(clean=False)


def crashed_with_old_files(store: Store) -> Log:
    """What was appended since the file was written, the file doesn't say."""
    log = store.reopen(clean=True)
    write(log, 8, 1)
    abort(log, 8)
    log.truncate_to(9)
    return store.reopen(clean=False)


def without_power(store: Store) -> Log:
    store.log().flush()
    store.log().directory.write_recovery_points()
    store.crash()
    assert isinstance(store.files, PowerLossFiles)
    store.files.power_off(store.folder)
    store.manager = store._open()
    return store.log()


def cut_and_written_again(store: Store) -> Log:
    log = store.log()
    log.truncate_to(8)
    assert aborted(log, 0, 5) == A_LIFE[:2]
    abort(log, 7)
    return log


def cut_in_a_closed_segment(store: Store) -> Log:
    log = store.log()
    log.truncate_to(4)
    assert aborted(log, 0, 1) == A_LIFE[:1]
    abort(log, 8)
    write(log, 7, 1)
    write(log, 7, 2)
    mark(log, 9, committed=True)
    abort(log, 7)
    return crashed(store)


def with_a_damaged_file(store: Store) -> Log:
    store.close()
    path = store.folder / "t-0" / f"{0:020d}.txnindex"
    path.write_bytes(path.read_bytes()[:-1])
    store.manager = store._open()
    assert len(path.read_bytes()) == 2 * 34
    return store.log()


@pytest.mark.parametrize(
    "what",
    [
        restarted,
        crashed,
        crashed_with_old_files,
        without_power,
        cut_and_written_again,
        cut_in_a_closed_segment,
        with_a_damaged_file,
    ],
)
def test_txnindex(tmp_path: Path, what: Callable[[Store], Log]) -> None:
    """Whatever happens to the log, which transactions were aborted is what its records say."""
    store = Store(tmp_path / "data", LARGE, PowerLossFiles())
    a_life(store.log())
    log = what(store)
    assert aborted(log) == A_LIFE
    for clean_ in (True, False):
        log = store.reopen(clean=clean_)
        assert aborted(log) == A_LIFE


def test_a_cut_leaves_no_file_that_says_more(store: Store) -> None:
    log = store.log()
    a_life(log)
    log.truncate_to(3)
    log.roll()
    assert on_disk(log) == {}
    log = store.reopen(clean=False)
    assert aborted(log) == []
    assert log.producers.last_stable_offset(3) == 0


def test_a_log_that_begins_anew_has_none(store: Store) -> None:
    log = store.log()
    a_life(log)
    log.truncate_fully_and_start_at(20)
    assert aborted(log, 20) == []
    store.tick()
    assert on_disk(log) == {}


def test_what_cannot_be_told_is_an_error(store: Store) -> None:
    log = store.log()
    a_life(log)
    path = log.segments[0].path(".txnindex")
    path.write_bytes(b"\0" * 34)
    log.segments[0].close()
    with pytest.raises(KafkaError) as caught:
        log.aborted_transactions(0, 5)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_retention_takes_the_file_with_its_segment(store: Store) -> None:
    log = store.log()
    a_life(log)
    log.delete_records_before(6)
    log.delete_old_segments(store.clock.now_ms, log.log_end_offset)
    store.clock.now_ms += 60_000
    store.tick()
    assert on_disk(log) == {}
    assert aborted(log, 6) == A_LIFE[2:]


@pytest.mark.parametrize("clean_", [True, False])
def test_after_a_restart_the_last_stable_offset_waits_for_markers_that_are_not_committed(
    store: Store, clean_: bool
) -> None:
    """Else a reader would be shown what another leader may end otherwise."""
    log = store.log()
    write(log, 7)
    log.roll()
    mark(log, 7, committed=True)
    if clean_:
        store.flusher.close()
        store.manager.close(high_watermarks={KEY: 1})
    else:
        log.directory.begin_high_watermarks({KEY: 1})()
        store.crash()
    store.manager = store._open()
    log = store.log()
    assert log.directory.checkpointed_high_watermark(log) == 1
    assert log.producers.last_stable_offset(1) == 0
    log.producers.advance_high_watermark(2)
    assert log.producers.last_stable_offset(2) == 2


def test_a_transaction_that_began_below_the_log_start_is_still_open_after_a_crash(
    store: Store,
) -> None:
    """Without a note of the high watermark: what lies below the log's start is committed."""
    log = store.log()
    write(log, 8)
    mark(log, 8, committed=True)
    write(log, 7)
    log.roll()
    write(log, 9)
    write(log, 7, 1)
    log.producers.advance_high_watermark(5)
    log.delete_records_before(3)
    log.delete_old_segments(store.clock.now_ms, 5)
    log = store.reopen(clean=False)
    assert dict(log.producers.active())[7].txn_first_offset == 2
    assert log.producers.last_stable_offset(5) == 3


# -- compaction


def overwrite(log: Log, times: int = 30) -> None:
    for _ in range(times):
        put(log, *((b"k%d" % key, b"w" * 40) for key in range(10)))


def markers(log: Log) -> set[int]:
    data = contents(log)
    return {h.base_offset for _, h in split_batches(data) if h.is_control and h.records_count}


def test_a_compacted_segment_has_the_transactions_whose_markers_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    inline(store)
    write(log, 7)
    abort(log, 7)
    write(log, 7, epoch=1)
    mark(log, 7, committed=True, epoch=1)
    write(log, 8)
    abort(log, 8)
    log.producers.advance_high_watermark(log.log_end_offset)
    left = []
    for _ in range(4):
        overwrite(log)
        clean(store)
        assert {last for _, _, last, _ in aborted(log)} <= markers(log)
        assert set(on_disk(log).get(0, [])) == set(aborted(log))
        left.append([producer_id for producer_id, *_ in aborted(log)])
        store.clock.now_ms += DAY_MS
    # 7 has gone on since; the end of 8 is the last that the log has of it.
    assert left[0] == [7, 8]
    assert left[-1] == [8]
    assert (log.folder / f"{0:020d}.txnindex").stat().st_size == 34
    log.producers.expire(store.uptime.now_ms + 2 * DAY_MS)
    for _ in range(4):
        overwrite(log)
        clean(store)
        store.clock.now_ms += DAY_MS
    assert aborted(log) == []
    assert not on_disk(log).get(0)
    log = store.reopen(clean=False)
    assert aborted(log) == []


def test_a_swap_that_a_crash_interrupted_brings_the_file_along(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    starts = inline(store)
    write(log, 8)
    write(log, 7)
    abort(log, 7)
    abort(log, 8)
    overwrite(log)
    log.producers.advance_high_watermark(log.log_end_offset)
    begin(store)
    log.directory.write_recovery_points()
    starts.processes[-1].poll()
    assert list(log.folder.glob("*.txnindex.cleaned"))
    expected = aborted(log)
    path = log.segments[0].path(".log")
    path.rename(path.with_name(path.name + ".deleted"))
    log = store.reopen(clean=False)
    assert aborted(log) == expected == [(7, 1, 2, 0), (8, 0, 3, 4)]
    assert on_disk(log)[0] == expected
    assert not list(log.folder.glob("*.cleaned"))


@pytest.mark.parametrize("bump", [0, 1])
def test_cleaned_fences(tmp_path: Path, bump: int) -> None:
    """What compaction leaves says which epoch a producer has, also to who has no snapshots."""
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    inline(store)
    write(log, 7)
    abort(log, 7, epoch=bump, coordinator=5)
    # A transaction that wrote nothing here: only its marker says that the epoch was raised.
    abort(log, 7, epoch=2 * bump, coordinator=5)
    for _ in range(4):
        overwrite(log)
        log.producers.advance_high_watermark(log.log_end_offset)
        clean(store)
        store.clock.now_ms += DAY_MS
    follower = Store(tmp_path / "follower", COMPACT).log()
    assert follower.append_as_follower(contents(log), 0)
    for each in (log, follower):
        known = dict(each.producers.active())[7]
        assert (known.epoch, known.coordinator_epoch) == (2 * bump, 5)
        assert known.txn_first_offset == -1


@pytest.mark.parametrize("retention", [False, True])
def test_an_old_snapshot_has_no_transaction_open_whose_end_was_compacted_away(
    tmp_path: Path, retention: bool
) -> None:
    """It would hold who reads what is committed, and the cleaner, for ever."""
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    inline(store)
    large = b"v" * 400  # so that no segments become one, and snapshots stay
    write(log, 7)
    write(log, 8)
    put(log, (b"a", large))
    log.roll()  # the snapshot here has both open
    here = log.log_end_offset
    write(log, 8, 1)
    abort(log, 7)
    put(log, (b"b", large))
    log.roll()
    mark(log, 8, committed=True)
    log.producers.advance_high_watermark(log.log_end_offset)
    log.producers.expire(store.uptime.now_ms + 2 * DAY_MS)
    for _ in range(4):
        put(log, (b"c", large))
        log.roll()
        clean(store)
        store.clock.now_ms += DAY_MS
    left = [h.base_offset for _, h in split_batches(contents(log)) if h.is_transactional]
    assert left == [here, here + 3]  # of 8 the newest of its key, and its end; of 7 nothing
    if retention:  # then nobody sees that the first batch of 7 was compacted away
        log.delete_records_before(here)
        assert log.delete_old_segments(store.clock.now_ms, log.log_end_offset)
        assert log.segments[0].base_offset == here
    write(log, 9)
    mark(log, 9, committed=True)
    log.producers.advance_high_watermark(log.log_end_offset)
    log.roll()
    log.flush()
    log.directory.begin_high_watermarks({KEY: here})()
    store.crash()
    store.manager = store._open()
    log = store.log()
    end = log.log_end_offset
    log.producers.advance_high_watermark(end)
    assert log.producers.last_stable_offset(end) == end
