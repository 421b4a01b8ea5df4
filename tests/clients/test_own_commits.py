"""Commits of which one partition is refused: kraftpy's client has none stored."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import confluent_kafka
import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.clients.driver import TIMEOUT_S

pytestmark = pytest.mark.skipif("KRAFTPY_TEST_BOOTSTRAP" in os.environ, reason="kraftpy's own")

NewTopic = Callable[..., str]
T = TypeVar("T")


def run(bootstrap: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with Cluster(bootstrap) as cluster:
            return await work(cluster)

    return asyncio.run(connected())


def test_a_consumer_commits_all_or_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    every = [(topic, 0), (topic, 1)]

    async def work(cluster: Cluster) -> None:
        async with Consumer(cluster, group_id=f"g-{topic}", enable_auto_commit=False) as consumer:
            with pytest.raises(KafkaError) as caught:
                await consumer.commit({(topic, 0): 1, ("missing", 0): 2}, timeout_ms=100)
            # The cause, whichever partition stands first in the answer.
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await consumer.committed(every) == {}
            await consumer.commit({(topic, 0): 1, (topic, 1): 2})
            assert await consumer.committed(every) == {(topic, 0): 1, (topic, 1): 2}

    run(bootstrap, work)


def test_auto_commit_keeps_what_can_be_kept(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def work(cluster: Cluster) -> None:
        group = f"g-{topic}"
        async with Consumer(cluster, group_id=group, auto_commit_interval_ms=10) as consumer:
            commits = consumer._group_commits()
            await commits.before_giving_up({(topic, 0): 1, ("missing", 0): 2}, 100)
            assert await consumer.committed([(topic, 0)]) == {(topic, 0): 1}

    run(bootstrap, work)


def test_an_operator_moves_all_or_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    offsets = {(topic, number): 10 for number in range(3)}

    async def work(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        group = f"g-{topic}"
        nothing = dict.fromkeys(offsets, -1)
        errors = await admin.commit(group, offsets, nothing | {(topic, 2): 5})
        assert [(name, error.code) for name, error in errors.items()] == [
            ((topic, 2), ErrorCode.UNEXPECTED_OFFSET),
            ((topic, 0), ErrorCode.OPERATION_NOT_ATTEMPTED),
            ((topic, 1), ErrorCode.OPERATION_NOT_ATTEMPTED),
        ]
        assert await admin.committed(group) == {}
        assert await admin.commit(group, offsets, nothing) == {}
        assert {each.offset for each in (await admin.committed(group)).values()} == {10}

    run(bootstrap, work)


def test_librdkafka_has_the_others_stored(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    settings = {"bootstrap.servers": bootstrap, "group.id": f"g-{topic}"}
    known = confluent_kafka.TopicPartition(topic, 0, 1)
    missing = confluent_kafka.TopicPartition(topic, 7, 2)
    consumer = confluent_kafka.Consumer(settings)
    try:
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            consumer.commit(offsets=[known, missing], asynchronous=False)
        assert caught.value.args[0].code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (stored,) = consumer.committed([known], timeout=TIMEOUT_S)
        assert stored.offset == 1
    finally:
        consumer.close()
