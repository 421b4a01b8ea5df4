"""A member with kafka-python."""

from __future__ import annotations

import time
from collections.abc import Iterable

import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.groups.members import Options

_ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


def run(options: Options) -> None:
    story = options.story
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","),
        group_id=options.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[_ASSIGNORS[options.protocol]],
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        reconnect_backoff_max_ms=200,
    )

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            generation = consumer._coordinator._generation
            partitions = (each.partition for each in assigned)
            story.assigned(partitions, generation.generation_id, generation.member_id)

        def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
            story.revoked(each.partition for each in revoked)

        def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
            story.lost(each.partition for each in lost)

    consumer.subscribe([options.topic], listener=Listener())
    while not options.leaving.is_set():
        started_at = time.monotonic()
        try:
            polled = consumer.poll(options.poll_s * 1000)
        except kafka.errors.KafkaError as error:
            story.note("failed", error=repr(error))
            continue
        ends = story.process((r.partition, r.offset) for some in polled.values() for r in some)
        if ends:
            wanted = {
                TopicPartition(options.topic, partition): OffsetAndMetadata(end, "", -1)
                for partition, end in ends.items()
            }
            with story.committing(ends, kafka.errors.KafkaError):
                consumer.commit(wanted)
        # A batch is what came within the time, not whatever there was at once.
        options.leaving.wait(max(0.0, options.poll_s - (time.monotonic() - started_at)))
    consumer.close()
