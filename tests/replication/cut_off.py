"""A cluster with one broker cut off, for tests of what its clients do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import partition_for
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.server.wire import Wire, produce
from tests.waiting import wait_until

from .support import batch, connect, leader_of

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 6


class Cut(NamedTuple):
    """A cluster whose `node` is cut off: it led `topic`'s partition 0, and coordinated `groups`."""

    cluster: Cluster
    node: int
    topic: str
    groups: list[str]

    @property
    def bootstrap(self) -> str:
        """Of the node that is cut off alone."""
        return self.cluster.nodes[self.node].bootstrap


@pytest.fixture(scope="module")
def cut() -> Iterator[Cut]:
    """Nothing arrives at the node or leaves it any more but what clients say; see `Cut`."""
    with Cluster(
        3,
        offsets_topic_num_partitions=OFFSETS_PARTITIONS,
        offsets_topic_replication_factor=3,
    ) as cluster:
        create(cluster, "topic", [1, 2, 3])
        with connect(cluster, 1) as wire:
            wait_until(
                lambda: coordinator(wire, "first").error_code == 0, "there is the offsets topic"
            )
        cluster.wait_healthy()
        node = leader_of(cluster, "topic")
        led = [
            index
            for index in range(OFFSETS_PARTITIONS)
            if leader_of(cluster, OFFSETS_TOPIC, index) == node
        ]
        names = (f"group-{number}" for number in range(1000))
        groups = [name for name in names if partition_for(name, OFFSETS_PARTITIONS) in led]
        with connect(cluster, node) as wire:
            assert produce(wire, "topic", batch(b"before"), acks=-1).error_code == 0
            cluster.isolate(node)
            # Until its session has ended it can't know that others lead.
            wait_until(
                lambda: produce(wire, "topic", batch(b"x")).error_code == NOT_LEADER, "it knows"
            )
        yield Cut(cluster, node, "topic", groups)
        cluster.heal()  # so that it stops in order, and quickly


def create(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    new = NewTopic(topic, 1, replica_assignment=[replicas])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([new])[topic].result(20)
    cluster.wait_healthy()


def coordinator(wire: Wire, group: str) -> messages.FindCoordinatorResponse:
    return wire.call(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=group))
