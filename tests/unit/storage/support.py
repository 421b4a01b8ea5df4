"""A log directory in a temporary folder, batches to put into it, and disks that fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.protocol.records import (
    Record,
    build_batch,
    iter_records,
    split_batches,
    stamp_batch,
)
from kraftpy.storage import checkpoints
from kraftpy.storage.files import Files, OpenFile
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.log import Log
from kraftpy.storage.manager import LogManager

TOPIC_ID = bytes(range(16))
CLUSTER_ID = "6PMpHYL9QkeyXRj9Nrp4KA"
SMALL = TopicConfig(
    segment_bytes=1024, index_interval_bytes=200, file_delete_delay_ms=0, retention_ms=-1
)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Loop:
    """The event loop: runs on the test's thread what others post."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = SimpleQueue()

    def post(self, function: Callable[..., object], *args: object) -> None:
        self.posted.put((function, args))

    def run_one(self) -> None:
        function, args = self.posted.get(timeout=20)
        function(*args)

    def run_all(self) -> None:
        while True:
            try:
                function, args = self.posted.get_nowait()
            except Empty:
                return
            function(*args)


class Store:
    """A node's storage below `folder`, opened and reopened as a process would."""

    def __init__(
        self, folder: Path, config: TopicConfig = SMALL, files: Files | None = None
    ) -> None:
        self.folder = folder
        self.config = config
        self.files = files or Files()
        self.clock = Clock()
        self.uptime = Clock()
        self.broker = BrokerConfig()
        self.loop = Loop()
        self.manager = self._open()

    def _open(self) -> LogManager:
        self.flusher = Flusher(self.loop.post, self.files)
        manager = LogManager(
            [self.folder],
            config=self.broker,
            cluster_id=CLUSTER_ID,
            node_id=1,
            clock_ms=self.clock,
            uptime_ms=self.uptime,
            files=self.files,
        )
        # On this thread, so that what a test's disk does to it comes up here.
        manager._checkpointer.start = manager._checkpointer._run  # type: ignore[method-assign]
        manager.load(lambda topic: self.config, self.flusher)
        manager.begin()
        return manager

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.manager.get_or_create(topic, partition, TOPIC_ID, self.config)

    def tick(self, high_watermark: int | None = None) -> None:
        self.manager.tick(
            self.clock.now_ms,
            lambda: {
                (log.topic, log.partition): (
                    log.log_end_offset if high_watermark is None else high_watermark
                )
                for log in self.manager
            },
        )
        self.settle()

    def settle(self) -> None:
        """Waits for the flushes that were asked for, on this thread as on an event loop."""
        while self.flusher._under_way:
            self.loop.run_one()
        self.loop.run_all()

    def crash(self) -> None:
        """The process dies: nothing is written any more, the lock goes."""
        self.flusher.close()
        self.manager.release()

    def close(self) -> None:
        """A clean shutdown."""
        self.flusher.close()
        self.manager.close()

    def reopen(self, *, clean: bool, files: Files | None = None) -> Log:
        if clean:
            self.close()
        else:
            self.crash()
        if files is not None:
            self.files = files
        self.manager = self._open()
        return self.log()


def batch(
    count: int = 1,
    *,
    timestamp: int = 1000,
    step: int = 1,
    value: bytes = b"v" * 20,
    **options: object,
) -> bytearray:
    records = [(timestamp + step * number, b"k", value, []) for number in range(count)]
    return bytearray(build_batch(records, **options))  # type: ignore[arg-type]


def append(log: Log, data: bytearray, *, epoch: int = 0, offset: int | None = None) -> bytes:
    """Stamps and appends one batch as a leader does; returns its bytes."""
    batches = split_batches(data)
    header = batches[0][1]
    header.base_offset = log.log_end_offset if offset is None else offset
    header.partition_leader_epoch = epoch
    stamp_batch(data, 0, header.base_offset, epoch)
    log.append(memoryview(data), batches)
    return bytes(data)


def build_stored(count: int, base_offset: int, epoch: int, **options: object) -> bytes:
    """A batch as a leader stored it."""
    data = batch(count, **options)  # type: ignore[arg-type]
    stamp_batch(data, 0, base_offset, epoch)
    return bytes(data)


def fill(log: Log, batches: int, count: int = 1, *, epoch: int = 0) -> list[bytes]:
    return [
        append(log, batch(count, timestamp=1000 + 10 * number), epoch=epoch)
        for number in range(batches)
    ]


def contents(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> bytes:
    """All bytes from `start` on, read as a consumer does."""
    offset = log.log_start_offset if start is None else start
    data = b""
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes, upper_offset=log.log_end_offset)
        if not result.slices:
            break
        data += b"".join(piece.read() for piece in result.slices)
        assert result.next_offset > offset
        offset = result.next_offset
    return data


def records_of(data: bytes) -> list[Record]:
    return [
        record for position, _ in split_batches(data) for record in iter_records(data, position)
    ]


def epochs_of(data: bytes) -> list[tuple[int, int]]:
    """(epoch, start offset) of what stored batches say."""
    epochs: dict[int, int] = {}
    for _, header in split_batches(data):
        epochs.setdefault(header.partition_leader_epoch, header.base_offset)
    return list(epochs.items())


def log_files(log: Log) -> list[Path]:
    return sorted(log.folder.glob("*.log"))


class Stopped(BaseException):
    """Stands for the end of the process after a failed fsync."""


class FaultyFiles(Files):
    """Counts the calls that change the disk and fails number `fail_at`.

    With `sticky` every later one of the same kind fails too (a disk that stays full). Only the
    kinds in `kinds` count.
    """

    def __init__(
        self,
        fail_at: int = -1,
        *,
        code: int = errno.ENOSPC,
        kinds: Iterable[str] = ("open", "write", "truncate", "rename", "unlink", "fdatasync"),
        short: bool = False,
        sticky: bool = False,
    ) -> None:
        self.fail_at = fail_at
        self.code = code
        self.kinds = frozenset(kinds)
        self.short = short
        self.sticky = sticky
        self.count = 0
        self.failed: list[str] = []

    def _fault(self, kind: str) -> bool:
        if kind not in self.kinds:
            return False
        self.count += 1
        hit = self.count - 1 == self.fail_at or (self.sticky and self.failed[:1] == [kind])
        if hit:
            self.failed.append(kind)
        return hit

    def _raise(self) -> None:
        raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        if self._fault("write"):
            if self.short and len(data) > 1:
                return os.write(fd, memoryview(data)[: len(data) // 2])
            self._raise()
        return os.write(fd, data)

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        if create and self._fault("open"):
            self._raise()
        return super().open(path, create=create)

    def truncate(self, file: OpenFile, size: int) -> None:
        if self._fault("truncate"):
            self._raise()
        super().truncate(file, size)

    def rename(self, source: Path, target: Path) -> None:
        if self._fault("rename"):
            self._raise()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if self._fault("unlink"):
            self._raise()
        super().unlink(path)

    def fdatasync(self, fd: int) -> None:
        if self._fault("fdatasync"):
            self._raise()
        super().fdatasync(fd)

    def fsync_failed(self, path: Path, error: OSError) -> None:
        raise Stopped(f"{path}: {error}")


class NoRoomForEpochs(Files):
    """As long as it is `full`, nobody's leader epochs can be written."""

    full = False

    def replace_contents(self, path: Path, data: bytes | bytearray, *, durable: bool) -> None:
        if self.full and path.name == checkpoints.LEADER_EPOCH_FILE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace_contents(path, data, durable=durable)


class DyingFiles(FaultyFiles):
    """A process that is killed before call number `fail_at`, and so before every later one."""

    def _fault(self, kind: str) -> bool:
        self.count += 1
        return 0 <= self.fail_at < self.count

    def _raise(self) -> None:
        raise Stopped


class PowerLossFiles(Files):
    """Remembers how much of each file was synced; `power_off` takes the rest of every file.

    Indexes, snapshots and checkpoints too: of a file that was replaced and not synced only the name
    is left.
    """

    def __init__(self) -> None:
        self.synced: dict[int, int] = {}

    def fdatasync(self, fd: int) -> None:
        stat = os.fstat(fd)
        super().fdatasync(fd)
        self.synced[stat.st_ino] = stat.st_size

    def power_off(self, folder: Path, *, zeros: bool = False) -> None:
        for path in [each for each in folder.rglob("*") if each.is_file()]:
            stat = path.stat()
            kept = min(self.synced.get(stat.st_ino, 0), stat.st_size)
            os.truncate(path, kept)
            if zeros:
                os.truncate(path, stat.st_size)


def with_config(config: TopicConfig, **changes: object) -> TopicConfig:
    return replace(config, **changes)  # type: ignore[arg-type]
