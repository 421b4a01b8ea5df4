"""Replicas that move from broker to broker under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from kraftpy.client.cluster import Cluster as Connections
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.cluster import Cluster

_TIMEOUT_MS = 8_000
_FEWER = 0.5


def reassign(cluster: Cluster, topics: Mapping[str, int], rng: random.Random) -> str:
    """Give every partition of the topics a new list of replicas; in words, what came of it.

    The moves go on for a while.
    """
    return asyncio.run(_reassign(cluster, topics, rng))


async def _reassign(cluster: Cluster, topics: Mapping[str, int], rng: random.Random) -> str:
    nodes = sorted(cluster.nodes)
    moves = {}
    for topic, partitions in topics.items():
        for index in range(partitions):
            # One fewer than all, and then all again, so that data has to be copied.
            count = max(2, len(nodes) - 1) if rng.random() < _FEWER else len(nodes)
            moves[PartitionName(topic, index)] = rng.sample(nodes, count)
    if not moves:
        return "there is no topic that stays, so nothing is moved"
    try:
        async with Connections(cluster.bootstrap) as connections:
            admin = ClusterAdmin(connections, timeout_ms=_TIMEOUT_MS)
            await admin.alter_reassignments(moves)
            await admin.elect_leaders(PREFERRED_ELECTION)
    except (ConnectionError, KafkaError) as error:
        return f"replicas of {len(moves)} partitions to be moved: {error}"
    return f"replicas of {len(moves)} partitions moved, preferred leaders elected"
