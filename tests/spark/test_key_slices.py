"""Several tasks for one partition: each record is one task's, whatever it is, whoever sends it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.functions import spark_partition_id

from kraftpy.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kraftpy.pipeline.door import Door
from kraftpy.protocol.key_hash import HASH_MAX, key_hash
from kraftpy.spark.brokers import Brokers, DataLossError
from kraftpy.spark.decoder import COLUMNS, Slice, decode, find_batches
from kraftpy.spark.planning import by_keys
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import ClientSettings
from kraftpy.testing import Broker
from tests.spark.test_decoder import batches
from tests.spark.test_transactions import producer
from tests.spark.topics import create_topic, end_of, fill, numbered
from tests.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ALL = tuple(COLUMNS)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that cleans soon."""
    folder = tmp_path_factory.mktemp("slices")
    with Broker(dir=folder, log_cleaner_backoff_ms=200) as broker:
        yield broker.bootstrap


def read(bootstrap: str, wanted: Slice, columns: tuple[str, ...] = ALL, **more: Any) -> Rows:
    with Brokers(ClientSettings(bootstrap, **more)) as brokers:
        return [row for part in brokers.read(wanted, columns) for row in part.to_pylist()]


def check_slices(whole: Rows, slices: list[tuple[Slice, Rows]]) -> None:
    """Each row is in one slice, in order: the one that has its key's hash."""
    for wanted, rows in slices:
        low, high = wanted.hashes or (0, HASH_MAX)
        assert rows == [
            row for row in whole if low <= key_hash(row["key"], row["offset"]) <= high
        ]  # fmt: skip
    assert sum(len(rows) for _, rows in slices) == len(whole)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches(), st.integers(2, 5), st.data())
def test_each_record_is_decoded_for_one_slice(
    made: list[bytes], count: int, data: st.DataObject
) -> None:
    response = b"".join(made)
    everything, end = find_batches(response, Slice("t", 3, 0, 1 << 60))
    first = data.draw(st.integers(everything[0].header.base_offset, end - 1))
    wanted = Slice("t", 3, first, data.draw(st.integers(first + 1, end)))

    def rows(part: Slice, columns: tuple[str, ...] = ALL) -> Rows:
        found, _ = find_batches(response, part)
        return [row for each in decode(response, found, part, columns) for row in each.to_pylist()]

    parts = by_keys([wanted], count)
    assert len(parts) == count
    check_slices(rows(wanted), [(part, rows(part)) for part in parts])
    # The key is looked at though nobody wants to see it.
    assert [row for part in parts for row in rows(part, ("offset",))] == [
        {"offset": row["offset"]} for part in parts for row in rows(part)
    ]


def fill_mixed(bootstrap: str, topic: str) -> list[bytes | None]:
    """Records of all codecs, with keys and without, transactions between them, some aborted.

    Returns the values of those that are committed.
    """
    committed: list[bytes | None] = []
    writers = [producer(bootstrap, f"{topic} {name}") for name in ("first", "second")]
    for number, codec in enumerate(CODECS):
        rows = [
            {**row, "key": row["key"] and b"key %d" % (n % 23)}
            for n, row in enumerate(numbered(100, first=100 * number))
        ]
        fill(bootstrap, topic, rows, compression=codec)
        committed += [row["value"] for row in rows]
        for each in writers:
            each.begin_transaction()
        for n in range(12):
            # Both have the same keys, and their records alternate.
            value, aborted = b"%d %d" % (number, n), n % 2 == number % 2
            key = None if n % 6 == 5 else b"key %d" % (n // 2)
            writers[n % 2].produce(topic, value, key, partition=0)
            writers[n % 2].flush(30)
            if not aborted:
                committed.append(value)
        for n, each in enumerate(writers):
            (each.abort_transaction if n == number % 2 else each.commit_transaction)(30)
    with (
        Brokers(ClientSettings(bootstrap)) as plain,
        Brokers(ClientSettings(bootstrap, isolation=READ_COMMITTED)) as stable,
    ):
        name = [(topic, 0)]
        wait_until(lambda: plain.latest(name) == stable.latest(name), "all markers are there")
    return committed


@pytest.fixture(scope="module")
def mixed(node: str) -> list[bytes | None]:
    """What is committed in the topics `mixed` and `unshared`, which have the same."""
    create_topic(node, "mixed", 1, accept_range_fetch="true")
    create_topic(node, "unshared", 1)
    committed = fill_mixed(node, "mixed")
    assert fill_mixed(node, "unshared") == committed
    return committed


@pytest.mark.parametrize("topic", ["mixed", "unshared"])
def test_slices_of_what_is_committed_and_of_everything(
    node: str, mixed: list[bytes | None], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    fetch = Brokers._fetch

    async def recording(self: Brokers, *question: Any) -> Any:
        data = await fetch(self, *question)
        sent.append(len(data.records or b""))
        return data

    monkeypatch.setattr(Brokers, "_fetch", recording)
    end = end_of(node, topic, 0)
    for isolation, count in ((READ_COMMITTED, 560 - 30), (READ_UNCOMMITTED, 560)):
        more = {"isolation": isolation, "partition_max_bytes": 3000}
        for wanted in (Slice(topic, 0, 0, end), Slice(topic, 0, 57, 438)):
            sent.clear()
            whole = read(node, wanted, **more)
            bytes_of_whole = sum(sent)
            for slices in (2, 5):
                sent.clear()
                parts = by_keys([wanted], slices)
                check_slices(whole, [(part, read(node, part, **more)) for part in parts])
                if topic == "mixed":
                    assert sum(sent) < 2 * bytes_of_whole, "brokers send each its own"
                else:
                    assert sum(sent) > 0.9 * slices * bytes_of_whole
        whole = read(node, Slice(topic, 0, 0, end), **more)
        assert len(whole) == count
        if isolation == READ_COMMITTED:
            assert [row["value"] for row in whole] == mixed


def test_slices_of_what_compaction_has_left(node: str) -> None:
    create_topic(
        node,
        "compacted",
        1,
        accept_range_fetch="true",
        cleanup_policy="compact",
        internal_segment_bytes=4000,
        min_cleanable_dirty_ratio="0.01",
    )
    writer = Producer({"bootstrap.servers": node, "linger.ms": 20, "batch.num.messages": 30})
    for number in range(900):
        value = None if number % 11 == 3 else b"value %d" % number
        writer.produce("compacted", value, b"key %d" % (number * number % 97), partition=0)
    assert writer.flush(30) == 0
    wanted = Slice("compacted", 0, 0, 900)

    def is_cleaned() -> bool:
        """When nothing more is going to be taken out."""
        rows = read(node, wanted, ("key", "offset"))
        inactive = [row["key"] for row in rows if row["offset"] < 700]
        return len(rows) < 700 and len(inactive) == len(set(inactive))

    wait_until(is_cleaned, "the cleaner has gone through the log")
    for more in ({}, {"partition_max_bytes": 500}):
        whole = read(node, wanted, **more)
        parts = by_keys([wanted], 3)
        check_slices(whole, [(part, read(node, part, **more)) for part in parts])


def test_a_slice_that_has_nothing_waits_for_nothing(node: str) -> None:
    create_topic(node, "one-key", 1, accept_range_fetch="true")
    fill(node, "one-key", [{"key": b"only", "value": b"%d" % n} for n in range(50)])
    began = time.monotonic()
    found = [
        read(node, part, ("offset",), max_wait_ms=20_000)
        for part in by_keys([Slice("one-key", 0, 0, 50)], 4)
    ]
    assert time.monotonic() - began < 15
    assert sorted(map(len, found)) == [0, 0, 0, 50]


def test_what_is_not_there_is_asked_for_with_patience(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(node, "short", 1, accept_range_fetch="true")
    fill(node, "short", numbered(10))
    asked: list[Any] = []
    fetch = Brokers._fetch

    async def recording(self: Brokers, *question: Any) -> Any:
        asked.append(question)
        return await fetch(self, *question)

    monkeypatch.setattr(Brokers, "_fetch", recording)
    (part, _) = by_keys([Slice("short", 0, 0, 15)], 2)
    with pytest.raises(DataLossError, match="no record at offsets 10 to 14"):
        read(node, part, max_wait_ms=300, poll_timeout_ms=1000)
    assert len(asked) < 12


def test_a_pipeline_keeps_to_the_order_of_offsets() -> None:
    door = Door("127.0.0.1:1", options={"SlicesPerPartition": "2"})
    with pytest.raises(OptionError, match="slicesPerPartition is not for a pipeline"):
        door.brokers("any")


def load(spark: Any, node: str, how: str, **options: Any) -> Any:
    reader = getattr(spark, how).format("kraftpy").option("kafka.bootstrap.servers", node)
    return reader.options(includeHeaders=True, **options).load()


def test_a_batch_in_slices(spark: Any, node: str, mixed: list[bytes | None]) -> None:
    frame = load(spark, node, "read", subscribe="mixed,unshared", slicesPerPartition=2)
    rows = frame.drop("timestamp").withColumn("task", spark_partition_id()).collect()
    assert {(row.topic, row.task) for row in rows} == {
        ("mixed", 0), ("mixed", 1), ("unshared", 2), ("unshared", 3)
    }  # fmt: skip
    for topic in ("mixed", "unshared"):
        mine = [row for row in rows if row.topic == topic]
        found = sorted((row.offset, row.asDict(recursive=True)) for row in mine)
        columns = tuple(name for name in frame.columns if name != "timestamp")
        expected = read(node, Slice(topic, 0, 0, end_of(node, topic, 0)), columns)
        assert [{**row, "task": None} for _, row in found] == [
            {**row, "task": None} for row in expected
        ]
        keys = {(bytes(row.key), row.task) for row in mine if row.key is not None}
        assert len({key for key, _ in keys}) == len(keys) > 20, "a key is one task's"
    for task in range(4):
        offsets = [row.offset for row in rows if row.task == task]
        assert offsets == sorted(offsets)


def test_a_stream_in_slices_that_writes_exactly_once(spark: Any, node: str, tmp_path: Path) -> None:
    create_topic(node, "followed", 1, accept_range_fetch="true")
    create_topic(node, "followed-copy", 1)
    checkpoint = tmp_path / "checkpoint"

    def follow(first: int, slices: int) -> list[dict[str, Any]]:
        """Copies 40 records more; where the source was after each batch so far."""
        fill(node, "followed", numbered(40, first=first))
        (
            load(
                spark, node, "readStream",
                subscribe="followed", startingOffsets="earliest",
                slicesPerPartition=slices,
            )
            .select("key", "value", "headers")
            .writeStream.format("kraftpy")
            .option("kafka.bootstrap.servers", node)
            .option("topic", "followed-copy")
            .option("exactlyOnce", "true")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )  # fmt: skip
        offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2])["followed"] for path in offsets]

    def content(topic: str) -> list[tuple[Any, ...]]:
        wanted = Slice(topic, 0, 0, end_of(node, topic, 0))
        rows = read(node, wanted, ("key", "value", "headers"), isolation=READ_COMMITTED)
        return sorted(((row["key"], row["value"], row["headers"]) for row in rows), key=repr)

    assert follow(0, 2) == [{"0": 40}]
    # Its progress is that of partitions, so another number of slices goes on with it.
    assert follow(40, 3) == [{"0": 40}, {"0": 80}]
    assert len(content("followed")) == 80
    assert content("followed-copy") == content("followed")
