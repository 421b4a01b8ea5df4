"""How late an event loop is: a timer that is due ten times a second, and when it came."""

from __future__ import annotations

import asyncio
from time import perf_counter

from kraftpy.metrics.instruments import LAG_BUCKETS, Histogram

INTERVAL_S = 0.1
_RESOLUTION_S = 0.001  # of the loop's timers


class LoopLag:
    """Runs from the start on; `lags` has the seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lags = Histogram(LAG_BUCKETS)
        self._loop = loop
        self._due_s = 0.0
        self._schedule()

    def _schedule(self) -> None:
        self._due_s = perf_counter() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self.lags.observe(max(0.0, perf_counter() - self._due_s - _RESOLUTION_S))
        self._schedule()

    def close(self) -> None:
        self._timer.cancel()
