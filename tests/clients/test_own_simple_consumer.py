"""kraftpy's stateless reader against a real broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import EARLIEST, LATEST
from kraftpy.client.producer import Producer
from kraftpy.client.simple_consumer import SimpleConsumer
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError

FIRST_MS = 1_700_000_000_000


def test_fetches_from_offsets_and_finds_offsets_before_times(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)

    async def run() -> None:
        async with Cluster(bootstrap) as cluster:
            async with Producer(cluster) as producer:
                for n in range(10):
                    for partition in range(2):
                        await producer.send_and_wait(
                            topic, b"%d" % n, partition=partition, timestamp_ms=FIRST_MS + n * 1000
                        )
            simple = SimpleConsumer(cluster)
            fetched = await simple.fetch(topic, 0, 4)
            assert [record.value for record in fetched.records] == [b"%d" % n for n in range(4, 10)]
            assert (fetched.position, fetched.high_watermark) == (10, 10)
            small = await simple.fetch(topic, 1, 4, max_bytes=1)
            assert [record.offset for record in small.records] == [4]
            at_end = await simple.fetch(topic, 0, 10, max_wait_ms=50)
            assert (at_end.records, at_end.position) == ([], 10)
            several = await simple.multifetch({(topic, 0): 8, (topic, 1): 9})
            assert {name: len(each.records) for name, each in several.items()} == {
                (topic, 0): 2,
                (topic, 1): 1,
            }
            with pytest.raises(KafkaError) as caught:
                await simple.fetch(topic, 0, 11)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

            assert await simple.offsets_before(topic, 0, LATEST, 10) == [10, 0]
            assert await simple.offsets_before(topic, 0, LATEST) == [10]
            assert await simple.offsets_before(topic, 0, EARLIEST, 10) == [0]
            assert await simple.offsets_before(topic, 0, FIRST_MS + 2500, 10) == [3, 0]
            assert await simple.offsets_before(topic, 0, FIRST_MS + 60_000, 10) == [10, 0]

    asyncio.run(run())


@pytest.mark.skipif("KRAFTPY_TEST_BOOTSTRAP" in os.environ, reason="Kafka 4 has dropped it")
def test_offsets_before_are_the_starts_of_segments(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(segment_bytes="1048576")
    value = bytes(300_000)  # three to a segment

    async def run() -> None:
        async with Cluster(bootstrap) as cluster:
            async with Producer(cluster) as producer:
                for n in range(10):
                    at_ms = FIRST_MS + n * 1000
                    await producer.send_and_wait(topic, value, partition=0, timestamp_ms=at_ms)
            simple = SimpleConsumer(cluster)
            assert await simple.offsets_before(topic, 0, LATEST, 10) == [10, 9, 6, 3, 0]
            assert await simple.offsets_before(topic, 0, LATEST, 3) == [10, 9, 6]
            assert await simple.offsets_before(topic, 0, FIRST_MS + 6500, 10) == [7, 6, 3, 0]
            assert await simple.offsets_before(topic, 0, FIRST_MS + 6000, 10) == [6, 3, 0]
            assert await simple.offsets_before(topic, 0, EARLIEST, 10) == [0]
            await delete_before(cluster, topic, 4)
            assert await simple.offsets_before(topic, 0, LATEST, 10) == [10, 9, 6, 4]
            assert await simple.offsets_before(topic, 0, FIRST_MS, 10) == [4]
            with pytest.raises(KafkaError) as caught:
                await simple.offsets_before(topic, 7, LATEST, 10)
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(run())


async def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    kinds = messages.DeleteRecordsRequest
    wanted = kinds([kinds.DeleteRecordsTopic(topic, [kinds.DeleteRecordsPartition(0, offset)])])
    connection = await cluster.connection(cluster.leader(topic, 0), "deleting")
    answer = await connection.request(wanted, timeout_ms=10_000, version=2)
    assert answer.topics[0].partitions[0].error_code == 0
