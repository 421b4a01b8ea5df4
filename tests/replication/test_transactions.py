"""Transactions of stock clients on three nodes, while those that they depend on are killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import partition_for
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import AddOffsetsToTxnRequest, FindCoordinatorRequest
from kraftpy.testing import Cluster
from tests.clients.transactors import (
    TRANSACTORS,
    AioKafkaTransactor,
    ConfluentTransactor,
    OwnTransactor,
    Transactor,
)
from tests.server.test_transactions import Id
from tests.server.wire import Wire
from tests.waiting import wait_until

from .support import Writer, connect, leader_of, read_all

COORDINATORS = "__transaction_state"
COORDINATOR_PARTITIONS = 50

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, 3)])[name].result(timeout=20)
    return name


def coordinator_of(cluster: Cluster, name: str) -> int:
    return leader_of(cluster, COORDINATORS, partition_for(name, COORDINATOR_PARTITIONS))


def id_of(cluster: Cluster, topic: str) -> str:
    """One that the topic's leader doesn't coordinate."""
    leader = leader_of(cluster, topic)
    with Wire(cluster.nodes[leader].host, cluster.nodes[leader].port) as wire:
        finding = FindCoordinatorRequest(key=topic, key_type=1)  # makes their topic
        assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    names = (f"{topic}-{number}" for number in itertools.count())
    return next(name for name in names if coordinator_of(cluster, name) != leader)


# kafka-python 3.0 forgets what it has to ask a coordinator that takes no connections.
SCENARIOS = [
    ("coordinator", ConfluentTransactor),
    ("coordinator", AioKafkaTransactor),
    ("coordinator", OwnTransactor),
    *(("leader", each) for each in TRANSACTORS),
]


@pytest.mark.parametrize(
    ("whom", "kind"), SCENARIOS, ids=[f"{whom}-{kind.name}" for whom, kind in SCENARIOS]
)
def test_it_is_killed_amid_a_transaction(
    cluster: Cluster, topic: str, whom: str, kind: type[Transactor]
) -> None:
    """The client goes on, and everything counts once."""
    name = id_of(cluster, topic)
    producer = kind(cluster.bootstrap, name)
    producer.begin()
    producer.produce(topic, b"before")
    victim = coordinator_of(cluster, name) if whom == "coordinator" else leader_of(cluster, topic)
    cluster.kill(victim)
    try:
        producer.produce(topic, b"after")
        producer.commit()
        producer.begin()
        producer.produce(topic, b"aborted")
        producer.abort()
        producer.begin()
        producer.produce(topic, b"next")
        producer.commit()
        wait_until(
            lambda: read_all(cluster.bootstrap, topic) == [b"before", b"after", b"next"],
            "what is committed",
        )
    finally:
        producer.close()
        cluster.restart(victim)
        cluster.wait_healthy()


@pytest.mark.parametrize("kind", TRANSACTORS, ids=lambda kind: kind.name)
def test_it_is_killed_before_the_producer_comes(
    cluster: Cluster, topic: str, kind: type[Transactor]
) -> None:
    """Which asks for it while there is none."""
    name = id_of(cluster, topic)
    victim = coordinator_of(cluster, name)
    cluster.kill(victim)
    try:
        producer = kind(cluster.bootstrap, name)
        producer.begin()
        producer.produce(topic, b"committed")
        producer.commit()
        producer.close()
        assert read_all(cluster.bootstrap, topic) == [b"committed"]
    finally:
        cluster.restart(victim)
        cluster.wait_healthy()


def test_another_broker_knows_nothing_of_a_transaction(cluster: Cluster, topic: str) -> None:
    """It says so, and the one that does know isn't disturbed."""
    name = id_of(cluster, topic)
    coordinator = coordinator_of(cluster, name)
    with connect(cluster, coordinator) as wire:
        own = Id(wire, name)
        wait_until(lambda: own.init() is E.NONE, "the coordinator")
        assert own.add((topic, 0)) == [E.NONE]
        for node in cluster.nodes.keys() - {coordinator}:
            with connect(cluster, node) as elsewhere:
                other = Id(elsewhere, name)
                other.producer = own.producer
                assert other.init(producer=own.producer) is E.NOT_COORDINATOR
                assert other.add((topic, 0)) == [E.NOT_COORDINATOR]
                offsets = AddOffsetsToTxnRequest(name, *own.producer, "group")
                added = elsewhere.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, offsets)
                assert added.error_code == E.NOT_COORDINATOR
                assert other.end() is E.NOT_COORDINATOR
                assert other.described().error_code == E.NOT_COORDINATOR
        assert own.described().transaction_state == "Ongoing"
        assert own.end() is E.NONE
        own.wait_ended()


def test_a_transaction_times_out_at_the_next_coordinator(cluster: Cluster, topic: str) -> None:
    """Its producer is gone, and whoever has begun it is killed, too."""
    name = id_of(cluster, topic)
    producer = ConfluentTransactor(cluster.bootstrap, name, timeout_ms=3_000)
    producer.begin()
    producer.produce(topic, b"lost")
    victim = coordinator_of(cluster, name)
    cluster.kill(victim)
    try:
        after = Writer(cluster, topic)
        after.send(1)
        after.wait()
        expected = list(after.acknowledged)
        wait_until(lambda: read_all(cluster.bootstrap, topic) == expected, "the transaction's end")
    finally:
        producer.close()
        cluster.restart(victim)
        cluster.wait_healthy()
