"""Batch reads through a real session from a real broker, beside Spark's own Kafka connector."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.functions import spark_partition_id

from kraftpy.pipeline.door import Door
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.testing import Broker
from tests.spark.topics import START_MS, fill, numbered

NewTopic = Callable[..., str]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def load(spark: Any, broker: Broker, topic: str, door: str = "kraftpy", **options: Any) -> Any:
    reader = spark.read.format(door).option("kafka.bootstrap.servers", broker.bootstrap)
    if not {"subscribePattern", "assign"} & set(options):
        reader = reader.option("subscribe", topic)
    if "schema" in options:
        reader = reader.schema(options.pop("schema"))
    return reader.options(**{k.replace("__", "."): str(v) for k, v in options.items()}).load()


def table(frame: Any) -> list[Any]:
    """The rows, sorted by where they come from."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def offsets(frame: Any) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in table(frame)]


def test_the_same_table_through_both_doors(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for number, codec in enumerate(CODECS):
        fill(broker.bootstrap, topic, numbered(200, 3, number * 200), compression=codec)
    ours = load(spark, broker, topic, includeHeaders=True)
    theirs = load(spark, broker, topic, "kafka", includeHeaders=True)
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    rows = table(ours)
    assert len(rows) == 1000
    assert rows == table(theirs)
    assert table(load(spark, broker, topic)) == table(load(spark, broker, topic, "kafka"))


def test_topics_of_all_settings_through_both_doors(
    spark: Any, broker: Broker, new_topic: NewTopic
) -> None:
    by_broker = new_topic(1, message_timestamp_type="LogAppendTime")
    empty = new_topic(2)
    fill(broker.bootstrap, by_broker, numbered(30))
    names = ",".join((by_broker, empty))
    rows = table(load(spark, broker, names))
    assert rows == table(load(spark, broker, names, "kafka"))
    assert {row.timestampType for row in rows} == {1}
    assert load(spark, broker, empty).count() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"startingOffsets": {"0": 3, "1": -2}, "endingOffsets": {"0": 10, "1": -1}},
        {"startingOffsets": {"0": 10, "1": 10}, "endingOffsets": {"0": 10, "1": 11}},
        {"startingTimestamp": START_MS + 21, "endingTimestamp": START_MS + 60},
        {"startingOffsetsByTimestamp": {"0": START_MS + 21, "1": START_MS + 50}},
        {
            "startingOffsetsByTimestamp": {"0": START_MS + 21, "1": START_MS + 5000},
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {"endingOffsetsByTimestamp": {"0": START_MS + 5000, "1": START_MS + 30}},
        {"minPartitions": 7, "startingOffsets": {"0": 3, "1": -2}},
        {"maxRecordsPerPartition": 9},
        {"startingTimestamp": START_MS + 40, "startingOffsets": "earliest"},
    ],
    ids=str,
)
def test_ranges_through_both_doors(
    spark: Any, broker: Broker, hundred: str, options: dict[str, Any]
) -> None:
    said = {
        name: json.dumps({hundred: value}) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    ours = load(spark, broker, hundred, **said)
    theirs = load(spark, broker, hundred, "kafka", **said)
    assert table(ours) == table(theirs)
    if "minPartitions" in options:
        assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions() == 7
    if "maxRecordsPerPartition" in options:  # which Spark's source heeds in streams only
        assert ours.rdd.getNumPartitions() == 12


def test_tasks_of_a_job_are_as_small_as_wanted_through_both_doors(
    spark: Any, broker: Broker, hundred: str
) -> None:
    ranges = [OffsetRange(hundred, 0, 0, 50), OffsetRange(hundred, 1, 10, 50)]
    tables = []
    for door in ("kraftpy", "kafka"):
        frame = Door(broker.bootstrap, door).table(spark, ranges, max_records_per_task=9)
        assert frame is not None
        sizes = frame.groupBy(spark_partition_id().alias("task"), "partition").count().collect()
        assert len({row.task for row in sizes}) == len(sizes) == 11, door
        assert max(row["count"] for row in sizes) <= 9, door
        tables.append(table(frame))
    assert len(tables[0]) == 90
    assert tables[0] == tables[1]


@pytest.fixture(scope="module")
def hundred(broker: Broker) -> str:
    """A topic of 2 partitions with 100 records, one each millisecond."""
    from tests.spark.topics import create_topic

    create_topic(broker.bootstrap, "hundred", 2)
    fill(broker.bootstrap, "hundred", numbered(100, 2))
    return "hundred"


def test_topics_by_pattern_and_by_partition(
    spark: Any, broker: Broker, new_topic: NewTopic
) -> None:
    first, second = new_topic(2), new_topic(2)
    for topic in (first, second):
        fill(broker.bootstrap, topic, numbered(10, 2))
    pattern = f"{first}|{second}"
    rows = table(load(spark, broker, "", subscribePattern=pattern))
    assert len(rows) == 20
    assert rows == table(load(spark, broker, "", "kafka", subscribePattern=pattern))
    assert load(spark, broker, "", subscribePattern="no such.*").count() == 0
    assigned = json.dumps({first: [1], second: [0]})
    rows = table(load(spark, broker, "", assign=assigned))
    assert {(row.topic, row.partition) for row in rows} == {(first, 1), (second, 0)}
    assert rows == table(load(spark, broker, "", "kafka", assign=assigned))


def test_a_schema_chooses_columns(spark: Any, broker: Broker, hundred: str) -> None:
    frame = load(spark, broker, hundred, schema="offset long, partition int, headers "
                 "array<struct<key:string,value:binary>>")  # fmt: skip
    assert frame.columns == ["offset", "partition", "headers"]
    assert frame.where("headers is not null").count() == sum(1 for n in range(100) if n % 3)
    with pytest.raises(Exception, match="no column 'offfset'"):
        load(spark, broker, hundred, schema="offfset long").collect()
    with pytest.raises(Exception, match="value is binary, not string"):
        load(spark, broker, hundred, schema="value string").collect()


def test_sql_finds_the_source_by_itself(spark: Any, broker: Broker, hundred: str) -> None:
    spark.sql(
        f"create or replace temporary view flights using kraftpy options "
        f"(`kafka.bootstrap.servers` '{broker.bootstrap}', subscribe '{hundred}')"
    )
    assert spark.sql("select count(*) from flights where key is null").first()[0] == 20


def test_filters_choose_what_is_read(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    fill(broker.bootstrap, topic, numbered(400, 4))
    frame = load(spark, broker, topic)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = load(spark, broker, topic, pushFilters=True)
        for condition in (
            "partition = 2 and offset >= 90",
            "partition in (0, 3) and offset < 7 and value is not null",
            "offset = 5 and partition <> 1",
            f"topic = '{topic}' and offset > 95 and offset <= 97",
            "topic = 'another'",
            "timestamp >= timestamp_millis(1700000000390)",
            "timestamp > timestamp_millis(1700000000390) and timestamp < timestamp_millis(0)",
            "timestamp = timestamp_millis(1700000000123) and key is not null",
        ):
            assert table(pushing.where(condition)) == table(frame.where(condition)), condition
        # Only what is left is planned: one task, where four would be needed.
        assert pushing.where("partition = 2").rdd.getNumPartitions() == 1
        assert frame.where("partition = 2").rdd.getNumPartitions() == 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_registering_turns_filters_on(spark: Any, broker: Broker, hundred: str) -> None:
    from kraftpy.spark import register

    session = spark.newSession()
    register(session)
    frame = load(session, broker, hundred).where("partition = 1 and offset >= 49")
    assert offsets(frame) == [(1, 49)]
    assert frame.rdd.getNumPartitions() == 1
    assert load(spark, broker, hundred).where("partition = 1").rdd.getNumPartitions() == 2


def test_offsets_that_are_gone(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(20))
    beyond = {
        "startingOffsets": json.dumps({topic: {"0": 5}}),
        "endingOffsets": json.dumps({topic: {"0": 30}}),
    }
    with pytest.raises(Exception, match=r"ends at offset 20, before the wanted 30.*failOnDataLoss"):
        load(spark, broker, topic, **beyond).collect()
    rows = load(spark, broker, topic, failOnDataLoss=False, **beyond)
    assert offsets(rows) == [(0, n) for n in range(5, 20)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nowhere"}, "topic 'nowhere' does not exist"),
        ({"assign": '{"hundred":[7]}'}, "partitions that are not there: hundred-7"),
        ({"startingOffsets": '{"hundred":{"0":1}}'}, "not named: hundred-1"),
        ({"startingOffsets": "latest"}, "can't be latest"),
        ({"endingOffsets": "earliest"}, "can't be earliest"),
        ({"startingTimestamp": START_MS + 99999}, "no record from the wanted time on"),
        ({"kafka__auto.offset.reset": "latest"}, "set startingOffsets instead"),
        ({"kafka__sasl.mechanism": "PLAIN"}, "no effect with security.protocol=PLAINTEXT"),
        ({"kafka__isolation.level": "serializable"}, "read_uncommitted, read_committed"),
    ],
)
def test_errors_say_what_to_type(
    spark: Any, broker: Broker, hundred: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, broker, options.pop("subscribe", hundred), **options).collect()


def test_read_committed_without_transactions(spark: Any, broker: Broker, hundred: str) -> None:
    rows = table(load(spark, broker, hundred, kafka__isolation__level="read_committed"))
    assert len(rows) == 100
