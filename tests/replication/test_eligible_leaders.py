"""KIP-966 on real processes: who may lead after kills, and a cluster that comes back by itself."""

from __future__ import annotations

import asyncio

from kraftpy.client.cluster import Cluster as Connected
from kraftpy.client.cluster_admin import ClusterAdmin, ReplicatedPartition
from kraftpy.testing import Cluster
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import Writer, assert_replicas_identical, leader_of, read_all


def describe(bootstrap: str, topic: str) -> ReplicatedPartition:
    """Partition 0 of a topic with its ISR and ELR, as a broker knows it."""

    async def ask() -> ReplicatedPartition:
        async with Connected(bootstrap) as cluster:
            (partition,) = (await ClusterAdmin(cluster).describe_partitions([topic])).values()
            return partition

    return asyncio.run(ask())


def test_who_left_an_isr_that_is_too_small_is_eligible(new_topic: NewTopicMaker) -> None:
    """What the brokers' files say on min.insync.replicas decides it."""
    with Cluster(3, min_insync_replicas=3) as cluster:
        topic, lax = new_topic(cluster), new_topic(cluster, min_insync_replicas=2)
        leader = leader_of(cluster, topic)
        bootstrap = cluster.nodes[leader].bootstrap
        follower = next(node for node in cluster.nodes if node != leader)
        cluster.kill(follower)
        wait_until(
            lambda: describe(bootstrap, topic).elr == (follower,), "the follower is eligible"
        )
        assert follower not in describe(bootstrap, topic).isr
        assert follower not in describe(bootstrap, lax).isr
        assert describe(bootstrap, lax).elr == (), "two in sync are enough there"
        cluster.restart(follower)
        cluster.wait_healthy()
        described = describe(bootstrap, topic)
        assert (sorted(described.isr), described.elr) == ([1, 2, 3], ())


def test_a_cluster_whose_brokers_were_all_killed_comes_back(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic, strict = new_topic(three), new_topic(three, min_insync_replicas=3)
    writers = [Writer(three, name) for name in (topic, strict)]
    for writer in writers:
        writer.send(500)
        writer.wait()
    for node in three.nodes:
        three.kill(node)
    three.restart(*three.nodes)
    three.wait_healthy()
    for writer in writers:
        writer.send(100)
        writer.wait()
        assert read_all(three.bootstrap, writer.topic) == [b"%08d" % each for each in range(600)]
        assert_replicas_identical(three, writer.topic)
