"""Small disks for the nodes of a test's cluster, which can be full: a tmpfs for each node.

`python -m kraftpy.testing.disks` tries one, and says on stdout what is in the way.

Rules:

* They are mounted in a mount namespace of this process (`kraftpy.testing.isolation`): its children
  see them, nobody else does, and they are gone with the last of these processes.
* A disk is filled up by making it as small as what is on it: that takes no memory, and frees none.
  What programs have reserved for themselves (fallocate) they keep.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kraftpy.testing import isolation

SIZE_BYTES = 1 << 30

_MS_REMOUNT = 32
_MS_REC_PRIVATE = 0x4000 | 0x4_0000
_MNT_DETACH = 2
_FILL_ATTEMPTS = 50
_TRY_TIMEOUT_S = 20.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Disks:
    """A disk for each name, below a new `folder`. Raises OSError if they can't be had.

    To be made before this process has threads.
    """

    def __init__(self, names: Iterable[str]) -> None:
        isolation.isolate(isolation.CLONE_NEWNS)
        _mount(None, Path("/"), _MS_REC_PRIVATE, "")
        self.folder = Path(tempfile.mkdtemp(prefix="kraftpy-disks-"))
        self._mounted: list[str] = []
        for name in names:
            (self.folder / name).mkdir()
            _mount("tmpfs", self.folder / name, 0, f"size={SIZE_BYTES}")
            self._mounted.append(name)

    def fill(self, name: str) -> int:
        """Leaves no room on a disk; bytes that are on it. Raises OSError."""
        path = self.folder / name
        for attempt in range(_FILL_ATTEMPTS):
            there = os.statvfs(path)
            used = (there.f_blocks - there.f_bfree) * there.f_frsize
            try:
                _mount("tmpfs", path, _MS_REMOUNT, f"size={max(used, there.f_frsize)}")
            except OSError as error:
                # What was written meanwhile doesn't fit.
                if error.errno != errno.EINVAL or attempt == _FILL_ATTEMPTS - 1:
                    raise
            else:
                return used
        raise AssertionError("the last attempt returns or raises")

    def free(self, name: str) -> None:
        """Gives a disk its size again. Raises OSError."""
        _mount("tmpfs", self.folder / name, _MS_REMOUNT, f"size={SIZE_BYTES}")

    def close(self) -> None:
        """Takes them all away, and what is on them."""
        for name in self._mounted:
            _LIBC.umount2(os.fsencode(self.folder / name), _MNT_DETACH)
        shutil.rmtree(self.folder, ignore_errors=True)


def _mount(kind: str | None, target: Path, flags: int, options: str) -> None:
    name = None if kind is None else kind.encode()
    if _LIBC.mount(name, os.fsencode(target), name, ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"can't mount: {os.strerror(number)}", str(target))


def missing() -> str:
    """Why there can be no small disks here, and what to do; empty if there can. It tries one."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(  # noqa: S603 - this module
            command, capture_output=True, text=True, timeout=_TRY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"a small disk can't be tried: {error}"
    why = done.stdout.strip()
    return f"{why}; run it as root, or where user and mount namespaces are allowed" if why else ""


def _try_one() -> str:
    try:
        disks = Disks(["one"])
    except OSError as error:
        return error.strerror or str(error)
    try:
        return _try(disks)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        disks.close()


def _try(disks: Disks) -> str:
    path = disks.folder / "one" / "file"
    path.write_bytes(b"there")
    disks.fill("one")
    try:
        path.write_bytes(bytes(SIZE_BYTES >> 10))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    else:
        return "a disk that is full takes more all the same"
    disks.free("one")
    path.write_bytes(bytes(SIZE_BYTES >> 10))
    return ""


if __name__ == "__main__":
    sys.stdout.write(_try_one())
