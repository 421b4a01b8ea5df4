"""A member with kafka-python.

kafka-python 3.0 keeps its positions over a rebalance for partitions that it gets again, also when
others had them in generations that it missed: it goes on where it was and commits that, so offsets
go back, whatever the broker does. So a member that missed a generation seeks to what is committed.
"""

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

    last = (-1, "")  # generation and member id
    missed = False

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            nonlocal last, missed
            generation = consumer._coordinator._generation
            missed |= last != (generation.generation_id - 1, generation.member_id)
            last = (generation.generation_id, generation.member_id)
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
            if missed:
                polled = {}
                _seek_to_committed(consumer)
                missed = False
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


def _seek_to_committed(consumer: kafka.KafkaConsumer) -> None:
    for place in consumer.assignment():
        offset = consumer.committed(place)
        if offset is None:
            consumer.seek_to_beginning(place)
        else:
            consumer.seek(place, offset)
