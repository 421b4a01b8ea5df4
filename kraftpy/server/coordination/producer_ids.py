"""Hands out producer ids from blocks that the controller allocated (KIP-730).

Rule: an id is used at most once in the life of a cluster. A broker that dies forgets the rest of
its block; the next one gets another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

AllocateBlock = Callable[[], Awaitable[tuple[int, int]]]


class ProducerIds:
    """`allocate()` returns (first id, number of ids) and raises KafkaError when it can't.

    Who can't wait takes an id with `take`, and has seen to it before with `ready` that there is one
    most of the time.
    """

    def __init__(self, allocate: AllocateBlock) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that nobody had before."""
        while True:
            await self.ready()
            producer_id = self.take()
            if producer_id is not None:
                return producer_id

    async def ready(self) -> None:
        """Returns when there is an id to take; others may take it before. Raises KafkaError."""
        async with self._lock:
            if self._next == self._end:
                first, count = await self._allocate()
                self._next, self._end = first, first + count

    def take(self) -> int | None:
        """The same at once; None if there is none at hand."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1
