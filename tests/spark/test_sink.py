"""Writing through real sessions to a real broker, and what is read back through both doors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client.partitioner import partition_of_key
from kraftpy.testing import Broker
from tests.spark.topics import START_MS, fill

NewTopic = Callable[..., str]
SCHEMA = "key binary, value string, partition int, headers array<struct<key:string,value:binary>>"


def read(spark: Any, broker: Broker, topic: str, door: str = "kafka") -> list[Any]:
    frame = (
        spark.read.format(door)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    return frame.sort("partition", "offset").collect()


def save(frame: Any, broker: Broker, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("kraftpy").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**{k.replace("__", "."): v for k, v in options.items()}).mode(mode).save()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_is_written_is_read_back_through_both_doors(
    spark: Any, broker: Broker, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic(3)
    rows = [
        (
            None if n % 4 == 0 else b"key %d" % n,
            None if n % 7 == 0 else f"value {n} é",
            n % 3 if n % 5 == 0 else None,
            [("n", b"%d" % n), ("null", None)] if n % 3 == 0 else None,
        )
        for n in range(500)
    ]
    save(spark.createDataFrame(rows, SCHEMA).coalesce(1), broker, topic=topic,
         kafka__compression__type=codec, kafka__batch__size="1000")  # fmt: skip
    found = read(spark, broker, topic)
    assert found == read(spark, broker, topic, "kraftpy")
    wanted = [(key, value and value.encode(), headers) for key, value, _, headers in rows]
    assert sorted(map(repr, wanted)) == sorted(
        repr((row.key and bytes(row.key), row.value and bytes(row.value), row.headers and
              [(h.key, h.value and bytes(h.value)) for h in row.headers])) for row in found
    )  # fmt: skip
    for row in found:
        number = int(bytes(row.value).split()[1]) if row.value else None
        if number is not None and number % 5 == 0:
            assert row.partition == number % 3
        elif row.key is not None and number is not None:
            assert row.partition == partition_of_key(bytes(row.key), 3)
    # Rows of a partition keep their order.
    for partition in range(3):
        numbers = [int(bytes(r.value).split()[1]) for r in found
                   if r.partition == partition and r.value]  # fmt: skip
        assert numbers == sorted(numbers)


def test_a_column_says_where_rows_go(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    topics = [new_topic(1), new_topic(2)]
    frame = spark.range(100).selectExpr(
        f"case id % 2 when 0 then '{topics[0]}' else '{topics[1]}' end as topic",
        "cast(id as string) as value",
    )
    save(frame, broker)
    for index, topic in enumerate(topics):
        found = sorted(int(bytes(row.value)) for row in read(spark, broker, topic))
        assert found == list(range(index, 100, 2))


def test_a_stream_is_written(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(2)
    save(spark.range(1000).selectExpr("cast(id as string) as value"), broker, topic=source)
    frame = (
        spark.readStream.format("kraftpy")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "600")
        .load()
    )
    for _ in range(2):
        query = (
            frame.select("key", "value", "partition")
            .writeStream.format("kraftpy")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    one, two = read(spark, broker, source), read(spark, broker, target)
    assert [(r.partition, bytes(r.value)) for r in one] == [
        (r.partition, bytes(r.value)) for r in two
    ]


def test_timestamps_are_kept_if_that_is_asked_for(
    spark: Any, broker: Broker, new_topic: NewTopic
) -> None:
    source, plain, kept = new_topic(2), new_topic(2), new_topic(2)
    times = [START_MS + (n * 7919) % 1000 for n in range(300)]
    fill(
        broker.bootstrap,
        source,
        [
            {"value": b"%d" % n, "partition": n % 2, "timestamp_ms": at}
            for n, at in enumerate(times)
        ],
    )
    frame = (
        spark.read.format("kraftpy")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", source)
        .load()
        .select("value", "partition", "timestamp")
    )
    save(frame, broker, topic=plain)
    save(frame, broker, topic=kept, keepTimestamps="true")
    columns = ("partition", "offset", "value", "timestamp")
    here, there, copied = (
        [tuple(row[name] for name in columns) for row in read(spark, broker, topic)]
        for topic in (source, plain, kept)
    )
    assert copied == here
    assert min(row[3] for row in there) > max(row[3] for row in here)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id", {"topic": "t"}, "no column value among id"),
        ("cast(id as string) as value", {}, "set the option topic"),
        ("'v' as value", {"topic": "t", "keepTimestamps": "true"}, "there is no column timestamp"),
        ("id as value", {"topic": "t"}, "value is bigint and has to be string or binary"),
        ("'v' as value", {"topic": "t", "mode": "overwrite"}, "only be appended to"),
        ("'v' as value, 9 as partition", {"topic": "one"}, "has partitions 0 to 0, not 9"),
        ("'v' as value", {"topic": "t", "kafka__acks": "2"}, "kafka.acks is one of all, -1"),
        ("'v' as value, string(null) as topic", {}, "every row needs a topic"),
    ],
)
def test_errors_say_what_to_do(
    spark: Any, broker: Broker, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        save(spark.range(3).selectExpr(*columns.split(", ")), broker, **options)
