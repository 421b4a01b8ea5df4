"""Offsets in transactions are answered as Apache Kafka does: the same tests, of its broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode as E
from tests.apache_kafka import ApacheKafka
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import wait_for_partitions
from tests.processes import running
from tests.server.test_transactional_offsets import (
    Group,
    group,
    test_a_marker_is_answered_when_it_has_taken_effect,
    test_every_version_commits,
    test_members_that_are_none,
    test_offsets_count_when_the_transaction_does,
    test_offsets_of_no_transaction_are_refused,
    test_producers_that_are_not_who_they_say,
    transactional,
)
from tests.server.test_transactions import Id
from tests.server.wire import Wire
from tests.waiting import wait_until

_numbers = itertools.count()

__all__ = [
    "group",
    "test_a_marker_is_answered_when_it_has_taken_effect",
    "test_every_version_commits",
    "test_members_that_are_none",
    "test_offsets_count_when_the_transaction_does",
    "test_offsets_of_no_transaction_are_refused",
    "test_producers_that_are_not_who_they_say",
    "transactional",
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    kafka = ApacheKafka(
        folder, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1
    )
    with running(kafka):
        with connected(kafka) as wire:
            one = Id(wire, "the first one")
            wait_until(lambda: one.find() is E.NONE and one.init() is E.NONE, "the coordinator")
            wait_until(lambda: Group(wire, "g").commit("nowhere", 1) == 3, "that of groups")
        yield kafka


def connected(kafka: ApacheKafka) -> Wire:
    host, _, port = kafka.bootstrap.rpartition(":")
    return Wire(host, int(port))


@pytest.fixture
def wire(kafka: ApacheKafka) -> Iterator[Wire]:
    with connected(kafka) as wire:
        yield wire


@pytest.fixture
def new_topic(kafka: ApacheKafka) -> Callable[..., str]:
    def create() -> str:
        name = f"topic-{next(_numbers)}"
        client = ConfluentKafka(kafka.bootstrap)
        client.create_topic(name, 1, {})
        wait_for_partitions(client, name, 1)
        return name

    return create
