"""Group commit: one fsync for all who wait, callbacks after it, never before."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage.appendable_log import FlushJob
from kraftpy.storage.files import Files
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.log import Log
from tests.waiting import wait_until

from .support import SMALL, Loop, Store, append, batch, fill, with_config


class SlowFiles(Files):
    """An fsync ends when the test lets it."""

    def __init__(self) -> None:
        self.begun = 0
        self.allowed = threading.Semaphore(0)

    def fdatasync(self, fd: int) -> None:
        self.begun += 1
        assert self.allowed.acquire(timeout=20)
        super().fdatasync(fd)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Store, Loop, SlowFiles, Flusher]]:
    loop, files = Loop(), SlowFiles()
    flusher = Flusher(loop.post, files)
    store = Store(tmp_path / "data", with_config(SMALL, segment_bytes=1 << 20))
    for partition in range(3):
        log = store.log("t", partition)
        log.store()
        log.flush()  # so that no folder is left to sync
    yield store, loop, files, flusher
    files.allowed.release(1000)
    flusher.close()


def test_waiters_share_the_next_fsync(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    log = store.log()
    done: list[tuple[int, int]] = []
    fill(log, 1)
    flusher.request(log, 1, lambda offset: done.append((1, offset)))
    wait_until(lambda: files.begun == 1, "an fsync has begun")
    for number in range(2, 50):  # all these arrive while the first fsync runs
        append(log, batch())
        flusher.request(log, number, lambda offset, number=number: done.append((number, offset)))
    loop.run_all()
    assert done == []
    files.allowed.release()
    loop.run_one()
    assert done == [(1, 1)]
    assert log.recovery_point == 1
    wait_until(lambda: files.begun == 2, "the next fsync has begun")
    loop.run_all()
    assert len(done) == 1
    files.allowed.release()
    loop.run_one()
    assert done[1:] == [(number, 49) for number in range(2, 50)]
    assert log.recovery_point == 49
    assert files.begun == 2


def test_the_same_callback_is_called_once(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    log = store.log()
    done: list[int] = []
    files.allowed.release(10)
    for number in range(1, 4):
        append(log, batch())
        flusher.request(log, number, done.append)
    wait_until(lambda: files.begun >= 1, "an fsync has begun")
    while log.recovery_point < 3:
        loop.run_one()
    assert done[-1] == 3
    assert len(done) <= 2
    flusher.request(log, 2, done.append)  # flushed already: no fsync, but still an answer
    begun = files.begun
    loop.run_one()
    assert done[-1] == 3
    assert files.begun == begun


def test_every_log_gets_its_turn(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    logs = [store.log("t", partition) for partition in range(3)]
    order: list[int] = []
    files.allowed.release(100)
    for round_ in range(1, 4):
        for partition, log in enumerate(logs):
            append(log, batch())
            flusher.request(
                log, round_, lambda offset, partition=partition: order.append(partition)
            )
    while any(log.recovery_point < 3 for log in logs):
        loop.run_one()
    loop.run_all()
    assert sorted(order) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(order[:3]) == {0, 1, 2}


def test_a_completed_segment_is_synced_with_its_indexes(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(Files):
        def fdatasync(self, fd: int) -> None:
            synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    files = Noting()
    store = Store(tmp_path / "data")
    log = store.log()
    fill(log, 14)
    assert len(log.segments) == 2
    second = log.segments[1].base_offset
    loop = Loop()
    flusher = Flusher(loop.post, files)
    flusher.request(log, 14, None)
    loop.run_one()
    flusher.close()
    expected = {f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")}
    expected |= {f"{second:020d}.log", f"{second:020d}.snapshot", "t-0", "data"}
    assert expected <= set(synced)
    assert log.recovery_point == 14
    assert not log.has_sealed_unflushed


def test_after_close_nothing_is_promised(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    log = store.log()
    fill(log, 1)
    files.allowed.release(100)
    flusher.close()
    done: list[int] = []
    flusher.request(log, 1, done.append)
    loop.run_all()
    assert done == []


def test_a_log_deleted_while_it_is_flushed(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    doomed, other = store.log("doomed"), store.log()
    done: list[int] = []
    for log in (doomed, other):
        fill(log, 1)
        flusher.request(log, 1, done.append)
    wait_until(lambda: files.begun == 1, "an fsync has begun")
    store.manager.delete("doomed", 0)
    files.allowed.release(100)
    while other.recovery_point < 1:
        loop.run_one()
    assert done == [1, 1]  # its partition is closed by then and doesn't listen


def test_waiting_without_file_descriptors(
    slow: tuple[Store, Loop, SlowFiles, Flusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, loop, files, flusher = slow
    log = store.log("new")
    fill(log, 1)
    done: list[int] = []

    def refuse(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(store.files, "open_folder", refuse)
        flusher.request(log, 1, done.append)
        loop.run_all()
        assert done == []
    files.allowed.release(100)
    flusher.retry()
    while not done:
        loop.run_one()
    assert done == [1]


def test_a_log_deleted_before_its_flush(slow: tuple[Store, Loop, SlowFiles, Flusher]) -> None:
    store, loop, files, flusher = slow
    first, second, doomed, other = (store.log(name) for name in ("a", "b", "doomed", "other"))
    done: list[str] = []
    for log in (first, second, doomed, other):  # two are under way at a time, the others wait
        fill(log, 1)
        flusher.request(log, 1, lambda _, log=log: done.append(log.topic))
    store.manager.delete("doomed", 0)
    files.allowed.release(100)
    while other.recovery_point < 1:
        loop.run_one()
    loop.run_all()
    assert {"a", "b", "other"} <= set(done)
    assert doomed.recovery_point == 0


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "Input/output error"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)],
)
def test_a_log_that_cannot_be_flushed_keeps_no_other_waiting(
    slow: tuple[Store, Loop, SlowFiles, Flusher],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    store, loop, files, flusher = slow
    ill, *well = (store.log("new", partition) for partition in range(3))
    begin = type(ill).begin_flush
    tried: list[str] = []

    def refuse(log: Log) -> FlushJob | None:
        if log is ill:
            tried.append(str(log))
            raise error
        return begin(log)

    files.allowed.release(100)
    done: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(type(ill), "begin_flush", refuse)
        for log in (ill, *well):
            fill(log, 1)
            flusher.request(log, 1, lambda _, log=log: done.append(str(log)))
        while len(done) < 2:
            loop.run_one()
        assert sorted(done) == ["new-1", "new-2"]
        assert len(tried) < 9, "once a call"
    flusher.retry()
    while len(done) < 3:
        loop.run_one()
    assert done[-1] == "new-0"
