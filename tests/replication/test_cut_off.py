"""A broker that is cut off from the quorum sends clients to the others, and takes none of them in.

A client that knows only the broker that is cut off is the worst case: all that it learns of the
cluster it learns there.
"""

from __future__ import annotations

import asyncio

import pytest

from kraftpy.client.cluster import Cluster as ClientCluster
from kraftpy.client.producer import Producer as OwnProducer
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.clients.conftest import DRIVERS
from tests.clients.driver import Driver, Message
from tests.server.wire import Wire, produce
from tests.waiting import wait_until

from .cut_off import NOT_LEADER, Cut, coordinator, create, cut
from .support import batch, connect

__all__ = ["cut"]


def metadata(wire: Wire, topic: str) -> messages.MetadataResponse:
    request = messages.MetadataRequest
    return wire.call(ApiKey.METADATA, 12, request([request.MetadataRequestTopic(name=topic)]))


def test_it_names_others_and_no_leader_for_what_it_led(cut: Cut) -> None:
    others = cut.cluster.nodes.keys() - {cut.node}
    with connect(cut.cluster, cut.node) as wire:
        # What it heard of the quorum's leader last holds for two heartbeats.
        wait_until(lambda: metadata(wire, cut.topic).controller_id == -1, "no controller")
        answer = metadata(wire, cut.topic)
        (partition,) = answer.topics[0].partitions
        assert {broker.node_id for broker in answer.brokers} == others
        assert partition.leader_id == -1
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE

        described = wire.call(ApiKey.DESCRIBE_CLUSTER, 1, messages.DescribeClusterRequest())
        assert {broker.broker_id for broker in described.brokers} == others
        assert described.controller_id == -1

        request = messages.DescribeTopicPartitionsRequest
        paged = wire.call(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request([request.TopicRequest(cut.topic)])
        )
        assert paged.topics[0].partitions[0].leader_id == -1

        refused = produce(wire, cut.topic, batch(b"x"), version=10)
        assert (refused.error_code, refused.current_leader) == (NOT_LEADER, None)

        # It has no producer ids left to give; whoever waits for that is not sent elsewhere.
        refused = wire.call(
            ApiKey.INIT_PRODUCER_ID, 4, messages.InitProducerIdRequest(None, 60_000)
        )
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        found = coordinator(wire, cut.groups[0])
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_client_that_knows_only_it_finds_the_others(
    cut: Cut, driver: type[Driver], idempotent: bool
) -> None:
    client = driver(cut.bootstrap)
    value = client.name.encode()
    (offset,) = client.produce(cut.topic, [Message(value)], idempotent=idempotent)
    assert [record.value for record in client.read(cut.topic, 0, offset, 1)] == [value]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_group_that_it_coordinated_goes_on_elsewhere(cut: Cut, driver: type[Driver]) -> None:
    group = cut.groups[DRIVERS.index(driver)]
    assert driver(cut.bootstrap).group_read(cut.topic, group, 1)[0].value == b"before"


def test_our_own_client_finds_the_others(cut: Cut) -> None:
    async def write() -> int:
        async with ClientCluster(cut.bootstrap) as cluster, OwnProducer(cluster) as producer:
            return (await producer.send_and_wait(cut.topic, b"own")).offset

    assert asyncio.run(asyncio.wait_for(write(), 30)) > 0


def test_when_the_whole_quorum_has_no_majority_the_metadata_stays_what_it_was() -> None:
    """Nobody can have been elected: clients are where they have to be when it is back."""
    with Cluster(5) as cluster:  # 4 and 5 have no vote
        create(cluster, "topic", [4, 5])
        with connect(cluster, 4) as wire:
            assert produce(wire, "topic", batch(b"before"), acks=-1).error_code == 0
            cluster.kill(1)
            cluster.kill(2)
            wait_until(
                lambda: produce(wire, "topic", batch(b"x")).error_code == NOT_LEADER, "it knows"
            )
            answer = metadata(wire, "topic")
            (partition,) = answer.topics[0].partitions
            assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, 4)
            assert 4 in {broker.node_id for broker in answer.brokers}
            cluster.restart(1, 2)
            wait_until(
                lambda: produce(wire, "topic", batch(b"after")).error_code == 0, "it leads again"
            )
