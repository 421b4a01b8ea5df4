"""Who waits for a watermark of a partition to reach an offset, and is told once, or of an error.

Rule: nobody waits for more than the own offset. Who comes later and asks for less (DeleteRecords)
is told before those who ask for more; equal offsets are told in the order they came in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from kraftpy.protocol.errors import ErrorCode

Waiter = Callable[[ErrorCode], None]

_OFFSET = itemgetter(0)


class Waiters:
    """Callbacks by the offset that a watermark must reach, least first; most come in order."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Waiter]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, offset: int, waiter: Waiter) -> None:
        """Has `waiter` called with NONE by `advance(offset)`, or with the error of `fail`."""
        queue = self._queue
        if queue and queue[-1][0] > offset:
            queue.insert(bisect_right(queue, offset, key=_OFFSET), (offset, waiter))
        else:
            queue.append((offset, waiter))

    def advance(self, watermark: int) -> None:
        """Calls all who wait for `watermark` or less."""
        queue = self._queue
        while queue and queue[0][0] <= watermark:
            queue.popleft()[1](ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        """Calls everybody with `error`."""
        queue, self._queue = self._queue, deque()
        for _, waiter in queue:
            waiter(error)
