"""Progress for people: a bar that redraws itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

LINE_EVERY_S = 3.0
BAR_EVERY_S = 0.1
WIDTH = 30


def say(text: str) -> None:
    print(text, flush=True)


class Progress:
    """`with Progress("reading", total) as progress: progress.at(done)`"""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._next = self._started + (0 if self._terminal else LINE_EVERY_S)

    def at(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        share = done / self.total
        if self._terminal:
            self._next = now + BAR_EVERY_S
            bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
            print(f"\r  {self.what:<34} [{bar}] {share:4.0%}", end="", flush=True)
        else:
            self._next = now + LINE_EVERY_S
            say(f"  {self.what} ... {share:.0%}")

    def clear(self) -> None:
        """Leave the terminal's line to whoever prints next."""
        if self._terminal:
            print("\r\033[K", end="", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def done(self, count: int, size_bytes: int) -> None:
        """Close with the rates."""
        self.clear()
        rates = (
            f"{count / self.seconds:>9,.0f} events/s {size_bytes / self.seconds / 1e6:7.1f} MB/s"
        )
        say(f"  {self.what:<34} {count:>8,} events in {self.seconds:5.1f} s {rates}")
