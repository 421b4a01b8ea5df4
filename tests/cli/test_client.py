"""The asyncio client against a real broker that is killed and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.offsets import LATEST, list_offsets
from kraftpy.client.producer import Producer
from kraftpy.testing import Broker

RECORDS = 3000


def test_nothing_is_lost_doubled_or_reordered_when_the_broker_is_killed(
    kraftpy_factory: Callable[..., Broker],
) -> None:
    broker = kraftpy_factory()
    kill_at = {RECORDS // 3: asyncio.Event(), RECORDS * 2 // 3: asyncio.Event()}

    async def produce(cluster: Cluster) -> None:
        async with Producer(cluster, idempotent=True, batch_size_bytes=2000) as producer:
            for number in range(RECORDS):
                await producer.send("t", b"%d" % number, partition=0)
                if number % 20 == 0:
                    await asyncio.sleep(0.005)

    async def consume(cluster: Cluster) -> list[int]:
        found: list[int] = []
        async with Fetcher(cluster, {("t", 0): 0}, max_wait_ms=50) as fetcher:
            async for fetched in fetcher:
                found += [int(record.value or b"") for record in fetched.records]
                for count, reached in kill_at.items():
                    if len(found) >= count:
                        reached.set()
                if len(found) >= RECORDS:
                    break
        return found

    async def kill_twice() -> None:
        for reached in kill_at.values():
            await reached.wait()
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)

    async def run() -> None:
        async with Cluster(broker.bootstrap) as cluster:
            await Admin(cluster).create_topic("t")
            async with asyncio.timeout(60):
                consumed, _, _ = await asyncio.gather(
                    consume(cluster), produce(cluster), kill_twice()
                )
            assert consumed == list(range(RECORDS))
            assert await list_offsets(cluster, {("t", 0): LATEST}) == {("t", 0): RECORDS}

    asyncio.run(run())
