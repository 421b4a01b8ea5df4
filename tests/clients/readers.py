"""kraftpy's own consumers that are polled all the time, and what they were told and got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kraftpy.client.assignors import Partition
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes

TIMEOUT_S = 40
TIMES = GroupTimes(session_timeout_ms=6000, heartbeat_interval_ms=100, max_poll_interval_ms=20_000)


class Notes(RebalanceListener):
    """Writes down what happens, and checks that it fits what happened before."""

    def __init__(self) -> None:
        self.owned: set[Partition] = set()
        self.events: list[tuple[str, list[Partition]]] = []

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        assert not self.owned & set(partitions)
        self.owned |= set(partitions)
        self.events.append(("assigned", list(partitions)))

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        assert self.owned >= set(partitions)
        self.owned -= set(partitions)
        self.events.append(("revoked", list(partitions)))

    async def lost(self, partitions: Sequence[Partition]) -> None:
        self.owned -= set(partitions)
        self.events.append(("lost", list(partitions)))


class Reader:
    """A consumer that is polled all the time; `records` are what it got."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.notes = Notes()
        self.records: list[ConsumerRecord] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, topics: Any) -> None:
        self.consumer.subscribe(topics, listener=self.notes)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            self.records += await self.consumer.poll(100)

    def check(self) -> None:
        """Raises what ended the reading."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def owned(self) -> set[Partition]:
        return set(self.consumer.assignment)


@asynccontextmanager
async def consuming(bootstrap: str, group: str, **options: Any) -> AsyncIterator[Consumer]:
    options = {"auto_offset_reset": "earliest", "times": TIMES} | options
    async with (
        Cluster(bootstrap) as cluster,
        Consumer(cluster, group_id=group, **options) as consumer,
    ):
        yield consumer


@asynccontextmanager
async def reading(bootstrap: str, group: str, **options: Any) -> AsyncIterator[Reader]:
    async with consuming(bootstrap, group, **options) as consumer:
        reader = Reader(consumer)
        try:
            yield reader
        finally:
            await reader.stop()


async def until(condition: Callable[[], bool], *readers: Reader) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            for reader in readers:
                reader.check()
            await asyncio.sleep(0.02)


def values(*readers: Reader) -> list[int]:
    return sorted(int(record.value) for reader in readers for record in reader.records)
