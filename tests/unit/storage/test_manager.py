"""Log directories: ownership, lock, checkpoints, deletion, clean shutdown."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.core.producers import DEFAULT_PRODUCER_ID_EXPIRATION_MS, EXPIRED_TOGETHER
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import split_batches
from kraftpy.storage import checkpoints
from kraftpy.storage.files import Files, StorageError
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.manager import LogManager

from .support import (
    CLUSTER_ID,
    SMALL,
    TOPIC_ID,
    FaultyFiles,
    Loop,
    Store,
    append,
    batch,
    contents,
    fill,
    with_config,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def loaded(folders: list[Path], *, cluster_id: str = CLUSTER_ID, node_id: int = 1) -> LogManager:
    manager = LogManager(
        folders,
        config=BrokerConfig(),
        cluster_id=cluster_id,
        node_id=node_id,
        clock_ms=lambda: 0,
    )
    manager.load(lambda topic: SMALL, Flusher(Loop().post))
    return manager


def open_as(folders: list[Path], *, cluster_id: str = CLUSTER_ID, node_id: int = 1) -> LogManager:
    manager = loaded(folders, cluster_id=cluster_id, node_id=node_id)
    manager.begin()
    return manager


def test_the_folder_is_laid_out_as_kafkas(store: Store) -> None:
    log = store.log("orders", 3)
    log.assign_leader_epoch(2)
    fill(log, 30, count=3, epoch=2)
    log.delete_records_before(1)
    store.flusher.close()
    store.manager.close(broker_epoch=17)
    folder = store.folder
    marker = json.loads((folder / ".kafka_cleanshutdown").read_text())
    assert (marker["version"], marker["brokerEpoch"]) == (0, 17)
    meta = dict(line.split("=") for line in (folder / "meta.properties").read_text().split())
    assert meta["version"] == "1"
    assert meta["cluster.id"] == CLUSTER_ID
    assert meta["node.id"] == "1"
    assert len(checkpoints.uuid_from_text(meta["directory.id"])) == 16
    assert (folder / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 3 90\n"
    assert (folder / "log-start-offset-checkpoint").read_text() == "0\n1\norders 3 1\n"
    partition = folder / "orders-3"
    assert (partition / "leader-epoch-checkpoint").read_text() == "0\n1\n2 1\n"
    text = f"version: 0\ntopic_id: {checkpoints.uuid_to_text(TOPIC_ID)}\n"
    assert (partition / "partition.metadata").read_text().startswith(text + "checksum: ")
    suffixes = {path.suffix for path in partition.iterdir()}
    assert suffixes == {"", ".metadata", ".log", ".index", ".timeindex", ".snapshot"}


def test_clean_shutdown_is_told_apart(store: Store) -> None:
    log = store.log()
    fill(log, 3)
    assert store.manager.clean_shutdown_epoch is None
    store.reopen(clean=True)
    assert store.manager.clean_shutdown_epoch == -1
    assert not (store.folder / ".kafka_cleanshutdown").exists()
    store.reopen(clean=False)
    assert store.manager.clean_shutdown_epoch is None


def test_a_start_that_is_broken_off_leaves_the_clean_shutdown_as_it_was(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another directory is what stops it."""
    fill(store.log(), 3)
    store.flusher.close()
    store.manager.close(broker_epoch=17)
    marker = (store.folder / ".kafka_cleanshutdown").read_text()
    other = tmp_path / "other"
    open_as([other]).close(broker_epoch=17)
    (other / ".kafka_cleanshutdown").unlink()
    (other / "recovery-point-offset-checkpoint").write_text("damaged")
    with pytest.raises(StorageError, match="recovery-point"):
        open_as([store.folder, other])
    manager = loaded([store.folder])
    assert manager.clean_shutdown_epoch == 17
    manager.release()
    assert (store.folder / ".kafka_cleanshutdown").read_text() == marker
    manager = open_as([store.folder])
    assert manager.clean_shutdown_epoch == 17
    assert "not shut down cleanly" not in caplog.text
    assert not (store.folder / ".kafka_cleanshutdown").exists()


def test_directory_ids_stay(store: Store) -> None:
    before = store.manager.directories[0].directory_id
    store.reopen(clean=True)
    assert store.manager.directories[0].directory_id == before


@pytest.mark.parametrize(("cluster_id", "node_id"), [("other", 1), (CLUSTER_ID, 2)])
def test_another_nodes_folder_is_refused(store: Store, cluster_id: str, node_id: int) -> None:
    store.close()
    with pytest.raises(StorageError, match=f"belongs to node 1 of cluster {CLUSTER_ID}"):
        open_as([store.folder], cluster_id=cluster_id, node_id=node_id)
    open_as([store.folder]).close()


def test_a_folder_that_is_named_twice_is_refused_as_that(tmp_path: Path) -> None:
    folder, link = tmp_path / "data", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    for again in (folder, link):
        with pytest.raises(
            StorageError, match=f"names one folder twice, as {folder} and as {again}"
        ):
            open_as([folder, tmp_path / "other", again])
    open_as([folder, tmp_path / "other"]).release()


def test_a_folder_in_use_is_refused_with_the_process(store: Store) -> None:
    program = f"""
        from pathlib import Path
        from kraftpy.storage.directory import lock_directory
        from kraftpy.storage.files import Files, StorageError
        try:
            lock_directory(Path({str(store.folder)!r}), Files())
        except StorageError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"is in use by process {os.getpid()}" in done.stdout
    store.close()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_partitions_without_their_owner_are_refused(store: Store) -> None:
    fill(store.log(), 1)
    store.close()
    meta = store.folder / "meta.properties"
    meta.unlink()
    with pytest.raises(
        StorageError, match=r"meta\.properties is damaged: it is missing.*Restore it"
    ):
        store._open()
    assert not meta.exists()  # a new one would claim the partitions for another cluster


def test_damaged_checkpoints_are_named(store: Store) -> None:
    log = store.log()
    fill(log, 3)
    store.crash()
    path = store.folder / "recovery-point-offset-checkpoint"
    for text in ("", "1\n0\n", "0\n2\nt 0 3\n", "0\n1\nt 0\n", "0\n1\nt 0 -3\n", "0\n1\nt x 3\n"):
        path.write_text(text)
        with pytest.raises(StorageError, match=r"recovery-point.* is damaged in line"):
            open_as([store.folder])
    path.unlink()
    (store.folder / "replication-offset-checkpoint").write_text("torn")  # only a hint
    (store.folder / "t-0" / "partition.metadata").write_bytes(b"\0\0\0")
    manager = open_as([store.folder])
    found = manager.get("t", 0)
    assert found is not None
    assert (found.log_end_offset, found.topic_id) == (3, None)
    assert manager.get_or_create("t", 0, TOPIC_ID, SMALL).topic_id == TOPIC_ID
    manager.close()


def test_high_watermarks_are_clamped(store: Store) -> None:
    """docs/rules.md, rule 11."""
    log = store.log()
    fill(log, 10)
    for offset, expected in ((7, 7), (99, 10), (0, 2)):
        store.clock.now_ms += 10_000
        store.tick(high_watermark=offset)
        log = store.reopen(clean=False)
        log.delete_records_before(2)
        assert store.manager.checkpointed_high_watermark(log) == expected


def test_deletion_renames_at_once_and_removes_later(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", with_config(SMALL, file_delete_delay_ms=60_000))
    log = store.log("t" * 240, 7)
    data = append(log, batch(3))
    reader = log.read(0, 100, upper_offset=3).slices[0]
    store.manager.delete("t" * 240, 7)
    (folder,) = [path for path in store.folder.iterdir() if path.name.endswith("-delete")]
    assert folder.name.startswith("ttt")
    assert len(folder.name) <= 255
    assert store.manager.get("t" * 240, 7) is None
    assert reader.read() == data
    with pytest.raises(KafkaError) as error:
        log.read(0, 100, upper_offset=3)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    store.clock.now_ms += 59_000
    store.tick()
    store.manager._removal.join()
    assert folder.exists()
    store.clock.now_ms += 1_000
    store.tick()
    store.manager._removal.join()
    assert not folder.exists()
    assert reader.read() == data


def test_interrupted_deletions_go_on_after_a_restart(store: Store) -> None:
    log = store.log()
    fill(log, 3)
    store.manager.delete("t", 0)
    store.crash()
    manager = open_as([store.folder])
    assert manager.get("t", 0) is None
    manager.tick(1, dict)
    manager._removal.join()
    assert not [path for path in store.folder.iterdir() if path.is_dir()]
    manager.close()


def test_a_topic_created_again_does_not_find_old_records(store: Store) -> None:
    fill(store.log(), 3)
    store.close()
    manager = open_as([store.folder])
    log = manager.get_or_create("t", 0, bytes(16), SMALL)
    assert (log.log_end_offset, log.topic_id) == (0, bytes(16))
    manager.set_aside_strays({("t", 0): bytes(16)})
    assert len(manager) == 1
    manager.set_aside_strays({("t", 0): TOPIC_ID})
    assert len(manager) == 0
    manager.close()


def test_logs_that_the_metadata_does_not_know_are_kept_under_another_name(store: Store) -> None:
    fill(store.log(), 3)
    (before,) = [path.read_bytes() for path in store.folder.rglob("*.log")]
    store.manager.set_aside_strays({})
    store.close()
    manager = open_as([store.folder])
    assert len(manager) == 0
    manager.close()
    (stray,) = store.folder.glob("t-0.*-stray")
    assert [path.read_bytes() for path in stray.glob("*.log")] == [before]


def test_a_deleted_topics_checkpoints_do_not_touch_the_next_one(store: Store) -> None:
    log = store.log()
    fill(log, 10)
    log.flush()
    log.delete_records_before(5)
    log.directory.write_recovery_points()
    store.manager.delete("t", 0)
    log = store.log()
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    append(log, batch())
    log = store.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)


def test_partitions_spread_over_directories(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    manager = open_as(folders)
    for number in range(6):
        append(manager.get_or_create("t", number, TOPIC_ID, SMALL), batch())
    assert [len(directory.logs) for directory in manager.directories] == [3, 3]
    descriptions = manager.describe()
    assert [description.path for description in descriptions] == [str(path) for path in folders]
    sizes = [size for description in descriptions for _, _, size in description.logs]
    assert len(set(sizes)) == 1
    assert all(0 < d.usable_bytes <= d.total_bytes for d in descriptions)
    manager.close()
    (folders[0] / "t-0").rename(folders[1] / "t-9")
    (folders[0] / "t-2").rename(folders[1] / "t-0")
    manager = open_as(folders)
    assert len(manager) == 6
    manager.close()
    (folders[0] / "t-0").mkdir()
    with pytest.raises(StorageError, match=r"both .* claim to be partition t-0"):
        open_as(folders)


def test_other_folders_are_left_alone(store: Store) -> None:
    store.close()
    for name in ("lost+found", "__cluster_metadata-0", "notes", "t-01", "quorum"):
        (store.folder / name).mkdir()
    manager = open_as([store.folder])
    assert len(manager) == 0
    manager.close()
    assert len([path for path in store.folder.iterdir() if path.is_dir()]) == 5


@pytest.mark.parametrize("name", ["../t", "a/b", "", "ü", "t" * 250])
def test_names_that_are_no_topics_make_no_folder(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a partition"):
        store.manager.get_or_create(name, 0, TOPIC_ID, SMALL)


def test_flush_by_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", with_config(SMALL, flush_ms=1000, segment_bytes=1 << 20))
    log = store.log()
    fill(log, 3)
    files = FaultyFiles()
    done: list[int] = []
    store.flusher.request = lambda log, offset: done.append(offset)  # type: ignore[method-assign]
    for step, expected in ((0, []), (999, []), (1, [3])):
        store.clock.now_ms += step
        store.tick()
        assert done == expected
    assert files.count == 0


def test_a_completed_segment_is_flushed_soon(store: Store) -> None:
    log = store.log()
    fill(log, 30, count=3)
    requested: list[int] = []
    store.flusher.request = lambda log, offset: requested.append(offset)  # type: ignore[method-assign]
    store.tick()
    assert requested == [90]


def test_recovery_points_are_checkpointed_by_the_clock(store: Store) -> None:
    log = store.log()
    fill(log, 3)
    log.flush()
    store.clock.now_ms += 60_000
    store.tick()
    path = store.folder / "recovery-point-offset-checkpoint"
    assert checkpoints.read_offsets(path) == {("t", 0): 3}
    assert (store.folder / "t-0" / "leader-epoch-checkpoint").exists()


def test_a_full_disk_fails_a_checkpoint_and_not_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(kinds=("write",))
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    fill(log, 3)
    log.flush()
    files.fail_at = files.count
    store.clock.now_ms += 60_000
    store.tick()
    assert "can't write a checkpoint" in caplog.text
    store.clock.now_ms += 60_000
    store.tick()
    path = store.folder / "recovery-point-offset-checkpoint"
    assert checkpoints.read_offsets(path) == {("t", 0): 3}


def test_a_shutdown_that_fails_leaves_no_marker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(kinds=("write",))
    store = Store(tmp_path / "data", files=files)
    whole = b"".join(fill(store.log(), 30, count=3))
    files.fail_at, files.sticky = files.count, True
    with caplog.at_level(logging.ERROR):
        store.close()
    assert "could not be shut down cleanly" in caplog.text
    assert not (store.folder / ".kafka_cleanshutdown").exists()
    store.files = Files()
    assert contents(store.reopen(clean=False)) == whole


def test_many_idle_partitions_open_quickly_and_stay_small(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    for number in range(200):
        append(store.log("t", number), batch())
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    store.reopen(clean=True)
    assert len(store.manager) == 200
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 60


def test_a_clean_shutdown_doesnt_count_when_a_folder_is_gone(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        append(store.log("t", number), batch())
    store.log("t", 3)  # never had a record, so it has no folder to lose
    store.manager.delete("t", 2)
    store.close()
    manager = open_as([store.folder])
    assert manager.clean_shutdown_epoch == -1
    manager.close()
    shutil.rmtree(store.folder / "t-1")
    manager = open_as([store.folder])
    assert manager.clean_shutdown_epoch is None
    assert "1 folders of partitions have disappeared since (t-1)" in caplog.text
    manager.close()
    assert open_as([store.folder]).clean_shutdown_epoch == -1


def test_a_log_directory_that_cant_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"can't use the log directory .*file"):
        open_as([tmp_path / "file"])


def test_a_cut_takes_the_high_watermark_on_disk_with_it(store: Store) -> None:
    """Else it would vouch, after a crash, for what has yet to be committed."""
    log = store.log()
    fill(log, 10)
    log.directory.begin_high_watermarks({log.key: log.log_end_offset})()
    log.truncate_to(4)
    end_offset = log.log_end_offset
    fill(log, 10)
    log = store.reopen(clean=False)
    assert log.log_end_offset > end_offset
    assert store.manager.checkpointed_high_watermark(log) == end_offset


def test_a_checkpoint_that_is_being_written_says_nothing_of_the_next_topic(store: Store) -> None:
    log = store.log()
    fill(log, 10)
    write = log.directory.begin_high_watermarks({log.key: log.log_end_offset})
    store.manager.delete("t", 0)
    log = store.log()
    assert store.manager.checkpointed_high_watermark(log) == 0
    write()
    fill(log, 10)
    log = store.reopen(clean=False)
    assert log.log_end_offset
    assert store.manager.checkpointed_high_watermark(log) == 0


def test_no_clock_that_somebody_sets_makes_a_producer_forgotten(store: Store) -> None:
    log = store.log()
    data = append(log, batch(1, producer_id=7, producer_epoch=0, base_sequence=0))
    header = split_batches(data)[0][1]
    day_ms = 86_400_000
    for days in (2, -2):
        store.clock.now_ms += days * day_ms
        store.tick()
        assert log.producers.check(header, log.uptime_ms()) is not None, "a retry is written twice"
    store.uptime.now_ms += 2 * day_ms
    store.clock.now_ms += day_ms
    store.tick()
    assert 7 not in log.producers


def test_producers_are_forgotten_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "d")
    logs = [store.log(partition=number) for number in range(2)]
    for log in logs:
        for producer_id in range(EXPIRED_TOGETHER + 1):
            append(log, batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    store.uptime.now_ms += DEFAULT_PRODUCER_ID_EXPIRATION_MS
    store.clock.now_ms += 86_400_000
    monkeypatch.setattr("kraftpy.storage.manager._RETENTION_SLICE_S", 0)
    known = []
    for _ in range(4):
        store.tick()
        known.append(sorted(len(log.producers) for log in logs))
    assert known == [
        [1, EXPIRED_TOGETHER + 1],
        [0, EXPIRED_TOGETHER + 1],
        [0, 1],
        [0, 0],
    ]
