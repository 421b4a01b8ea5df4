"""No damage is taken for health: after a start all is as it was, or the start says what isn't."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.core.config import TopicConfig
from kraftpy.protocol.records import split_batches
from kraftpy.storage import checkpoints, repair
from kraftpy.storage.files import Files, StorageError
from kraftpy.storage.log import Log
from kraftpy.storage.manager import LogManager
from kraftpy.storage.placement import Nowhere, Placement

from .support import (
    CLUSTER_ID,
    SMALL,
    TOPIC_ID,
    FaultyFiles,
    Store,
    append,
    batch,
    contents,
    fill,
    log_files,
    with_config,
)

COMPACTED = with_config(SMALL, cleanup_policy=frozenset({"compact"}))
HIGH_WATERMARK = 100


class Placed:
    """The metadata: t-0 is here, of the topic `wanted`, and maybe in sync elsewhere."""

    def __init__(self, *, elsewhere: bool = False, wanted: bytes = TOPIC_ID) -> None:
        self._elsewhere = elsewhere
        self._wanted = wanted

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        return self._wanted if (topic, partition) == ("t", 0) else None

    def is_elsewhere(self, _topic: str, _partition: int) -> bool:
        return self._elsewhere


def left(folder: Path, config: TopicConfig = SMALL, *, clean: bool = True) -> Store:
    """A log of six segments with three epochs and a producer, shut down."""
    store = Store(folder, config)
    log = store.log()
    for number in range(48):
        data = batch(2, producer_id=7, producer_epoch=0, base_sequence=2 * number)
        append(log, data, epoch=number // 16)
    log.flush()
    log.directory.write_recovery_points()
    assert len(log.segments) > 5
    store.flusher.close()
    if clean:
        store.manager.close(broker_epoch=17, high_watermarks={("t", 0): HIGH_WATERMARK})
    else:
        store.manager.release()
    return store


def opened(store: Store, placement: Placement, files: Files | None = None) -> LogManager:
    manager = LogManager(
        [store.folder],
        config=store.broker,
        cluster_id=CLUSTER_ID,
        node_id=1,
        clock_ms=store.clock,
        files=files,
    )
    manager.load(lambda _topic: store.config, store.flusher, placement)
    return manager


def state(log: Log) -> tuple[object, ...]:
    """All of a log that must come back."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.leader_epochs.entries(),
        log.producers.snapshot(),
        contents(log),
    )


def found(store: Store, placement: Placement) -> tuple[object, ...] | None:
    """What the start finds of t-0, None if it set it aside. Raises StorageError."""
    manager = opened(store, placement)
    try:
        log = manager.get("t", 0)
        return None if log is None else state(log)
    finally:
        manager.release()


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def shorter(path: Path) -> None:
    """At a batch's end, where it looks whole."""
    os.truncate(path, split_batches(bytearray(path.read_bytes()))[-1][0])


@pytest.mark.parametrize("config", [SMALL, COMPACTED], ids=["kept", "compacted"])
@pytest.mark.parametrize("damage", [removed, emptied, zeroed, shorter])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_damaged_segment_is_refused_or_set_aside(
    tmp_path: Path, number: int, damage: Callable[[Path], None], config: TopicConfig
) -> None:
    """Any of them, also of a log that may have gaps."""
    store = left(tmp_path / "d", config)
    damage(sorted((store.folder / "t-0").glob("*.log"))[number])
    for placement in (Nowhere(), Placed()):
        with pytest.raises(StorageError, match=r"t-0.*Either restore the file from a copy"):
            found(store, placement)
    manager = opened(store, Placed(elsewhere=True))
    assert manager.get("t", 0) is None
    assert manager.clean_shutdown_epoch is None
    assert len(list(store.folder.glob("t-0.*-damaged/*.log"))) >= 5
    manager.release()


def test_a_start_that_lies_behind_the_first_segment_needs_no_note(tmp_path: Path) -> None:
    """Retention and DeleteRecords move it; the notes know."""
    store = Store(tmp_path / "d", with_config(SMALL, retention_bytes=2000))
    log = store.log()
    fill(log, 60, count=3)
    log.delete_old_segments(0, log.log_end_offset)
    assert log.first_base_offset > 0
    log.delete_records_before(log.log_start_offset + 1)
    before = state(log)
    log = store.reopen(clean=True)
    assert state(log) == before
    log.delete_records_before(log.log_end_offset)
    log.delete_old_segments(0, log.log_end_offset)
    before = state(log)
    store.close()
    (path,) = log_files(log)
    assert not path.stat().st_size
    path.unlink()
    store.manager = store._open()
    assert state(store.log()) == before


SMALL_FILES = (
    ".kafka_cleanshutdown",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    "t-0/00000000000000000096.snapshot",
)


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_damaged_small_file_is_made_good_or_named(tmp_path: Path, name: str) -> None:
    store = left(tmp_path / "d", COMPACTED)
    path = store.folder / name
    # Two that are only there where they have something to say.
    if name == "log-start-offset-checkpoint":
        store.manager = store._open()
        store.log().delete_records_before(1)
        store.close()
    if name == "cleaner-offset-checkpoint":
        store.manager = store._open()
        store.log().clean_offset = 40
        store.close()
    manager = opened(store, Placed())
    log = manager.get("t", 0)
    assert log is not None
    expected, watermark = state(log), manager.checkpointed_high_watermark(log)
    clean_offset = log.clean_offset
    manager.release()
    whole = path.read_bytes()
    damages = [None, b"", bytes(len(whole)), whole[: len(whole) // 2]]
    for at in range(0, len(whole), 1 + len(whole) // 150):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        damages.append(bytes(flipped))
    refused, refusal = 0, str(path.parent)
    for damaged in damages:
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        try:
            manager = opened(store, Placed())
        except StorageError as error:
            refusal = str(error)
            refused += 1
        else:
            log = manager.get("t", 0)
            assert log is not None
            assert state(log) == expected
            assert log.topic_id in (TOPIC_ID, None)
            assert manager.checkpointed_high_watermark(log) <= watermark
            assert log.clean_offset <= clean_offset
            manager.release()
        path.write_bytes(whole)
    assert str(path.parent) in refusal
    # Whose folder it is can't be made good.
    assert refused == {"meta.properties": len(damages)}.get(name, refused)
    if name not in ("meta.properties", "t-0/partition.metadata"):
        assert not refused


def test_a_checkpoint_that_was_passed_over_is_written_anew(tmp_path: Path) -> None:
    """Else the start after a crash would believe it."""
    store = left(tmp_path / "d")
    path = store.folder / "recovery-point-offset-checkpoint"
    whole = path.read_text()
    path.write_text(whole.replace("96", "86"))
    manager = opened(store, Placed())
    assert path.read_text() != whole
    manager.begin()
    assert path.read_text() == whole
    manager.release()


def flip_id(store: Store) -> Path:
    """Another id, of which the file's checksum doesn't know."""
    path = store.folder / "t-0" / checkpoints.PARTITION_METADATA_FILE
    other = checkpoints.uuid_to_text(bytes([TOPIC_ID[0] ^ 1]) + TOPIC_ID[1:])
    path.write_text(path.read_text().replace(checkpoints.uuid_to_text(TOPIC_ID), other))
    return path


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_topic_id_is_no_stray(tmp_path: Path, clean: bool, checksum: bool) -> None:
    """Also where Kafka or an earlier version wrote the file."""
    store = left(tmp_path / "d", clean=clean)
    path = flip_id(store)
    if not checksum:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(StorageError, match=r"partition\.metadata .*[Rr]emove it and start again"):
        opened(store, Placed())
    manager = opened(store, Placed(elsewhere=True))
    assert manager.get("t", 0) is None
    manager.release()
    (aside,) = store.folder.glob("t-0.*-damaged")
    aside.rename(store.folder / "t-0")
    path.unlink()
    manager = opened(store, Placed())
    log = manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    manager.set_aside_strays({("t", 0): TOPIC_ID})
    assert manager.get("t", 0) is log
    assert log.log_end_offset == 96
    manager.release()


def test_a_topic_that_was_made_anew_is_a_stray(tmp_path: Path) -> None:
    """Its id is what was written: it was another topic."""
    store = left(tmp_path / "d")
    other = bytes(16 * [9])
    manager = opened(store, Placed(wanted=other))
    manager.begin()
    assert manager.get_or_create("t", 0, other, SMALL).log_end_offset == 0
    manager.release()
    assert len(list(store.folder.glob("t-0.*-stray"))) == 1


@pytest.mark.parametrize("torn", [b"", bytes(40), None])
def test_a_torn_topic_id_and_no_room_make_no_stray(tmp_path: Path, torn: bytes | None) -> None:
    store = left(tmp_path / "d", clean=False)
    path = store.folder / "t-0" / checkpoints.PARTITION_METADATA_FILE
    path.unlink() if torn is None else path.write_bytes(torn)
    files = FaultyFiles(kinds=("write",), sticky=True)
    manager = opened(store, Placed(), files)
    manager.begin()
    files.fail_at = files.count
    with pytest.raises(Exception, match="can't create t-0"):
        manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    manager.set_aside_strays({("t", 0): TOPIC_ID})
    files.fail_at = -1
    files.failed.clear()
    assert manager.get_or_create("t", 0, TOPIC_ID, SMALL).log_end_offset == 96
    manager.release()
    assert checkpoints.read_partition_metadata(path) == (TOPIC_ID, True)


def without_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def without_files(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [without_folder, without_files])
def test_a_partition_that_is_gone_is_not_begun_anew(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    store = left(tmp_path / "d", clean=clean)
    folder = store.folder / "t-0"
    damage(folder)
    with pytest.raises(StorageError, match=r"t-0.*offset.* 96.*kraftpy\.storage\.repair"):
        opened(store, Placed())
    manager = opened(store, Placed(elsewhere=True))
    assert manager.clean_shutdown_epoch is None
    manager.release()
    # The topic may be gone, or another one with that name.
    opened(store, Nowhere()).release()
    folder.mkdir()
    assert "ends at offset 0 now" in repair.repair(folder, Files())
    shutil.rmtree(folder)
    assert "ends at offset 0 now" in repair.repair(folder, Files())
    manager = opened(store, Placed())
    assert manager.get_or_create("t", 0, TOPIC_ID, SMALL).log_end_offset == 0
    manager.release()


@pytest.mark.parametrize("text", ['{"version":0,"brokerEpoch":17}', ""])
def test_a_marker_without_notes_is_kafkas(tmp_path: Path, text: str) -> None:
    store = left(tmp_path / "d")
    (store.folder / checkpoints.CLEAN_SHUTDOWN_FILE).write_text(text)
    manager = opened(store, Placed())
    assert manager.clean_shutdown_epoch == (17 if text else -1)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset == 96
    manager.release()
