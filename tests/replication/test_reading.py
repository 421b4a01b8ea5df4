"""Who reads where: followers in the consumer's rack, new leaders, groups whose coordinator died."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kraftpy.cli.nodes import EPHEMERAL_SETTINGS
from kraftpy.core.coordination import partition_for
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster
from tests.endpoints import metric
from tests.server.slices import read_slice, sent, slices, wanted
from tests.server.wire import fetch, fetch_request, produce
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import Writer, batch, connect, leader_of, read_all

NOW_MS = 1_700_000_000_000
OFFSETS_PARTITIONS = int(EPHEMERAL_SETTINGS["offsets.topic.num.partitions"])
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


def test_who_takes_over_groups_reads_none_of_their_old_records(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """What was committed is in memory already where it was followed."""
    topic = new_topic(three, 20)
    index = partition_for("group", OFFSETS_PARTITIONS)
    names = (f"{topic}-{number}" for number in itertools.count())
    kept = (name for name in names if partition_for(name, OFFSETS_PARTITIONS) == index)
    groups = list(itertools.islice(kept, 150))
    victim = coordinator_of(three, groups[0])
    with connect(three, victim) as wire:
        for group in groups:
            answer = wire.call(ApiKey.OFFSET_COMMIT, 8, commit_request(group, topic, 20))
            assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}

    def all_followed() -> bool:
        configs = [node.config for node in three.nodes.values()]
        committed = sum(metric(each, "kraftpy_committed_offsets") for each in configs)
        followed = sum(metric(each, "kraftpy_followed_committed_offsets") for each in configs)
        return followed == 2 * committed >= 2 * 3_000

    wait_until(all_followed, "both followers have read what was committed")
    three.kill(victim)
    offsets = "__consumer_offsets"
    wait_until(lambda: leader_of(three, offsets, index) != victim, "another node leads")
    successor = three.nodes[leader_of(three, offsets, index)]
    loaded = re.compile(
        rf" coordinator-loaded partition={index} .* records=(\d+) .* offsets=(\d+)$", re.MULTILINE
    )

    def loads() -> list[int]:
        """How many records were read each time that all the offsets were there."""
        found = loaded.findall(successor.log_path.read_text())
        return [int(records) for records, count in found if int(count) >= 3_000]

    wait_until(loads, "another node coordinates the groups")
    assert loads() == [0]
    three.restart(victim)
    three.wait_healthy()


def commit_request(group: str, topic: str, partitions: int) -> messages.OffsetCommitRequest:
    kind = messages.OffsetCommitRequest
    offsets = [
        kind.OffsetCommitRequestPartition(number, 7, committed_metadata="")
        for number in range(partitions)
    ]
    return kind(group, -1, topics=[kind.OffsetCommitRequestTopic(topic, partitions=offsets)])


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
