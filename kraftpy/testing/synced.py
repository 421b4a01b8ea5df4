"""What a crash of the machine leaves of files: what was fsynced, and no more.

`python -m kraftpy.testing.synced NOTES MODULE ARGUMENT...` runs a Python module, `kraftpy` say, and
notes in a file what it and its children fsync. After a kill -9, which by itself loses nothing that
was written, `cut_unsynced` takes away the rest. Nothing of the product knows of this.

Rules:

* A file has, after the crash, the length that it had when its last fsync began; 0 if there was
  none. Cutting a file short is durable at once, and so are the names of files: a rename without an
  fsync leaves the new name, and nothing behind it, which is what file systems are feared for.
* A note is written after its fsync and before anybody hears of that. A process that dies between
  the two never said that its data was safe.
* Files are known by device and inode. One that is removed, or replaced by a rename, is forgotten
  before that: its inode may be the next file's.
* What is written into space that was allocated and synced before (the quorum's journal) counts as
  synced: of that at most one record is on its way, and nobody counts on it yet.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_MODULE = "kraftpy.testing.synced"
_SYNCED, _CUT, _GONE = "synced", "cut", "gone"

Inode = tuple[int, int]


def track(notes: Path) -> None:
    """Notes from now on what this process, and those that come of it, fsync."""

    def note(what: str, stat: os.stat_result, size: int) -> None:
        # Opened each time: children that are forked close what they have inherited.
        fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, f"{what} {stat.st_dev} {stat.st_ino} {size}\n".encode())
        os.close(fd)

    def noting(sync: Callable[[int], None]) -> Callable[[Any], None]:
        def sync_and_note(file: Any) -> None:
            stat = os.fstat(file if isinstance(file, int) else file.fileno())
            sync(file)
            note(_SYNCED, stat, stat.st_size)

        return sync_and_note

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        # Where there is no such file, the call that follows says so, or makes it.
        with contextlib.suppress(OSError):
            if event == "os.truncate":
                note(_CUT, os.stat(arguments[0]), arguments[1])  # noqa: PTH116 - or a descriptor
            elif event == "os.remove":
                folder = None if arguments[1] == -1 else arguments[1]
                note(_GONE, os.stat(arguments[0], dir_fd=folder, follow_symlinks=False), 0)
            elif event == "os.rename":
                note(_GONE, Path(arguments[1]).stat(), 0)

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: Sequence[str], *more: Any, **options: Any) -> None:
            super().__init__(tracked(args, notes), *more, **options)

    os.fsync = noting(os.fsync)  # type: ignore[assignment]
    os.fdatasync = noting(os.fdatasync)  # type: ignore[assignment]
    subprocess.Popen = Popen  # type: ignore[assignment,misc]
    sys.addaudithook(heard)


def tracked(command: Sequence[str], notes: Path) -> Sequence[str]:
    """A command that runs a Python module (`python -m ...`), with notes; others as they are."""
    if command[0] != sys.executable or "-m" not in command:
        return command
    place = list(command).index("-m") + 1
    return [*command[:place], _MODULE, str(notes), *command[place:]]


def synced_sizes(notes: Path) -> dict[Inode, int]:
    """Bytes of each file that a crash would leave, 0 for files that aren't named."""
    sizes: dict[Inode, int] = {}
    with notes.open() as lines:
        for line in lines:
            what, *numbers = line.split()
            device, inode, size = map(int, numbers)
            file = device, inode
            if what == _SYNCED:
                sizes[file] = size
            elif what == _CUT:
                sizes[file] = min(sizes.get(file, 0), size)
            else:
                sizes.pop(file, None)
    return sizes


def cut_unsynced(folder: Path, notes: Path) -> tuple[int, int]:
    """Takes away what was not fsynced of the files below `folder`, whose processes are dead.

    Returns how many bytes of how many files.
    """
    sizes = synced_sizes(notes)
    files = taken = 0
    for path in _files(folder):
        stat = path.stat()
        kept = sizes.get((stat.st_dev, stat.st_ino), 0)
        if stat.st_size > kept:
            os.truncate(path, kept)
            files += 1
            taken += stat.st_size - kept
    return taken, files


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


if __name__ == "__main__":
    notes_path, module_name, *rest = sys.argv[1:]
    track(Path(notes_path))
    sys.argv = [module_name, *rest]
    runpy.run_module(module_name, run_name="__main__", alter_sys=True)
