"""What faults happen to, and what they have in common."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from kraftpy.client.cluster import Cluster as ClientCluster
from kraftpy.client.cluster_admin import ClusterAdmin, PartitionName
from kraftpy.testing import Cluster
from tests.dashboards.load import TIMEOUT_S, Load
from tests.dashboards.prometheus import Prometheus


@dataclass(slots=True)
class Ground:
    """What faults happen to. `disk` is the file system that all data is on."""

    cluster: Cluster
    load: Load
    prometheus: Prometheus
    disk: Path
    switches: Path


class Fault(NamedTuple):
    """`during(ground)` is the context manager."""

    what: str
    alerts: tuple[str, ...]
    during: Callable[[Ground], contextlib.AbstractContextManager[None]]


def mend(cluster: Cluster) -> None:
    """For a fault that failed half-way: everybody is back."""
    for node in cluster.nodes.values():
        if node.paused:
            cluster.resume(node.id)
    down = [node.id for node in cluster.nodes.values() if not node.running]
    if down:
        cluster.restart(*down)
    cluster.wait_healthy(60)


def wait(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Until the condition holds; RuntimeError with what was waited for if it doesn't."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in {timeout_s:g} s: {what}")
        time.sleep(0.1)


def others(ground: Ground, *nodes: int | None) -> list[int]:
    return [node for node in ground.cluster.nodes if node not in nodes]


def until_it_holds(action: Callable[[], object]) -> None:
    """Again while a leader or coordinator is on its way."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            action()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def elsewhere(ground: Ground, topic: str, replicas: list[int]) -> None:
    """Moves partition 0 of a topic; on return that has begun."""

    async def move() -> None:
        async with ClientCluster(ground.cluster.bootstrap) as cluster:
            admin = ClusterAdmin(cluster)
            await admin.alter_reassignments({PartitionName(topic, 0): replicas})

    asyncio.run(move())


def placed(ground: Ground, name: str, replicas: list[int], **config: str) -> None:
    """A new topic of one partition with exactly these replicas."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    ground.load.create(NewTopic(name, 1, replica_assignment=[replicas], config=settings))
