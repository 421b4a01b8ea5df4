"""A member with aiokafka.

Its listener runs beside the program, in the midst of processing: a lock has it wait until what was
handed out is committed, as its documentation advises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import TopicPartition

from tests.groups.members import Options


def run(options: Options) -> None:
    asyncio.run(_run(options))


async def _run(options: Options) -> None:
    story = options.story
    lock = asyncio.Lock()
    closing = asyncio.Event()
    assert options.protocol == "range"
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
    )

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            if closing.is_set():
                return  # it takes nothing any more
            coordinator = consumer._coordinator
            partitions = (each.partition for each in assigned)
            story.assigned(partitions, coordinator.generation, coordinator.member_id)

        async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
            async with lock:
                story.revoked(each.partition for each in revoked)

    consumer.subscribe([options.topic], listener=Listener())
    while True:
        try:
            await consumer.start()
            break
        except aiokafka.errors.KafkaConnectionError as error:
            story.note("failed", error=repr(error))
            await asyncio.sleep(options.poll_s)
    while not options.leaving.is_set():
        started_at = time.monotonic()
        try:
            polled = await consumer.getmany(timeout_ms=int(options.poll_s * 1000))
        except aiokafka.errors.KafkaError as error:
            story.note("failed", error=repr(error))
            continue
        async with lock:
            ends = story.process((r.partition, r.offset) for some in polled.values() for r in some)
            if ends:
                wanted = {TopicPartition(options.topic, each): end for each, end in ends.items()}
                with story.committing(ends, aiokafka.errors.KafkaError):
                    await consumer.commit(wanted)
        await asyncio.sleep(max(0.0, options.poll_s - (time.monotonic() - started_at)))
    # It leaves without a word to its listener, and others hear of it before `stop` is back.
    closing.set()
    story.revoked(each.partition for each in consumer.assignment())
    await consumer.stop()
