"""Millions of records of all codecs into lakes: `make spark-full`, and less of it in `make spark`.

Each topic is loaded whole, in two parts of which a piece is loaded again twice, and through Spark's
own connector.  All three lakes must have what an independent consumer gets from the topic, record
by record (`tests.spark.checksums`), and a sample of them is compared with what was written.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.load import Limits, Loader
from kraftpy.pipeline.manifests import Plan
from kraftpy.testing import Broker
from tests.spark.checksums import Content, of_lake, of_topic, rows
from tests.spark.loading import Loading
from tests.spark.topics import START_MS, create_topic

FULL = 5_000_000
_TIMEOUT_S = 120.0
_POOL = random.Random(8).randbytes(1 << 19).hex().encode()
_HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [("trace", b"\x00\xff" * 8)],
    [("twice", None), ("twice", b""), ("größe", b"1")],
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A topic: its codec, its partitions, and whether it is compacted."""

    name: str
    codec: str
    partitions: int
    compacted: bool = False

    def record(self, number: int, count: int) -> dict[str, Any]:
        """The `number`th of `count` records, as a producer takes it."""
        size = 100 + number * 7919 % 901
        start = number * 131 % (len(_POOL) - 1000)
        value = (b"%d|" % number + _POOL[start : start + size])[:size]
        key: bytes | None = b"key-%d" % (number % 100_003)
        partition = number % self.partitions
        if self.compacted:
            which = number % (count // 10)
            key, partition = b"key-%d" % which, which % self.partitions
        elif number % 7 == 0:
            key = None
        return {
            "key": key,
            "value": None if number % 23 == 5 else value,
            "headers": _HEADERS[number % 3],
            "partition": partition,
            "timestamp": START_MS + number,
        }


KINDS = (
    Kind("none", "none", 1),
    Kind("gzip", "gzip", 2),
    Kind("snappy", "snappy", 3),
    Kind("lz4", "lz4", 4),
    Kind("zstd", "zstd", 8),
    Kind("compacted", "lz4", 3, compacted=True),
)


def run(spark: Any, folder: Path, records: int, say: Say) -> None:
    """All of it with `records` in the topics that aren't compacted, which has half of one more.

    Raises AssertionError where a lake hasn't what its topic has.
    """
    say(
        f"{'topic':<10}{'partitions':>11}{'records':>11}{'written':>10}{'loaded':>10}{'rows/s':>10}"
    )
    with Broker(dir=folder / "broker", log_cleaner_backoff_ms=200) as broker:
        for kind in KINDS:
            count = records // (len(KINDS) - 1)
            _try(
                spark, broker.bootstrap, folder, kind, count // 2 if kind.compacted else count, say
            )


def _try(spark: Any, bootstrap: str, folder: Path, kind: Kind, count: int, say: Say) -> None:
    began = time.monotonic()
    _write(bootstrap, kind, count)
    written = time.monotonic()
    if kind.compacted:
        _compact(bootstrap, kind.name, count)
    expected = of_topic(bootstrap, kind.name)
    if not kind.compacted:
        assert rows(expected) == count
        _check_sample(kind, count, expected)
    work = folder / kind.name
    loading = Loading(spark, bootstrap, kind.name, work)
    limits = Limits(max_records_per_task=max(count // 4, 1), max_file_size_bytes=32 << 20)

    whole = loading.loader("whole", limits=limits)
    loaded = time.monotonic()
    _do(whole, _load(whole, "latest"))
    seconds = time.monotonic() - loaded
    assert of_lake(loading.lake("whole"), kind.name) == expected

    parts = loading.loader("parts", limits=limits)
    middle, most = (count // kind.partitions * share // 8 for share in (4, 5))
    _do(parts, _load(parts, str(middle)))
    _do(parts, _load(parts, "latest"))
    for _ in range(2):
        _do(parts, parts.plan_rerun(Bound.read(str(middle - middle // 4)), Bound.read(str(most))))
    assert of_lake(loading.lake("parts"), kind.name) == expected

    theirs = loading.loader("theirs", door="kafka", limits=limits)
    _do(theirs, _load(theirs, "latest"))
    assert of_lake(loading.lake("theirs"), kind.name) == expected
    shutil.rmtree(work)
    total = rows(expected)
    say(
        f"{kind.name:<10}{kind.partitions:>11}{total:>11,}{written - began:>8.1f} s"
        f"{seconds:>8.1f} s{total / seconds:>10,.0f}"
    )


def _load(loader: Loader, end: str) -> Plan | None:
    return loader.plan_load(Bound.read("lake"), Bound.read(end))


def _do(loader: Loader, plan: Plan | None) -> None:
    assert plan is not None
    loader.run(plan)


def _write(bootstrap: str, kind: Kind, count: int) -> None:
    settings = {"cleanup_policy": "compact", "segment_bytes": max(count * 10, 16 << 10)}
    more = {"min_cleanable_dirty_ratio": "0.01"}
    create_topic(
        bootstrap, kind.name, kind.partitions, **({**settings, **more} if kind.compacted else {})
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": kind.codec,
            "enable.idempotence": True,
            "linger.ms": 20,
            # The cleaner leaves the last segment alone, and a batch is in one.
            "batch.num.messages": 200 if kind.compacted else 10_000,
        }
    )
    for number in range(count):
        record = kind.record(number, count)
        while True:
            try:
                producer.produce(kind.name, **record)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(_TIMEOUT_S) == 0


def _compact(bootstrap: str, topic: str, count: int) -> None:
    """Waits until most of what was overwritten is gone, and then lets nothing more go."""
    deadline = time.monotonic() + 3 * _TIMEOUT_S
    while rows(of_topic(bootstrap, topic)) > count // 2:
        assert time.monotonic() < deadline, f"{topic} isn't compacted"
        time.sleep(0.5)
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(_TIMEOUT_S)
    before: dict[int, Content] = {}
    while (now := of_topic(bootstrap, topic)) != before:  # a pass that was under way
        assert time.monotonic() < deadline, f"{topic} doesn't stand still"
        before = now
        time.sleep(1)


def _check_sample(kind: Kind, count: int, contents: dict[int, Content]) -> None:
    """Records are what was written; each partition has them in that order."""
    assert sum(len(content.sample) for content in contents.values()) > 0
    for partition, content in contents.items():
        for offset, timestamp_ms, type_, key, value, headers in content.sample:
            wanted = kind.record(offset * kind.partitions + partition, count)
            assert (timestamp_ms, type_) == (wanted["timestamp"], 0)
            assert (key, value) == (wanted["key"], wanted["value"])
            pairs = wanted["headers"]
            assert headers == (pairs and tuple((name.encode(), data) for name, data in pairs))


def main() -> None:
    """`python -m tests.spark.scale`: prints a table as it comes."""
    from tests.spark.conftest import prepare
    from tests.spark.jars import connector_jars
    from tests.spark.session import start_session

    parser = argparse.ArgumentParser(prog="make spark-full")
    parser.add_argument("--records", type=int, default=FULL, help=f"all together ({FULL:,})")
    wanted = parser.parse_args()
    prepare()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kraftpy-scale-") as name:
        spark = start_session(Path(name), connector_jars(), cores=2)
        try:
            run(spark, Path(name), wanted.records, lambda line: print(line, flush=True))
        finally:
            spark.stop()
    print(f"each lake has what its topic has; {time.monotonic() - began:,.0f} s in all")


if __name__ == "__main__":
    main()
