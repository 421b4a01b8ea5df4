"""A file layer that fails or stops the world where a test wants it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kraftpy.quorum.files import FileLayer

NEVER = 1 << 60


class Crash(BaseException):
    """The machine lost power here; nothing may catch this."""


class CrashingLayer(FileLayer):
    """Stops at the step number `crash_at` (from 0); a write stops half way.

    `lose_unsynced` then does to the files what a power loss may: bytes that were written but not
    synced turn into zeros, and renames in a folder that was not synced have not happened.
    """

    def __init__(self, crash_at: int) -> None:
        self._left = crash_at
        self._unsynced: dict[int, list[tuple[int, int]]] = {}
        self._renamed: list[tuple[Path, Path, bytes | None]] = []

    def crash_after(self, steps: int) -> None:
        """Lose power at the system call after so many others."""
        self._left = steps

    def _step(self) -> None:
        if self._left == 0:
            raise Crash
        self._left -= 1

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def allocate(self, fd: int, offset: int, size_bytes: int) -> None:
        self._step()
        super().allocate(fd, offset, size_bytes)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        key = next((k for k in self._unsynced if os.path.sameopenfile(k, fd)), None)
        self._unsynced.setdefault(os.dup(fd) if key is None else key, []).append(
            (offset, len(data))
        )
        if self._left == 0:
            super().write(fd, data[: len(data) // 2], offset)
        self._step()
        super().write(fd, data, offset)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._step()
        super().truncate(fd, size_bytes)

    def datasync(self, fd: int) -> None:
        self._step()
        super().datasync(fd)
        for key in [k for k in self._unsynced if os.path.sameopenfile(k, fd)]:
            os.close(key)
            del self._unsynced[key]

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        old = target.read_bytes() if target.exists() else None
        self._renamed.append((source, target, old))
        super().replace(source, target)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)
        self._renamed = [names for names in self._renamed if names[1].parent != path]

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def lose_unsynced(self) -> None:
        for fd, ranges in self._unsynced.items():
            for offset, length in ranges:
                os.pwrite(fd, bytes(length), offset)
            os.close(fd)
        self._unsynced.clear()
        for source, target, old in reversed(self._renamed):
            if target.exists():
                target.rename(source)
            if old is not None:
                target.write_bytes(old)
        self._renamed.clear()


class FailingLayer(FileLayer):
    """Raises `OSError(failures[operation])` for as long as the entry is there.

    A failing write leaves half of the data behind, as a real one may.
    """

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.syncs = 0

    def _check(self, operation: str) -> None:
        if operation in self.failures:
            number = self.failures[operation]
            raise OSError(number, os.strerror(number))

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def allocate(self, fd: int, offset: int, size_bytes: int) -> None:
        self._check("allocate")
        super().allocate(fd, offset, size_bytes)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        if "write" in self.failures:
            super().write(fd, data[: len(data) // 2], offset)
        self._check("write")
        super().write(fd, data, offset)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check("truncate")
        super().truncate(fd, size_bytes)

    def datasync(self, fd: int) -> None:
        self._check("datasync")
        self.syncs += 1
        super().datasync(fd)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(path)


NO_SPACE = errno.ENOSPC
IO_ERROR = errno.EIO
