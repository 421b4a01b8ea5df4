"""Apache Kafka's tools for operators against three nodes, their output checked."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster
from tests.apache_kafka import run_tool
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    "KRAFTPY_TEST_BOOTSTRAP" in os.environ, reason="starts and kills nodes of its own"
)

WAIT_S = 20.0
Tool = Callable[..., str]


@pytest.fixture
def cluster(kraftpy_cluster: Callable[..., Cluster]) -> Cluster:
    started = kraftpy_cluster(3, links=False)
    started.wait_healthy()
    return started


@pytest.fixture
def tool(cluster: Cluster) -> Tool:
    def run(name: str, *args: str) -> str:
        servers = ("--bootstrap-server", cluster.bootstrap)
        if name == "kafka-cluster":
            return run_tool(name, args[0], *servers, *args[1:])
        return run_tool(name, *servers, *args)

    return run


def create(cluster: Cluster, topic: str, *replicas: list[int], **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    new = NewTopic(topic, len(replicas), replica_assignment=list(replicas), config=named)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.create_topics([new])[topic].result(WAIT_S)
    cluster.wait_healthy()


def produce(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(topic, b"x" * 1000, partition=number % partitions)
    assert producer.flush(WAIT_S) == 0


def plan(path: Path, topic: str, *replicas: list[int]) -> str:
    partitions = [
        {"topic": topic, "partition": index, "replicas": each}
        for index, each in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def described(text: str) -> dict[tuple[str, int], dict[str, str]]:
    """The lines of kafka-topics --describe that are about partitions."""
    found = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+): ([\w,.-]*)", line))
        if "Partition" in fields:
            found[fields["Topic"], int(fields["Partition"])] = fields
    return found


def test_metadata_quorum(tool: Tool, cluster: Cluster) -> None:
    out = tool("kafka-metadata-quorum", "describe", "--status")
    status = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert int(status["LeaderId"]) == cluster.controller()
    assert int(status["LeaderEpoch"]) >= 1
    assert int(status["HighWatermark"]) > 3
    assert int(status["MaxFollowerLag"]) <= 3
    voters = json.loads(status["CurrentVoters"])
    assert [voter["id"] for voter in voters] == [1, 2, 3]
    assert all(re.fullmatch(r"CONTROLLER://127\.0\.0\.1:\d+", v["endpoints"][0]) for v in voters)
    assert status["CurrentObservers"].strip() == "[]"
    header, *rows = tool("kafka-metadata-quorum", "describe", "--replication").strip().splitlines()
    assert header.split()[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    table = {int(row.split()[0]): row.split() for row in rows}
    assert sorted(table) == [1, 2, 3]
    now_ms = time.time() * 1000
    for row in table.values():
        assert all(now_ms - 60_000 < int(cell) <= now_ms for cell in row[4:6])
    assert sorted(row[6] for row in table.values()) == ["Follower", "Follower", "Leader"]


def test_topics_without_a_broker_and_its_unregistration(tool: Tool, cluster: Cluster) -> None:
    create(cluster, "whole", [1, 2], [2, 1])
    create(cluster, "thin", [3, 1], min_insync_replicas="1")
    create(cluster, "strict", [1, 3], min_insync_replicas="2")
    create(cluster, "gone", [3])
    cluster_id = re.search(r"Cluster ID: (\S{22})", tool("kafka-cluster", "cluster-id"))
    assert cluster_id
    cluster.kill(3)
    client = AdminClient({"bootstrap.servers": cluster.nodes[1].bootstrap})
    wait_until(lambda: sorted(client.list_topics().brokers) == [1, 2], "broker 3 is fenced")

    def filtered(option: str) -> set[str]:
        return {topic for topic, _ in described(tool("kafka-topics", "--describe", option))}

    assert filtered("--under-replicated-partitions") == {"thin", "strict", "gone"}
    assert filtered("--under-min-isr-partitions") == {"strict", "gone"}
    assert filtered("--unavailable-partitions") == {"gone"}
    everything = described(tool("kafka-topics", "--describe"))
    strict, gone = everything["strict", 0], everything["gone", 0]
    assert (strict["Leader"], strict["Isr"], strict["Elr"]) == ("1", "1", "3")
    assert (gone["Leader"], gone["Replicas"]) == ("none", "3")
    assert everything["whole", 0]["Isr"] == "1,2"

    endpoints = ("list-endpoints", "--include-fenced-brokers")
    states = re.findall(
        r"^(\d)\s+127\S+\s+\d+\s+\w+\s+(\w+)", tool("kafka-cluster", *endpoints), re.M
    )
    assert dict(states) == {"1": "unfenced", "2": "unfenced", "3": "fenced"}
    assert "3 is no longer registered" in tool("kafka-cluster", "unregister", "--id", "3")
    assert not re.search(r"^3\s", tool("kafka-cluster", *endpoints), re.M)


def test_leader_election(tool: Tool, cluster: Cluster) -> None:
    create(cluster, "t", [3, 1], [1, 2])
    create(cluster, "lone", [3])
    one = ("--topic", "t", "--partition", "0")
    preferred = ("--election-type", "preferred")
    assert "already elected for partitions t-0" in tool("kafka-leader-election", *preferred, *one)
    cluster.kill(3)
    wait_until(lambda: cluster.leader_of("t") == 1, "broker 1 leads t-0")
    with pytest.raises(RuntimeError, match=r"(?s)t-0.*PreferredLeaderNotAvailableException"):
        tool("kafka-leader-election", *preferred, "--all-topic-partitions")
    unclean = ("--election-type", "unclean", "--topic", "lone", "--partition", "0")
    with pytest.raises(RuntimeError, match=r"(?s)lone-0.*EligibleLeadersNotAvailableException"):
        tool("kafka-leader-election", *unclean)


def test_an_unclean_election_gives_a_partition_a_leader(tool: Tool, cluster: Cluster) -> None:
    create(cluster, "t", [1, 2], min_insync_replicas="1")
    cluster.kill(2)
    wait_until(lambda: described_isr(cluster, "t") == {1}, "broker 2 has left the ISR")
    produce(cluster.nodes[1].bootstrap, "t", 1)
    cluster.kill(1)
    cluster.restart(2)
    wait_until(lambda: cluster.leader_of("t") is None, "nobody leads")
    out = tool(
        "kafka-leader-election", "--election-type", "unclean", "--topic", "t", "--partition", "0"
    )
    assert "Successfully completed leader election (UNCLEAN) for partitions t-0" in out
    assert cluster.leader_of("t") == 2


def described_isr(cluster: Cluster, topic: str) -> set[int]:
    client = AdminClient({"bootstrap.servers": cluster.nodes[1].bootstrap})
    return set(client.list_topics(topic).topics[topic].partitions[0].isrs)


def test_reassign_partitions(tool: Tool, cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "t", [1, 2], [2, 1])
    produce(cluster.bootstrap, "t", 1000, partitions=2)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
    generated = ("--topics-to-move-json-file", str(topics), "--broker-list", "2,3")
    now, proposed = re.findall(
        r"^\{.*\}$", tool("kafka-reassign-partitions", "--generate", *generated), re.MULTILINE
    )
    assert [each["replicas"] for each in json.loads(now)["partitions"]] == [[1, 2], [2, 1]]
    assert {tuple(sorted(p["replicas"])) for p in json.loads(proposed)["partitions"]} == {(2, 3)}

    file = plan(tmp_path / "plan.json", "t", [3, 1], [2, 3])
    given = ("--reassignment-json-file", file)
    out = tool("kafka-reassign-partitions", "--execute", *given, "--throttle", "50000000")
    assert "Successfully started partition reassignments for t-0,t-1" in out
    assert "The inter-broker throttle limit was set to 50000000 B/s" in out
    rollback = re.findall(r"^\{.*\}$", out, re.MULTILINE)[0]

    def verified(*arguments: str) -> bool:
        nonlocal out
        out = tool("kafka-reassign-partitions", "--verify", *arguments)
        return "still in progress" not in out

    wait_until(lambda: verified(*given), "the reassignment has ended")
    assert "Reassignment of partition t-0 is completed." in out
    assert "Clearing topic-level throttles on topic t" in out
    lines = described(tool("kafka-topics", "--describe", "--topic", "t"))
    assert [lines["t", 0]["Replicas"], lines["t", 1]["Replicas"]] == ["3,1", "2,3"]
    configs = tool("kafka-configs", "--entity-type", "topics", "--entity-name", "t", "--describe")
    assert "throttled" not in configs

    # What --execute prints for a rollback names the folders of the brokers.
    assert json.loads(rollback)["partitions"][0]["log_dirs"][0] == str(cluster.nodes[1].log_dir)
    Path(file).write_text(rollback)
    out = tool("kafka-reassign-partitions", "--execute", *given)
    assert "Successfully started partition reassignments for t-0,t-1" in out
    assert out.count("Successfully started moving log directory to ") == 4
    wait_until(lambda: verified(*given), "the rollback has ended")
    assert "Reassignment of partition t-1 is completed." in out


def test_a_reassignment_under_way_is_listed_and_cancelled(
    tool: Tool, cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster, "t", [3], [1])
    cluster.kill(3)  # so t-0 can't be copied
    wait_until(lambda: cluster.leader_of("t") is None, "nobody leads t-0")
    given = ("--reassignment-json-file", plan(tmp_path / "plan.json", "t", [2]))
    out = tool("kafka-reassign-partitions", "--execute", *given)
    assert "Successfully started partition reassignment for t-0" in out
    out = tool("kafka-reassign-partitions", "--list")
    assert "t-0: replicas: 2,3. adding: 2. removing: 3." in out
    out = tool("kafka-reassign-partitions", "--verify", *given)
    assert "Reassignment of partition t-0 is still in progress." in out
    out = tool("kafka-reassign-partitions", "--cancel", *given)
    assert "Successfully cancelled partition reassignment for: t-0" in out
    assert "No partition reassignments found." in tool("kafka-reassign-partitions", "--list")
