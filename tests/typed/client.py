"""What a type checker knows of `kraftpy.client`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import assert_type

from kraftpy.client import (
    GROUP_RESOURCE,
    PREFERRED_ELECTION,
    BatchInfo,
    BlockingProducer,
    Cluster,
    Consumer,
    ConsumerRecord,
    Credential,
    KafkaError,
    OffsetAndMetadata,
    Partition,
    PartitionName,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    RecordStream,
    SecurityAdmin,
    ShareConsumer,
    ShareRecord,
    TopicFilter,
    TransactionAdmin,
    TransactionalProducer,
    list_offsets,
)


@dataclass
class Order:
    """A value of a program."""

    drink: str


def to_bytes(order: Order) -> bytes:
    """A serializer."""
    return order.drink.encode()


def from_bytes(data: bytes) -> Order:
    """A deserializer."""
    return Order(data.decode())


async def plain(cluster: Cluster) -> None:
    """Without serializers keys and values are bytes, or None."""
    async with Producer(cluster, compression="zstd", linger_ms=10) as producer:
        assert_type(producer, Producer[bytes, bytes])
        written = await producer.send_and_wait(
            "t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)]
        )
        assert_type(written, RecordMetadata)
        await producer.send("t", None, key=b"k")
        await producer.send("t", "v")  # type: ignore[arg-type]
        await producer.send("t", b"v", key="k")  # type: ignore[arg-type]
        await producer.send("t", b"v", headers=[("h", "1")])  # type: ignore[list-item]
        await producer.send("t", b"v", partition="1")  # type: ignore[arg-type]
        await producer.send_and_wait("t", 1)  # type: ignore[arg-type]
    Producer(cluster, linger="10")  # type: ignore[call-overload]
    Producer(cluster, linger_ms="10")  # type: ignore[call-overload]


async def with_serializers(cluster: Cluster) -> None:
    """With them they are what these take."""
    both = Producer(cluster, key_serializer=str.encode, value_serializer=to_bytes)
    assert_type(both, Producer[str, Order])
    await both.send("t", Order("tea"), key="table 4")
    await both.send("t", b"tea", key="table 4")  # type: ignore[arg-type]
    await both.send("t", Order("tea"), key=b"table 4")  # type: ignore[arg-type]
    assert_type(Producer(cluster, value_serializer=to_bytes), Producer[bytes, Order])
    Producer(cluster, value_serializer=from_bytes)  # type: ignore[arg-type]
    transactional = TransactionalProducer(cluster, "billing", key_serializer=str.encode)
    async with transactional.transaction() as inside:
        assert_type(inside, TransactionalProducer[str, bytes])
        await inside.send("t", Order("tea"))  # type: ignore[arg-type]


class Tracing(ProducerInterceptor[str, Order]):
    """An interceptor of a program."""

    def on_enqueue(self, record: ProducerRecord[str, Order]) -> ProducerRecord[str, Order]:
        assert_type(record.value, Order | None)
        return record

    def on_batch(self, batch: int) -> None:  # type: ignore[override]
        """Has to take what it's told."""

    def on_done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
        assert_type(batch.records_count, int)


async def together(cluster: Cluster) -> None:
    """Many records at once are of the producer's types."""
    producer = Producer(cluster, value_serializer=to_bytes, interceptors=[Tracing()])
    found = await producer.send_many([ProducerRecord("t", Order("tea"), key=b"table 4")])
    assert_type(found, list[RecordMetadata])
    await producer.send_many([ProducerRecord("t", b"tea")])  # type: ignore[arg-type]
    Producer(cluster, interceptors=[print])  # type: ignore[list-item]


def blocking() -> None:
    """Without asyncio it's the same."""
    with BlockingProducer("127.0.0.1:9092", value_serializer=to_bytes, acks=1) as producer:
        assert_type(producer, BlockingProducer[bytes, Order])
        assert_type(producer.send("t", Order("tea"), key=b"k"), RecordMetadata)
        producer.send("t", b"tea")  # type: ignore[arg-type]
        producer.send_many([ProducerRecord("t", Order("tea"))])
        producer.send_many([ProducerRecord("t", "tea")])  # type: ignore[arg-type]
    BlockingProducer("127.0.0.1:9092", ack=1)  # type: ignore[call-overload]


async def consuming(cluster: Cluster) -> AsyncIterator[str]:
    """Records have what the deserializers give."""
    async with Consumer(cluster, group_id="g", value_deserializer=from_bytes) as consumer:
        assert_type(consumer, Consumer[bytes, Order])
        consumer.subscribe(TopicFilter(include="t.*", exclude=re.compile("test")))
        consumer.subscribe(["t"])
        async for record in consumer:
            assert_type(record, ConsumerRecord[bytes, Order])
            assert_type(record.value, Order | None)
            if record.value is not None:
                yield record.value.drink
        await consumer.commit({("t", 0): 5, ("t", 1): OffsetAndMetadata(5, "why")})
        await consumer.commit({("t", 0): "5"})  # type: ignore[dict-item]
    streaming = Consumer(cluster, group_id="g", value_deserializer=from_bytes)
    assert_type(streaming.streams({"t": 2}), dict[str, list[RecordStream[bytes, Order]]])
    (stream,) = streaming.streams(TopicFilter(exclude="t"), 1)
    assert_type(await anext(stream), ConsumerRecord[bytes, Order])
    streaming.streams(["t"])  # type: ignore[call-overload]
    for plain_record in await Consumer(cluster).poll():
        yield plain_record.value  # type: ignore[misc]
    Consumer(cluster, groupid="g")  # type: ignore[call-overload]


async def sharing(cluster: Cluster) -> AsyncIterator[str]:
    """The same of records that are leased one by one."""
    async with ShareConsumer(cluster, group_id="g", value_deserializer=from_bytes) as consumer:
        assert_type(consumer, ShareConsumer[bytes, Order])
        consumer.subscribe(["t"])
        async for record in consumer:
            assert_type(record, ShareRecord[bytes, Order])
            assert_type(record.delivery_count, int)
            if record.value is not None:
                yield record.value.drink
            consumer.release(record)
        assert_type(await consumer.commit(), dict[Partition, KafkaError | ConnectionError | None])
    ShareConsumer(cluster)  # type: ignore[call-overload]
    ShareConsumer(cluster, group_id="g", auto_offset_reset="earliest")  # type: ignore[call-overload]


async def administration(cluster: Cluster) -> None:
    """What is administered is a partition's name, a user, a transactional id."""
    security = SecurityAdmin(cluster, timeout_ms=10_000)
    await security.alter_configs("g", values={"k": "v"}, resource_type=GROUP_RESOURCE)
    await security.alter_configs("g", values={"k": 1})  # type: ignore[dict-item]
    await security.upsert_credentials("bob", [Credential("SCRAM-SHA-512", 4096, b"s", b"p")])
    await security.upsert_credentials("bob", ["password"])  # type: ignore[list-item]
    assert_type(await security.describe_users(), dict[str, dict[str, int]])
    name = PartitionName("t", 0)
    elected = await security.elect_leaders(PREFERRED_ELECTION, [name])
    assert_type(elected, dict[PartitionName, KafkaError | None])
    await security.alter_reassignments({name: [1, 2]})
    await security.alter_reassignments({name: "1,2"})  # type: ignore[dict-item]
    transactions = TransactionAdmin(cluster)
    assert_type(await transactions.longest_ms(), int)
    await transactions.hanging()  # type: ignore[call-arg]
    assert_type(await list_offsets(cluster, {("t", 0): 5}), dict[Partition, int])
