"""A member of a consumer group in a process of its own, to be killed: notes all that it does.

    python -m tests.consistency.group_member CLIENT BOOTSTRAP GROUP TOPIC NOTES

Its session lasts SESSION_TIMEOUT_MS of the environment, 3 seconds without.

Each line of NOTES is one write(2), so that what was noted survives kill -9:

* `owns GENERATION PARTITION...`: it was given these (confluent-kafka doesn't tell the generation)
* `read PARTITION OFFSET`: noted before the commit that covers it
* `committed PARTITION OFFSET`: the broker acknowledged it
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import aiokafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

SESSION_TIMEOUT_MS = int(os.environ.get("SESSION_TIMEOUT_MS", "3000"))
HEARTBEAT_INTERVAL_MS = 200
POLL_MS = 100

Note = Callable[..., None]


def run_confluent(bootstrap: str, group: str, topic: str, note: Note) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while True:
        ends: dict[int, int] = {}
        for message in consumer.consume(100, POLL_MS / 1000):
            if message.error() is None:
                note("read", message.partition(), message.offset())
                ends[message.partition()] = message.offset() + 1
        if ends:
            wanted = [TopicPartition(topic, *end) for end in ends.items()]
            try:
                done = consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException:
                continue  # a rebalance came first: whoever owns the partition now goes on
            for place in done:
                if place.error is None:
                    note("committed", place.partition, place.offset)


def _options(bootstrap: str, group: str) -> dict[str, Any]:
    """Both pure Python clients take the same."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
    }


def _note_read(note: Note, records: Iterable[Any]) -> None:
    for record in records:
        note("read", record.partition, record.offset)


def run_kafka_python(bootstrap: str, group: str, topic: str, note: Note) -> None:
    consumer = kafka.KafkaConsumer(
        partition_assignment_strategy=[RangePartitionAssignor], **_options(bootstrap, group)
    )

    class Listener(kafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            generation = consumer._coordinator._generation.generation_id
            note("owns", generation, *(place.partition for place in assigned))

    consumer.subscribe([topic], listener=Listener())
    while True:
        try:
            polled = consumer.poll(POLL_MS)
            for records in polled.values():
                _note_read(note, records)
            ends = {place: records[-1].offset + 1 for place, records in polled.items()}
            if ends:
                consumer.commit({p: OffsetAndMetadata(end, "", -1) for p, end in ends.items()})
        except kafka.errors.KafkaError:
            continue  # as above, or the broker is down
        for place, end in ends.items():
            note("committed", place.partition, end)


async def run_aiokafka(bootstrap: str, group: str, topic: str, note: Note) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        partition_assignment_strategy=[AioRange], **_options(bootstrap, group)
    )

    class Listener(aiokafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            generation = consumer._coordinator.generation
            note("owns", generation, *(place.partition for place in assigned))

    consumer.subscribe([topic], listener=Listener())
    while True:
        try:
            await consumer.start()
            break
        except aiokafka.errors.KafkaConnectionError:
            await asyncio.sleep(POLL_MS / 1000)  # the broker is down
    while True:
        try:
            polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=100)
            for records in polled.values():
                _note_read(note, records)
            ends = {place: records[-1].offset + 1 for place, records in polled.items() if records}
            if ends:
                await consumer.commit(ends)
        except aiokafka.errors.KafkaError:
            continue  # as above, or the broker is down
        for place, end in ends.items():
            note("committed", place.partition, end)


def main(client: str, bootstrap: str, group: str, topic: str, path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    if client == "confluent-kafka":
        run_confluent(bootstrap, group, topic, note)
    elif client == "kafka-python":
        run_kafka_python(bootstrap, group, topic, note)
    else:
        asyncio.run(run_aiokafka(bootstrap, group, topic, note))


if __name__ == "__main__":
    main(*sys.argv[1:])
