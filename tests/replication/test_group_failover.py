"""The coordinator of a group is killed, and its members go on as if nothing had happened.

They stay in the same generation with the same partitions (no rebalance), and their commits go on:
what they joined is in the replicated log, and the next coordinator gives each a fresh session.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
from kraftpy.testing.process import wait_until
from tests.server.wire import Wire

PARTITIONS = 6
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, group_initial_rebalance_delay_ms=500) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(timeout=20)
        yield started


class Member:
    """A client in a process of its own, and its notes so far."""

    def __init__(self, client: str, bootstrap: str, group: str, folder: Path) -> None:
        self._notes = folder / client
        command = [sys.executable, "-m", "tests.consistency.group_member", client]
        command += [bootstrap, group, "t", str(self._notes)]
        environment = os.environ | {"SESSION_TIMEOUT_MS": "30000"}
        with self._notes.with_suffix(".log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def notes(self, kind: str) -> list[list[int]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        words = [line.split() for line in lines]
        return [[int(word) for word in rest] for first, *rest in words if first == kind]


def committed(members: list[Member]) -> dict[int, int]:
    ends: dict[int, int] = defaultdict(int)
    for member in members:
        for partition, end in member.notes("committed"):
            ends[partition] = max(ends[partition], end)
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
    members = [Member(client, cluster.bootstrap, how, tmp_path) for client in CLIENTS]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def everybody_commits_beyond(before: dict[int, int]) -> bool:
        for partition in range(PARTITIONS):
            producer.produce("t", b"x", partition=partition)
        producer.poll(0.02)
        now = committed(members)
        return all(now[partition] > before.get(partition, 0) for partition in range(PARTITIONS))

    try:
        wait_until(lambda: assignments(cluster, how) is not None, "no stable group", TIMEOUT_S)
        wait_until(lambda: everybody_commits_beyond({}), "nobody commits", TIMEOUT_S)
        before = assignments(cluster, how)
        assert before is not None
        given = {member: member.notes("owns") for member in members}
        generation = max(words[0] for notes in given.values() for words in notes)
        victim = coordinator(cluster, how)
        getattr(cluster, how)(victim)
        ends = committed(members)
        wait_until(lambda: everybody_commits_beyond(ends), "nobody goes on", TIMEOUT_S)
        assert coordinator(cluster, how) != victim
        assert assignments(cluster, how) == before
        assert {member: member.notes("owns") for member in members} == given
        for member_id in before:
            heartbeat = messages.HeartbeatRequest(how, generation, member_id)
            answer = ask(cluster, coordinator(cluster, how), ApiKey.HEARTBEAT, 4, heartbeat)
            assert answer.error_code == ErrorCode.NONE
        cluster.restart(victim)
        cluster.wait_healthy()
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()
        producer.flush(5)
