"""A group of `kraftpy-broker-range` when leaders move on real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kraftpy.client.cluster import Cluster as Connected
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.client.producer import Producer
from kraftpy.testing import Cluster
from tests.clients.readers import Reader, reading, until, values

from .conftest import NewTopicMaker
from .support import leader_of

PARTITIONS = 4
PART = 40


async def lead(cluster: Cluster, topic: str, leaders: dict[int, int]) -> None:
    """Has these brokers lead these partitions."""
    targets = {
        PartitionName(topic, number): [leader, *(node for node in cluster.nodes if node != leader)]
        for number, leader in leaders.items()
    }
    async with Connected(cluster.bootstrap) as connected:
        admin = ClusterAdmin(connected)
        assert not any((await admin.alter_reassignments(targets)).values())
        await admin.elect_leaders(PREFERRED_ELECTION, targets)
    for number, leader in leaders.items():
        assert await asyncio.to_thread(leader_of, cluster, topic, number) == leader


async def write(cluster: Cluster, topic: str, numbers: Sequence[int]) -> None:
    async with Connected(cluster.bootstrap) as connected, Producer(connected) as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def numbers_of(reader: Reader) -> list[int]:
    return sorted(number for _, number in reader.owned)


def test_members_join_again_when_a_leader_moves_and_read_all_once(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three, PARTITIONS)
    group = f"g-{topic}"

    async def run() -> None:
        await lead(three, topic, {0: 1, 1: 1, 2: 2, 3: 2})
        await write(three, topic, range(PART))
        options = {"assignors": ["kraftpy-broker-range"], "auto_commit_interval_ms": 100}
        async with (
            reading(three.bootstrap, group, **options) as a,
            reading(three.bootstrap, group, **options) as b,
        ):
            for reader in (a, b):
                reader.start([topic])
            await until(lambda: sorted(map(numbers_of, (a, b))) == [[0, 1], [2, 3]], a, b)
            await until(lambda: len(values(a, b)) == PART, a, b)
            before = {reader: reader.consumer.generation.id for reader in (a, b)}
            for reader in (a, b):
                reader.notes.events.clear()

            writing = asyncio.create_task(write(three, topic, range(PART, 20 * PART)))
            await lead(three, topic, {0: 3})
            await until(lambda: sorted(map(numbers_of, (a, b))) == [[0, 3], [1, 2]], a, b)
            await writing
            await write(three, topic, range(20 * PART, 21 * PART))
            await until(lambda: len(values(a, b)) >= 21 * PART, a, b)
            assert values(a, b) == list(range(21 * PART))
            for reader, generation in before.items():
                assert reader.consumer.generation.id > generation
                assert {kind for kind, _ in reader.notes.events} == {"revoked", "assigned"}

    asyncio.run(run())
