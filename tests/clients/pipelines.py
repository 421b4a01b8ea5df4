"""Consume, transform, produce: what each client needs for it, made alike.

A pipeline reads a topic with a group. A step writes what it has read to another topic, and commits
how far it has come, in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer as OwnConsumer
from kraftpy.client.transactional_producer import TransactionalProducer
from tests.clients.driver import TIMEOUT_S
from tests.knowing import knowing

AT_A_TIME = 10
_POLL_S = 0.5

T = TypeVar("T")


class Pipeline(Protocol):
    """One process of it."""

    name: str

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None: ...
    def step(self, source: str, target: str, *, ends: bool = True) -> int:
        """How many records were taken on; without `ends` the transaction stays open."""

    def vanish(self) -> None:
        """Leaves the group, and what is open for others to abort."""


class _Confluent:
    protocol = ""

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": self.protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._subscribed = False

    def step(self, source: str, target: str, *, ends: bool = True) -> int:
        consumer, producer = self._consumer, self._producer
        if not self._subscribed:
            consumer.subscribe([source])
            self._subscribed = True
        records = consumer.consume(AT_A_TIME, _POLL_S)
        if not records:
            return 0
        producer.begin_transaction()
        for record in records:
            assert record.error() is None, record.error()
            producer.produce(target, record.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(),
            TIMEOUT_S,
        )
        producer.flush(TIMEOUT_S)
        if ends:
            producer.commit_transaction(TIMEOUT_S)
        return len(records)

    def vanish(self) -> None:
        self._producer.purge()
        self._consumer.close()


class ConfluentClassic(_Confluent):
    name = "confluent-kafka-classic"
    protocol = "classic"


class ConfluentConsumer(_Confluent):
    name = "confluent-kafka-consumer"
    protocol = "consumer"


class KafkaPython:
    name = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=AT_A_TIME,
        )
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        self._producer.init_transactions()

    def step(self, source: str, target: str, *, ends: bool = True) -> int:
        consumer, producer = self._consumer, self._producer
        if not consumer.subscription():
            knowing(consumer, source).subscribe([source])
        polled = consumer.poll(timeout_ms=int(_POLL_S * 1000))
        if not polled:
            return 0
        producer.begin_transaction()
        records = [record for some in polled.values() for record in some]
        sent = [producer.send(target, record.value) for record in records]
        for each in sent:
            each.get(TIMEOUT_S)
        producer.send_offsets_to_transaction(
            {place: OffsetAndMetadata(consumer.position(place), "", -1) for place in polled},
            consumer.group_metadata(),
        )
        if ends:
            producer.commit_transaction()
        return len(records)

    def vanish(self) -> None:
        self._producer.close(timeout=0)
        self._consumer.close(autocommit=False)


class _OnALoop:
    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, TIMEOUT_S))


class AioKafka(_OnALoop):
    name = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None:
        super().__init__()
        self._group = group

        async def start() -> tuple[AIOKafkaConsumer, AIOKafkaProducer]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id
            )
            await consumer.start()
            await producer.start()
            return consumer, producer

        self._consumer, self._producer = self._run(start())

    def step(self, source: str, target: str, *, ends: bool = True) -> int:
        return self._run(self._step(source, target, ends))

    async def _step(self, source: str, target: str, ends: bool) -> int:
        consumer, producer = self._consumer, self._producer
        if not consumer.subscription():
            consumer.subscribe([source])
        polled = await consumer.getmany(timeout_ms=int(_POLL_S * 1000), max_records=AT_A_TIME)
        if not polled:
            return 0
        await producer.begin_transaction()
        records = [record for some in polled.values() for record in some]
        for record in records:
            await producer.send_and_wait(target, record.value)
        offsets = {place: some[-1].offset + 1 for place, some in polled.items()}
        await producer.send_offsets_to_transaction(offsets, self._group)
        if ends:
            await producer.commit_transaction()
        return len(records)

    def vanish(self) -> None:
        async def stop() -> None:
            await self._consumer.stop()
            # Its stop would end what is open.
            await self._producer.client.close()
            self._producer._closed = True

        with self._runner:
            self._runner.run(stop())


class Own(_OnALoop):
    name = "kraftpy"

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None:
        super().__init__()

        async def start() -> tuple[Cluster, OwnConsumer, TransactionalProducer]:
            cluster = await Cluster(bootstrap).__aenter__()
            consumer = OwnConsumer(
                cluster,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                max_poll_records=AT_A_TIME,
            )
            producer = TransactionalProducer(cluster, transactional_id)
            # It takes the id over, and aborts what is open, before anything is read.
            await producer.begin_transaction()
            await producer.abort_transaction()
            return cluster, consumer, producer

        self._cluster, self._consumer, self._producer = self._run(start())

    def step(self, source: str, target: str, *, ends: bool = True) -> int:
        return self._run(self._step(source, target, ends))

    async def _step(self, source: str, target: str, ends: bool) -> int:
        consumer, producer = self._consumer, self._producer
        if not consumer.subscription:
            consumer.subscribe([source])
        records = await consumer.poll(int(_POLL_S * 1000))
        if not records:
            return 0
        await producer.begin_transaction()
        for record in records:
            await (await producer.send(target, record.value))
        offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata)
        if ends:
            await producer.commit_transaction()
        return len(records)

    def vanish(self) -> None:
        async def stop() -> None:
            await self._consumer.close()
            await self._cluster.close()

        with self._runner, contextlib.suppress(ConnectionError):
            self._runner.run(stop())


PIPELINES: Iterable[type[Pipeline]] = (
    ConfluentClassic,
    ConfluentConsumer,
    KafkaPython,
    AioKafka,
    Own,
)
