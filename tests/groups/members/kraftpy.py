"""A member with kraftpy's own client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.group import GroupTimes
from kraftpy.client.offsets import Partition
from kraftpy.protocol.errors import KafkaError
from tests.groups.members import Options


def run(options: Options) -> None:
    asyncio.run(_run(options))


async def _run(options: Options) -> None:
    story = options.story
    async with (
        Cluster(options.bootstrap) as cluster,
        Consumer(
            cluster,
            group_id=options.group,
            assignors=[options.protocol],
            times=GroupTimes(options.session_timeout_ms, options.heartbeat_interval_ms),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):

        class Listener(RebalanceListener):
            async def assigned(self, partitions: Sequence[Partition]) -> None:
                generation = consumer.generation
                indexes = (partition for _, partition in partitions)
                story.assigned(indexes, generation.id, generation.member_id)

            async def revoked(self, partitions: Sequence[Partition]) -> None:
                story.revoked(partition for _, partition in partitions)

            async def lost(self, partitions: Sequence[Partition]) -> None:
                story.lost(partition for _, partition in partitions)

        consumer.subscribe([options.topic], listener=Listener())
        while not options.leaving.is_set():
            started_at = time.monotonic()
            try:
                records = await consumer.poll(int(options.poll_s * 1000), max_records=10_000)
            except (ConnectionError, KafkaError) as error:
                story.note("failed", error=repr(error))
                continue
            ends = story.process((record.partition, record.offset) for record in records)
            if ends:
                wanted = {(options.topic, partition): end for partition, end in ends.items()}
                with story.committing(ends, ConnectionError, KafkaError):
                    await consumer.commit(wanted)
            await asyncio.sleep(max(0.0, options.poll_s - (time.monotonic() - started_at)))
