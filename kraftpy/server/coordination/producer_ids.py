"""Hands out producer ids from blocks that the controller allocated (KIP-730).

Rule: an id is used at most once in the life of a cluster. A broker that dies forgets the rest of
its block; the next one gets another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

AllocateBlock = Callable[[], Awaitable[tuple[int, int]]]


class ProducerIds:
    """`allocate()` returns (first id, number of ids) and raises KafkaError when it can't."""

    def __init__(self, allocate: AllocateBlock) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that nobody had before."""
        async with self._lock:
            if self._next == self._end:
                first, count = await self._allocate()
                self._next, self._end = first, first + count
            self._next += 1
            return self._next - 1
