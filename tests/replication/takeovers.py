"""Ways for a partition of a coordinator's topic to get another leader, while clients go on.

`goes_on` waits until they have, with the coordinator that there is then.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.testing import Cluster
from tests.waiting import wait_until

from .support import leader_of
from .test_moving import reassign


def kill_leader(cluster: Cluster, topic: str, goes_on: Callable[[], None]) -> None:
    victim = leader_of(cluster, topic, 0)
    cluster.kill(victim)
    wait_until(lambda: leader_of(cluster, topic, 0) != victim, "another one leads")
    goes_on()
    cluster.restart(victim)
    cluster.wait_healthy()


def move(cluster: Cluster, topic: str, goes_on: Callable[[], None]) -> None:
    """Takes the replica away from the leader, and brings it back."""
    old = leader_of(cluster, topic, 0)
    others = [node for node in cluster.nodes if node != old]
    reassign(cluster, topic, others)
    wait_until(lambda: leader_of(cluster, topic, 0) in others, "another one leads")
    goes_on()
    reassign(cluster, topic, [old, *others])
    cluster.wait_healthy()


def stop_leader(cluster: Cluster, topic: str, index: int, goes_on: Callable[[], None]) -> None:
    victim = leader_of(cluster, topic, index)
    cluster.stop(victim)
    goes_on()
    cluster.restart(victim)
    cluster.wait_healthy()


def kill_all(cluster: Cluster) -> None:
    for node in list(cluster.nodes):
        cluster.kill(node)
    cluster.restart(*cluster.nodes)
    cluster.wait_healthy()
