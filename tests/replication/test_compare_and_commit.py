"""Commits that name the offset they replace: two clients count up one offset, nothing gets lost.

The committed offset is the number of all increments, the metadata how many of them each client
made. Both are replaced by one commit, so a client that does not know the outcome of its last one
reads what became of it.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from kraftpy.client.cluster import Cluster as Connected
from kraftpy.client.commits import compare_and_commit, read_committed
from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.offsets import Partition
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing import Cluster

from .conftest import NewTopicMaker

PASSING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
INCREMENTS = 150
KILL_AFTER = 60
DEADLINE_S = 60


class Counter:
    """A client that makes increments of its own, and knows how many of them there are."""

    def __init__(self, name: str, coordinator: Coordinator, partition: Partition) -> None:
        self.name = name
        self.made = 0
        self.refused = 0
        self.unknown = 0
        self._coordinator = coordinator
        self._partition = partition

    async def increment(self) -> None:
        """Once, whatever happens."""
        goal = self.made + 1
        while self.made < goal:
            try:
                await self._try(goal)
            except ConnectionError:
                self.unknown += 1
            except KafkaError as error:
                if error.code not in PASSING:
                    raise
                self.unknown += 1
                await asyncio.sleep(0.01)

    async def _try(self, goal: int) -> None:
        offset, metadata = await read_committed(self._coordinator, self._partition)
        counts = json.loads(metadata or "{}")
        assert sum(counts.values()) == max(offset, 0)
        if counts.get(self.name, 0) == self.made:
            counts[self.name] = goal
            new = max(offset, 0) + 1
            if not await compare_and_commit(
                self._coordinator, self._partition, offset, new, metadata=json.dumps(counts)
            ):
                self.refused += 1
                return
        else:
            # One whose outcome was not known was done.
            assert counts[self.name] == goal
        self.made = goal


def test_each_increment_is_applied_once(three: Cluster, new_topic: NewTopicMaker) -> None:
    partition = (new_topic(three), 0)
    counters: list[Counter] = []
    killed: list[int] = []

    async def count(name: str) -> None:
        async with Connected(three.bootstrap, request_timeout_ms=10_000) as cluster:
            coordinator = Coordinator(cluster, "counted")
            counter = Counter(name, coordinator, partition)
            counters.append(counter)
            for _ in range(INCREMENTS):
                await counter.increment()
                if not killed and sum(each.made for each in counters) >= KILL_AFTER:
                    assert coordinator.node_id is not None
                    killed.append(coordinator.node_id)
                    await asyncio.to_thread(three.kill, killed[0])
            await coordinator.close()

    async def run() -> None:
        await asyncio.wait_for(asyncio.gather(count("a"), count("b")), DEADLINE_S)
        async with Connected(three.bootstrap) as cluster:
            coordinator = Coordinator(cluster, "counted")
            offset, metadata = await read_committed(coordinator, partition)
            assert offset == 2 * INCREMENTS
            assert json.loads(metadata) == {"a": INCREMENTS, "b": INCREMENTS}
            await coordinator.close()

    asyncio.run(run())
    three.restart(*killed)
    three.wait_healthy()
    assert sum(counter.refused for counter in counters) > 0  # they did race
    assert sum(counter.unknown for counter in counters) > 0  # and the failover was in between


def test_what_is_expected(three: Cluster, new_topic: NewTopicMaker) -> None:
    partition = (new_topic(three), 0)

    async def run() -> None:
        async with Connected(three.bootstrap) as cluster:
            coordinator = Coordinator(cluster, "conditions")
            await coordinator.commit({(partition[0], 0): 0}, Generation())
            assert not await compare_and_commit(coordinator, partition, -1, 5)
            assert not await compare_and_commit(coordinator, partition, 4, 5)
            assert await read_committed(coordinator, partition) == (0, "")
            assert await compare_and_commit(coordinator, partition, 0, 5, metadata="m")
            assert await read_committed(coordinator, partition) == (5, "m")
            nothing = (partition[0], 7)
            assert await read_committed(coordinator, nothing) == (-1, "")
            with pytest.raises(KafkaError) as caught:
                await compare_and_commit(coordinator, nothing, -1, 5)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await coordinator.close()

    asyncio.run(run())
