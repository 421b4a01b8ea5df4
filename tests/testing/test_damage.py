"""A replica whose disk has damaged it is noticed, kept aside, and fetched again from the others."""

from __future__ import annotations

import random

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from kraftpy.testing import Cluster, ClusterError
from kraftpy.testing.consistency.faults.storage import flip_bits
from kraftpy.testing.process import wait_until


def fill(cluster: Cluster) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for number in range(40):
        producer.produce("orders", f"{number:>500}".encode(), partition=0)
        assert not producer.flush(20)


def contents(cluster: Cluster, node: int) -> bytes:
    paths = sorted(cluster.nodes[node].log_dir.glob("orders-0/*.log"))
    return b"".join(path.read_bytes() for path in paths)


def test_a_damaged_replica_is_fetched_again() -> None:
    with Cluster(3, log_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        before = contents(cluster, victim)
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        assert contents(cluster, victim) != before
        wait_until(lambda: victim not in cluster.in_sync("orders"), "it stays in sync", 30.0)
        cluster.restart(victim)
        cluster.wait_healthy()
        assert contents(cluster, victim) == before
        (aside,) = cluster.nodes[victim].log_dir.glob("orders-*-damaged")
        assert str(aside) in cluster.nodes[victim].log_path.read_text()


def test_a_damaged_replica_that_is_back_before_it_is_missed() -> None:
    """It ends its former life, which is in sync and leads, before it gives up what that had."""
    late = {"broker_disconnect_grace_ms": 60_000, "broker_session_timeout_ms": 60_000}
    with Cluster(3, log_segment_bytes=4096, **late) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        before = contents(cluster, victim)
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        assert victim in cluster.in_sync("orders")
        cluster.restart(victim)
        cluster.wait_healthy()
        assert contents(cluster, victim) == before


def test_a_damaged_log_of_a_topic_that_was_deleted_meanwhile() -> None:
    with Cluster(3, log_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics(["orders"])["orders"].result(30)
        cluster.restart(victim)
        cluster.wait_healthy()
        (aside,) = cluster.nodes[victim].log_dir.glob("orders-*-damaged")
        assert str(aside) in cluster.nodes[victim].log_path.read_text()


def test_the_only_replica_is_never_given_up() -> None:
    with Cluster(1, links=False, log_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.kill(1)
        flip_bits(cluster.nodes[1].log_dir, random.Random(1))
        with pytest.raises(ClusterError, match="is damaged"):
            cluster.restart(1)
        assert len(list(cluster.nodes[1].log_dir.glob("orders-0/*.log"))) > 3
        assert not list(cluster.nodes[1].log_dir.glob("*-damaged"))
