"""The coordinator of a KIP-848 group is killed, and nobody has to give anything up.

The next coordinator has every member with its epoch, its target and what it owns from the
replicated log, and gives each a fresh session: no epoch is raised, no partition moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Cluster
from tests.replication.conftest import NewTopicMaker
from tests.replication.support import connect
from tests.waiting import wait_until

PARTITIONS = 6

Described = messages.ConsumerGroupDescribeResponse.DescribedGroup


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Members hear of changes within a moment, not within Kafka's five seconds."""
    with Cluster(
        3,
        group_consumer_min_heartbeat_interval_ms=100,
        group_consumer_heartbeat_interval_ms=100,
    ) as cluster:
        yield cluster


class Member:
    """A consumer that notes what it is told to take and to give up."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.rebalances: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )

        def note(what: str) -> Any:
            return lambda consumer, places: self.rebalances.append(what)

        self.consumer.subscribe(
            [topic], on_assign=note("assigned"), on_revoke=note("revoked"), on_lost=note("lost")
        )

    @property
    def owned(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def commit(self, topic: str, offset: int) -> bool:
        """Commits this offset for what it owns; whether that was accepted."""
        places = [TopicPartition(topic, index, offset) for index in self.owned]
        try:
            done = self.consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return False
        return all(place.error is None for place in done or ())


def coordinator(cluster: Cluster, group: str) -> int:
    node_id = next(node.id for node in cluster.nodes.values() if node.running)
    request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    with connect(cluster, node_id) as wire:
        (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, request).coordinators
    return int(found.node_id)


def describe(cluster: Cluster, group: str) -> Described | None:
    """The group, None while nobody coordinates it."""
    node_id = coordinator(cluster, group)
    if node_id < 0 or not cluster.nodes[node_id].running:
        return None
    with connect(cluster, node_id) as wire:
        request = messages.ConsumerGroupDescribeRequest([group])
        (found,) = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups
    assert isinstance(found, Described)
    return found if found.error_code == 0 else None


def by_member(described: Described) -> dict[str, object]:
    return {member.member_id: member for member in described.members}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_no_partition_moves(three: Cluster, new_topic: NewTopicMaker, how: str) -> None:
    topic = new_topic(three, PARTITIONS)
    group = f"group-{how}"
    members = [Member(three, group, topic) for _ in range(3)]

    def have(*counts: int) -> bool:
        for member in members:
            member.consumer.poll(0.02)
        return [len(member.owned) for member in members] == list(counts)

    def is_stable() -> bool:
        found = describe(three, group)
        return found is not None and found.group_state == "Stable"

    def all_commit(offset: int) -> bool:
        have()
        return all(member.commit(topic, offset) for member in members)

    try:
        wait_until(lambda: have(2, 2, 2) and is_stable(), "everybody has two partitions")
        wait_until(lambda: all_commit(1), "everybody commits")
        before = describe(three, group)
        assert before is not None
        told = [list(member.rebalances) for member in members]
        victim = coordinator(three, group)
        getattr(three, how)(victim)
        wait_until(lambda: all_commit(2), "everybody goes on")
        assert coordinator(three, group) != victim
        after = describe(three, group)
        assert after is not None
        assert by_member(after) == by_member(before)
        assert (after.group_state, after.group_epoch) == ("Stable", before.group_epoch)
        assert [member.rebalances for member in members] == told
        # It is as alive as before: who leaves makes room.
        members.pop().consumer.close()
        wait_until(lambda: have(3, 3), "two have three partitions each")
        three.restart(victim)
        three.wait_healthy()
    finally:
        for member in members:
            member.consumer.close()
