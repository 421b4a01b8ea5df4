"""Who waits for a watermark of a partition to reach an offset, and is told once, or of an error;
and which fetches wait until there is more to read, and are woken whenever there is.

Rule: each waits for its own offset and for no more. A waiter that comes later and asks for less
(DeleteRecords) is told before those that ask for more; equal offsets are told in their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from kraftpy.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

Waiter = Callable[[ErrorCode], None]
P = TypeVar("P")

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


class FetchWaiters(Generic[P]):
    """What wakes the fetches that are `waiting` for a partition; they leave by themselves."""

    __slots__ = ("_scheduled", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Callable[[P], None], None] = {}
        self._scheduled = False

    def add(self, wake: Callable[[P], None]) -> None:
        self.waiting[wake] = None

    def remove(self, wake: Callable[[P], None]) -> None:
        self.waiting.pop(wake, None)

    def wake(self, partition: P) -> None:
        """Has every waiting fetch look at the partition again."""
        self._scheduled = False
        for wake in list(self.waiting):
            wake(partition)

    def wake_soon(self, partition: P, loop: asyncio.AbstractEventLoop) -> None:
        """The same after the producer's answer left: waking consumers is not on its account."""
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self.wake, partition)
