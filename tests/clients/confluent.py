"""confluent-kafka (librdkafka) as a Driver."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.clients.driver import TIMEOUT_S, Deadline, Message, Received, RefusedError


def _refused(error: KafkaError) -> RefusedError:
    return RefusedError(error.code(), error.str())


def _received(record: Any) -> Received:
    if record.error():
        raise _refused(record.error())
    headers = tuple((name, value) for name, value in record.headers() or ())
    return Received(
        record.value(),
        record.key(),
        headers,
        record.timestamp()[1],
        record.partition(),
        record.offset(),
    )


def _poll(consumer: Consumer, count: int) -> list[Received]:
    deadline, records = Deadline(f"{count} records"), []
    while len(records) < count:
        batch = consumer.consume(count - len(records), min(1.0, deadline.left()))
        records += [_received(record) for record in batch]
    return records


_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL)


def deliver_or_be_refused(config: Mapping[str, Any], topic: str) -> None:
    """Has one record written to a topic; KafkaException as soon as a login or TLS has failed.

    librdkafka itself would try again until the record is too old.
    """
    told: list[KafkaError] = []
    delivered: list[KafkaError | None] = []
    producer = Producer({**config, "error_cb": told.append})
    producer.produce(topic, b"value", on_delivery=lambda error, _: delivered.append(error))
    deadline = Deadline(f"a record in {topic}, or a login that fails")
    while not delivered:
        producer.poll(min(0.5, deadline.left()))
        refused = [each for each in told if each.code() in _NOT_LET_IN]
        if refused:
            producer.purge()
            raise KafkaException(refused[0])
    assert delivered == [None]


class ConfluentKafka:
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def consumer(self, **configs: Any) -> Consumer:
        defaults = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        return Consumer(defaults | {k.replace("_", "."): v for k, v in configs.items()})

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        max_size_bytes: int = 1_000_000,
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "message.max.bytes": max_size_bytes,
                "linger.ms": 20,
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )
        answers: dict[int, Any] = {}
        for position, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
                on_delivery=lambda error, sent, position=position: answers.update(
                    {position: error or (sent.offset() if sent.offset() is not None else -1)}
                ),
            )
        if left := producer.flush(TIMEOUT_S):
            raise TimeoutError(f"{left} of {len(messages)} records unanswered")
        for answer in answers.values():
            if isinstance(answer, KafkaError):
                raise _refused(answer)
        return [answers[position] for position in range(len(messages))]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return _poll(consumer, count)
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self.consumer()
        try:
            wanted = [TopicPartition(topic, partition, timestamp_ms)]
            (found,) = consumer.offsets_for_times(wanted, TIMEOUT_S)
        finally:
            consumer.close()
        if found.error:
            raise _refused(found.error)
        return None if found.offset == OFFSET_END else found.offset

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self.consumer()
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        except KafkaException as error:
            raise _refused(error.args[0]) from error
        finally:
            consumer.close()

    def group_read(self, topic: str, group: str, count: int) -> list[Received]:
        consumer = self.consumer(group_id=group, auto_offset_reset="earliest")
        try:
            consumer.subscribe([topic])
            records = _poll(consumer, count)
            consumer.commit(asynchronous=False)
            return records
        finally:
            consumer.close()

    def committed(self, topic: str, partition: int, group: str) -> int | None:
        consumer = self.consumer(group_id=group)
        try:
            (found,) = consumer.committed([TopicPartition(topic, partition)], TIMEOUT_S)
        finally:
            consumer.close()
        if found.error:
            raise _refused(found.error)
        return found.offset if found.offset >= 0 else None

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, num_partitions=partitions, config=dict(configs or {}))
        self._one(self._admin.create_topics([new], request_timeout=TIMEOUT_S))

    def delete_topic(self, topic: str) -> None:
        self._one(self._admin.delete_topics([topic], request_timeout=TIMEOUT_S))

    def partition_count(self, topic: str) -> int:
        # Unlike list_topics(topic), this call never creates what it asks for.
        topics = TopicCollection([topic])
        return len(self._one(self._admin.describe_topics(topics)).partitions)

    def grow_topic(self, topic: str, partitions: int) -> None:
        grown = NewPartitions(topic, partitions)
        self._one(self._admin.create_partitions([grown], request_timeout=TIMEOUT_S))

    def topic_configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._one(self._admin.describe_configs([resource], request_timeout=TIMEOUT_S))
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._one(self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S))

    @functools.cached_property  # futures die with the client that made them
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    @staticmethod
    def _one(futures: Mapping[Any, Future[Any]]) -> Any:
        (future,) = futures.values()
        try:
            return future.result(TIMEOUT_S)
        except KafkaException as error:
            raise _refused(error.args[0]) from error
