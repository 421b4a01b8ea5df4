"""Who waits for a watermark of a partition to reach an offset, and is told once, or of an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kraftpy.protocol.errors import ErrorCode

Waiter = Callable[[ErrorCode], None]


class Waiters:
    """Callbacks by the offset that a watermark must reach; offsets mostly come in order."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Waiter]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, offset: int, waiter: Waiter) -> None:
        self._queue.append((offset, waiter))

    def advance(self, watermark: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= watermark:
            queue.popleft()[1](ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        queue, self._queue = self._queue, deque()
        for _, waiter in queue:
            waiter(error)
