"""How a job that goes on and on is stopped: SIGTERM and SIGINT.

Rules:

* The first of them lets the work under way end; then the job ends well, unless it was to do more
  than that: then it ends with 128 and the signal's number as exit code. The second ends the job
  at once, with 128 and its number as exit code, and leaves the work to whoever comes next. That
  is the same as a crash, of which jobs lose nothing: an exception would have to wait, for Spark
  sends what it cleans up with behind the call that is under way. Its Java ends by itself.
* Spark takes SIGINT when its session starts, to cancel the work under way; who has started it
  calls `take` again. Its Java hears no SIGINT of the terminal, but a SIGTERM to the whole group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import NoReturn

import click

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Hears the signals from `take` on; `event` is set by the first one."""

    def __init__(self, work: str) -> None:
        self.event = threading.Event()
        self._work = work
        self._number = 0

    def take(self) -> None:
        """Hears the signals; to be called in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.event.is_set():
            _tell(f"the {self._work} under way is left to the next run")
            os._exit(128 + number)
        self._number = number
        self.event.set()
        _tell(
            f"ending when the {self._work} under way has ended; a second signal leaves it to the"
            " next run"
        )

    def leave(self) -> NoReturn:
        """Ends the command, which was told to stop before its work was done."""
        raise click.exceptions.Exit(128 + self._number)


def _tell(text: str) -> None:
    # The reader of stderr may be gone by the same signal, or a line of ours be half written.
    with contextlib.suppress(OSError, RuntimeError):
        click.echo(text, err=True)
