"""Which records of transactions `kraftpy consume` shows."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from kraftpy.testing import Broker
from tests.waiting import wait_until

from .commands import failure, output, running


class Stage(NamedTuple):
    """A topic where a transaction is open, and its producer."""

    bootstrap: str
    topic: str
    open: Producer

    def consume(self, *args: str) -> list[str]:
        return output("consume", self.topic, *args, bootstrap=self.bootstrap).split()


def transaction(bootstrap: str, topic: str, *values: str) -> Producer:
    """Open, with these values on the broker."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{uuid.uuid4().hex[:6]}"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(30) == 0
    return producer


@pytest.fixture
def stage(kraftpy: Broker) -> Iterator[Stage]:
    """Offsets: a 0, b 1, marker 2; no 3, never 4, marker 5; c 6, marker 7; open 8; plain 9."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    output("topic", "create", topic, bootstrap=kraftpy.bootstrap)
    transaction(kraftpy.bootstrap, topic, "a", "b").commit_transaction()
    transaction(kraftpy.bootstrap, topic, "no", "never").abort_transaction()
    transaction(kraftpy.bootstrap, topic, "c").commit_transaction()
    producer = transaction(kraftpy.bootstrap, topic, "open")
    output("produce", topic, stdin=b"plain\n", bootstrap=kraftpy.bootstrap)
    yield Stage(kraftpy.bootstrap, topic, producer)
    producer.abort_transaction()


UNCOMMITTED = ("--isolation-level", "read_uncommitted")


def test_what_is_aborted_or_open_is_shown_on_demand_only(stage: Stage) -> None:
    assert stage.consume("-o", ":end") == ["a", "b", "c"]
    assert stage.consume("-o", ":end", "--isolation-level", "read_committed") == ["a", "b", "c"]
    everything = ["a", "b", "no", "never", "c", "open", "plain"]
    assert stage.consume("-o", ":end", *UNCOMMITTED) == everything
    shown = stage.consume("-o", "4:end", "-f", r"%o\n")
    assert shown == ["6"]
    assert "read_uncommitted" in failure(
        "consume", stage.topic, "--isolation-level", "all", code=2, bootstrap=stage.bootstrap
    )


def test_the_last_ones_are_the_last_that_are_shown(stage: Stage) -> None:
    assert stage.consume("-o", "-1:end") == ["c"]
    assert stage.consume("-o", "-2:end") == ["b", "c"]
    assert stage.consume("-o", "-3:end") == ["a", "b", "c"]
    assert stage.consume("-o", "-99:end") == ["a", "b", "c"]
    assert stage.consume("-o", "-0:end") == []
    assert stage.consume("-o", "-3:end", *UNCOMMITTED) == ["c", "open", "plain"]
    stage.open.commit_transaction()
    output("produce", stage.topic, stdin=b"last\n", bootstrap=stage.bootstrap)
    assert stage.consume("-o", "-1:end") == ["last"]
    assert stage.consume("-o", "-3:end") == ["open", "plain", "last"]
    stage.open.begin_transaction()


def test_the_last_before_a_marker_in_each_partition(kraftpy: Broker) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    output("topic", "create", topic, "-p", "3", bootstrap=kraftpy.bootstrap)
    producer = transaction(kraftpy.bootstrap, topic)
    for number in range(60):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    producer.commit_transaction()
    producer.begin_transaction()
    for number in range(300):  # more than one look back
        producer.produce(topic, b"no", partition=number % 2)
    producer.abort_transaction()
    text = output("consume", topic, "-o", "-2:end", bootstrap=kraftpy.bootstrap)
    assert sorted(text.split()) == ["56", "57", "58", "59"]


def test_a_follower_waits_for_what_is_open(stage: Stage) -> None:
    with running("consume", stage.topic, "-o", "+7", bootstrap=stage.bootstrap) as follower:
        stage.open.commit_transaction()
        assert [follower.stdout_line(), follower.stdout_line()] == ["open", "plain"]
        assert follower.end(signal.SIGINT) == 130
    stage.open.begin_transaction()


def test_an_offset_behind_an_open_transaction_is_not_moved_before_it(stage: Stage) -> None:
    with running("consume", stage.topic, "-o", "+9", bootstrap=stage.bootstrap) as follower:
        stage.open.commit_transaction()
        assert follower.stdout_line() == "plain"
        assert follower.end(signal.SIGINT) == 130
    stage.open.begin_transaction()


def test_a_member_reads_what_is_committed(stage: Stage) -> None:
    assert stage.consume("-g", stage.topic, "-n", "3") == ["a", "b", "c"]
    every = f"{stage.topic}-every"
    assert stage.consume("-g", every, "-n", "4", *UNCOMMITTED) == ["a", "b", "no", "never"]

    def committed() -> int:
        shown = output("group", "offsets", "show", stage.topic, "-o", "json", bootstrap=where)
        return max(each["offset"] for each in json.loads(shown))

    where = stage.bootstrap
    with running("consume", stage.topic, "-g", stage.topic, bootstrap=where) as member:
        stage.open.abort_transaction()
        assert member.stdout_line() == "plain"
        wait_until(lambda: committed() == 11, "the marker is behind the group")
        assert member.end(signal.SIGINT) == 130
    stage.open.begin_transaction()
