"""How a job that goes on and on is stopped: SIGTERM and SIGINT.

Rules:

* The first of them lets the work under way end; then the job ends well.  The second ends the job
  at once, with 128 and its number as exit code, and leaves the work to whoever comes next.  That
  is the same as a crash, of which jobs lose nothing: an exception would have to wait, for Spark
  sends what it cleans up with behind the call that is under way.  Its Java ends by itself.
* Spark takes SIGINT when its session starts, to cancel the work under way; who has started it
  calls `take` again.  Its Java hears no SIGINT of the terminal, but a SIGTERM to the whole group.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import click

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Hears the signals from `take` on; `event` is set by the first one."""

    def __init__(self, work: str) -> None:
        self.event = threading.Event()
        self._work = work

    def take(self) -> None:
        """Hear the signals; to be called in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.event.is_set():
            click.echo(f"the {self._work} under way is left to the next run", err=True)
            os._exit(128 + number)
        self.event.set()
        click.echo(
            f"ending when the {self._work} under way has ended; a second signal leaves it to the"
            " next run",
            err=True,
        )
