"""Damage that is planted into a broker's files is named by `audit`, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kraftpy.client.cluster import Cluster
from kraftpy.client.producer import Producer
from kraftpy.pipeline.audit import Audit, audit, plan_audit
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import Lake
from kraftpy.protocol.records import read_batch_header, stamp_batch
from kraftpy.testing import Broker
from tests.spark.loading import Loading
from tests.spark.topics import create_topic, delete_before, on_cluster

BATCHES = 30


async def _write_one_by_one(topic: str, cluster: Cluster) -> None:
    """A batch for each record, all of the same size."""
    async with Producer(cluster, linger_ms=0) as producer:
        for number in range(BATCHES):
            await producer.send_and_wait(topic, b"value", key=b"%04d" % number, partition=0)


def damage(path: Path) -> None:
    """Into the log of BATCHES batches of one record, without moving any."""
    data = bytearray(path.read_bytes())
    size = read_batch_header(data, 0).size_bytes
    assert len(data) == size * BATCHES

    def slot(number: int) -> slice:
        return slice(number * size, (number + 1) * size)

    data[slot(5)] = data[slot(5)][:-3] + b"\xff" + data[slot(5)][-2:]
    data[slot(10)], data[slot(11)] = data[slot(11)], data[slot(10)]
    data[slot(20)] = data[slot(19)]
    stamp_batch(data, 20 * size, 20, 0)
    for number in range(25, BATCHES):
        stamp_batch(data, number * size, number + 1, 0)
    with path.open("r+b") as file:
        file.write(data)


def told(found: Audit) -> list[tuple[str, int, int]]:
    return [(one.kind, one.first, one.last) for each in found.partitions for one in each.findings]


def test_planted_damage_is_named_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    with Broker(dir=tmp_path / "broker") as broker:
        for topic, policy in (("cut", "delete"), ("cleaned", "compact"), ("whole", "delete")):
            create_topic(broker.bootstrap, topic, 1, cleanup_policy=policy)
            on_cluster(broker.bootstrap, partial(_write_one_by_one, topic))
        # While it runs: what is damaged when it starts, a broker finds by itself.
        for topic in ("cut", "cleaned"):
            (path,) = (broker.log_dir / f"{topic}-0").glob("*.log")
            damage(path)
        door = Door(broker.bootstrap)

        def audited(topic: str) -> Audit:
            return audit(plan_audit(door, topic), door, lambda: spark)

        rest = [("crc", 5, 5), ("order", 10, 10), ("duplicate", 20, 20)]
        cut = audited("cut")
        assert told(cut) == [*rest, ("gap", 25, 25)]
        assert not cut.clean
        cleaned = audited("cleaned")
        assert told(cleaned) == rest
        assert cleaned.partitions[0].counts.compacted == 1
        whole = audited("whole")
        assert whole.clean
        assert whole.partitions[0].counts.records == BATCHES


def test_a_lake_is_compared_with_its_topic(
    spark: Any, broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    loading = Loading(spark, broker.bootstrap, new_topic(partitions=2), tmp_path)
    loading.fill(200)
    loading.load()
    door = Door(broker.bootstrap)

    def compared(lake: Lake) -> list[tuple[int, str, int, int, int]]:
        found = audit(plan_audit(door, loading.topic), door, lambda: spark, lake)
        assert told(found) == []
        assert found.clean == (not found.differences)
        return [(d.partition, d.kind, d.rows, d.first, d.last) for d in found.differences]

    loading.fill(50, first=200)
    delete_before(broker.bootstrap, loading.topic, 0, 10)
    assert compared(loading.lake()) == [], "what is older or younger is no difference"
    # A lake that has lost a file, and has another one's rows twice.
    lake = loading.lake()
    version = lake.latest()
    _, second = sorted(version.files.values(), key=lambda file: file.partition)
    again = replace(second, path=second.path.replace(".parquet", "0.parquet"))
    (lake.folder / again.path).write_bytes((lake.folder / second.path).read_bytes())
    lake._latest = replace(version, files={second.path: second, again.path: again})
    assert compared(lake) == [
        (0, "not in the lake", 90, 10, 99),
        (1, "more than once in the lake", 100, 0, 99),
    ]
    lake._latest = version
    _rewrite_values(lake.folder / second.path)
    assert compared(lake) == [(1, "not the same in the lake", 100, 0, 99)]


def _rewrite_values(path: Path) -> None:
    table = pq.read_table(path)
    values = pa.array([b"else"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", values), path)
