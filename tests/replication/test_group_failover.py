"""The coordinator of a group is killed, and its members go on as if nothing had happened.

They stay in the same generation with the same partitions (no rebalance), and their commits go on:
what they joined is in the replicated log, and the next coordinator gives each a fresh session.
"""

from __future__ import annotations

import subprocess
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
from tests.groups import members
from tests.groups.history import Event, Reader
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
    """A client in a process of its own, and its history so far."""

    def __init__(self, client: str, bootstrap: str, group: str, folder: Path) -> None:
        self._reader = Reader(folder / f"{client}.jsonl")
        command = members.command(
            client,
            client=client,
            protocol="range",
            bootstrap=bootstrap,
            group=group,
            topic="t",
            folder=folder,
            poll_ms=100,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=200,
        )
        with (folder / f"{client}.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def history(self, kind: str) -> list[Event]:
        self._reader.read()
        return [event for event in self._reader.events if event["event"] == kind]

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def committed(group: list[Member]) -> dict[int, int]:
    ends: dict[int, int] = defaultdict(int)
    for member in group:
        acknowledged = {event["commit"] for event in member.history("committed")}
        for event in member.history("committing"):
            if event["commit"] in acknowledged:
                for partition, end in event["offsets"].items():
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
    group = [Member(client, cluster.bootstrap, how, tmp_path) for client in CLIENTS]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def everybody_commits_beyond(before: dict[int, int]) -> bool:
        for partition in range(PARTITIONS):
            producer.produce("t", b"x", partition=partition)
        producer.poll(0.02)
        now = committed(group)
        return all(now[partition] > before.get(partition, 0) for partition in range(PARTITIONS))

    try:
        wait_until(lambda: assignments(cluster, how) is not None, "no stable group", TIMEOUT_S)
        wait_until(lambda: everybody_commits_beyond({}), "nobody commits", TIMEOUT_S)
        before = assignments(cluster, how)
        assert before is not None
        given = {member: member.history("assigned") for member in group}
        generation = max(event["epoch"] for events in given.values() for event in events)
        victim = coordinator(cluster, how)
        getattr(cluster, how)(victim)
        ends = committed(group)
        wait_until(lambda: everybody_commits_beyond(ends), "nobody goes on", TIMEOUT_S)
        assert coordinator(cluster, how) != victim
        assert assignments(cluster, how) == before
        assert {member: member.history("assigned") for member in group} == given
        for member_id in before:
            heartbeat = messages.HeartbeatRequest(how, generation, member_id)
            answer = ask(cluster, coordinator(cluster, how), ApiKey.HEARTBEAT, 4, heartbeat)
            assert answer.error_code == ErrorCode.NONE
        cluster.restart(victim)
        cluster.wait_healthy()
    finally:
        for member in group:
            member.stop()
        producer.flush(5)
