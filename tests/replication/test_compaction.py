"""Replicas are compacted each for itself; whoever leads, readers see the newest of each key."""

from __future__ import annotations

from kraftpy.testing import Cluster
from tests.server.compacted import DEADLINE_S, create_compacted, is_clean, overwrite, replay
from tests.waiting import wait_until

from .support import leader_of


def test_replicas_that_are_compacted_by_themselves_lead_one_after_the_other() -> None:
    with Cluster(3, log_cleaner_backoff_ms=100) as cluster:
        create_compacted(cluster.bootstrap, replicas=3, min_insync_replicas="2")
        cluster.wait_healthy()

        def all_clean() -> bool:
            return all(is_clean(node.log_dir) for node in cluster.nodes.values() if node.running)

        overwrite(cluster.bootstrap, 0)
        wait_until(all_clean, "all is compacted", DEADLINE_S)
        follower = next(node for node in cluster.nodes if node != leader_of(cluster, "t"))
        cluster.kill(follower)
        newest = overwrite(cluster.bootstrap, 10)
        # What the follower lacks has gaps from now on.
        wait_until(all_clean, "all is compacted", DEADLINE_S)
        cluster.restart(follower)
        cluster.wait_healthy()
        assert replay(cluster.bootstrap)[0] == newest
        led = set()
        for number in range(3):
            victim = leader_of(cluster, "t")
            led.add(victim)
            cluster.kill(victim)
            assert replay(cluster.bootstrap)[0] == newest
            newest = overwrite(cluster.bootstrap, 20 + number, rounds=1)
            cluster.restart(victim)
            cluster.wait_healthy()
        assert len(led) > 1
        wait_until(all_clean, "all is compacted", DEADLINE_S)
        assert replay(cluster.bootstrap)[0] == newest
