"""Faults of membership: a broker goes for good and comes back, a new one comes and goes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

from kraftpy.client.cluster import Cluster as Connections
from kraftpy.client.cluster_admin import ClusterAdmin
from kraftpy.testing import Cluster
from kraftpy.testing.consistency.faults import FAULTS, Ground, LeftOut
from kraftpy.testing.consistency.faults.membership import put_in_order, reassign
from tests import warm
from tests.waiting import TIMEOUT_S, wait_until

TOPIC, PARTITIONS = "t", 3
VALUES = [str(number) for number in range(50)]


def kraftpy(cluster: Cluster, *args: str, stdin: str = "") -> list[str]:
    done = warm.run([*args, "-b", cluster.bootstrap], stdin.encode(), os.environ, TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def known(cluster: Cluster) -> tuple[set[int], set[int]]:
    """The brokers that are registered, and those that have replicas."""

    async def ask() -> tuple[set[int], set[int]]:
        async with Connections(cluster.bootstrap) as connections:
            admin = ClusterAdmin(connections, timeout_ms=10_000)
            partitions = (await admin.describe_partitions()).values()
            replicas = {node for each in partitions for node in each.replicas}
            return set((await admin.describe_cluster()).brokers), replicas

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as started:
        kraftpy(started, "topic", "create", TOPIC, "-p", str(PARTITIONS))
        kraftpy(started, "produce", TOPIC, stdin="\n".join(VALUES))
        yield started


def test_a_decommissioned_broker_has_nothing_and_gets_it_back(cluster: Cluster) -> None:
    act = FAULTS["decommission"].plan(Ground(cluster, {TOPIC: PARTITIONS}, random.Random(1)))
    (victim,) = act.targets
    said = act.begin()
    assert said is not None
    assert "stopped, unregistered" in said
    assert not cluster.nodes[victim].running
    assert known(cluster) == ({1, 2, 3} - {victim}, {1, 2, 3} - {victim})
    kraftpy(cluster, "produce", TOPIC, stdin="meanwhile")
    act.end()
    cluster.wait_healthy()
    assert known(cluster) == ({1, 2, 3}, {1, 2, 3})
    everything = kraftpy(cluster, "consume", TOPIC, "-o", ":end")
    assert sorted(everything) == sorted([*VALUES, "meanwhile"])


def test_a_broker_that_is_added_gets_replicas_and_leaves_none(cluster: Cluster) -> None:
    act = FAULTS["add-broker"].plan(Ground(cluster, {TOPIC: PARTITIONS}, random.Random(1)))
    said = act.begin()
    assert said is not None
    assert said.startswith("broker 4 gets replicas of ")
    assert not isinstance(said, LeftOut)
    assert known(cluster) == ({1, 2, 3, 4}, {1, 2, 3, 4})
    cluster.wait_healthy()
    home = cluster.nodes[4].dir
    act.end()
    assert (sorted(cluster.nodes), home.exists()) == ([1, 2, 3], False)
    cluster.wait_healthy()
    assert known(cluster) == ({1, 2, 3}, {1, 2, 3})
    assert set(kraftpy(cluster, "consume", TOPIC, "-o", ":end")) >= set(VALUES)
    assert cluster.add() == 5  # an id is never used twice
    cluster.remove(5)


def test_replicas_are_put_in_order_and_the_first_leads(cluster: Cluster) -> None:
    cluster.wait_healthy()
    first, *others = cluster.replicas_of(TOPIC, 1)
    order = (*others, first)
    assert put_in_order(cluster, {(TOPIC, 1): order})
    wait_until(lambda: cluster.replicas_of(TOPIC, 1) == order, "the order is as it was")
    wait_until(lambda: cluster.agreed_leader(TOPIC, 1) == order[0], "the first leads")
    cluster.wait_healthy()


def test_a_workload_without_topics_that_stay_has_those_moved_that_are_there(
    cluster: Cluster,
) -> None:
    cluster.wait_healthy()
    before = [cluster.replicas_of(TOPIC, index) for index in range(PARTITIONS)]
    assert reassign(cluster, {}, random.Random(3)).startswith("replicas of ")
    wait_until(
        lambda: [cluster.replicas_of(TOPIC, index) for index in range(PARTITIONS)] != before,
        "something has moved",
    )
    cluster.wait_healthy()
    with Cluster(2) as empty:
        assert isinstance(reassign(empty, {}, random.Random(3)), LeftOut)
        act = FAULTS["add-broker"].plan(Ground(empty, {}, random.Random(1)))
        assert isinstance(act.begin(), LeftOut)
        act.end()
