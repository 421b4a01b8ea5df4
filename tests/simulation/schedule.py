"""The clock and what happens when: a heap of events, in an order that the seed decides."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class Schedule:
    """Time in ms. Events of the same time come in the order in which they were made."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.rng = rng
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    @property
    def now_ms(self) -> int:
        return int(self.now)

    def after(self, delay_ms: float, function: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._count, function, args))

    def step(self, until: float) -> bool:
        """Runs the next event, if there is one before `until`; else the time is `until`."""
        if not self._heap or self._heap[0][0] > until:
            self.now = until
            return False
        self.now, _, function, args = heapq.heappop(self._heap)
        function(*args)
        return True
