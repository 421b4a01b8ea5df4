"""A leader whose disk takes no writes: others lead what it led, and it comes back by itself."""

from __future__ import annotations

import resource
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster
from tests.waiting import wait_until

from .support import log_bytes

LIMIT_BYTES = 60_000
LAG_MS = 120_000
"""Nobody falls out of sync by lagging in these tests."""


def limit_file_size(pid: int, size_bytes: int) -> None:
    """The kernel's own refusal, of one process: a write beyond fails, what is there can be read."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


class Sender:
    """A stock producer with acks=all, and how many of its records were confirmed."""

    def __init__(self, cluster: Cluster) -> None:
        config = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "acks": "all"}
        self._producer = confluent_kafka.Producer(config)
        self.problems: list[object] = []

    def send(self, topic: str, value: bytes, timeout_s: float = 20.0) -> bool:
        self.problems.clear()
        self._producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: self.problems.append(error)
        )
        return not self._producer.flush(timeout_s) and self.problems == [None]


def create(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])])[topic].result(30)


def test_a_leader_that_cant_write_hands_over_and_comes_back() -> None:
    with Cluster(3, replica_lag_time_max_ms=LAG_MS) as cluster:
        for topic in ("busy", "idle"):
            create(cluster, topic, [1, 2, 3])
        create(cluster, "alone", [1])
        sender = Sender(cluster)
        assert all(sender.send(topic, bytes(100)) for topic in ("idle", "alone"))
        assert sender.send("busy", bytes(LIMIT_BYTES))
        cluster.wait_healthy()
        assert cluster.leader_of("busy") == cluster.leader_of("idle") == 1
        limit_file_size(cluster.nodes[1].pid, LIMIT_BYTES)
        assert sender.send("busy", b"while it fails")
        wait_until(lambda: cluster.in_sync("busy") == {2, 3}, "it is out of sync", 30.0)
        # Nobody has written to it, but nobody could.
        wait_until(lambda: cluster.in_sync("idle") == {2, 3}, "it is out of sync", 30.0)
        assert cluster.leader_of("busy") != 1
        assert cluster.leader_of("idle") != 1
        assert sender.send("idle", b"while it fails")
        assert cluster.leader_of("alone") == 1  # what is there can be read
        assert "disk-failing" in cluster.nodes[1].log_path.read_text()
        limit_file_size(cluster.nodes[1].pid, resource.RLIM_INFINITY)
        cluster.wait_healthy()
        for topic in ("busy", "idle"):
            assert cluster.in_sync(topic) == {1, 2, 3}
            assert log_bytes(cluster, 1, topic) == log_bytes(cluster, 2, topic)
            assert b"while it fails" in log_bytes(cluster, 1, topic)
        assert sender.send("alone", b"again")
        assert not list(Path(cluster.nodes[1].log_dir).glob("*-damaged"))
        assert not list(Path(cluster.nodes[1].log_dir).glob("*.tmp"))


def test_a_follower_that_cant_write_leaves_at_once() -> None:
    with Cluster(3, replica_lag_time_max_ms=LAG_MS) as cluster:
        create(cluster, "busy", [1, 2, 3])
        sender = Sender(cluster)
        assert sender.send("busy", bytes(LIMIT_BYTES))
        cluster.wait_healthy()
        limit_file_size(cluster.nodes[3].pid, LIMIT_BYTES)
        assert sender.send("busy", b"while it fails")
        assert cluster.in_sync("busy") == {1, 2}
        limit_file_size(cluster.nodes[3].pid, resource.RLIM_INFINITY)
        cluster.wait_healthy()
        assert log_bytes(cluster, 3, "busy") == log_bytes(cluster, 1, "busy")
