"""kraftpy's own consumer against a real broker: alone, in groups, and in groups with others."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from kraftpy.client.assignors import Partition
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group import GroupTimes
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.offsets import EARLIEST, LATEST
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.clients.driver import Driver, Message, numbered
from tests.clients.readers import TIMEOUT_S, Reader, reading, until, values

NewTopic = Callable[..., str]


def shared(readers: Sequence[Reader], partitions: int) -> Callable[[], bool]:
    """Whether every partition is owned once, and as many by each as can be."""

    def check() -> bool:
        owned = [len(reader.owned) for reader in readers]
        union = set().union(*(reader.owned for reader in readers))
        return sum(owned) == len(union) == partitions and max(owned) - min(owned) <= 1

    return check


def test_commits_and_goes_on_where_it_stopped(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    reference.produce(topic, numbered(90, 3))

    async def run() -> None:
        async with reading(bootstrap, f"g-{topic}") as first:
            first.consumer.subscribe([topic])
            got = []
            async for record in first.consumer:
                got.append(record)
                if len(got) == 40:
                    break
            # The record that the loop ended with counts as processed.
            await first.consumer.commit()
        async with reading(bootstrap, f"g-{topic}", enable_auto_commit=False) as second:
            second.start([topic])
            await until(lambda: len(second.records) == 50, second)
            assert sorted([int(r.value) for r in got] + values(second)) == list(range(90))
            names = [(topic, p) for p in range(3)]
            assert sum((await second.consumer.committed(names)).values()) == 40
            await second.stop()
            done = second.consumer.commit_async()
            await done
            assert await second.consumer.committed(names) == dict.fromkeys(names, 30)

    asyncio.run(run())
    assert [reference.committed(topic, p, f"g-{topic}") for p in range(3)] == [30] * 3


def test_auto_commit_keeps_to_what_was_processed(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, numbered(20))

    async def run() -> None:
        async with reading(bootstrap, f"g-{topic}", auto_commit_interval_ms=50) as reader:
            consumer = reader.consumer
            consumer.subscribe([topic])
            async for record in consumer:
                await asyncio.sleep(0.02)
                committed = (await consumer.committed([(topic, 0)])).get((topic, 0), 0)
                assert committed <= record.offset, "committed before it was processed"
                if record.offset == 9:
                    break
        async with reading(bootstrap, f"g-{topic}") as reader:
            reader.consumer.subscribe([topic])
            async for record in reader.consumer:
                assert record.offset == 10
                break

    asyncio.run(run())


@pytest.mark.parametrize(
    "assignor", ["range", "roundrobin", "sticky", "cooperative-sticky", "kraftpy-broker-range"]
)
def test_members_come_and_go(
    bootstrap: str, reference: Driver, new_topic: NewTopic, assignor: str
) -> None:
    topic = new_topic(partitions=6)
    group = f"g-{topic}"
    reference.produce(topic, numbered(120, 6))

    async def run() -> None:
        options = {"assignors": [assignor], "auto_commit_interval_ms": 100}
        async with reading(bootstrap, group, **options) as a:
            a.start([topic])
            await until(shared([a], 6), a)
            async with (
                reading(bootstrap, group, **options) as b,
                reading(bootstrap, group, **options) as c,
            ):
                b.start([topic])
                c.start([topic])
                await until(shared([a, b, c], 6), a, b, c)
                await asyncio.to_thread(
                    reference.produce,
                    topic,
                    [Message(b"%d" % n, partition=n % 6) for n in range(120, 240)],
                )
                await until(lambda: set(values(a, b, c)) == set(range(240)), a, b, c)
                if assignor == "cooperative-sticky":
                    revoked = [p for kind, ps in a.notes.events if kind == "revoked" for p in ps]
                    assert len(revoked) == len(set(revoked)) == 4
                readers = (b, c)
                for reader in readers:
                    await reader.stop()
            await until(shared([a], 6), a)
            # Leaving members committed what they had: nothing comes again.
            assert values(a, b, c) == list(range(240))
            assert not [event for event in a.notes.events if event[0] == "lost"]

    asyncio.run(run())


class Confluent:
    """A confluent-kafka member that is polled in a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
                "auto.commit.interval.ms": 100,
            }
        )
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self.values: list[int] = []
        self.owned: set[Partition] = set()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(int(message.value()))
            self.owned = {(p.topic, p.partition) for p in self._consumer.assignment()}
        self._consumer.close()

    async def close(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join)
        self.owned = set()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_shares_a_group_with_confluent_kafka(
    bootstrap: str, reference: Driver, new_topic: NewTopic, strategy: str
) -> None:
    topic = new_topic(partitions=6)
    group = f"g-{topic}"
    reference.produce(topic, numbered(120, 6))

    def whole(*members: Any) -> Callable[[], bool]:
        def check() -> bool:
            owned = [len(member.owned) for member in members]
            union = set().union(*(member.owned for member in members))
            return sum(owned) == len(union) == 6 and max(owned) - min(owned) <= 1

        return check

    async def run() -> None:
        other = Confluent(bootstrap, group, topic, strategy)
        try:
            await until(whole(other))
            async with reading(bootstrap, group, assignors=[strategy]) as ours:
                ours.start([topic])
                # The other one leads.
                await until(whole(other, ours), ours)
                await other.close()
                await until(whole(ours), ours)
                other = Confluent(bootstrap, group, topic, strategy)
                # Now ours leads.
                await until(whole(other, ours), ours)
                new = [Message(b"%d" % n, partition=n % 6) for n in range(120, 240)]
                await asyncio.to_thread(reference.produce, topic, new)
                await until(lambda: {*values(ours), *other.values} >= set(range(120, 240)), ours)
                await ours.stop()
            await until(whole(other))
        finally:
            await other.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("roundrobin", RoundRobinPartitionAssignor), ("sticky", StickyPartitionAssignor)],
)
def test_shares_a_group_with_aiokafka(
    bootstrap: str, new_topic: NewTopic, name: str, theirs: Any
) -> None:
    topic = new_topic(partitions=6)
    group = f"g-{topic}"

    @asynccontextmanager
    async def other() -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[theirs],
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def split(ours: Reader, consumer: Any) -> Callable[[], bool]:
        def check() -> bool:
            others = {(p.topic, p.partition) for p in consumer.assignment()}
            return len(ours.owned) == len(others) == 3 and not ours.owned & others

        return check

    async def run() -> None:
        async with reading(bootstrap, group, assignors=[name]) as ours:
            ours.start([topic])
            await until(shared([ours], 6), ours)
            async with other() as consumer:
                await until(split(ours, consumer), ours)
            await until(shared([ours], 6), ours)
        async with other() as consumer, reading(bootstrap, group, assignors=[name]) as ours:
            ours.start([topic])
            await until(split(ours, consumer), ours)
            await ours.stop()

    asyncio.run(run())


def test_seek_pause_and_times(bootstrap: str, reference: Driver, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    reference.produce(topic, numbered(40, 2))
    zero, one = (topic, 0), (topic, 1)

    async def drain(consumer: Consumer, count: int) -> list[tuple[int, int]]:
        got: list[tuple[int, int]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(got) < count:
                for record in await consumer.poll(200, max_records=7):
                    got.append((record.partition, record.offset))
        assert await consumer.poll(200) == []
        return sorted(got)

    async def run() -> None:
        async with (
            Cluster(bootstrap) as cluster,
            Consumer(cluster, auto_offset_reset="earliest", value_deserializer=int) as consumer,
        ):
            consumer.assign([zero, one])
            everything = [(p, o) for p in range(2) for o in range(20)]
            assert await drain(consumer, 40) == everything
            consumer.pause([one])
            await consumer.seek_to(EARLIEST)
            assert await drain(consumer, 20) == everything[:20]
            consumer.resume([one])
            assert await drain(consumer, 20) == everything[20:]
            consumer.seek(zero, 15)
            assert await consumer.position(zero) == 15
            assert await drain(consumer, 5) == everything[15:20]
            await consumer.seek_to(0, [one])
            assert await drain(consumer, 20) == everything[20:]
            await consumer.seek_to(LATEST)
            assert await consumer.position(one) == 20
            assert await consumer.offsets_for_times({zero: 1 << 50}) == {zero: -1}
            with pytest.raises(ValueError, match="not assigned"):
                consumer.seek(("other", 0), 1)
            consumer.seek(zero, 3)
            first = (await consumer.poll(5000, max_records=1))[0]
            consumer.seek(zero, 1)  # while what follows 3 is fetched already
            second = (await consumer.poll(5000, max_records=1))[0]
            assert (first.offset, second.offset) == (3, 1)
            assert (first.value, second.value) == (6, 2)

    asyncio.run(run())


def test_a_pattern_takes_in_new_topics_and_partitions(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)

    async def run() -> None:
        async with reading(bootstrap, f"g-{topic}", metadata_max_age_ms=100) as reader:
            reader.start(re.compile(re.escape(topic) + "(-more)?"))
            await until(shared([reader], 2), reader)
            await asyncio.to_thread(reference.create_topic, f"{topic}-more", 3, {})
            await asyncio.to_thread(reference.create_topic, f"{topic}-other", 3, {})
            await until(shared([reader], 5), reader)
            assert reader.consumer.subscription == {topic, f"{topic}-more"}

    asyncio.run(run())


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=4)
    group = f"g-{topic}"

    async def run() -> None:
        async with reading(bootstrap, group, group_instance_id="stays") as stays:
            stays.start([topic])
            await until(shared([stays], 4), stays)
            async with reading(bootstrap, group, group_instance_id="restarts") as restarts:
                restarts.start([topic])
                await until(shared([stays, restarts], 4), stays, restarts)
                had, generation = restarts.owned, stays.consumer.generation
                await restarts.stop()
            async with reading(bootstrap, group, group_instance_id="restarts") as again:
                again.start([topic])
                await until(lambda: again.owned == had, stays, again)
                assert again.consumer.generation.id == generation.id
                assert stays.consumer.generation == generation
                async with reading(bootstrap, group, group_instance_id="restarts") as thief:
                    thief.start([topic])
                    with pytest.raises(KafkaError) as caught:
                        await until(lambda: False, again)
                    assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID
                    await thief.stop()
                await again.stop()

    asyncio.run(run())


def test_who_is_not_polled_loses_its_partitions_and_cannot_commit(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    group = f"g-{topic}"
    reference.produce(topic, numbered(20, 2))
    hasty = GroupTimes(6000, 50, max_poll_interval_ms=500)

    async def run() -> None:
        async with reading(bootstrap, group, times=hasty, enable_auto_commit=False) as slow:
            slow.consumer.subscribe([topic], listener=slow.notes)
            async with asyncio.timeout(TIMEOUT_S):
                while not await slow.consumer.poll(100):
                    pass
            async with reading(bootstrap, group) as other:
                other.start([topic])
                await until(lambda: len(other.owned) == 2, other)
                with pytest.raises(KafkaError) as caught:
                    await slow.consumer.commit()
                assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID
                assert not [kind for kind, _ in slow.notes.events if kind == "lost"]
                await until(lambda: len(other.records) == 20, other)
                await slow.consumer.poll(0)
                assert slow.notes.events[-1] == ("lost", [(topic, 0), (topic, 1)])
                slow.start([topic])
                await until(lambda: len(other.owned) == len(slow.owned) == 1, other, slow)
                await slow.stop()
                await other.stop()

    asyncio.run(run())


def test_a_transaction_of_who_has_been_replaced_is_refused_whoever_is_in_the_group(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    """KIP-447. Heartbeats tell it that it is no member any more, and it isn't polled meanwhile."""
    topic = new_topic(partitions=1)
    group = f"g-{topic}"
    reference.produce(topic, numbered(20, 1))
    hasty = GroupTimes(6000, 50, max_poll_interval_ms=500)

    async def refused(producer: TransactionalProducer, slow: Consumer) -> None:
        await producer.begin_transaction()
        with pytest.raises(KafkaError) as caught:
            await producer.send_offsets_to_transaction({(topic, 0): 5}, slow.group_metadata)
        assert caught.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        await producer.abort_transaction()
        with pytest.raises(KafkaError):
            await slow.commit({(topic, 0): 5})

    async def run() -> None:
        async with (
            reading(bootstrap, group, times=hasty, enable_auto_commit=False) as slow,
            Cluster(bootstrap) as cluster,
            TransactionalProducer(cluster, f"id-{topic}") as producer,
        ):
            slow.consumer.subscribe([topic])
            async with asyncio.timeout(TIMEOUT_S):
                while not await slow.consumer.poll(100):
                    pass
            async with reading(bootstrap, group) as other:
                other.start([topic])
                await until(lambda: len(other.records) == 20, other)
                await refused(producer, slow.consumer)
                await other.stop()
            await refused(producer, slow.consumer)
            assert (await GroupAdmin(cluster).committed(group))[topic, 0].offset == 20

    asyncio.run(run())


def test_what_cannot_be_deserialized_is_raised_when_it_is_next(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reference.produce(topic, [Message(value, partition=0) for value in (b"1", b"x", b"3")])
    zero = (topic, 0)

    async def run() -> None:
        async with (
            Cluster(bootstrap) as cluster,
            Consumer(cluster, auto_offset_reset="earliest", value_deserializer=int) as consumer,
        ):
            consumer.assign([zero])
            assert [record.value for record in await consumer.poll(5000)] == [1]
            for _ in range(2):
                with pytest.raises(ValueError, match="invalid literal"):
                    await consumer.poll(5000)
                assert await consumer.position(zero) == 1
            consumer.seek(zero, 2)
            assert [record.value for record in await consumer.poll(5000)] == [3]

    asyncio.run(run())
