"""Streams whose `assign` changes between two starts, as a mirror's does; the reader by itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kraftpy.spark.brokers import DataLossError
from kraftpy.spark.decoder import COLUMNS
from kraftpy.spark.settings import STREAM, read_settings
from kraftpy.spark.stream import StreamReader
from kraftpy.testing import Broker
from tests.spark.test_stream import ALL, as_json
from tests.spark.topics import create_topic, delete_before, delete_topic, fill, numbered

NewTopic = Callable[..., str]


def reader(broker: Broker, *topics: str) -> StreamReader:
    said = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest"}
    said["assign"] = json.dumps({topic: [0] for topic in topics})
    said["fetchOffset.retryIntervalMs"] = "100"
    return StreamReader(read_settings(said, STREAM), tuple(COLUMNS))


def planned(stream: StreamReader, start: dict, end: dict) -> list[tuple[str, int, int]]:
    parts = [task.value for task in stream.partitions(as_json(start), as_json(end))]
    return [(part.topic, part.start, part.end) for part in parts if part is not None]


def test_342_what_isnt_assigned_any_more_is_kept(broker: Broker, new_topic: NewTopic) -> None:
    one, two = new_topic(), new_topic()
    fill(broker.bootstrap, one, numbered(10))
    fill(broker.bootstrap, two, numbered(20))
    stream = reader(broker, one, two)
    first = stream.latestOffset(as_json(stream.initialOffset()), ALL)

    fill(broker.bootstrap, one, numbered(5))
    fill(broker.bootstrap, two, numbered(5))
    second = reader(broker, one).latestOffset(as_json(first), ALL)
    assert planned(stream, first, second) == [(one, 10, 15)]
    third = reader(broker, one, two).latestOffset(as_json(second), ALL)
    assert planned(stream, second, third) == [(two, 20, 25)]
    assert reader(broker, one).latestOffset(as_json(third), ALL) == third

    # Gone, and not asked for; when it is back it is another.
    delete_topic(broker.bootstrap, two)
    assert reader(broker, one).latestOffset(as_json(third), ALL) == third
    with pytest.raises(DataLossError, match="is not there any more"):
        reader(broker, one, two).latestOffset(as_json(third), ALL)
    create_topic(broker.bootstrap, two)
    assert reader(broker, one).latestOffset(as_json(third), ALL) == third
    with pytest.raises(DataLossError, match="deleted and made anew"):
        reader(broker, one, two).latestOffset(as_json(third), ALL)


def test_342_a_planned_batch_does_without_what_is_neither_assigned_nor_there(
    broker: Broker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.spark.brokers._MISSING_TOPIC_PATIENCE_S", 0.2)
    one, two = new_topic(), new_topic()
    for topic in (one, two):
        fill(broker.bootstrap, topic, numbered(10))
    stream = reader(broker, one, two)
    start = stream.initialOffset()
    end = stream.latestOffset(as_json(start), ALL)

    def read_by(stream: StreamReader) -> dict[str, int]:
        tasks = stream.partitions(as_json(start), as_json(end))
        return {
            task.value.topic: sum(table.num_rows for table in stream.read(task)) for task in tasks
        }

    assert read_by(reader(broker, one)) == {one: 10, two: 10}
    delete_topic(broker.bootstrap, two)
    assert read_by(reader(broker, one)) == {one: 10, two: 0}
    with pytest.raises(DataLossError, match="does not exist any more"):
        read_by(reader(broker, one, two))


def test_342_a_topic_that_is_assigned_later_begins_where_it_begins(
    broker: Broker, new_topic: NewTopic
) -> None:
    one, two = new_topic(), new_topic()
    fill(broker.bootstrap, one, numbered(10))
    stream = reader(broker, one)
    first = stream.latestOffset(as_json(stream.initialOffset()), ALL)
    fill(broker.bootstrap, two, numbered(20))
    delete_before(broker.bootstrap, two, 0, 5)
    second = reader(broker, one, two).latestOffset(as_json(first), ALL)
    assert planned(stream, first, second) == [(two, 5, 20)]
