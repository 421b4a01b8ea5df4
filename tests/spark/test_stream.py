"""Streams: offsets, limits, restarts; the reader by itself and in a real query."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.spark.brokers import Brokers, DataLossError
from kraftpy.spark.decoder import COLUMNS
from kraftpy.spark.settings import STREAM, OptionError, read_settings
from kraftpy.spark.stream import StreamReader, limited
from kraftpy.testing import Broker
from tests.spark.topics import (
    create_topic,
    delete_before,
    delete_topic,
    fill,
    numbered,
    on_cluster,
)

NewTopic = Callable[..., str]
ALL = ReadAllAvailable()


def reader(broker: Broker, topic: str, **options: Any) -> StreamReader:
    said = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    said |= {"fetchOffset.retryIntervalMs": "100"}
    said |= {name: str(value) for name, value in options.items()}
    return StreamReader(read_settings(said, STREAM), tuple(COLUMNS))


def as_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    return json.loads(json.dumps(offset))


def planned(stream: StreamReader, start: dict, end: dict) -> list[tuple[int, int, int]]:
    parts = [task.value for task in stream.partitions(as_json(start), as_json(end))]
    return [(part.partition, part.start, part.end) for part in parts]


def test_a_first_batch_is_repeated_from_where_it_began(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(broker.bootstrap, topic, numbered(20, 2))
    stream = reader(broker, topic)
    start = stream.initialOffset()
    fill(broker.bootstrap, topic, numbered(10, 2))
    end = stream.latestOffset(as_json(start), ALL)
    assert planned(stream, start, end) == [(0, 10, 15), (1, 10, 15)]
    # Batch 0 is in the checkpoint, not committed, and the query starts again: "latest" has moved.
    fill(broker.bootstrap, topic, numbered(10, 2))
    again = reader(broker, topic)
    moved = again.initialOffset()
    assert moved != start
    assert planned(again, moved, end) == [(0, 10, 15), (1, 10, 15)]
    later = again.latestOffset(as_json(end), ALL)
    assert planned(again, end, later) == [(0, 15, 20), (1, 15, 20)]
    assert again.latestOffset(as_json(later), ALL) == later
    # An empty first batch stays empty.
    assert planned(again, moved, start) == []


def test_earliest_that_retention_has_moved(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(20))
    stream = reader(broker, topic, startingOffsets="earliest")
    end = stream.latestOffset(as_json(stream.initialOffset()), ALL)
    delete_before(broker.bootstrap, topic, 0, 5)
    again = reader(broker, topic, startingOffsets="earliest")
    assert planned(again, again.initialOffset(), end) == [(0, 0, 20)]
    (task,) = again.partitions(again.initialOffset(), end)
    with pytest.raises(DataLossError, match=r"starts at offset 5: 5 offsets \(0 to 4\) are gone"):
        list(again.read(task))
    lenient = reader(broker, topic, startingOffsets="earliest", failOnDataLoss=False)
    rows = [row for part in lenient.read(task) for row in part.column("offset").to_pylist()]
    assert rows == list(range(5, 20))


def test_limits(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    rows = [row | {"partition": min(n // 100, 2)} for n, row in enumerate(numbered(103))]
    fill(broker.bootstrap, topic, rows)  # 100, 3 and none
    stream = reader(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    assert stream.getDefaultReadLimit() == ReadMaxRows(50)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(50))
    assert planned(stream, start, first) == [(0, 0, 48), (1, 0, 1)]
    assert planned(stream, start, stream.latestOffset(start, ALL)) == [(0, 0, 100), (1, 0, 3)]
    assert stream.reportLatestOffset() == {topic: {"0": 100, "1": 3, "2": 0}}
    waiting = reader(broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=50)
    limit = waiting.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    end = waiting.latestOffset(start, limit)  # the first batch does not wait
    assert waiting.latestOffset(end, limit) == end
    fill(broker.bootstrap, topic, numbered(49))
    assert waiting.latestOffset(end, limit) == end
    fill(broker.bootstrap, topic, numbered(1))
    more = waiting.latestOffset(end, limit)
    assert planned(waiting, end, more) == [(0, 100, 150)]
    fill(broker.bootstrap, topic, numbered(1))
    assert waiting.latestOffset(more, limit) == more
    impatient = reader(
        broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=50, maxTriggerDelay="1ms"
    )
    first = impatient.latestOffset(end, limit)
    assert planned(impatient, end, first) == [(0, 100, 151)]
    waiting.prepareForTriggerAvailableNow()
    assert planned(waiting, more, waiting.latestOffset(more, limit)) == [(0, 150, 151)]


def test_what_comes_while_a_query_starts_is_no_loss(broker: Broker, new_topic: NewTopic) -> None:
    """Spark asks what is there now before it asks where to begin."""
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(10))
    stream = reader(broker, topic)
    stream.prepareForTriggerAvailableNow()
    fill(broker.bootstrap, topic, numbered(5))
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    assert start[topic] == {"0": 15}
    beyond = reader(broker, topic, startingOffsets=json.dumps({topic: {"0": 99}}))
    beyond.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="up to offset 99 and ends at 15 now"):
        beyond.latestOffset(beyond.initialOffset(), ALL)


def test_a_limit_is_shared_out_by_what_is_left() -> None:
    begin = {("t", n): 0 for n in range(3)}
    assert limited(begin, {("t", 0): 1, ("t", 1): 9, ("t", 2): 90}, 10) == {
        ("t", 0): 1,
        ("t", 1): 1,
        ("t", 2): 9,
    }
    assert limited(begin, {("t", 0): 1, ("t", 1): 0, ("t", 2): 3}, 4)["t", 2] == 3


def test_partitions_come_and_topics_are_made_anew(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(10))
    stream = reader(broker, topic, startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)

    async def add(cluster: Cluster) -> None:
        await Admin(cluster).create_partitions(topic, 2)

    on_cluster(broker.bootstrap, add)
    fill(broker.bootstrap, topic, [row | {"partition": 1} for row in numbered(7)])
    more = stream.latestOffset(end, ALL)
    assert planned(reader(broker, topic), end, more) == [(1, 0, 7)]
    fill(broker.bootstrap, topic, numbered(3))
    assert planned(stream, more, stream.latestOffset(more, ALL)) == [(0, 10, 13)]

    make_anew(broker, topic, 4)
    lost = r"deleted and made anew; what the old one had behind offsets 13 of partition 0, 7 of par"
    with pytest.raises(DataLossError, match=lost):
        stream.latestOffset(end := stream_end(more, 13), ALL)
    lenient = reader(broker, topic, failOnDataLoss=False)
    behind = lenient.latestOffset(end, ALL)
    assert behind[topic] == {"0": 4}
    assert planned(lenient, end, behind) == [(0, 0, 4)]
    fill(broker.bootstrap, topic, numbered(2))
    assert planned(lenient, behind, lenient.latestOffset(behind, ALL)) == [(0, 4, 6)]
    # A checkpoint of before there were ids in it.
    del end["@ids"]
    gone = rf"partition 1 of topic '{topic}', read up to offset 7, is not there any more"
    with pytest.raises(DataLossError, match=gone):
        stream.latestOffset({topic: {"0": 2, "1": 7}}, ALL)
    with pytest.raises(DataLossError, match=r"up to offset 13 and ends at 6 now: 7 offsets were"):
        stream.latestOffset({topic: {"0": 13}}, ALL)
    with pytest.raises(DataLossError, match=r"up to offset 13 and ends at 6 now: 7 offsets were"):
        stream.partitions({topic: {"0": 13}}, {topic: {"0": 6}})
    assert planned(lenient, {topic: {"0": 13}}, {topic: {"0": 6}}) == []


def stream_end(offset: dict[str, Any], first: int) -> dict[str, Any]:
    """The offset, but further in partition 0."""
    ((topic, table),) = ((name, table) for name, table in offset.items() if name[0] != "@")
    return {topic: {**table, "0": first}, "@ids": offset["@ids"]}


def make_anew(broker: Broker, topic: str, records: int) -> None:
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic, 1)
    fill(broker.bootstrap, topic, numbered(records))


def test_a_topic_made_anew_that_has_grown_as_long_is_not_taken_for_the_old_one(
    broker: Broker, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(10))
    stream = reader(broker, topic, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    (task,) = stream.partitions(start, end)
    make_anew(broker, topic, 30)
    with pytest.raises(DataLossError, match=r"made anew.*option failOnDataLoss to false"):
        stream.latestOffset(end, ALL)
    lenient = reader(broker, topic, failOnDataLoss=False)
    assert planned(lenient, end, lenient.latestOffset(end, ALL)) == [(0, 0, 30)]
    # The batch was planned before: its task must not read what is there now.
    with pytest.raises(DataLossError, match=r"made anew: 10 offsets of partition 0 \(0 to 9\)"):
        list(reader(broker, topic).read(task))
    assert list(lenient.read(task)) == []
    assert "10 offsets of partition 0 (0 to 9) are lost; going on without them" in caplog.text


def test_a_broker_that_knows_less_is_asked_again(
    broker: Broker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    fill(broker.bootstrap, topic, numbered(10, 2))
    stream = reader(broker, topic, startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    partitions = Brokers.partitions
    answers = [{}, {topic: [0]}]

    def asked(self: Brokers, topics: Any) -> dict[str, list[int]]:
        return answers.pop() if answers else partitions(self, topics)

    monkeypatch.setattr(Brokers, "partitions", asked)
    assert stream.latestOffset(end, ALL) == end
    assert not answers


def test_streams_have_no_end(broker: Broker) -> None:
    with pytest.raises(OptionError, match=r"availableNow=True"):
        reader(broker, "t", endingOffsets="latest")


# In queries


def stream(spark: Any, broker: Broker, topic: str, door: str = "kraftpy", **options: Any) -> Any:
    said = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    said |= {name: str(value) for name, value in options.items()}
    return spark.readStream.format(door).options(**said).load()


def run(frame: Any, out: Path, checkpoint: Path) -> Any:
    """Read what is there now into Parquet files; the query's progress."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query.recentProgress


def test_available_now_again_and_again(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    fill(broker.bootstrap, topic, numbered(100, 2))

    def once(door: str) -> Any:
        frame = stream(
            spark, broker, topic, door, startingOffsets="earliest", maxOffsetsPerTrigger=60,
            minPartitions=4, includeHeaders=True,
        )  # fmt: skip
        progress = run(frame, tmp_path / door / "out", tmp_path / door / "checkpoint")
        sizes = [each["numInputRows"] for each in progress if each["numInputRows"]]
        return sizes, json.loads(progress[-1]["sources"][0]["latestOffset"])[topic]

    doors = ("kraftpy", "kafka")
    for door in doors:
        assert once(door) == ([60, 40], {"0": 50, "1": 50})
    fill(broker.bootstrap, topic, numbered(30, 2, 100), compression="zstd")
    for door in doors:
        assert once(door) == ([30], {"0": 65, "1": 65})
        once(door)
    ours, theirs = (
        spark.read.parquet(str(tmp_path / door / "out")).sort("partition", "offset").collect()
        for door in doors
    )
    assert ours == theirs
    assert len(ours) == 130


class Following:
    """A query without an end; `offsets` are what it has read, by batch and partition."""

    def __init__(self, frame: Any, checkpoint: Path) -> None:
        self.offsets: list[dict[int, list[int]]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def _take(self, frame: Any, number: int) -> None:
        batch: dict[int, list[int]] = {}
        for row in frame.select("partition", "offset").collect():
            batch.setdefault(row.partition, []).append(row.offset)
        self.offsets.append(batch)
        assert self.may_go_on.wait(60)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is done inside happens while a batch runs."""
        self.may_go_on.clear()
        yield
        self.may_go_on.set()

    def wait_for(self, batches: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.offsets) < batches:
            assert time.monotonic() < deadline
            assert self.query.isActive, self.query.exception()
            time.sleep(0.02)


@pytest.mark.parametrize("fails", [True, False])
def test_partitions_and_losses_inside_a_running_query(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path, fails: bool
) -> None:
    topic = new_topic(1)
    frame = stream(
        spark, broker, topic, startingOffsets="earliest", failOnDataLoss=fails,
        maxRecordsPerPartition=6,
    )  # fmt: skip
    following = Following(frame, tmp_path)
    following.wait_for(1)  # the first batch has nothing, and is one
    following.query.processAllAvailable()
    with following.held():
        fill(broker.bootstrap, topic, numbered(10))
        following.wait_for(2)
        on_cluster(broker.bootstrap, lambda cluster: Admin(cluster).create_partitions(topic, 2))
        fill(broker.bootstrap, topic, [row | {"partition": 1} for row in numbered(7)])
    following.query.processAllAvailable()
    assert following.offsets[2:] == [{1: list(range(7))}]
    with following.held():
        fill(broker.bootstrap, topic, numbered(1))
        following.wait_for(4)
        fill(broker.bootstrap, topic, numbered(20))
        delete_before(broker.bootstrap, topic, 0, 19)
    if fails:
        gone = r"starts at offset 19: .* offsets .* are gone.*option failOnDataLoss to false"
        with pytest.raises(Exception, match=gone):
            following.query.processAllAvailable()
    else:
        following.query.processAllAvailable()
    following.query.stop()
    read = sorted(n for batch in following.offsets for n in batch.get(0, ()))
    assert read == [*range(11), *(() if fails else range(19, 31))]


@pytest.mark.parametrize(
    ("trigger", "refused"),
    [
        ({"continuous": "1 second"}, "kraftpy does not support continuous processing"),
        ({"realTime": "5 seconds"}, "REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"),
    ],
)
def test_triggers_that_python_sources_do_not_have_are_refused(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path, trigger: Any, refused: str
) -> None:
    """Spark has no interface for them; it says so, rather than anything being read."""
    writer = stream(spark, broker, new_topic(1)).writeStream.format("console")
    writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match=refused):
        writer.trigger(**trigger).start().awaitTermination(60)


def test_a_query_that_died_in_its_first_batch_loses_nothing(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(10))
    seen: list[int] = []

    def start(work: Callable[[Any, int], None]) -> Any:
        return (
            stream(spark, broker, topic, startingOffsets="latest")
            .writeStream.foreachBatch(work)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )

    def dies(frame: Any, number: int) -> None:
        raise RuntimeError("killed in the middle of a batch")

    query = start(dies)
    fill(broker.bootstrap, topic, numbered(1))  # "latest" may be 10 or 11, whichever it saw
    with pytest.raises(Exception, match="killed in the middle"):
        query.awaitTermination(60)
    assert (tmp_path / "offsets" / "0").exists()
    assert not (tmp_path / "commits" / "0").exists()
    began = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])["@from"][topic]
    fill(broker.bootstrap, topic, numbered(20))

    def keeps(frame: Any, number: int) -> None:
        seen.extend(row.offset for row in frame.select("offset").collect())

    query = start(keeps)
    query.processAllAvailable()
    fill(broker.bootstrap, topic, numbered(5))
    query.processAllAvailable()
    query.stop()
    assert sorted(seen) == list(range(began["0"], 36))


def test_the_end_of_a_log_is_waited_for(broker: Broker, new_topic: NewTopic) -> None:
    """A plan that reaches beyond the log (it was cut) ends with an error, not for ever."""
    from dataclasses import replace

    from kraftpy.spark.decoder import Slice

    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(5))
    settings = replace(reader(broker, topic).settings.client, poll_timeout_ms=600, max_wait_ms=50)
    with Brokers(settings) as brokers:
        with pytest.raises(DataLossError, match="no record at offsets 5 to 8"):
            list(brokers.read(Slice(topic, 0, 0, 9), ("offset",)))
        with pytest.raises(DataLossError, match="ends at offset 5, before offset 7"):
            list(brokers.read(Slice(topic, 0, 7, 9), ("offset",)))
        found = list(brokers.read(Slice(topic, 0, 3, 9), ("offset",), fail_on_data_loss=False))
        assert [part.column("offset").to_pylist() for part in found] == [[3, 4]]
