"""Members that are leased batches of a partition: each record to one of them, all of them done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes
from kraftpy.client.producer import Producer
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing import Broker
from tests.server.test_sharing import Group, Reader, group_on
from tests.server.test_sharing_begins import serve

NewTopic = Callable[..., str]
LEASING = ["kraftpy-cooperative-fetch"]
BRIEF = GroupTimes(session_timeout_ms=1000, heartbeat_interval_ms=100, max_poll_interval_ms=2_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=500) as started:
        yield started


class Slow(Reader):
    """It works on each record for a while."""

    async def _read(self) -> None:
        while True:
            for record in await self.consumer.poll(100, max_records=5):
                await asyncio.sleep(0.002)
                self.handed(record)


class Backwards(Reader):
    """What it gets together is done in the other order."""

    async def _read(self) -> None:
        while True:
            for record in reversed(await self.consumer.poll(100, max_records=7)):
                await asyncio.sleep(0.002)
                self.handed(record)
                self.consumer.done(record)


class Stuck(Reader):
    """It gets records, and never anything done."""

    def handed(self, record: ConsumerRecord) -> None:
        self.records.append(record)


async def send(cluster: Cluster, topic: str, count: int, *, each: int = 10) -> None:
    """In batches of so many records."""
    async with Producer(cluster) as producer:
        for start in range(0, count, each):
            records = [(topic, b"%d" % number) for number in range(start, start + each)]
            await asyncio.gather(
                *[await producer.send(name, value, partition=0) for name, value in records]
            )


def all_are_done(group: Group, count: int) -> bool:
    return len({record.offset for _, record in group.seen}) == count


@pytest.mark.parametrize("kind", [Slow, Backwards])
async def test_members_share_a_partition_and_each_record_is_one_s(
    broker: Broker, new_topic: NewTopic, kind: type[Reader]
) -> None:
    topic = new_topic(accept_range_fetch="true")
    async with group_on(broker, topic) as (group, cluster):
        await send(cluster, topic, 400)
        for _ in range(3):
            await group.start(
                kind,
                assignors=LEASING,
                explicit_done=kind is Backwards,
                max_partition_fetch_bytes=300,
            )
        await group.until(partial(all_are_done, group, 400))
        assert set(Counter(record.offset for _, record in group.seen).values()) == {1}
        await group.until_committed(400)
        assert all(len(reader.records) > 20 for reader in group.readers)
        assert group.readers[0].consumer.shares == {(topic, 0): []}
        await send(cluster, topic, 50)
        await group.until(partial(all_are_done, group, 450))
        await group.until_committed(450)


async def test_what_a_member_that_is_gone_had_goes_to_others(
    broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(accept_range_fetch="true")
    async with group_on(broker, topic) as (group, cluster):
        await send(cluster, topic, 100)
        options = {"assignors": LEASING, "times": BRIEF}
        stuck = await group.start(Stuck, enable_auto_commit=False, **options)
        await group.until(lambda: bool(stuck.records))
        await stuck.stop()
        await group.start(Slow, **options)
        await group.until(partial(all_are_done, group, 100))
        await group.until_committed(100)


async def test_what_is_leased_for_too_long_isn_t_handed_out(
    broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(accept_range_fetch="true")
    times = GroupTimes(session_timeout_ms=1000, heartbeat_interval_ms=100)
    # A fetch takes one batch, so that whoever waits behind the other gets the next.
    options = {
        "assignors": LEASING,
        "times": times,
        "fetch_max_wait_ms": 50,
        "max_partition_fetch_bytes": 100,
    }
    async with (
        group_on(broker, topic) as (group, cluster),
        Consumer(cluster, group_id=topic, auto_offset_reset="earliest", **options) as slow,
        asyncio.timeout(30),
    ):
        other = await group.start(Slow, **options)
        slow.subscribe([topic])
        while not (slow.assignment and other.consumer.assignment):
            await slow.poll(50)
        sent, got = 0, 0
        while got == 0:
            await send(cluster, topic, 80, each=20)
            sent += 80
            got = len(await slow.poll(100, max_records=1))
        # Nineteen more are in its hands, and nobody asks for them while they are its own.
        await group.until(lambda: len({r.offset for _, r in group.seen}) >= sent - 1)
        passed = {record.offset for _, record in group.seen}
        left: list[int] = []
        while not left:
            _, found = await asyncio.gather(send(cluster, topic, 40), slow.poll(200))
            left = [record.offset for record in found]
        assert not passed & set(left), "others have done those"


async def test_without_auto_commit_what_isn_t_committed_comes_again(
    broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(accept_range_fetch="true")
    async with group_on(broker, topic) as (group, cluster):
        await send(cluster, topic, 30)
        options = {"assignors": LEASING, "times": BRIEF, "enable_auto_commit": False}
        async with Consumer(
            cluster, group_id=topic, auto_offset_reset="earliest", **options
        ) as consumer:
            consumer.subscribe([topic])
            first: list[ConsumerRecord] = []
            async with asyncio.timeout(20):
                while len(first) < 10:
                    first += await consumer.poll(100, max_records=10 - len(first))
            await consumer.commit({(topic, 0): 6})
            ranges = await consumer.committed_ranges([(topic, 0)])
            assert ranges[topic, 0] == []
            assert await consumer.committed([(topic, 0)]) == {(topic, 0): 6}
        await group.start(Slow, assignors=LEASING, times=BRIEF)
        await group.until(lambda: {r.offset for _, r in group.seen} == set(range(6, 30)))
        await group.until_committed(30)


async def test_transactions_claim_what_was_leased_and_what_is_aborted_comes_again(
    broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(accept_range_fetch="true")
    options = {"assignors": LEASING, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        Cluster(broker.bootstrap) as cluster,
        Consumer(cluster, group_id=topic, **options) as consumer,
        TransactionalProducer(cluster, topic) as producer,
        asyncio.timeout(30),
    ):
        await send(cluster, topic, 30)
        consumer.subscribe([topic])

        async def take(count: int) -> list[int]:
            found: list[ConsumerRecord] = []
            while len(found) < count:
                found += await consumer.poll(100, max_records=count - len(found))
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction(None, consumer.group_metadata)
            return [record.offset for record in found]

        assert await take(10) == list(range(10))
        await producer.commit_transaction()
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): 10}
        assert await take(15) == list(range(10, 25))
        await producer.abort_transaction()
        consumer.rewind()
        assert await take(20) == list(range(10, 30))
        await producer.commit_transaction()
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): 30}


async def polled(consumer: Consumer) -> None:
    """Polls until that fails."""
    async with asyncio.timeout(20):
        while True:
            await consumer.poll(100)


async def test_where_it_isn_t_served_it_says_what_to_do(
    broker: Broker, new_topic: NewTopic
) -> None:
    closed, topic = new_topic(), new_topic(accept_range_fetch="true")
    async with (
        Cluster(broker.bootstrap) as cluster,
        Consumer(cluster, group_id=closed, assignors=LEASING) as consumer,
    ):
        consumer.subscribe([closed])
        with pytest.raises(KafkaError, match="kraftpy topic alter") as refused:
            await polled(consumer)
        assert refused.value.code is ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED
        with pytest.raises(ValueError, match="seek"):
            consumer.seek((closed, 0), 0)
        await serve(cluster, 0)
    try:
        async with (
            Cluster(broker.bootstrap) as cluster,
            Consumer(cluster, group_id=topic, assignors=LEASING) as consumer,
        ):
            consumer.subscribe([topic])
            with pytest.raises(KafkaError, match="raise-level") as refused:
                await polled(consumer)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    finally:
        async with Cluster(broker.bootstrap) as cluster:
            await serve(cluster, 2)


def test_it_is_the_only_assignor_of_a_group(broker: Broker) -> None:
    cluster = Cluster(broker.bootstrap)
    for options in ({"group_id": "g", "assignors": [*LEASING, "range"]}, {"assignors": LEASING}):
        with pytest.raises(ValueError, match="kraftpy-cooperative-fetch"):
            Consumer(cluster, **options)  # type: ignore[arg-type]
