"""How far `produce` and `consume` are, for a person at a terminal.

A line on stderr is written again and again, and goes when the work is done; nothing is written
where stderr is no terminal, or stdout is one that shows the records themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from kraftpy.wording import counted, size_text

_EVERY_S = 0.25
_CLEAR = "\r\x1b[K"


class Meter:
    """Counts records and the bytes of their values."""

    def __init__(self, *, shows: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.records = 0
        self.value_bytes = 0
        self._clock = clock
        self._began = clock()
        self._shows = shows and sys.stderr.isatty()
        self._next = self._began + _EVERY_S
        self._shown = False

    def add(self, records: int, value_bytes: int) -> None:
        self.records += records
        self.value_bytes += value_bytes
        if self._shows:
            now = self._clock()
            if now >= self._next:
                self._next = now + _EVERY_S
                self._shown = True
                sys.stderr.write(f"{_CLEAR}{self.text()}")
                sys.stderr.flush()

    def text(self) -> str:
        """`1,234 records, 5.6 MB in 7.8 s`, and how many a second where that says something."""
        seconds = self._clock() - self._began
        rate = f" ({self.records / seconds:,.0f} a second)" if 1 <= seconds <= self.records else ""
        what = counted(self.records, "record")
        return f"{what}, {size_text(self.value_bytes)} in {seconds:.1f} s{rate}"

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            self._shown = False
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
