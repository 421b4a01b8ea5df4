"""Transactions of a real coordinator, Apache Kafka's: what was aborted is left out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kraftpy.client.fetcher import READ_COMMITTED
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.decoder import Slice
from kraftpy.spark.settings import ClientSettings
from tests.apache_kafka import ApacheKafka
from tests.processes import running
from tests.spark.topics import create_topic


@pytest.fixture(scope="module")
def apache() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="kraftpy-spark-") as folder,
        running(ApacheKafka(Path(folder))) as broker,
    ):
        yield broker.bootstrap


def producer(bootstrap: str, name: str) -> Any:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
    made.init_transactions(60)
    return made


def values(settings: ClientSettings) -> list[bytes]:
    with Brokers(settings) as brokers:
        end = brokers.latest([("ledger", 0)])["ledger", 0]
        parts = brokers.read(Slice("ledger", 0, 0, end), ("value", "offset"))
        return [value for part in parts for value in part.column("value").to_pylist()]


def test_only_what_was_committed_is_read(apache: str) -> None:
    create_topic(apache, "ledger", 1)
    first, second = producer(apache, "first"), producer(apache, "second")
    committed, everything = [], []

    def write(who: Any, text: str, into: list[bytes] | None) -> None:
        who.produce("ledger", text.encode(), partition=0)
        who.flush(30)
        everything.append(text.encode())
        if into is not None:
            into.append(text.encode())

    for number in range(10):
        # Two transactions at once, whose records alternate; each third one is aborted.
        aborts = number % 3 == 1, number % 3 == 2
        first.begin_transaction()
        second.begin_transaction()
        for each in range(3):
            write(first, f"first {number} {each}", None if aborts[0] else committed)
            write(second, f"second {number} {each}", None if aborts[1] else committed)
        for who, abort in ((second, aborts[1]), (first, aborts[0])):
            (who.abort_transaction if abort else who.commit_transaction)(30)
    settings = ClientSettings(apache, isolation=READ_COMMITTED, partition_max_bytes=700)
    assert values(ClientSettings(apache)) == everything
    assert values(settings) == committed
    # An open transaction holds the end back for who reads what is committed.
    first.begin_transaction()
    write(first, "open", None)
    write(first, "open too", None)
    assert values(settings) == committed
    assert values(ClientSettings(apache)) == everything
    first.commit_transaction(30)
    assert values(settings) == [*committed, b"open", b"open too"]
