"""Who has much to do does it in turns: others are served in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter


class Turns:
    """Lets one of those who wait go on in each turn of the loop, first come, first served.

    With `slice_s` as many of them as begin within that time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, slice_s: float = 0.0) -> None:
        self._loop = loop
        self._slice_s = slice_s
        self._waiting: deque[Callable[[], None]] = deque()

    def soon(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` behind those who wait already."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        waiting = self._waiting
        ends_s = perf_counter() + self._slice_s
        try:
            # Who works stays in the queue, so that nobody else begins in this turn.
            waiting[0]()
            while len(waiting) > 1 and perf_counter() < ends_s:
                waiting.popleft()
                waiting[0]()
        finally:
            waiting.popleft()
            if waiting:
                self._loop.call_soon(self._next)
