"""Transactions of stock clients on three nodes, while those that they depend on are killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import partition_for
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import FindCoordinatorRequest
from kraftpy.testing import Cluster
from tests.clients.transactors import (
    TRANSACTORS,
    AioKafkaTransactor,
    ConfluentTransactor,
    OwnTransactor,
    Transactor,
)
from tests.server.wire import Wire
from tests.waiting import wait_until

from .support import Writer, leader_of, read_all

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
