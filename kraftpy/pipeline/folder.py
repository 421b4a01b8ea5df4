"""Files that are whole and durable under their name, or not there at all: written once, mostly.

Rules:

* A name is taken by `link`, which fails if somebody has it: of two writers one wins, and learns it.
  Only what nobody builds upon, a report, takes the place of what was there (`replace_file`).
* A file's bytes are on disk before its name is; a name is on disk before anybody is told of it
  (fsync of the file, then of each folder that got a new entry).
* A folder is one that all who work on it see alike: a local disk, or a shared file system with
  POSIX rules. Object stores have other rules and are refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_HALF = ".tmp"
_PUT_AT_MOST_S = 3600.0

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://?")


class FolderError(Exception):
    """The folder can't be used; the text says why and what to do."""


def local_folder(place: str) -> Path:
    """The folder that `place` names, absolute.

    `place`: a path, or `file:` with one. Raises FolderError for any other scheme.
    """
    scheme = _SCHEME.match(place)
    if scheme is None:
        return Path(place).absolute()
    if scheme[1] != "file":
        raise FolderError(
            f"{place}: a lake can't be kept at {scheme[1]}: yet (its versions need a file system"
            " that can create a file only if it isn't there); name a folder that all workers see"
        )
    return Path("/" + place[len("file:") :].lstrip("/"))


def url_of(path: Path) -> str:
    """The absolute path as Spark takes it, on whatever file system its own paths are.

    It wants no percent signs: behind the scheme stands the path as it is.
    """
    return f"file://{path}"


def make_folder(path: Path) -> None:
    """Makes the folder and those above it, durably. Raises OSError."""
    absent = []
    while not path.is_dir():
        absent.append(path)
        path = path.parent
    for folder in reversed(absent):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """On return the folder's entries are on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_if_absent(path: Path, data: bytes) -> bool:
    """Gives the file `path` these contents, unless there is one; tells whether it did.

    Raises OSError; then the file may be there or not, but never in part.
    """
    make_folder(path.parent)
    temporary = _beside(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
            taken = False
        except FileExistsError:
            taken = True
        # The process that has taken the name may not have synced it yet.
        sync_folder(path.parent)
        return not taken
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Gives the file `path` what `write` puts into the path that it is called with, durably.

    What was there before stays as it was until then. Raises OSError, and what `write` raises.
    """
    beside = _beside(path)
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Where a file is written first: its own name may be as long as names can be."""
    return path.with_name(f"{uuid.uuid4().hex}{_HALF}")


def sweep_halves(folder: Path) -> None:
    """Deletes what processes left in the folder that were killed while they wrote a file."""
    for place, _, names in os.walk(folder):  # which passes over folders that others delete
        for name in names:
            path = Path(place, name)
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(_HALF) and time.time() - path.stat().st_mtime > _PUT_AT_MOST_S:
                    path.unlink()


def numbered(folder: Path, suffix: str = ".json") -> Iterator[int]:
    """The numbers of the files that are named by a number, in no order."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            stem = entry.name.removesuffix(suffix)
            if stem != entry.name and stem.isascii() and stem.isdigit():
                yield int(stem)
