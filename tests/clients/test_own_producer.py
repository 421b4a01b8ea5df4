"""kraftpy's producer against a real broker: batches that are too large for the topic (KIP-126)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.interceptors import ProducerRecord
from kraftpy.client.producer import Producer
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.clients.driver import Driver

LIMIT = "2000"
VALUES = [random.Random(n).randbytes(150) for n in range(500)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_too_large_is_sent_in_parts(
    bootstrap: str,
    new_topic: Callable[..., str],
    reference: Driver,
    compression: str,
    idempotent: bool,
) -> None:
    topic = new_topic(max_message_bytes=LIMIT)

    async def run() -> None:
        async with (
            Cluster(bootstrap) as cluster,
            Producer(cluster, compression=compression, idempotent=idempotent) as producer,
        ):
            found = await producer.send_many([ProducerRecord(topic, value) for value in VALUES])
            assert [place.offset for place in found] == list(range(500))

    asyncio.run(run())
    assert [record.value for record in reference.read(topic, 0, 0, 500)] == VALUES


def test_a_record_that_is_too_large_takes_no_other_with_it(
    bootstrap: str, new_topic: Callable[..., str], reference: Driver
) -> None:
    topic = new_topic(max_message_bytes=LIMIT)
    large = random.Random(7).randbytes(3000)

    async def run() -> None:
        async with Cluster(bootstrap) as cluster, Producer(cluster) as producer:
            sent = [await producer.send(topic, value) for value in [*VALUES[:50], large]]
            sent += [await producer.send(topic, value) for value in VALUES[50:100]]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            (failed,) = [each for each in outcomes if isinstance(each, BaseException)]
            assert outcomes.index(failed) == 50
            assert isinstance(failed, KafkaError)
            assert failed.code == ErrorCode.MESSAGE_TOO_LARGE

    asyncio.run(run())
    assert [record.value for record in reference.read(topic, 0, 0, 100)] == VALUES[:100]


def test_in_a_transaction_too(
    bootstrap: str, new_topic: Callable[..., str], reference: Driver
) -> None:
    topic = new_topic(max_message_bytes=LIMIT)

    async def run() -> None:
        async with (
            Cluster(bootstrap) as cluster,
            TransactionalProducer(cluster, topic) as producer,
        ):
            for begin in (0, 250):
                async with producer.transaction():
                    for value in VALUES[begin : begin + 250]:
                        await producer.send(topic, value)
            await producer.begin_transaction()
            for value in (b"a", bytes(3000), b"b"):
                await producer.send(topic, value)
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.commit_transaction()
            await producer.abort_transaction()

    asyncio.run(run())
    assert [record.value for record in reference.read(topic, 0, 0, 500)] == VALUES
