"""kafka-python as a Driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions
from kafka.errors import BrokerResponseError, for_code

from tests.clients.driver import TIMEOUT_S, Deadline, Message, Received, RefusedError
from tests.knowing import knowing


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BrokerResponseError as error:
        raise RefusedError(error.errno, str(error)) from error


def _received(record: Any) -> Received:
    return Received(
        record.value,
        record.key,
        tuple(record.headers),
        record.timestamp,
        record.partition,
        record.offset,
    )


def _poll(consumer: KafkaConsumer, count: int) -> list[Received]:
    deadline, records = Deadline(f"{count} records"), []
    while len(records) < count:
        timeout_ms = int(min(1.0, deadline.left()) * 1000)
        for batch in consumer.poll(timeout_ms, max_records=count - len(records)).values():
            records += [_received(record) for record in batch]
    return records


class KafkaPython:
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @contextlib.contextmanager
    def consumer(self, **configs: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset=configs.pop("auto_offset_reset", "none"),
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=1 << 20,
            **configs,
        )
        with _refusals(), contextlib.closing(consumer):
            yield consumer

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
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=max_size_bytes,
            delivery_timeout_ms=int(TIMEOUT_S * 1000),
            request_timeout_ms=int(TIMEOUT_S * 500),
            linger_ms=20,
        )
        with _refusals(), contextlib.closing(producer):
            futures = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    message.partition,
                    message.timestamp_ms,
                )
                for message in messages
            ]
            return [future.get(TIMEOUT_S).offset for future in futures]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self.consumer() as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return _poll(consumer, count)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return found.offset if found else None

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            start = consumer.beginning_offsets([place])[place]
            return start, consumer.end_offsets([place])[place]

    def group_read(self, topic: str, group: str, count: int) -> list[Received]:
        with self.consumer(group_id=group, auto_offset_reset="earliest") as consumer:
            knowing(consumer, topic).subscribe([topic])
            records = _poll(consumer, count)
            consumer.commit()
            return records

    def committed(self, topic: str, partition: int, group: str) -> int | None:
        with self.consumer(group_id=group) as consumer:
            return consumer.committed(TopicPartition(topic, partition))

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = {"num_partitions": partitions, "configs": dict(configs or {})}
        with self._admin() as admin:
            admin.create_topics({topic: new})

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def partition_count(self, topic: str) -> int:
        with self._admin() as admin:
            (described,) = admin.describe_topics([topic])
            if described["error_code"]:
                raise for_code(described["error_code"])
            return len(described["partitions"])

    def grow_topic(self, topic: str, partitions: int) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: NewPartitions(partitions)})

    def topic_configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        with self._admin() as admin:
            described = admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        with self._admin() as admin:
            answer = admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if answer != "OK":  # this client hands a refusal back as text: "[Error 40] ..."
            raise RefusedError(int(answer.split("]")[0].removeprefix("[Error ")), answer)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        with _refusals(), contextlib.closing(admin):
            yield admin
