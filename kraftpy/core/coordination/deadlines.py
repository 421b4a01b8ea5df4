"""Deadlines without a clock, one for each key.

A deadline that is moved or cancelled leaves its entry in the heap. Such entries are thrown out
before they outnumber the others, as clients choose how far in the future they are, and how many.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# So few entries are not worth a look.
_TIDY_ABOVE_MIN = 1_000


class Deadlines(Generic[K]):
    """When something is due for each of these keys, in milliseconds."""

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, deadline_ms: int) -> None:
        """Gives the key a deadline, or another one."""
        if self._due.get(key) == deadline_ms:
            return
        self._due[key] = deadline_ms
        self._sequence += 1
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))
        if len(self._heap) > _TIDY_ABOVE_MIN + 2 * len(self._due):
            self._rebuild()

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)

    def next(self) -> int | None:
        """The earliest deadline, None if there is none."""
        while self._heap:
            deadline_ms, _, key = self._heap[0]
            if self._due.get(key) == deadline_ms:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """A key whose deadline has come, which has none any more then; the earliest first."""
        deadline_ms = self.next()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        return key

    def clear(self) -> list[K]:
        """Takes all deadlines away; gives the keys, the earliest first."""
        keys = sorted(self._due, key=self._due.__getitem__)
        self._due.clear()
        self._heap.clear()
        return keys

    def shift(self, delta_ms: int) -> None:
        """Moves all: the clock was set, and waits are to last as long as before."""
        self._due = {key: deadline_ms + delta_ms for key, deadline_ms in self._due.items()}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [
            (deadline_ms, number, key)
            for number, (key, deadline_ms) in enumerate(self._due.items())
        ]
        heapq.heapify(self._heap)
