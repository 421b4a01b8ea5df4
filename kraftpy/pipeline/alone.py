"""One process at a time: a lock that the kernel lets go of when its holder dies, even by -9."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from kraftpy.pipeline.folder import make_folder


class BusyError(Exception):
    """Another process has the lock; the text says what it does and what to do."""


@contextlib.contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Holds the lock of this file until the end of the block.

    Raises BusyError with the text `otherwise` if another process holds it, and OSError.
    """
    make_folder(path.parent)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(otherwise) from None
        yield
