"""Clients write in transactions: what counts, for whom, and from when on (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition

from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Driver, until
from tests.clients.transactors import TRANSACTORS, FailedError, Transactor

SHORT_MS = 1_500

Open = Callable[..., Transactor]


@pytest.fixture(params=TRANSACTORS, ids=lambda kind: kind.name)
def transactor(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Open]:
    """Opens producers of one client."""
    opened: list[Transactor] = []

    def open_one(name: str, **options: int) -> Transactor:
        opened.append(request.param(bootstrap, name, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def committed(reference: Driver, topic: str, count: int) -> list[bytes | None]:
    """The first values that librdkafka shows with its default, read_committed."""
    return [each.value for each in reference.read(topic, 0, 0, count)]


def produce_and_commit(producer: Transactor, topic: str) -> None:
    producer.produce(topic, b"late")
    producer.commit()


def stable(bootstrap: str, topic: str) -> int:
    """Up to where read_committed may read; librdkafka asks by its isolation level."""
    consumer = ConfluentKafka(bootstrap).consumer()
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()


def test_commit_and_abort(
    transactor: Open, reference: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer = transactor(f"id-{topic}")
    for number in range(4):
        producer.begin()
        producer.produce(topic, *(b"%d-%d" % (number, each) for each in range(3)))
        (producer.abort if number % 2 else producer.commit)()
    expected = [b"%d-%d" % (number, each) for number in (0, 2) for each in range(3)]
    assert committed(reference, topic, 6) == expected


def test_nothing_is_read_before_the_end(
    transactor: Open, reference: Driver, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer = transactor(f"id-{topic}")
    producer.begin()
    producer.produce(topic, b"a")
    assert stable(bootstrap, topic) == 0
    producer.commit()
    until("the marker", lambda: stable(bootstrap, topic) == 2)
    assert committed(reference, topic, 1) == [b"a"]


def test_who_has_the_id_no_more_is_fenced(
    transactor: Open, reference: Driver, new_topic: Callable[..., str]
) -> None:
    """And what it had open is aborted; its successor goes on."""
    topic = new_topic()
    former = transactor(f"id-{topic}")
    former.begin()
    former.produce(topic, b"lost")
    successor = transactor(f"id-{topic}")
    successor.begin()
    successor.produce(topic, b"kept")
    with pytest.raises(FailedError):
        produce_and_commit(former, topic)
    successor.commit()
    assert committed(reference, topic, 1) == [b"kept"]


def test_a_transaction_that_nobody_ends_is_aborted(
    transactor: Open, reference: Driver, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    former = transactor(f"id-{topic}", timeout_ms=SHORT_MS)
    former.begin()
    former.produce(topic, b"lost")
    until("the end of the transaction", lambda: stable(bootstrap, topic) == 2)
    with pytest.raises(FailedError):
        former.commit()
    successor = transactor(f"id-{topic}")
    successor.begin()
    successor.produce(topic, b"kept")
    successor.commit()
    assert committed(reference, topic, 1) == [b"kept"]


def test_many_short_transactions_one_after_the_other(
    transactor: Open, reference: Driver, new_topic: Callable[..., str]
) -> None:
    """The next one comes while the markers of the one before are out."""
    topic = new_topic()
    producer = transactor(f"id-{topic}")
    for number in range(30):
        producer.begin()
        producer.produce(topic, b"%d" % number)
        producer.commit()
    assert committed(reference, topic, 30) == [b"%d" % number for number in range(30)]
