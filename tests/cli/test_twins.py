"""`kraftpy cluster` moves the log of claims with the offsets, whose twin it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.testing import Cluster
from tests.replication.support import connect, leader_of, log_bytes
from tests.replication.test_moving import set_broker_configs, set_topic_configs
from tests.server.test_claims import TWIN, Claimer
from tests.waiting import wait_until

from .commands import running
from .test_cluster import Commands, fill, plan_file

OFFSETS = "__consumer_offsets"
BOTH = [OFFSETS, TWIN]


@pytest.fixture
def cluster(kraftpy_cluster: Callable[..., Cluster], tmp_path: Path) -> Cluster:
    """Claims that are at brokers 4, 1 and 2."""
    started = kraftpy_cluster(4, links=False, offsets_topic_num_partitions=1)
    started.wait_healthy()
    with connect(started, 1) as wire:
        Claimer(wire, "g")
    run = Commands(started.bootstrap)
    run("reassign", plan_file(tmp_path / "plan", {(OFFSETS, 0): [4, 1, 2]}), "--watch")
    with connect(started, leader_of(started, OFFSETS)) as wire:
        claimer = Claimer(wire, "g")
        run.create("orders", "-r", "1")
        wait_until(lambda: not claimer.commit("orders", 0), "the coordinator")
        claimer.claim_soon("orders", [(2, 3)])
    started.wait_healthy()
    return started


def test_both_are_moved_before_the_broker_is_free(cluster: Cluster, tmp_path: Path) -> None:
    run = Commands(cluster.bootstrap)
    # Broker 3 has had more than it may have, and gets no claims for a day.
    run("reassign", plan_file(tmp_path / "plan", {("orders", 0): [1]}), "--watch")
    fill(cluster.bootstrap, "orders", 1, 100_000)
    for topic in ("orders", TWIN):
        set_topic_configs(cluster, topic, follower_replication_throttled_replicas="*")
    set_broker_configs(cluster, follower_replication_throttled_rate="1")
    run("reassign", plan_file(tmp_path / "plan", {("orders", 0): [3]}))
    log = Path(cluster.nodes[3].log_dir, "orders-0")
    wait_until(lambda: log.exists() and log_bytes(cluster, 3, "orders"), "it has had some")
    with running("cluster", "decommission", "4", bootstrap=run.bootstrap) as interrupted:
        while not interrupted.stderr_line().startswith("1 of 2 partitions moved"):
            pass
    assert [run.replicas(topic) for topic in BOTH] == [[[1, 2, 3]], [[1, 2, 3, 4]]]
    with running("cluster", "decommission", "4", bootstrap=run.bootstrap) as command:
        assert command.stderr_line().startswith("0 of 1 partition moved")
        set_broker_configs(cluster, follower_replication_throttled_rate=str(2**63 - 1))
        while not (line := command.stderr_line()).startswith("broker 4 holds nothing any more"):
            assert " moved" in line
        assert [run.replicas(topic) for topic in BOTH] == [[[1, 2, 3]]] * 2
        cluster.stop(4)
        assert command.process.wait(30) == 0


def test_both_are_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    run = Commands(cluster.bootstrap)
    cluster.kill(3)
    run.wait_fenced(3)
    plan = plan_file(tmp_path / "plan", {(OFFSETS, 0): [1, 2, 3]})
    (started,) = run.json("reassign", plan, "--throttle", "1000000")
    assert (started["topic"], started["to"]) == (OFFSETS, [1, 2, 3])
    assert [each["topic"] for each in run.json("reassign", "--list")] == BOTH
    for topic in BOTH:
        values = run.topic(topic)["configs"]
        assert values["follower.replication.throttled.replicas"]["value"] == "0:3"
    done = run.json("reassign", "--cancel", "-t", OFFSETS)
    assert done == [{"topic": OFFSETS, "partition": 0, "status": "cancelled"}]
    assert run.json("reassign", "--list") == []
    assert [sorted(run.replicas(topic)[0]) for topic in BOTH] == [[1, 2, 4]] * 2
