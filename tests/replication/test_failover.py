"""Leaders die, and nothing that was acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import pytest

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.server.wire import fetch_request, produce_request

from .conftest import NewTopicMaker
from .support import (
    Writer,
    assert_replicas_identical,
    batch,
    connect,
    leader_of,
    read_all,
)


def test_acks_all_reaches_every_replica(three: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(1000)
    writer.wait()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(1000)]
    assert_replicas_identical(three, topic)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_leader_that_ends_under_load_loses_and_doubles_nothing(
    three: Cluster, new_topic: NewTopicMaker, how: str
) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(500)
    writer.wait(100)
    victim = three.leader_of(topic)
    assert victim is not None
    writer.send(500)
    getattr(three, how)(victim)
    writer.send(500)
    writer.wait()
    three.restart(victim)
    three.wait_healthy()
    writer.send(100)
    writer.wait()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(1600)]
    assert_replicas_identical(three, topic)


def test_leaders_that_die_one_after_the_other(three: Cluster, new_topic: NewTopicMaker) -> None:
    """Fast successive elections: KIP-279's divergences (docs/rules.md, rule 2)."""
    topic = new_topic(three)
    writer = Writer(three, topic)
    for _ in range(4):
        victim = three.leader_of(topic)
        assert victim is not None
        writer.send(300)
        three.kill(victim)
        writer.send(100)
        writer.wait()
        three.restart(victim)
    three.wait_healthy()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(1600)]
    assert_replicas_identical(three, topic)


def test_all_nodes_killed_at_once(three: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(three, flush_messages=1)
    writer = Writer(three, topic)
    for _ in range(2):
        writer.send(300)
        for node in three.nodes:
            three.kill(node)
        three.restart(*three.nodes)
        writer.wait()
    three.wait_healthy()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(600)]
    assert_replicas_identical(three, topic)


def test_who_asks_the_wrong_broker_is_told_the_right_one(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """KIP-951, under the address of the listener that the client came in on."""
    topic = new_topic(three)
    leader = leader_of(three, topic)
    wrong = next(node for node in three.nodes if node != leader)
    with connect(three, wrong) as wire:
        request = produce_request(topic, batch(b"x"))
        response = wire.call(ApiKey.PRODUCE, 10, request)
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == leader
        (endpoint,) = response.node_endpoints
        assert endpoint.node_id == leader
        assert (endpoint.host, endpoint.port) == (
            three.nodes[leader].host,
            three.nodes[leader].port,
        )
        fetching = fetch_request(topic, 0, leader_epoch=0)
        three.stop(leader)
        three.restart(leader)
        three.wait_healthy()
        (data,) = wire.call(ApiKey.FETCH, 12, fetching).responses[0].partitions
        assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert data.current_leader.leader_epoch > 0
