"""Offsets of partitions, by position or time.

Nothing of records is imported: what only asks how far logs go starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.client.cluster import Cluster, Retry, check
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from kraftpy.protocol.errors import ErrorCode, KafkaError

__all__ = [
    "EARLIEST",
    "LATEST",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Offset",
    "OffsetAndMetadata",
    "Partition",
    "by_topic",
    "list_offsets",
    "list_offsets_request",
    "partition_missing",
    "with_metadata",
]

Partition = tuple[str, int]
"""A topic and a partition number."""


class OffsetAndMetadata(NamedTuple):
    """An offset to commit with a text that is kept beside it, or as it was committed.

    `leader_epoch` is that of the last record read, -1 if it isn't known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


Offset = int | OffsetAndMetadata
"""What is to be committed of a partition: an offset alone has no text."""


def with_metadata(offset: Offset) -> OffsetAndMetadata:
    """The same in its long form."""
    return OffsetAndMetadata(offset) if isinstance(offset, int) else offset


LATEST = -1
EARLIEST = -2


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """The numbers of each topic's partitions, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[Partition, int],
    *,
    timeout_ms: int | None = None,
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, int]:
    """The first offset at or after a timestamp (ms), for each partition.

    `EARLIEST` and `LATEST` stand for the log's start and its high watermark (with READ_COMMITTED
    its last stable offset). The answer -1 means that no record is that young.
    """
    found: dict[Partition, int] = {}
    retry = Retry(timeout_ms or cluster.request_timeout_ms)
    while True:
        missing = {name: when for name, when in timestamps.items() if name not in found}
        if not missing:
            return found
        try:
            for topic in {topic for topic, _ in missing}:
                await cluster.topic(topic)
            by_leader: dict[int, dict[Partition, int]] = {}
            for name, when in missing.items():
                by_leader.setdefault(cluster.leader(*name), {})[name] = when
            for leader, wanted in by_leader.items():
                found.update(await _list_offsets_of(cluster, leader, wanted, isolation))
        except (ConnectionError, KafkaError) as error:
            if partition_missing(cluster, missing, error):
                raise
            await retry.wait(error)
            for topic, _ in missing:
                cluster.topics.pop(topic, None)


def partition_missing(cluster: Cluster, names: Iterable[Partition], error: Exception) -> bool:
    """Whether the metadata says that a topic or partition is not there: no reason to wait."""
    if not isinstance(error, KafkaError) or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    return any(
        topic not in cluster.topics or partition not in cluster.topics[topic].partitions
        for topic, partition in names
    )


def list_offsets_request(
    timestamps: Mapping[Partition, int], isolation: int = READ_UNCOMMITTED
) -> messages.ListOffsetsRequest:
    """What a leader is asked for the offsets of timestamps (see `list_offsets`)."""
    kinds = messages.ListOffsetsRequest
    topics: dict[str, list[messages.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for (topic, partition), when in timestamps.items():
        topics.setdefault(topic, []).append(
            kinds.ListOffsetsPartition(partition_index=partition, timestamp=when)
        )
    return kinds(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            kinds.ListOffsetsTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


async def _list_offsets_of(
    cluster: Cluster, leader: int, wanted: Mapping[Partition, int], isolation: int
) -> dict[Partition, int]:
    response = await cluster.request(list_offsets_request(wanted, isolation), node_id=leader)
    offsets = {}
    for topic in response.topics:
        for partition in topic.partitions:
            check(partition.error_code)
            offsets[topic.name, partition.partition_index] = partition.offset
    return offsets
