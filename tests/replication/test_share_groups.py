"""The coordinator of a share group is killed, and what it tells of is led elsewhere."""

from __future__ import annotations

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Cluster
from tests.replication.conftest import NewTopicMaker
from tests.replication.support import connect
from tests.replication.test_consumer_group_failover import coordinator
from tests.server.test_produce import batch
from tests.server.test_share_groups import Group, errors_of, ok
from tests.server.wire import produce
from tests.waiting import wait_until

PARTITIONS = 6


def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    with connect(cluster, 1) as wire:
        request = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=topic)])
        (found,) = wire.call(ApiKey.METADATA, 12, request).topics
    return {each.partition_index: each.leader_id for each in found.partitions}


def test_a_group_outlives_its_coordinator(three: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(three, PARTITIONS)
    led = leaders(three, topic)
    assert len(set(led.values())) == 3
    for index, node_id in led.items():
        with connect(three, node_id) as wire:
            for _ in range(index):
                assert produce(wire, topic, batch(b"x"), partition=index, acks=-1).error_code == 0
    name = "share-killed"
    wait_until(lambda: coordinator(three, name) > 0, "there is a coordinator", 30)
    victim = coordinator(three, name)
    with connect(three, victim) as wire:
        group = Group(wire, topic, name)
        # What is set on any partition is told of any: their states are kept all over the cluster.
        altered = group.alter(dict.fromkeys(range(PARTITIONS), 0))
        assert set(errors_of(altered).values()) == {0}
        lags = {index: (0, index) for index in range(PARTITIONS)}
        assert group.offsets() == lags
        group.joined("m")
        before = group.describe()
        assert before.group_state == "Stable"
    three.kill(victim)
    wait_until(lambda: coordinator(three, name) not in (-1, victim), "there is another one", 30)
    with connect(three, coordinator(three, name)) as wire:
        group = Group(wire, topic, name)
        wait_until(lambda: group.describe().error_code == 0, "it has been loaded", 30)
        assert group.describe() == before
        answer = ok(group.beat("m", before.group_epoch))
        assert (answer.member_epoch, answer.assignment) == (before.group_epoch, None)
        wait_until(lambda: group.offsets() == lags, "all partitions have leaders", 30)
        group.left("m")
        assert group.deleted() == 0
    three.restart(victim)
    three.wait_healthy()
