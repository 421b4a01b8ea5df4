"""Transactions with markers, as writers of Spark have them, at a broker; without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.coordinator import GroupMetadata
from kraftpy.client.transactional_producer import OpenTransaction, TransactionalProducer
from kraftpy.spark.exactly_once import (
    Marker,
    MarkingProducer,
    NotCommittedError,
    RepeatedError,
    Series,
    end_all,
    take_over,
)
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings, write_settings
from kraftpy.testing import Broker
from tests.server.test_transaction_version import FEATURE, Update, updated
from tests.server.wire import Wire

LEVELS = pytest.mark.parametrize("level", [0, 2], indirect=True)
PATIENCE_S = 60


@pytest.fixture
def level(wire: Wire, request: pytest.FixtureRequest) -> Iterator[int]:
    """The level of transaction.version; 2 again behind it."""
    updated(wire, Update(FEATURE, request.param, False, 1 if request.param else 2))
    yield request.param
    updated(wire, Update(FEATURE, 2))


@pytest.fixture
def settings(broker: Broker, new_topic: Callable[..., str]) -> WriteSettings:
    return settings_of(broker, new_topic())


def settings_of(broker: Broker, topic: str, **more: str) -> WriteSettings:
    said = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "exactlyOnce": "true"}
    return write_settings(said | {name.replace("_", "."): value for name, value in more.items()})


def series(settings: WriteSettings, task: int = 0) -> Series:
    assert settings.topic is not None
    return Series.of_task(f"query-of-{settings.topic}", task, settings.topic)


def on(settings: WriteSettings, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(PATIENCE_S), settings.client.connect() as cluster:
            return await work(cluster)

    return asyncio.run(run())


def found(settings: WriteSettings, task: int = 0) -> Marker | None:
    """The marker that the next attempt finds."""

    (marker,) = take_over(settings, [series(settings, task)])
    return marker


def handed_over(settings: WriteSettings, task: int, marker: Marker) -> OpenTransaction:
    async def write(cluster: Cluster) -> OpenTransaction | None:
        producer = MarkingProducer(cluster, settings, series(settings, task))
        async with producer:
            await producer.begin()
            await producer.send(settings.topic or "", b"row")
            await producer.mark(marker)
            return await producer.hand_over_transaction()

    transaction = on(settings, write)
    assert isinstance(transaction, OpenTransaction)
    return transaction


@LEVELS
def test_a_marker_counts_when_its_transaction_does(settings: WriteSettings, level: int) -> None:
    assert found(settings) is None
    first = handed_over(settings, 0, Marker(1, 1))
    assert found(settings) is None  # and the attempt to look aborts it
    with pytest.raises(NotCommittedError, match="1 of 1 transaction of the batch couldn't be com"):
        end_all(settings, [first], committed=True)
    assert found(settings) is None
    end_all(settings, [handed_over(settings, 0, Marker(1, 1))], committed=True)
    assert found(settings) == Marker(1, 1)
    end_all(settings, [handed_over(settings, 0, Marker(2, 5))], committed=False)
    assert found(settings) == Marker(1, 1)
    end_all(settings, [], committed=True)


@LEVELS
def test_all_are_ended_that_can_be(settings: WriteSettings, level: int) -> None:
    open_ones = [handed_over(settings, task, Marker(4, task)) for task in range(3)]
    assert found(settings, 1) is None
    with pytest.raises(NotCommittedError, match=r"1 of 3 .*transaction.timeout.ms \(900000\)"):
        end_all(settings, open_ones, committed=True)
    assert [found(settings, task) for task in range(3)] == [Marker(4, 0), None, Marker(4, 2)]
    # Spark has all aborted when not all could be committed: what is committed stays so.
    end_all(settings, open_ones, committed=False)
    assert [found(settings, task) for task in range(3)] == [Marker(4, 0), None, Marker(4, 2)]


def test_only_the_same_again_is_no_error(settings: WriteSettings) -> None:
    mine = series(settings)
    mine.check_repeated(Marker(5, 7), Marker(5, 7))
    with pytest.raises(RepeatedError, match=r"8 rows to write, and what was written .* has 7: a"):
        mine.check_repeated(Marker(5, 7), Marker(5, 8))
    with pytest.raises(RepeatedError, match="has written batch 5, and batch 4 comes now"):
        mine.check_repeated(Marker(6, 7), Marker(5, 7))


def test_an_offset_that_is_no_marker_is_refused(settings: WriteSettings) -> None:
    mine = series(settings)

    async def commit(cluster: Cluster) -> None:
        group = GroupMetadata(mine.group)
        async with (
            TransactionalProducer(cluster, "somebody") as producer,
            producer.transaction(),
        ):
            await producer.send_offsets_to_transaction({mine.place: 3}, group, "[1]")

    on(settings, commit)
    with pytest.raises(RepeatedError, match=r"offset 3 was committed by somebody.*'\[1\]'"):
        found(settings)


def test_a_timeout_that_brokers_refuse_is_told(settings: WriteSettings, broker: Broker) -> None:
    longer = settings_of(broker, settings.topic or "", kafka_transaction_timeout_ms="900001")
    with pytest.raises(OptionError, match=r"is 900001, more than transaction\.max\.timeout\.ms"):
        found(longer)
