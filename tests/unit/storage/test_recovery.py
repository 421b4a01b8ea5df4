"""After a crash: torn tails are cut, other damage is refused (docs/rules.md, rule 23)."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.protocol.records import split_batches
from kraftpy.storage.files import StorageError
from kraftpy.storage.log import Log
from kraftpy.storage.segment import REBUILD_INDEX_INTERVAL_BYTES

from .support import (
    SMALL,
    PowerLossFiles,
    Store,
    append,
    batch,
    build_stored,
    contents,
    fill,
    log_files,
    records_of,
    with_config,
)

BIG = with_config(SMALL, segment_bytes=1 << 20)


def crashed(folder: Path, batches: int = 5, *, flushed: int = 0) -> tuple[Store, list[bytes]]:
    """A store in which a log with `batches` batches, `flushed` of them on disk, was left behind."""
    store = Store(folder, BIG)
    log = store.log()
    data = []
    for number in range(batches):
        data.append(append(log, batch(3, timestamp=1000 + number)))
        if number + 1 == flushed:
            log.flush()
            log.directory.write_recovery_points()
    store.crash()
    return store, data


def reopened(store: Store) -> Log:
    return store.reopen(clean=False)


def test_nothing_is_lost_by_a_kill(tmp_path: Path) -> None:
    store, data = crashed(tmp_path / "d")
    log = reopened(store)
    assert contents(log) == b"".join(data)
    assert log.leader_epochs.entries() == [(0, 0)]


def test_a_tail_torn_at_any_byte_is_cut(tmp_path: Path) -> None:
    store, data = crashed(tmp_path / "d", flushed=4)
    path = store.folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    good = len(whole) - len(data[-1])
    for size in range(good, len(whole)):
        path.write_bytes(whole[:size])
        log = reopened(store)
        assert (log.log_end_offset, log.size_bytes) == (12, good)
        assert path.stat().st_size == good
        assert contents(log) == b"".join(data[:-1])
        assert append(log, batch()) == contents(log, 12)


def test_a_torn_tail_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = crashed(tmp_path / "d")
    path = store.folder / "t-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - 1)
    with caplog.at_level(logging.WARNING):
        reopened(store)
    assert len(caplog.records) == 1
    assert "cut a torn tail" in caplog.text
    assert str(path) in caplog.text


@pytest.mark.parametrize("garbage", [bytes(5000), b"\xff" * 5000, b"\2" * 3000, b"x"])
def test_trailing_zeros_and_garbage_are_a_torn_tail(tmp_path: Path, garbage: bytes) -> None:
    store, data = crashed(tmp_path / "d", flushed=5)
    path = store.folder / "t-0" / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(garbage)
    log = reopened(store)
    assert log.log_end_offset == 15
    assert path.read_bytes() == b"".join(data)


def test_zeros_over_the_unflushed_tail(tmp_path: Path) -> None:
    """What a crash of the machine leaves: the size is there, the pages are not."""
    store, data = crashed(tmp_path / "d", flushed=3)
    path = store.folder / "t-0" / f"{0:020d}.log"
    size = path.stat().st_size
    os.truncate(path, len(b"".join(data[:3])))
    os.truncate(path, size)
    assert reopened(store).log_end_offset == 9


def test_a_bit_flip_anywhere_before_the_last_batch_is_refused(tmp_path: Path) -> None:
    store, data = crashed(tmp_path / "d")
    path = store.folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    # Base offset (0-7) and leader epoch (12-15) are outside of the checksum by design.
    size = len(data[0])
    for at in range(len(whole) - len(data[-1])):
        if 12 <= at % size < 16:
            continue
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError) as error:
            reopened(store)
        assert str(path) in str(error.value)
        assert "kraftpy.storage.repair" in str(error.value)
        assert path.read_bytes() == flipped, "a refused file is left as it is"


def with_batches_inside() -> bytearray:
    """A batch of which one record's value has batches, as a copy of a log's file has."""
    inner = [build_stored(2, offset, 0) for offset in (0, 3, 1_000)]
    return batch(value=b"before" + b"".join(inner) + b"behind")


def test_a_torn_tail_of_records_that_hold_batches_is_cut(tmp_path: Path) -> None:
    store, _ = crashed(tmp_path / "d", 1)
    log = reopened(store)
    append(log, with_batches_inside())
    store.crash()
    path = store.folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    good = len(whole) - len(with_batches_inside())
    for size in range(good, len(whole)):
        # What a kill leaves, and a crash of the machine: the size is there, the pages are not.
        for torn in (whole[:size], whole[:size].ljust(len(whole), b"\0")):
            path.write_bytes(torn)
            assert reopened(store).log_end_offset == (4 if torn == whole else 3)
            store.crash()


def test_a_bit_flip_in_records_that_hold_batches_is_refused(tmp_path: Path) -> None:
    store, data = crashed(tmp_path / "d", 1)
    log = reopened(store)
    inside = append(log, with_batches_inside())
    append(log, batch())
    store.crash()
    path = store.folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    for at in range(len(inside)):
        for bit in range(8) if at < 61 else (at % 8,):
            flipped = bytearray(whole)
            flipped[len(data[0]) + at] ^= 1 << bit
            path.write_bytes(flipped)
            if 12 <= at < 16:
                continue  # the leader's epoch, which no checksum covers
            with pytest.raises(StorageError):
                reopened(store)


def test_a_leader_epoch_that_falls_is_damage_although_no_checksum_covers_it(tmp_path: Path) -> None:
    store, data = crashed(tmp_path / "d")
    path = store.folder / "t-0" / f"{0:020d}.log"
    flipped = bytearray(path.read_bytes())
    flipped[len(data[0]) + 15] ^= 4  # the epoch of the second batch
    path.write_bytes(flipped)
    with pytest.raises(StorageError, match="batch of leader epoch 0 behind one of 4"):
        reopened(store)


def test_a_bit_flip_in_the_last_batch(tmp_path: Path) -> None:
    for flushed, refused in ((5, True), (4, False)):
        store, data = crashed(tmp_path / str(flushed), flushed=flushed)
        path = store.folder / "t-0" / f"{0:020d}.log"
        flipped = bytearray(path.read_bytes())
        flipped[-5] ^= 4
        path.write_bytes(flipped)
        if refused:
            with pytest.raises(StorageError, match=r"before offset 15 had been flushed"):
                reopened(store)
        else:
            assert contents(reopened(store)) == b"".join(data[:4])


@pytest.mark.parametrize("clean", [True, False])
def test_missing_flushed_records_are_refused(tmp_path: Path, clean: bool) -> None:
    store = Store(tmp_path / "d", BIG)
    log = store.log()
    data = fill(log, 5)
    log.flush()
    log.directory.write_recovery_points()
    if clean:
        store.close()
    else:
        store.crash()
    path = store.folder / "t-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - len(data[-1]))
    with pytest.raises(StorageError, match=r"records are missing|had been flushed"):
        reopened(store)


def several_segments(folder: Path) -> tuple[Store, list[Path]]:
    store = Store(folder)
    log = store.log()
    fill(log, 40, count=3)
    paths = log_files(log)
    assert len(paths) > 4
    store.crash()
    return store, paths


def test_damage_before_a_later_segment_is_refused(tmp_path: Path) -> None:
    store, paths = several_segments(tmp_path / "d")
    os.truncate(paths[1], paths[1].stat().st_size - 1)
    with pytest.raises(StorageError, match=r"valid batch follows in .* at position 0"):
        reopened(store)


def test_a_segment_that_ends_early_is_refused(tmp_path: Path) -> None:
    store, paths = several_segments(tmp_path / "d")
    paths[2].unlink()
    with pytest.raises(StorageError, match="the next one begins at"):
        reopened(store)
    store.config = with_config(SMALL, cleanup_policy=frozenset({"compact"}))
    assert reopened(store).log_end_offset == 120  # compaction leaves gaps


def test_segments_that_overlap_are_refused(tmp_path: Path) -> None:
    store, paths = several_segments(tmp_path / "d")
    paths[2].rename(paths[2].with_name(f"{int(paths[2].stem) - 1:020d}.log"))
    with pytest.raises(StorageError, match="begins before"):
        reopened(store)


def test_a_torn_tail_before_empty_segments(tmp_path: Path) -> None:
    """The roll was on disk, the end of the segment before it was not."""
    store, paths = several_segments(tmp_path / "d")
    os.truncate(paths[-1], 0)
    os.truncate(paths[-2], paths[-2].stat().st_size - 3)
    log = reopened(store)
    assert log_files(log) == paths[:-1]
    assert len(records_of(contents(log))) == log.log_end_offset


def test_segments_of_which_a_crash_left_only_the_names(tmp_path: Path) -> None:
    """The last one's name is not where the log ends: nothing of what is before it is there."""
    store, paths = several_segments(tmp_path / "d")
    for path in paths:
        os.truncate(path, 0)
    log = reopened(store)
    assert (log.log_end_offset, log_files(log)) == (0, paths[:1])


def test_only_segments_from_the_recovery_point_on_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    fill(log, 40, count=3)
    log.flush()
    log.directory.write_recovery_points()
    fill(log, 3)
    paths = log_files(log)
    store.crash()
    data = bytearray(paths[0].read_bytes())
    data[70] ^= 1  # in a record, so only a checksum would tell
    paths[0].write_bytes(data)
    assert reopened(store).log_end_offset == 123


def test_an_interrupted_roll_or_delete_leaves_no_trouble(tmp_path: Path) -> None:
    store, paths = several_segments(tmp_path / "d")
    folder = paths[0].parent
    (folder / "00000000000000000000.index.tmp").write_bytes(b"half")
    (folder / "00000000000000000000.log.deleted").write_bytes(b"gone")
    (folder / "00000000000000099999.index").write_bytes(b"stray")
    log = reopened(store)
    assert log.log_end_offset == 120
    assert not list(folder.glob("*.tmp")) + list(folder.glob("*.deleted"))
    assert not (folder / "00000000000000099999.index").exists()


def test_producers_and_epochs_come_back(tmp_path: Path) -> None:
    """docs/rules.md, rule 28: duplicates are known after a restart."""
    for clean in (True, False):
        store = Store(tmp_path / str(clean))
        log = store.log()
        log.assign_leader_epoch(4)
        for number in range(40):
            data = batch(2, producer_id=7, producer_epoch=1, base_sequence=2 * number)
            append(log, data, epoch=4 + number // 10)
        before = log.producers.snapshot()
        epochs = log.leader_epochs.entries()
        log = store.reopen(clean=clean)
        assert log.producers.snapshot() == before
        assert log.leader_epochs.entries() == epochs == [(4, 0), (5, 20), (6, 40), (7, 60)]


def test_a_damaged_producer_snapshot_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    for number in range(40):
        append(log, batch(2, producer_id=7, producer_epoch=1, base_sequence=2 * number))
    before = log.producers.snapshot()
    store.close()
    for number, path in enumerate(sorted(log.folder.glob("*.snapshot"))):
        path.write_bytes(b"" if number % 2 else path.read_bytes()[:-1] + b"!")
    assert store.reopen(clean=True).producers.snapshot() == before


def test_log_start_beyond_what_survived(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    fill(log, 5)
    log.delete_records_before(5)
    store.crash()
    os.truncate(log_files(log)[0], 0)
    log = reopened(store)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    append(log, batch())
    assert reopened(store).log_end_offset == 6


def test_repair_keeps_what_is_before_the_damage(tmp_path: Path) -> None:
    store, paths = several_segments(tmp_path / "d")
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2] ^= 1
    paths[1].write_bytes(data)
    store.files.unlink(tmp_path / "d" / ".lock")
    with pytest.raises(StorageError):
        reopened(store)
    command = [sys.executable, "-m", "kraftpy.storage.repair", str(paths[0].parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log = reopened(store)
    assert f"ends at offset {log.log_end_offset} now" in done.stdout
    assert int(paths[1].stem) <= log.log_end_offset < int(paths[2].stem)
    assert [r.offset for r in records_of(contents(log))] == list(range(log.log_end_offset))
    assert len(list(log.folder.glob("*.damaged"))) == len(paths) - 1
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert f"in use by process {os.getpid()}" in again.stderr


def test_lost_segment_files_are_refused(tmp_path: Path) -> None:
    store, _ = crashed(tmp_path / "d", flushed=5)
    (store.folder / "t-0" / f"{0:020d}.log").unlink()
    with pytest.raises(StorageError, match="has no segment files"):
        reopened(store)


def test_a_log_that_was_never_written_to_needs_no_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    for clean in (False, True):
        assert log_files(log) == []
        assert log.read(0, 100, upper_offset=0).slices == []
        assert log.offset_for_timestamp(0) is None
        log = store.reopen(clean=clean)
    data = append(log, batch())
    assert contents(store.reopen(clean=False)) == data


def _without(path: Path) -> None:
    path.unlink()


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _without_the_last_batch(path: Path) -> None:
    batches = split_batches(path.read_bytes())
    os.truncate(path, batches[-1][0])


def _torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [_without, _emptied, _without_the_last_batch, _torn, _zeroed])
def test_records_missing_before_the_last_segment_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    """Also below the recovery point, where nothing is checked batch by batch."""
    store = Store(tmp_path / "d")
    log = store.log()
    fill(log, 60, count=4)
    log.flush()
    log.directory.write_recovery_points()
    files = log_files(log)
    assert len(files) > 3
    store.close() if clean else store.crash()
    damage(files[1])
    with pytest.raises(StorageError, match=r"t-0.*Either restore the file from a copy"):
        store.manager = store._open()


def test_a_missing_first_segment_is_refused_if_the_log_start_was_noted(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    fill(log, 60, count=4)
    log.delete_records_before(1)
    (first, *_) = log_files(log)
    store.close()
    first.unlink()
    with pytest.raises(StorageError, match=r"started at offset 1 .*records are missing"):
        store.manager = store._open()


@pytest.mark.parametrize("clean", [True, False])
def test_an_offset_that_no_segment_reaches_is_damage(tmp_path: Path, clean: bool) -> None:
    """In a closed segment, of which only headers are read; each bit of the offsets there."""
    store = Store(tmp_path / "d", BIG)
    log = store.log()
    for _ in range(3):
        append(log, batch(2, value=bytes(2 * REBUILD_INDEX_INTERVAL_BYTES)))
    log.roll()
    fill(log, 1)
    log.flush()
    log.directory.write_recovery_points()
    path = store.folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    refused = 0
    for position, _ in split_batches(bytearray(whole)):
        for bit in (*range(64), *range(23 * 8, 27 * 8)):
            damaged = bytearray(whole)
            damaged[position + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with contextlib.suppress(StorageError):
                store.reopen(clean=clean)
                continue
            refused += 1
            path.write_bytes(whole)
            path.with_suffix(".index").unlink(missing_ok=True)
            store.reopen(clean=clean)
    assert refused > 64


def test_a_compacted_log_may_have_gaps_between_segments(tmp_path: Path) -> None:
    store = Store(tmp_path / "d", with_config(SMALL, cleanup_policy=frozenset({"compact"})))
    log = store.log()
    append(log, batch(1))
    log.roll()
    append(log, batch(1), offset=7)
    log.roll()
    append(log, batch(1))
    assert store.reopen(clean=True).log_end_offset == 9
    log = store.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (0, 9)


def test_an_index_that_a_power_cut_took_is_made_anew(tmp_path: Path) -> None:
    """The recovery point ends a segment that was sealed only afterwards, its indexes unsynced."""
    files = PowerLossFiles()
    store = Store(tmp_path / "d", files=files)
    log = store.log()
    while log.segments[0].size < 900:
        append(log, batch(2, timestamp=1000 + log.log_end_offset))
    log.flush()
    store.clock.now_ms += 60_000
    store.tick(high_watermark=0)
    log.roll()
    append(log, batch(2, timestamp=1000 + log.log_end_offset))
    assert log.checkpointed_recovery_point == log.segments[1].base_offset
    wanted = log.offset_for_timestamp(1003)
    assert wanted is not None
    times = log.segments[0].path(".timeindex")
    store.crash()
    files.power_off(store.folder)
    assert times.stat().st_size == 0
    log = store.reopen(clean=False)
    assert log.offset_for_timestamp(1003) == wanted
    log.flush()
    store.crash()
    files.power_off(store.folder)
    assert times.stat().st_size > 0
    assert store.reopen(clean=False).offset_for_timestamp(1003) == wanted


def _to_one_entry(path: Path) -> None:
    os.truncate(path, 8 if path.suffix == ".index" else 12)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [_emptied, _to_one_entry, _zeroed, _without])
def test_an_index_that_does_not_cover_its_segment_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], suffix: str, clean: bool
) -> None:
    """Far below the recovery point, where no batch is read at the start."""
    files = PowerLossFiles()
    store = Store(tmp_path / "d", with_config(SMALL, segment_bytes=30_000), files)
    log = store.log()
    while len(log.segments) < 4:
        append(log, batch(2, timestamp=1000 + log.log_end_offset, value=bytes(300)))
    log.flush()
    log.directory.write_recovery_points()
    segment = log.segments[1]
    middle = (segment.base_offset + log.segments[2].base_offset) // 2
    wanted = log.offset_for_timestamp(1000 + middle)
    assert wanted is not None
    assert wanted.offset == middle
    store.close() if clean else store.crash()
    path = segment.path(suffix)
    whole = path.read_bytes()
    damage(path)
    log = store.reopen(clean=clean)
    assert log.offset_for_timestamp(1000 + middle) == wanted
    assert contents(log, middle)
    assert len(path.read_bytes()) * 41 > len(whole)  # of 200 bytes; made anew, an entry has 4096
    store.crash()
    files.power_off(store.folder)
    assert path.stat().st_size * 41 > len(whole)


def test_a_flipped_bit_of_a_time_index_hides_no_record(tmp_path: Path) -> None:
    """In entries anywhere; timestamps that rise, and such that have their largest early."""
    for name, timestamps in (("rising", range(1000, 1200)), ("early", [1000, 5000, *[900] * 198])):
        store = Store(tmp_path / name, with_config(SMALL, segment_bytes=6000))
        log = store.log()
        for timestamp in timestamps:
            append(log, batch(2, timestamp=timestamp))
        asked = sorted({0, 950, *range(1000, 1201, 7), 5000, 5001})
        wanted = [log.offset_for_timestamp(timestamp) for timestamp in asked]
        store.close()
        path = log.segments[0].path(".timeindex")
        whole = path.read_bytes()
        for bit in range(0, 8 * len(whole), 13):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            store.manager = store._open()
            log = store.log()
            assert [log.offset_for_timestamp(timestamp) for timestamp in asked] == wanted
            store.close()
            path.write_bytes(whole)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [_without, _emptied, _zeroed, _torn])
def test_leader_epochs_that_a_crash_tore_are_read_from_the_batches(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    store = Store(tmp_path / "d")
    log = store.log()
    for epoch in range(12):
        fill(log, 4, count=3, epoch=epoch)
    log.flush()
    log.directory.write_recovery_points()
    epochs = log.leader_epochs.entries()
    store.close() if clean else store.crash()
    damage(log.folder / "leader-epoch-checkpoint")
    assert store.reopen(clean=clean).leader_epochs.entries() == epochs
