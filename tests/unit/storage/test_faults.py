"""Disks that fail: nothing acknowledged is lost, a failed fsync stops the process (rule 22)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage.files import FSYNC_FAILED_EXIT_CODE, Files, OpenFile

from .support import (
    SMALL,
    FaultyFiles,
    PowerLossFiles,
    Stopped,
    Store,
    append,
    batch,
    contents,
    epochs_of,
    fill,
    log_files,
    with_config,
)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("short", [True, False])
def test_a_failed_write_changes_nothing(tmp_path: Path, code: int, short: bool) -> None:
    files = FaultyFiles(code=code, kinds=("write",), short=short)
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    whole = b"".join(fill(log, 3))
    before = (log.log_end_offset, log.size_bytes, log.leader_epochs.entries())
    path = log_files(log)[0]
    files.fail_at = files.count
    with pytest.raises(KafkaError) as error:
        append(log, batch(5, producer_id=3, producer_epoch=0, base_sequence=0), epoch=9)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size_bytes, log.leader_epochs.entries()) == before
    assert len(log.producers) == 0
    assert path.read_bytes() == whole == contents(log)
    assert not log.offline
    whole += append(log, batch(2))
    assert contents(store.reopen(clean=False)) == whole


def test_a_write_that_cant_be_undone_takes_the_log_offline(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("write", "truncate"), short=True)
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    whole = b"".join(fill(log, 3))
    files.fail_at, files.sticky = files.count, False
    files.truncate = lambda file, size: files._raise()  # type: ignore[method-assign]
    with pytest.raises(KafkaError):
        append(log, batch())
    assert log.offline
    for call in (
        lambda: append(log, batch()),
        lambda: log.read(0, 100, upper_offset=3),
        lambda: log.truncate_to(1),
        log.roll,
    ):
        with pytest.raises(KafkaError) as error:
            call()
        assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert contents(store.reopen(clean=False, files=Files())) == whole


def scenario(store: Store, acknowledged: list[bytes], *, close: bool = True) -> None:
    """A life with every kind of change; `acknowledged` follows what must survive."""
    log = store.log()
    log.assign_leader_epoch(1)
    for number in range(34):
        data = batch(2, producer_id=1, producer_epoch=0, base_sequence=2 * number)
        try:
            acknowledged.append(append(log, data, epoch=1 + number // 10))
        except KafkaError:
            continue
        if number % 9 == 8:
            log.flush()
            for _ in range(2):  # the second round finds what the first one left
                store.clock.now_ms += 60_000
                store.tick(high_watermark=0)
        if number == 20:
            target = len(acknowledged) - 3
            # While it runs and after a failure either end may be found.
            del acknowledged[target:]
            log.truncate_to(2 * target)
        if log.offline:
            return
    if close:
        store.close()


def survivors(store: Store) -> bytes:
    log = store.reopen(clean=False, files=Files())
    assert not log.offline
    found = contents(log)
    assert log.leader_epochs.entries() == epochs_of(found)
    log.truncate_to(log.log_end_offset - 1)
    append(log, batch(), epoch=50)
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("sticky", [False, True])
def test_whichever_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    counting = FaultyFiles()
    scenario(Store(tmp_path / "count", files=counting), [])
    assert counting.count > 100
    failed = set()
    for number in range(counting.count):
        files = FaultyFiles(code=code, sticky=sticky, short=number % 2 == 0)
        store = Store(tmp_path / str(number), files=files)
        files.fail_at = files.count + number
        acknowledged: list[bytes] = []
        with contextlib.suppress(KafkaError, Stopped, OSError):
            scenario(store, acknowledged)
        failed.update(files.failed)
        files.fail_at = -1
        files.failed.clear()
        found = survivors(store)
        assert found.startswith(b"".join(acknowledged)), f"call {number} failed"
    assert failed == {"open", "write", "truncate", "rename", "unlink", "fdatasync"}


def test_whichever_call_fails_a_kill_leaves_the_leader_epochs(tmp_path: Path) -> None:
    counting = FaultyFiles()
    scenario(Store(tmp_path / "count", files=counting), [], close=False)
    for number in range(counting.count):
        files = FaultyFiles()
        store = Store(tmp_path / str(number), files=files)
        files.fail_at = files.count + number
        with contextlib.suppress(KafkaError, Stopped, OSError):
            scenario(store, [], close=False)
        files.fail_at = -1
        survivors(store)


def test_a_failed_fsync_stops_the_process(tmp_path: Path) -> None:
    program = f"""
        import errno, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from storage.support import Store, fill
        from kraftpy.storage.files import Files
        from kraftpy.storage.flusher import Flusher
        import threading

        class Broken(Files):
            def fdatasync(self, fd):
                raise OSError(errno.EIO, "Input/output error")

        store = Store(Path({str(tmp_path / "data")!r}))
        log = store.log()
        fill(log, 3)
        Flusher(lambda f, *a: f(*a), Broken()).request(log, 3, lambda offset: print("flushed"))
        threading.Event().wait(20)
        print("still running")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == FSYNC_FAILED_EXIT_CODE
    assert done.stdout == ""
    assert "fsync-failed path=" in done.stderr
    assert "check the disk" in done.stderr


def test_what_was_flushed_survives_a_power_cut(tmp_path: Path) -> None:
    for zeros in (True, False):
        files = PowerLossFiles()
        store = Store(tmp_path / str(zeros), with_config(SMALL, flush_messages=1), files=files)
        log = store.log()
        flushed = b""
        for number in range(40):
            fill(log, 1 + number % 3, count=2)
            if number % 5 == 4:
                log.flush()
                flushed = contents(log)
        # Not beyond the segment that is being written: what a kernel writes back on its own doesn't
        # come in order, and a hole before later records is refused (test_recovery).
        log.truncate_to(max(log.recovery_point, log.segments[-1].base_offset))
        store.crash()
        files.power_off(store.folder, zeros=zeros)
        found = contents(store.reopen(clean=False, files=Files()))
        assert found.startswith(flushed)


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    """EFBIG from the kernel, with a short write before it: no stand-in involved."""
    log = Store(tmp_path / "data", with_config(SMALL, segment_bytes=1 << 20)).log()
    whole = b"".join(fill(log, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(KafkaError, match=r"50 of|File too large"):
                append(log, batch())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log_files(log)[0].read_bytes() == whole
    whole += append(log, batch())
    assert contents(log) == whole


class NoDescriptors(Files):
    """`bad` can't be opened, as if the process had no descriptor left for it."""

    bad: Path | None = None

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        if path == self.bad:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return super().open(path, create=create)


@pytest.mark.parametrize("clean", [True, False])
def test_a_roll_that_finds_no_descriptor_leaves_no_segment(tmp_path: Path, clean: bool) -> None:
    """The last segment's file was closed, as it is where there are many logs."""
    files = NoDescriptors()
    store = Store(tmp_path / "data", with_config(SMALL, segment_bytes=1 << 22), files)
    log = store.log()
    # Blocks are reserved behind a segment of this size: its end has to be opened to be cut.
    whole = b"".join(append(log, batch(value=bytes(700_000))) for _ in range(3))
    active = log.segments[-1]
    active.close()
    files.bad = active.path(".log")
    with pytest.raises(KafkaError, match="can't begin a new segment") as error:
        log.roll()
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log_files(log) == [active.path(".log")]
    assert store.manager.take_failed() == [log]
    (directory,) = store.manager.directories
    files.bad = store.folder / "trial.tmp"
    assert directory.try_writing() is None  # that is nothing of the disk's
    files.bad = None
    whole += append(log, batch())
    log = store.reopen(clean=clean)
    assert contents(log) == whole
    log.roll()
    whole += append(log, batch())
    assert contents(log) == whole


class MaybeReadOnly(Files):
    """A file system that an error of its disk has turned read-only, and somebody back."""

    read_only = False

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return super().open(path, create=create)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os.write(fd, data)


@pytest.mark.parametrize("opened", [True, False])
def test_a_read_only_disk_can_be_read_and_is_noted(tmp_path: Path, opened: bool) -> None:
    files = MaybeReadOnly()
    store = Store(tmp_path / "data", files=files)
    log = store.log()
    whole = b"".join(fill(log, 60))
    if not opened:
        log = store.reopen(clean=True)
    assert store.manager.take_failed() == []
    files.read_only = True
    with pytest.raises(KafkaError) as error:
        append(log, batch())
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert store.manager.take_failed() == [log]
    assert store.manager.take_failed() == []
    (directory,) = store.manager.directories
    problem = directory.try_writing()
    assert problem is not None
    assert problem.errno == errno.EROFS
    assert contents(log) == whole
    files.read_only = False
    assert directory.try_writing() is None
    whole += append(log, batch())
    assert contents(log) == whole
    assert not [path for path in store.folder.iterdir() if path.suffix == ".tmp"]
    assert contents(store.reopen(clean=False)) == whole
