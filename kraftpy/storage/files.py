"""The file layer: every write, fsync, rename and removal of the storage engine is in `Files`.

Rules that it keeps:

* After a failed fsync the process stops: the kernel drops the dirty pages, so a retry that succeeds
  lies about what is on disk (docs/rules.md, rule 22).
* A replaced file is new or old, never half: temporary file, fsync, rename, fsync of the folder.
* An open file stays readable as long as somebody holds its `OpenFile`, whatever its name does.

Tests inject a disk's faults with a subclass of `Files`; nothing else may be patched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIX: Final = ".tmp"
FSYNC_FAILED_EXIT_CODE: Final = 74  # sysexits.h: EX_IOERR

_FALLOC_FL_KEEP_SIZE: Final = 1
_VERSIONS: Final = count()
_READ_WRITE: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class StorageError(Exception):
    """The data on disk can't be used as it is; the text says what is wrong and what to do."""


def storage_failure(what: str, error: OSError | str) -> KafkaError:
    """What a client gets when the disk failed it: KAFKA_STORAGE_ERROR, with the system's words."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}")


class OpenFile:
    """A file descriptor that is closed when the last reference to this object goes.

    Reading goes through the page cache with `os.pread(file.fd, ...)` or `os.sendfile`.
    """

    __slots__ = ("fd", "path", "read_only", "version")

    def __init__(self, fd: int, path: Path, *, read_only: bool = False) -> None:
        self.fd = fd
        self.path = path
        self.read_only = read_only
        self.version = next(_VERSIONS)
        """Of this file alone, and as long as what is there stays there."""

    def __del__(self) -> None:
        os.close(self.fd)

    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size


class Files:
    """The system calls that change a disk. Stateless; one object serves a whole process.

    Every method but the fsyncs raises OSError as the system call does.
    """

    # Bound to the system call itself: the append path has no Python frame to spare.
    write: Callable[[int, bytes | bytearray | memoryview], int] = staticmethod(os.write)

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Opens for reading and appending; with `create` also a file that isn't there yet."""
        return OpenFile(os.open(path, _READ_WRITE | (os.O_CREAT if create else 0), 0o644), path)

    def open_to_read(self, path: Path) -> OpenFile:
        """The same for who will only read; a file system that has become read-only serves that."""
        try:
            return self.open(path)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, read_only=True)

    def truncate(self, file: OpenFile, size: int) -> None:
        """Sets the size; blocks that were reserved behind it are free again."""
        file.version = next(_VERSIONS)
        os.ftruncate(file.fd, size)

    def reserve(self, file: OpenFile, position: int, size: int) -> None:
        """Has the file system find blocks for bytes that will be appended; the size stays.

        Where that isn't possible (an old file system, no room) nothing happens: the append will
        find out. Appends into reserved blocks take half the kernel's time.
        """
        libc = ctypes.CDLL(None)
        libc.fallocate(
            file.fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(size)
        )

    def rename(self, source: Path, target: Path) -> None:
        """Renames over `target`; durable only after `sync_folder`."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def sync(self, file: OpenFile) -> None:
        """On return the file's data and size are on disk. Doesn't return if fsync fails."""
        try:
            self.fdatasync(file.fd)
        except OSError as error:
            self.fsync_failed(file.path, error)

    def open_folder(self, path: Path) -> OpenFile:
        """Opens a folder, to sync its entries."""
        return OpenFile(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def sync_folder(self, path: Path) -> None:
        """On return the folder's entries are on disk. Doesn't return if fsync fails."""
        self.sync(self.open_folder(path))

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync_failed(self, path: Path, error: OSError) -> None:
        """Stops the process at once, so that nobody acknowledges what isn't on disk."""
        emit(
            logger,
            logging.CRITICAL,
            "fsync-failed",
            path=str(path),
            reason=f"{error}; what was written since the last fsync may be lost",
            advice="check the disk (dmesg), then start again: the logs are recovered then",
        )
        os._exit(FSYNC_FAILED_EXIT_CODE)

    def write_all(self, file: OpenFile, data: bytes | bytearray | memoryview) -> None:
        """Writes all of `data` at the end of the file or raises OSError."""
        view = memoryview(data)
        while len(view):
            view = view[self.write(file.fd, view) :]

    def replace_contents(self, path: Path, data: bytes | bytearray, *, durable: bool) -> None:
        """Replaces the file's contents as a whole; with `durable` it is on disk on return.

        Without `durable` a crash of the machine may leave an empty or partial file: only for what
        can be rebuilt, or until somebody syncs it.
        """
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self.unlink(temporary)
        try:
            file = self.open(temporary, create=True)
            self.write_all(file, data)
            if durable:
                self.sync(file)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if durable:
            self.sync_folder(path.parent)
