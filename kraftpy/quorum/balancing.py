"""Which partitions their preferred leaders should lead again, and don't.

The rule is Kafka's: the preferred leader is the first replica, and a broker is out of balance when
more than `leader.imbalance.per.broker.percentage` of the partitions that prefer it are led by
others. Only partitions whose preferred leader could lead now are worth an election.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState


async def out_of_balance(metadata: MetadataState, percentage: int) -> list[tuple[str, int]]:
    """(topic, partition) of those whose preferred leader should take over.

    Gives way between topics, so that 100,000 partitions don't hold up a heartbeat.
    """
    preferring: dict[int, int] = {}
    led_by_others: dict[int, list[tuple[str, int]]] = {}
    for topic in list(metadata.topics.values()):
        for index, partition in topic.partitions.items():
            preferred = partition.replicas[0]
            preferring[preferred] = preferring.get(preferred, 0) + 1
            if partition.leader != preferred:
                broker = metadata.brokers.get(preferred)
                able = broker is not None and not broker.fenced and preferred in partition.isr
                found = led_by_others.setdefault(preferred, [])
                if able:
                    found.append((topic.name, index))
        await asyncio.sleep(0)
    return [
        partition
        for broker_id, partitions in sorted(led_by_others.items())
        if len(partitions) * 100 > percentage * preferring[broker_id]
        for partition in partitions
    ]
