"""kraftpy's share consumer while the leaders of its partitions are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from kraftpy.client import Admin, Partition, Producer, ShareConsumer
from kraftpy.client.admin import GROUP_RESOURCE
from kraftpy.client.cluster import Cluster as Clients
from kraftpy.testing import Cluster
from tests.replication.support import leader_of
from tests.waiting import TIMEOUT_S, until

RECORDS = 300
PARTITIONS = 3


class Reader:
    """Accepts what it reads, and notes what is known to be; that doesn't come again."""

    def __init__(self, consumer: ShareConsumer[bytes, bytes]) -> None:
        self.delivered: Counter[int] = Counter()
        self.accepted: set[int] = set()
        self._consumer = consumer
        self._said: dict[Partition, set[int]] = {}

    async def read(self, *, until_from: int | None = None, judged: bool = True) -> None:
        """Reads some, until there are some of a partition."""
        while True:
            records = await self._consumer.poll(500)
            for record in records:
                number = int(record.value or b"")
                assert number not in self.accepted, f"{number} comes again"
                self.delivered[number] += 1
                self._consumer.accept(record)
                self._said.setdefault((record.topic, record.partition), set()).add(number)
            if until_from is None or any(each.partition == until_from for each in records):
                break
            await self.commit()
        if judged:
            await self.commit()

    async def commit(self) -> Mapping[Partition, Exception | None]:
        outcomes = await self._consumer.commit()
        said, self._said = self._said, {}
        for name, numbers in said.items():
            if outcomes[name] is None:
                self.accepted |= numbers
        return outcomes


async def test_nothing_accepted_comes_again_when_a_leader_is_killed(
    three: Cluster, new_topic: Callable[..., str]
) -> None:
    """Killed while acknowledgements are under way: of those it's told that it isn't known."""
    topic = await asyncio.to_thread(new_topic, three, PARTITIONS)
    killed = await asyncio.to_thread(leader_of, three, topic)
    group = f"g-{topic}"
    async with (
        asyncio.timeout(2 * TIMEOUT_S),
        Clients(three.bootstrap) as cluster,
        Producer(cluster) as producer,
        ShareConsumer(
            cluster, group_id=group, share_acknowledgement_mode="explicit", max_poll_records=20
        ) as consumer,
    ):
        earliest = {"share.auto.offset.reset": "earliest"}
        await Admin(cluster).alter_configs(group, values=earliest, resource_type=GROUP_RESOURCE)
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        consumer.subscribe([topic])
        reader = Reader(consumer)
        while len(reader.accepted) < 40:
            await reader.read()
        # What is said now reaches the leader, and is never answered.
        await reader.read(until_from=0, judged=False)
        await asyncio.to_thread(three.pause, killed)
        committing = asyncio.create_task(reader.commit())
        await until(lambda: consumer._fetching._sessions[killed].in_flight)
        await asyncio.to_thread(three.kill, killed)
        refusals = await committing
        assert str(refusals[topic, 0]).endswith("whether what was said counts isn't known")
        while len(reader.accepted) < RECORDS:
            await reader.read()
        assert sum(reader.delivered.values()) > RECORDS
    await asyncio.to_thread(three.restart, killed)
    await asyncio.to_thread(three.wait_healthy)
