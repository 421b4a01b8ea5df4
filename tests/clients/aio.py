"""aiokafka as a Driver: each call runs a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError, UnknownTopicOrPartitionError, for_code

from tests.clients.driver import TIMEOUT_S, Deadline, Message, Received, RefusedError

T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except BrokerResponseError as error:
        raise RefusedError(error.errno, str(error)) from error


def _check(code: int, message: str | None) -> None:
    if code:
        raise for_code(code)(message)


async def _poll(consumer: AIOKafkaConsumer, count: int) -> list[Received]:
    deadline, records = Deadline(f"{count} records"), []
    while len(records) < count:
        timeout_ms = int(min(1.0, deadline.left()) * 1000)
        batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=count - len(records))
        for batch in batches.values():
            records += [
                Received(r.value, r.key, tuple(r.headers), r.timestamp, r.partition, r.offset)
                for r in batch
            ]
    return records


class AioKafka:
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @contextlib.asynccontextmanager
    async def consumer(self, **configs: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset=configs.pop("auto_offset_reset", "none"),
            fetch_max_wait_ms=50,
            **configs,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

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
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_request_size=max_size_bytes,
                linger_ms=20,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        message.value,
                        message.key,
                        message.partition,
                        message.timestamp_ms,
                        list(message.headers),
                    )
                    for message in messages
                ]
                answers = await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)
            finally:
                await producer.stop()
            return [-1 if answer is None else answer.offset for answer in answers]

        return _run(work())

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        async def work() -> list[Received]:
            async with self.consumer() as consumer:
                place = TopicPartition(topic, partition)
                consumer.assign([place])
                consumer.seek(place, offset)
                return await _poll(consumer, count)

        return _run(work())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        async def work() -> int | None:
            place = TopicPartition(topic, partition)
            async with self.consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return found.offset if found else None

        return _run(work())

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        async def work() -> tuple[int, int]:
            place = TopicPartition(topic, partition)
            async with self.consumer() as consumer:
                start = (await consumer.beginning_offsets([place]))[place]
                return start, (await consumer.end_offsets([place]))[place]

        return _run(work())

    def group_read(self, topic: str, group: str, count: int) -> list[Received]:
        async def work() -> list[Received]:
            options = {"group_id": group, "auto_offset_reset": "earliest"}
            async with self.consumer(**options) as consumer:
                consumer.subscribe([topic])
                records = await _poll(consumer, count)
                await consumer.commit()
                return records

        return _run(work())

    def committed(self, topic: str, partition: int, group: str) -> int | None:
        async def work() -> int | None:
            async with self.consumer(group_id=group) as consumer:
                return await consumer.committed(TopicPartition(topic, partition))

        return _run(work())

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        async def work() -> None:
            new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
            async with self._admin() as admin:
                answer = await admin.create_topics([new])
            for _, code, message in answer.topic_errors:
                _check(code, message)

        _run(work())

    def delete_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                answer = await admin.delete_topics([topic])
            for _, code in answer.topic_error_codes:
                _check(code, None)

        _run(work())

    def partition_count(self, topic: str) -> int:
        async def work() -> int:
            async with self._admin() as admin:
                # Asking for one topic by name would create it.
                topics = {entry["topic"]: entry for entry in await admin.describe_topics()}
            if topic not in topics:
                raise UnknownTopicOrPartitionError(topic)
            return len(topics[topic]["partitions"])

        return _run(work())

    def grow_topic(self, topic: str, partitions: int) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                await admin.create_partitions({topic: NewPartitions(partitions)})

        _run(work())

    def topic_configs(self, topic: str) -> dict[str, str]:
        async def work() -> dict[str, str]:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            async with self._admin() as admin:
                (answer,) = await admin.describe_configs([resource])
            ((code, message, _, _, entries),) = answer.resources
            _check(code, message)
            return {entry[0]: entry[1] for entry in entries}

        return _run(work())

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        async def work() -> None:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
            async with self._admin() as admin:
                (answer,) = await admin.alter_configs([resource])
            for code, message, *_ in answer.resources:
                _check(code, message)

        _run(work())

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()
