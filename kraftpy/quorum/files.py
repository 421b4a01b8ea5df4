"""The few system calls by which the quorum changes its files.

They are one object so that a test can make any of them fail, or stop the world between two of them.
Reading is not here: damage is tested with damaged files.
"""

from __future__ import annotations

import os
from pathlib import Path


class FileLayer:
    """The real thing. Every method raises `OSError` as the system call does."""

    def create(self, path: Path) -> int:
        """Opens a new empty file (an old one of that name is emptied) for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def allocate(self, fd: int, offset: int, size_bytes: int) -> None:
        """Reserves space, filled with zeros: so a full disk shows before anything is written."""
        os.posix_fallocate(fd, offset, size_bytes)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """Writes all of `data` at `offset`."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view = view[written:]
            offset += written

    def open_note(self, path: Path) -> int:
        """Opens a small file that is only ever overwritten, and need not be durable."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write_note(self, fd: int, data: bytes) -> None:
        """Overwrites it from the start; the system writes it to disk when it likes."""
        os.pwrite(fd, data, 0)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def datasync(self, fd: int) -> None:
        """Data and what is needed to read it back reach the disk."""
        os.fdatasync(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Renames, and makes the new name durable."""
        source.replace(target)
        self.sync_directory(target.parent)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
