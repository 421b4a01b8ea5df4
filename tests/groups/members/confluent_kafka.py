"""A member with confluent-kafka (librdkafka), in both protocols."""

from __future__ import annotations

import struct
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.groups.members import Options

_BATCH_MAX = 10_000
# How librdkafka writes down ConsumerGroupMetadata: this, then the generation in native order.
_METADATA_MAGIC = b"CGMDv2:"


def run(options: Options) -> None:
    story = options.story
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 5000,
        "log_level": 3,
    }
    if options.protocol == "consumer":
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {
            "partition.assignment.strategy": options.protocol,
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": options.heartbeat_interval_ms,
        }
    consumer = Consumer(settings)

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        epoch = _generation(consumer)
        story.assigned((each.partition for each in partitions), epoch, consumer.memberid() or "")

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        story.revoked(each.partition for each in partitions)

    def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        story.lost(each.partition for each in partitions)

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    while not options.leaving.is_set():
        messages = consumer.consume(_BATCH_MAX, options.poll_s)
        for message in messages:
            if message.error() is not None:
                story.note("failed", error=str(message.error()))
        good = [message for message in messages if message.error() is None]
        ends = story.process((message.partition(), message.offset()) for message in good)
        if ends:
            wanted = [TopicPartition(options.topic, *end) for end in ends.items()]
            with story.committing(ends, KafkaException):
                for place in consumer.commit(offsets=wanted, asynchronous=False):
                    if place.error is not None:
                        raise KafkaException(place.error)
    consumer.close()


def _generation(consumer: Consumer) -> int:
    metadata = bytes(consumer.consumer_group_metadata())
    assert metadata.startswith(_METADATA_MAGIC), metadata
    (generation,) = struct.unpack_from("=i", metadata, len(_METADATA_MAGIC))
    return int(generation)
