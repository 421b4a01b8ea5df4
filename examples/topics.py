"""What both examples need of topics: to be there, and to be read as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.client import EARLIEST, LATEST, Admin, Cluster, Consumer, ErrorCode, KafkaError

COMPACT = {"cleanup.policy": "compact"}


async def ensure(cluster: Cluster, name: str, configs: Mapping[str, str] | None = None) -> None:
    """Makes a topic of one partition, unless it is there."""
    try:
        await Admin(cluster).create_topic(name, partitions=1, configs=configs)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def end_of(consumer: Consumer[bytes, bytes], topic: str) -> int:
    """The offset behind the last record."""
    return (await consumer.offsets_for_times({(topic, 0): LATEST}))[topic, 0]


async def table(cluster: Cluster, topic: str) -> dict[str, bytes]:
    """The last value of each key; what has none any more is left out.

    A compacted topic keeps these, and in time little else.
    """
    async with Consumer(cluster) as consumer:
        consumer.assign([(topic, 0)])
        await consumer.seek_to(EARLIEST)
        end = await end_of(consumer, topic)
        found: dict[str, bytes | None] = {}
        while await consumer.position((topic, 0)) < end:
            for record in await consumer.poll():
                found[(record.key or b"").decode()] = record.value
    return {key: value for key, value in found.items() if value is not None}


async def is_behind(consumer: Consumer[bytes, bytes], ends: Mapping[str, int]) -> bool:
    """Whether a member of a group has something to read below these ends, or no partitions yet."""
    if not consumer.assignment:
        return True
    return any([await consumer.position((topic, 0)) < end for topic, end in ends.items()])


async def ends_of(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """Where topics end now."""
    async with Consumer(cluster) as consumer:
        return {topic: await end_of(consumer, topic) for topic in topics}
