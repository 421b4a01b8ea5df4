"""Who reads where: followers in the consumer's rack, new leaders, groups whose coordinator died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster
from tests.server.slices import read_slice, sent, slices, wanted
from tests.server.wire import fetch, fetch_request, produce
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import Writer, batch, connect, leader_of, read_all

NOW_MS = 1_700_000_000_000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def racks() -> Iterator[Cluster]:
    """Three nodes, each in a rack of its own name: rack1, rack2, rack3."""
    with Cluster(3, replica_selector_class=SELECTOR) as cluster:
        for node in cluster.nodes.values():
            with node.config.open("a") as config:
                config.write(f"\nbroker.rack=rack{node.id}\n")
        for node in cluster.nodes:
            cluster.restart(node)
        cluster.wait_healthy()
        yield cluster


def test_a_consumer_reads_from_the_follower_in_its_rack(
    racks: Cluster, new_topic: NewTopicMaker
) -> None:
    """KIP-392."""
    topic = new_topic(racks)
    leader = leader_of(racks, topic)
    near = next(node for node in racks.nodes if node != leader)
    writer = Writer(racks, topic)
    writer.send(100)
    writer.wait()
    with connect(racks, leader) as wire:
        request = fetch_request(topic, 0)
        request.rack_id = f"rack{near}"

        def preferred() -> int:
            answer = wire.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]
            return answer.preferred_read_replica

        wait_until(lambda: preferred() == near, "the leader names the follower")
        request.rack_id = f"rack{leader}"
        assert preferred() == -1
    with connect(racks, near) as wire:
        wait_until(lambda: fetch(wire, topic, 0).high_watermark == 100, "its watermark is there")
        answer = fetch(wire, topic, 0)
        assert answer.error_code == ErrorCode.NONE
        assert sum(len(part) for part in [answer.records]) > 0
        # A follower takes no records, and versions that don't know of this can't read there.
        assert produce(wire, topic, batch(b"x")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        old = wire.call(ApiKey.FETCH, 10, fetch_request(topic, 0)).responses[0].partitions[0]
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    values = read_all(racks.bootstrap, topic, **{"client.rack": f"rack{near}"})
    assert values == [b"%08d" % number for number in range(100)]


def test_a_follower_serves_slices_too(racks: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(racks, accept_range_fetch="true")
    leader = leader_of(racks, topic)
    near = next(node for node in racks.nodes if node != leader)
    with connect(racks, leader) as wire:
        for _ in range(5):
            keyed = build_batch([(NOW_MS, b"%d" % number, b"v", []) for number in range(40)])
            assert produce(wire, topic, keyed, acks=-1).error_code == ErrorCode.NONE
    with connect(racks, near) as wire:
        wait_until(lambda: fetch(wire, topic, 0).high_watermark == 200, "its watermark is there")
        records = sent(fetch(wire, topic, 0))
        got = []
        for ranges in slices(3):
            found, _ = read_slice(wire, topic, ranges, 200)
            assert [record.offset for record in found] == wanted(records, ranges)
            got += found
        assert sorted(record.offset for record in got) == list(range(200))


def test_committed_offsets_survive_their_coordinator(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(10)
    writer.wait()
    config = {"bootstrap.servers": three.bootstrap, "group.id": f"group-{topic}", "log_level": 2}
    wanted = TopicPartition(topic, 0)
    for number in range(3):
        consumer = Consumer(config)
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, number + 1)], asynchronous=False)
        finally:
            consumer.close()
        victim = coordinator_of(three, f"group-{topic}")
        three.kill(victim)

        def committed() -> int:
            reader = Consumer(config)
            try:
                return reader.committed([wanted], timeout=20)[0].offset
            finally:
                reader.close()

        assert committed() == number + 1
        three.restart(victim)
        three.wait_healthy()


def coordinator_of(cluster: Cluster, group: str) -> int:
    """Any broker knows it."""
    found: set[int] = set()
    for node in cluster.nodes:
        with connect(cluster, node) as wire:

            def ask() -> bool:
                request = messages.FindCoordinatorRequest(key=group)
                answer = wire.call(ApiKey.FIND_COORDINATOR, 2, request)
                if answer.error_code == ErrorCode.NONE:
                    found.add(answer.node_id)
                return answer.error_code == ErrorCode.NONE

            wait_until(ask, f"broker {node} knows the coordinator of {group}")
    assert len(found) == 1
    return found.pop()


def test_a_follower_sends_nobody_elsewhere_in_the_log(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """It may lack what the leader has; whoever takes it for the leader would believe it."""
    topic = new_topic(three)
    leader = three.leader_of(topic)
    for node in three.nodes:
        expected = ErrorCode.OFFSET_OUT_OF_RANGE
        if node != leader:
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
        with connect(three, node) as wire:
            assert fetch(wire, topic, 1_000).error_code == expected


def test_a_leader_that_is_cut_off_sends_nobody_elsewhere_in_the_log(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """The offset that it doesn't have may be its successor's: a consumer must not skip there."""
    topic = new_topic(three)
    victim = three.leader_of(topic)
    assert victim is not None
    with connect(three, victim) as wire:

        def answer() -> int:
            return int(fetch(wire, topic, 1_000).error_code)

        assert answer() == ErrorCode.OFFSET_OUT_OF_RANGE
        three.isolate(victim, close=True)
        wait_until(lambda: answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it to notice", 2.0)
        three.heal()
    three.wait_healthy()
    wait_until(lambda: three.leader_of(topic) is not None, "a leader")
    leader = three.leader_of(topic)
    assert leader is not None
    with connect(three, leader) as wire:
        assert fetch(wire, topic, 1_000).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
