"""The coordinator of a group is killed, and its members go on as if nothing had happened.

They stay in the same generation with the same partitions (no rebalance), and their commits go on:
what they joined is in the replicated log, and the next coordinator gives each a fresh session.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_versioned
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter
from kraftpy.testing.consistency.crew import Process
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.worker import Task
from tests.server.wire import Wire
from tests.waiting import wait_until

PARTITIONS = 6
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, group_initial_rebalance_delay_ms=500) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(timeout=20)
        yield started


def start_members(bootstrap: str, group: str, folder: Path) -> list[Process]:
    """Clients in processes of their own, that stay; they share a history."""
    HistoryWriter(folder / "history.jsonl", Header("groups")).close()
    started_ns = time.monotonic_ns()
    members = []
    for number, client in enumerate(CLIENTS):
        task = Task(
            workload="groups",
            role="join",
            number=number,
            history=str(folder / "history.jsonl"),
            bootstrap=bootstrap,
            client=client,
            seed=1,
            rate=20.0,
            started_ns=started_ns,
            options={
                "topic": "t",
                "partitions": PARTITIONS,
                "concurrency": len(CLIENTS),
                "groups": {"classic": group},
            },
        )
        members.append(Process(task, folder / "workers.log"))
        members[-1].stay()
    return members


def noted(folder: Path, f: str) -> list[Operation]:
    entries = pair(HistoryReader(folder / "history.jsonl"))
    return [e for e in entries if isinstance(e, Operation) and e.f == f and e.outcome == "ok"]


def committed(folder: Path) -> dict[str, int]:
    ends: dict[str, int] = defaultdict(int)
    for each in noted(folder, "commit"):
        key = each.asked["key"]
        ends[key] = max(ends[key], each.asked["offset"])
    return ends


def ask(cluster: Cluster, node_id: int, key: ApiKey, version: int, request: Any) -> Any:
    node = cluster.nodes[node_id]
    host, _, port = node.bootstrap.rpartition(":")
    with Wire(host, int(port)) as wire:
        return wire.call(key, version, request)


def coordinator(cluster: Cluster, group: str) -> int:
    """The node that coordinates the group, as any running node says."""
    node_id = next(node.id for node in cluster.nodes.values() if node.running)
    request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    (found,) = ask(cluster, node_id, ApiKey.FIND_COORDINATOR, 4, request).coordinators
    return int(found.node_id)


def assignments(cluster: Cluster, group: str) -> dict[str, list[int]] | None:
    """Partitions by member id, None unless the group is stable with all its members."""
    node_id = coordinator(cluster, group)
    if node_id < 0 or not cluster.nodes[node_id].running:
        return None
    request = messages.DescribeGroupsRequest(groups=[group])
    (described,) = ask(cluster, node_id, ApiKey.DESCRIBE_GROUPS, 5, request).groups
    if described.group_state != "Stable" or len(described.members) != len(CLIENTS):
        return None
    owned = {}
    for member in described.members:
        _, given = decode_versioned("ConsumerProtocolAssignment", bytes(member.member_assignment))
        owned[member.member_id] = [
            p for topic in given.assigned_partitions for p in topic.partitions
        ]
    return owned


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_members_go_on_in_their_generation(cluster: Cluster, tmp_path: Path, how: str) -> None:
    group = start_members(cluster.bootstrap, how, tmp_path)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def everybody_commits_beyond(before: dict[str, int]) -> bool:
        for partition in range(PARTITIONS):
            producer.produce("t", b"x", partition=partition)
        producer.poll(0.02)
        now = committed(tmp_path)
        return all(now[f"t-{i}"] > before.get(f"t-{i}", 0) for i in range(PARTITIONS))

    try:
        wait_until(lambda: assignments(cluster, how) is not None, "the group is stable", TIMEOUT_S)
        wait_until(lambda: everybody_commits_beyond({}), "everybody commits", TIMEOUT_S)
        before = assignments(cluster, how)
        assert before is not None
        given = noted(tmp_path, "assigned")
        generation = max(each.value["epoch"] for each in given)
        victim = coordinator(cluster, how)
        getattr(cluster, how)(victim)
        ends = committed(tmp_path)
        wait_until(lambda: everybody_commits_beyond(ends), "everybody goes on", TIMEOUT_S)
        assert coordinator(cluster, how) != victim
        assert assignments(cluster, how) == before
        assert noted(tmp_path, "assigned") == given
        for member_id in before:
            heartbeat = messages.HeartbeatRequest(how, generation, member_id)
            answer = ask(cluster, coordinator(cluster, how), ApiKey.HEARTBEAT, 4, heartbeat)
            assert answer.error_code == ErrorCode.NONE
        cluster.restart(victim)
        cluster.wait_healthy()
    finally:
        for member in group:
            member.kill()
        producer.flush(5)
