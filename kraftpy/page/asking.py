"""How the page asks: in pieces, and for the offsets of partitions wherever those are led."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import list_offsets_request
from kraftpy.page.model import Node, TopicPartition
from kraftpy.protocol.errors import KafkaError

PIECE = 200
"""Partitions or groups in one request."""
FAILURES = (ConnectionError, KafkaError)

T = TypeVar("T")


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as one request should have."""
    return (items[start : start + PIECE] for start in range(0, len(items), PIECE))


async def ask_offsets(
    client: Cluster, node: Node, names: Iterable[TopicPartition], when: int
) -> dict[TopicPartition, int]:
    """`EARLIEST` or `LATEST` (the high watermark), of those whose leader says it."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for name in names:
        topic = node.topics.get(name[0])
        if topic is not None and name[1] < len(topic.partitions):
            by_leader.setdefault(topic.partitions[name[1]].leader, []).append(name)
    answers = await asyncio.gather(
        *(
            _offsets_of(client, leader, names, when)
            for leader, names in by_leader.items()
            if leader in client.brokers
        )
    )
    return {name: offset for answer in answers for name, offset in answer.items()}


async def _offsets_of(
    client: Cluster, leader: int, names: Sequence[TopicPartition], when: int
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    try:
        for some in pieces(names):
            request = list_offsets_request(dict.fromkeys(some, when))
            response = await client.request(request, node_id=leader)
            for topic in response.topics:
                for each in topic.partitions:
                    if not each.error_code:
                        found[topic.name, each.partition_index] = each.offset
    except FAILURES:
        pass  # what this leader has not said by now isn't known
    return found
