"""Transactions of Java's client, kafkajs and franz-go, each with three brokers.

Java's client and franz-go go by the level of `transaction.version`: they speak both versions of the
protocol (KIP-98, KIP-890), kafkajs the first one. `make reference` runs the same against Apache
Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient

from kraftpy.core.coordination import partition_for
from tests.apache_kafka import quorum_under_test
from tests.conformance.transactional_clients import (
    TIMEOUT_S,
    RefusedError,
    TransactionalClient,
    read_committed,
)
from tests.processes import split_address
from tests.quorums import Quorum, running
from tests.server.test_transaction_version import FEATURE, features
from tests.server.wire import Wire
from tests.waiting import wait_until

PARTITIONS = 3
CLIENTS = [("java", 2), ("franz-go", 2), ("kafkajs", 2), ("java", 0), ("franz-go", 0)]
"""Each with the level of `transaction.version`."""
STEP = 60
"""Records that are there before somebody is killed."""

# What each of them says of an epoch that is over.
FENCED = {
    "java": {"ProducerFencedException", "InvalidProducerEpochException"},
    "kafkajs": {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"},
    "franz-go": {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"},
}


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    made = quorum_under_test(
        tmp_path_factory.mktemp("quorum"),
        transaction_state_log_num_partitions=5,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=500,
    )
    with running(made):
        yield made


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda each: "-".join(map(str, each)))
def kind(request: pytest.FixtureRequest, quorum: Quorum) -> str:
    """The client; the brokers have the level that it is to meet."""
    name, level = request.param
    have_level(quorum, level)
    return str(name)


def have_level(quorum: Quorum, level: int) -> None:
    def there() -> bool:
        for address in quorum.addresses.values():
            with Wire(*split_address(address)) as wire:
                if features(wire).in_use.get(FEATURE, 0) != level:
                    return False
        return True

    if not there():
        admin = KafkaAdminClient(bootstrap_servers=quorum.bootstrap)
        admin.update_features({FEATURE: ("UPGRADE" if level else "SAFE_DOWNGRADE", level)})
        admin.close()
        wait_until(there, f"{FEATURE} is {level} at every broker")


@pytest.fixture(scope="module")
def client(kind: str, quorum: Quorum) -> Iterator[TransactionalClient]:
    with TransactionalClient(kind, quorum.bootstrap) as started:
        yield started


@pytest.fixture
def written(quorum: Quorum, topic: str) -> str:
    """A topic to be written to."""
    create(quorum, topic)
    return topic


def create(quorum: Quorum, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap})
    wanted = [NewTopic(each, PARTITIONS, 3) for each in topics]
    for created in admin.create_topics(wanted).values():
        created.result(TIMEOUT_S)
    quorum.wait_in_sync()


def found(quorum: Quorum, topic: str) -> list[str]:
    parts = read_committed(quorum.bootstrap, topic, PARTITIONS)
    return sorted(value for part in parts for value in part)


def test_what_is_committed_counts_and_what_is_aborted_does_not(
    client: TransactionalClient, quorum: Quorum, written: str
) -> None:
    client.open("a", written)
    for number in range(6):
        client.ask("begin", "a")
        client.send("a", written, str(number), 0, 1, 2)
        client.ask("commit" if number % 2 else "abort", "a")
    client.ask("close", "a")
    assert found(quorum, written) == sorted(["1", "3", "5"] * 3)


def test_the_next_producer_of_the_id_fences_this_one(
    client: TransactionalClient, kind: str, quorum: Quorum, written: str
) -> None:
    client.open("former", written)
    client.ask("begin", "former")
    client.send("former", written, "former", 0, 1)
    client.open("latter", written)
    client.ask("begin", "latter")
    client.send("latter", written, "latter", 1, 2)
    with pytest.raises(RefusedError) as refused:
        client.ask("commit", "former")
    assert str(refused.value) in FENCED[kind]
    client.ask("commit", "latter")
    client.ask("close", "latter")
    client.ask("close", "former")
    assert found(quorum, written) == ["latter", "latter"]


def test_after_a_transaction_that_took_too_long_the_id_goes_on(
    client: TransactionalClient, quorum: Quorum, written: str
) -> None:
    client.open("slow", written, timeout_ms=1000)
    client.ask("begin", "slow")
    client.send("slow", written, "slow", 0, 1, 2)
    assert found(quorum, written) == []  # which waits until it is aborted
    with pytest.raises(RefusedError):
        client.ask("commit", "slow")
    client.ask("close", "slow")
    client.open("next", written)
    client.ask("begin", "next")
    client.send("next", written, "next", 0)
    client.ask("commit", "next")
    client.ask("close", "next")
    assert found(quorum, written) == ["next"]


def test_one_that_was_killed_goes_on_in_another_process(
    kind: str, client: TransactionalClient, quorum: Quorum, written: str
) -> None:
    with TransactionalClient(kind, quorum.bootstrap) as killed:
        killed.open("a", written)
        killed.ask("begin", "a")
        killed.send("a", written, "killed", 0, 1, 2)
        killed.kill()
    client.open("a", written)
    client.ask("begin", "a")
    client.send("a", written, "next", 2)
    client.ask("commit", "a")
    client.ask("close", "a")
    assert found(quorum, written) == ["next"]


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        *((each, "classic") for each in CLIENTS),
        *((each, "consumer") for each in CLIENTS if "java" in each),
    ],
    indirect=["kind"],
    ids=lambda each: each if isinstance(each, str) else "-".join(map(str, each)),
)
def test_each_record_is_transformed_once_while_coordinators_are_killed(
    client: TransactionalClient, kind: str, quorum: Quorum, topic: str, protocol: str
) -> None:
    source, target, group = f"{topic}-source", f"{topic}-target", f"{topic}-group"
    create(quorum, source, target)
    producer = Producer({"bootstrap.servers": quorum.bootstrap})
    sent: list[list[str]] = [[] for _ in range(PARTITIONS)]

    def feed() -> None:
        for _ in range(STEP):
            number = sum(map(len, sent))
            sent[number % PARTITIONS].append(str(number))
            producer.produce(source, str(number), partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0

    feed()
    client.done = 0
    client.begin(
        "transform",
        source=source,
        target=target,
        group=group,
        protocol=protocol,
        members=2 if kind == "java" else 1,
        until=3 * STEP,
        batch=3,
    )
    for coordinates, key in (("__transaction_state", f"{group}-0"), ("__consumer_offsets", group)):
        client.advance(STEP // 3)
        count = sum(name == coordinates for name, _ in quorum.partitions())
        victim = quorum.leader_of(coordinates, partition_for(key, count))
        quorum.kill(victim)
        try:
            feed()
            client.advance(STEP // 3)
        finally:
            quorum.restart(victim)
            quorum.wait_in_sync()
    client.end()
    assert read_committed(quorum.bootstrap, target, PARTITIONS) == sent
