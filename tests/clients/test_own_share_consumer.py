"""kraftpy's own share consumer against a real broker: alone, with others, and with stock ones."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pytest

from kraftpy.client.admin import GROUP_RESOURCE, Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.share_group.consumer import ShareConsumer
from kraftpy.client.share_group.leased import ShareRecord
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.clients.driver import Driver, numbered

TIMEOUT_S = 40
NewTopic = Callable[..., str]


@asynccontextmanager
async def sharing(bootstrap: str, topic: str, **options: Any) -> AsyncIterator[ShareConsumer]:
    """A member of the group of the topic's name, which begins at the topic's start."""
    async with Cluster(bootstrap) as cluster, asyncio.timeout(TIMEOUT_S):
        earliest = {"share.auto.offset.reset": "earliest"}
        await Admin(cluster).alter_configs(topic, values=earliest, resource_type=GROUP_RESOURCE)
        async with ShareConsumer(cluster, group_id=topic, **options) as consumer:
            consumer.subscribe([topic])
            yield consumer


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """So many records, for as many polls as it needs."""
    records: list[ShareRecord] = []
    while len(records) < count:
        records += await consumer.poll(1000)
    return records


def counts(records: list[ShareRecord]) -> dict[int, int]:
    """The numbers that the records are, with their delivery counts."""
    return {int(record.value or b""): record.delivery_count for record in records}


async def lag_of(bootstrap: str, group: str) -> int | None:
    async with Cluster(bootstrap) as cluster:
        (start,) = (await GroupAdmin(cluster).share_offsets(group)).values()
        return start.lag


async def test_a_record_is_accepted_when_the_next_one_is_asked_for(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    reference.produce(topic, numbered(60, 3))
    done = []
    twenty = {"share_acquire_mode": "record_limit", "max_poll_records": 20}
    async with sharing(bootstrap, topic, **twenty) as consumer:
        async for record in consumer:
            done.append(record)
            if len(done) == 20:
                break
        assert consumer.assignment == {(topic, number) for number in range(3)}
        assert consumer.acquisition_lock_timeout_ms == 30_000
        # What the loop ended with is accepted, too.
        assert set((await consumer.commit()).values()) == {None}
    async with sharing(bootstrap, topic) as consumer:
        rest = await take(consumer, 40)
    assert sorted([*counts(done), *counts(rest)]) == list(range(60))
    assert {record.delivery_count for record in rest} == {1}
    async with sharing(bootstrap, topic) as consumer:
        assert await consumer.poll(500) == []


async def test_what_is_held_when_a_consumer_ends_is_given_back_and_was_delivered(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(60))
    async with sharing(bootstrap, topic) as consumer:
        async for record in consumer:
            assert record.delivery_count == 1
            break
    async with sharing(bootstrap, topic) as consumer:
        rest = await take(consumer, 59)
    assert counts(rest) == dict.fromkeys(range(1, 60), 2)


async def test_each_record_is_accepted_released_rejected_or_renewed(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(10))
    told: list[Any] = []
    async with sharing(
        bootstrap,
        topic,
        share_acknowledgement_mode="explicit",
        acknowledgement_callback=lambda *words: told.append(words),
    ) as consumer:
        records = await take(consumer, 10)
        for record in records[:4]:
            consumer.accept(record)
        consumer.release(records[4])
        consumer.reject(records[5])
        consumer.renew(records[6])
        assert await consumer.commit() == {(topic, 0): None}
        assert told == [((topic, 0), [(0, 3), (4, 4), (5, 5), (6, 6)], None)]
        assert await consumer.commit() == {}
        with pytest.raises(ValueError, match="-0 at offset 0 is acknowledged already"):
            consumer.release(records[0])
        (again,) = await take(consumer, 1)
        assert (again.offset, again.delivery_count) == (4, 2)
        consumer.accept(again)
        consumer.accept(records[6])
    # What was said is sent on leaving; nothing was said of 7, 8 and 9.
    assert told[1:] == [((topic, 0), [(4, 4), (6, 6)], None)]
    async with sharing(bootstrap, topic) as consumer:
        assert sorted(counts(await take(consumer, 3))) == [7, 8, 9]


async def test_who_leaves_by_an_exception_accepts_nothing(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(3))

    async def fail_at_the_second() -> None:
        async with sharing(bootstrap, topic) as consumer:
            async for record in consumer:
                1 // (1 - record.offset)

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    async with sharing(bootstrap, topic) as consumer:
        found = counts(await take(consumer, 2))
        assert (sorted(found), found[1]) == ([1, 2], 2)


async def test_members_of_ours_and_of_librdkafka_share_a_topic(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    reference.produce(topic, numbered(300, 3))
    stock = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic})
    delivered: Counter[int] = Counter()

    async def read(consumer: ShareConsumer) -> None:
        for record in await consumer.poll(100, max_records=10):
            delivered[int(record.value or b"")] += 1

    async with (
        sharing(bootstrap, topic, max_poll_records=20) as one,
        sharing(bootstrap, topic, max_poll_records=20) as two,
    ):
        stock.subscribe([topic])
        while len(delivered) < 300:
            await asyncio.gather(read(one), read(two))
            for message in await asyncio.to_thread(stock.poll, 0.1):
                delivered[int(message.value())] += 1
    await asyncio.to_thread(stock.close)
    assert delivered == dict.fromkeys(range(300), 1)


async def test_markers_of_transactions_are_acknowledged_as_gaps(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    async with (
        Cluster(bootstrap) as cluster,
        TransactionalProducer(cluster, transactional_id=topic) as producer,
    ):
        for number in range(3):
            async with producer.transaction():
                await producer.send(topic, b"%d" % number)
    async with sharing(bootstrap, topic) as consumer:
        assert sorted(counts(await take(consumer, 3))) == [0, 1, 2]
    assert await lag_of(bootstrap, topic) == 0


DIES_OF_A_RECORD = """
import os, signal, sys
from confluent_kafka import ShareConsumer
bootstrap, topic = sys.argv[1:]
consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic})
consumer.subscribe([topic])
while not (found := consumer.poll(1)):
    pass
print(*(f"{each.offset()}:{each.delivery_count()}" for each in found), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_record_that_kills_its_readers_is_given_up(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    async with Cluster(bootstrap) as cluster:
        values = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "3"}
        await Admin(cluster).alter_configs(topic, values=values, resource_type=GROUP_RESOURCE)
    reference.produce(topic, numbered(1))
    async with asyncio.timeout(TIMEOUT_S):
        for number in (1, 2, 3):
            reader = await asyncio.create_subprocess_exec(
                sys.executable, "-c", DIES_OF_A_RECORD, bootstrap, topic,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            output, _ = await reader.communicate()
            assert (reader.returncode, output) == (-signal.SIGKILL, b"0:%d\n" % number)
    reference.produce(topic, numbered(1))
    async with sharing(bootstrap, topic) as consumer:
        assert [record.offset for record in await take(consumer, 1)] == [1]


async def test_what_cannot_be_deserialized_is_released(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(3))

    def number(data: bytes) -> int:
        return 10 // (int(data) - 1)

    async with sharing(bootstrap, topic, value_deserializer=number) as consumer:
        assert [record.value for record in await take(consumer, 1)] == [-10]
        for delivery in range(1, 3):
            with pytest.raises(ZeroDivisionError) as caught:
                await take(consumer, 2)
            assert caught.value.__notes__ == [
                f"when the value of {topic}-0 at offset 1 was deserialized",
                "it is released, and comes again until the group's limit",
            ]
            if delivery == 1:
                assert [record.value for record in await take(consumer, 1)] == [10]


async def test_topics_come_and_go(
    bootstrap: str, reference: Driver, new_topic: NewTopic, topic: str
) -> None:
    other = f"{topic}-other"
    reference.produce(new_topic(), numbered(2))
    async with sharing(bootstrap, topic) as consumer:
        assert sorted(counts(await take(consumer, 2))) == [0, 1]
        consumer.subscribe([other])
        assert await consumer.poll(200) == []
        reference.create_topic(other, 1, {})
        while not consumer.assignment:
            await consumer.poll(100)
        reference.produce(other, numbered(2))
        found = await take(consumer, 2)
        assert [record.topic for record in found] == [other, other]
        await consumer.unsubscribe()
        assert not consumer.assignment | consumer.subscription
        with pytest.raises(ValueError, match="subscribe"):
            await consumer.poll()
        consumer.subscribe([topic])
        assert await consumer.poll(500) == []


@pytest.mark.parametrize(("mode", "most"), [("record_limit", {7}), ("batch_optimized", {100})])
async def test_a_fetch_leases_as_many_as_asked_for(
    bootstrap: str, reference: Driver, new_topic: NewTopic, mode: str, most: set[int]
) -> None:
    topic = new_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 200})
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    async with (
        sharing(bootstrap, topic, share_acquire_mode=mode, max_poll_records=7) as consumer,
        sharing(bootstrap, topic) as other,
    ):
        assert len(await take(consumer, 7)) == 7
        assert len(await other.poll(500)) == 100 - most.pop()


async def test_a_group_begins_where_an_operator_says(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(10))
    async with Cluster(bootstrap) as cluster:
        admin = GroupAdmin(cluster)
        async with sharing(bootstrap, topic) as consumer:
            assert len(await take(consumer, 10)) == 10
            with pytest.raises(KafkaError) as refused:
                await admin.alter_share_offsets(topic, {(topic, 0): 7})
            assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        refusals = await admin.alter_share_offsets(topic, {(topic, 0): 7, (topic, 5): 0})
        codes = {name: error.code for name, error in refusals.items()}
        assert codes == {(topic, 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        async with sharing(bootstrap, topic) as consumer:
            assert sorted(counts(await take(consumer, 3))) == [7, 8, 9]
        assert await admin.delete_share_offsets(topic, [topic]) == {topic: None}
        assert await admin.share_offsets(topic) == {}
        async with sharing(bootstrap, topic) as consumer:
            assert len(await take(consumer, 10)) == 10
