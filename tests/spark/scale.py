"""Millions of records of all codecs into lakes, at the end of `make spark`.

Each topic is loaded whole, in two parts of which a piece is loaded again twice, and through Spark's
own connector. All three lakes must have what an independent consumer gets from the topic, record
by record (`tests.spark.checksums`), and a sample of them is compared with what was written.

A compacted topic is written to and cleaned while it is loaded, so no two readers get the same of
it. Each row of its lakes must be what was written at that offset, and the newest record of each
key must be among them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.lake import Lake
from kraftpy.pipeline.load import Limits, Loader
from kraftpy.pipeline.manifests import Plan
from kraftpy.testing import Broker
from tests.spark.checksums import (
    Content,
    Record,
    lake_records,
    of_lake,
    of_topic,
    rows,
    topic_records,
)
from tests.spark.loading import Loading
from tests.spark.topics import START_MS, create_topic

FULL = 5_000_000
PROVEN = """\
each lake has what an independent consumer gets of its topic, record by record, as it was written
two loads, one after the other, with a piece loaded again twice, are one load
Spark's own connector gives the same lakes
of a topic that is compacted meanwhile a lake has what was written, and the newest of each key"""
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

    def place(self, number: int, count: int) -> tuple[bytes | None, int]:
        """The key of a record and its partition."""
        if self.compacted:
            which = number % (count // 10)
            return b"key-%d" % which, which % self.partitions
        key = b"key-%d" % (number % 100_003) if number % 7 else None
        return key, number % self.partitions

    def record(self, number: int, count: int) -> dict[str, Any]:
        """The `number`th record of a topic that has `count` at first, as a producer takes it."""
        size = 100 + number * 7919 % 901
        start = number * 131 % (len(_POOL) - 1000)
        value = (b"%d|" % number + _POOL[start : start + size])[:size]
        key, partition = self.place(number, count)
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
            work = folder / kind.name
            loading = Loading(spark, broker.bootstrap, kind.name, work)
            if kind.compacted:
                _try_compacted(loading, kind, count // 2, say)
            else:
                _try(loading, kind, count, say)
            shutil.rmtree(work)


def _try(loading: Loading, kind: Kind, count: int, say: Say) -> None:
    written_s = _write(loading.bootstrap, kind, count)
    expected = of_topic(loading.bootstrap, kind.name)
    assert rows(expected) == count
    _check_sample(kind, count, expected)
    lakes = _Lakes(loading, kind, count)
    for load in (lakes.whole, lakes.parts, lakes.theirs):
        load()
        assert of_lake(loading.lake(load.__name__), kind.name) == expected
    _tell(say, kind, count, written_s, lakes.whole_s)


def _try_compacted(loading: Loading, kind: Kind, count: int, say: Say) -> None:
    written_s = _write(loading.bootstrap, kind, count)
    lakes = _Lakes(loading, kind, count)
    with _Overwriting(loading.bootstrap, kind, count) as writer:
        total = lakes.whole()
        lakes.parts()
        _await_cleaner(loading, kind, total)
        lakes.theirs()
    found = {}
    for name, loader in lakes.loaders.items():
        _do(loader, _load(loader, "latest"))
        found[name] = _check_compacted(loading.lake(name), kind, count, writer.total)
    # That one was loaded behind the cleaner; those before it may have all.
    assert found["theirs"] < writer.total, "nothing was gone before it was loaded"
    _tell(say, kind, total, written_s, lakes.whole_s)


def _tell(say: Say, kind: Kind, total: int, written_s: float, loaded_s: float) -> None:
    say(
        f"{kind.name:<10}{kind.partitions:>11}{total:>11,}{written_s:>8.1f} s"
        f"{loaded_s:>8.1f} s{total / loaded_s:>10,.0f}"
    )


class _Lakes:
    """The lakes of one topic, each loaded in another way."""

    def __init__(self, loading: Loading, kind: Kind, count: int) -> None:
        limits = Limits(max_records_per_task=max(count // 4, 1), max_file_size_bytes=32 << 20)
        self.loaders = {
            "whole": loading.loader("whole", limits=limits),
            "parts": loading.loader("parts", limits=limits),
            "theirs": loading.loader("theirs", door="kafka", limits=limits),
        }
        self.whole_s = 0.0
        self._most = count // kind.partitions

    def whole(self) -> int:
        """At once; how many rows."""
        loader, began = self.loaders["whole"], time.monotonic()
        found = _do(loader, _load(loader, "latest"))
        self.whole_s = time.monotonic() - began
        return found

    def parts(self) -> None:
        """In two parts, of which a piece is loaded again twice."""
        loader = self.loaders["parts"]
        middle, most = (self._most * share // 8 for share in (4, 5))
        _do(loader, _load(loader, str(middle)))
        _do(loader, _load(loader, "latest"))
        for _ in range(2):
            start, end = Bound.read(str(middle - middle // 4)), Bound.read(str(most))
            _do(loader, loader.plan_rerun(start, end))

    def theirs(self) -> None:
        """Through Spark's own connector."""
        loader = self.loaders["theirs"]
        _do(loader, _load(loader, "latest"))


def _load(loader: Loader, end: str) -> Plan | None:
    return loader.plan_load(Bound.read("lake"), Bound.read(end))


def _do(loader: Loader, plan: Plan | None) -> int:
    assert plan is not None
    return loader.run(plan).rows


def _write(bootstrap: str, kind: Kind, count: int) -> float:
    """Makes the topic with `count` records; how many seconds it took."""
    began = time.monotonic()
    settings = {"cleanup_policy": "compact", "internal_segment_bytes": max(count * 10, 16 << 10)}
    more = {"min_cleanable_dirty_ratio": "0.01"}
    create_topic(
        bootstrap, kind.name, kind.partitions, **({**settings, **more} if kind.compacted else {})
    )
    _produce(_producer(bootstrap, kind), kind, range(count), count)
    return time.monotonic() - began


def _producer(bootstrap: str, kind: Kind) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": kind.codec,
            "enable.idempotence": True,
            "linger.ms": 20,
            # The cleaner leaves the last segment alone, and a batch is in one.
            "batch.num.messages": 200 if kind.compacted else 10_000,
        }
    )


def _produce(producer: Producer, kind: Kind, numbers: range, count: int) -> None:
    """Returns when all of them are written, each partition's in their order."""
    for number in numbers:
        record = kind.record(number, count)
        while True:
            try:
                producer.produce(kind.name, **record)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(_TIMEOUT_S) == 0


class _Overwriting:
    """Writes newer records of the same keys until the end of the block."""

    def __init__(self, bootstrap: str, kind: Kind, count: int) -> None:
        self.total = count
        """Records `range(total)` of the topic are written, when the block has ended."""
        self._stop = threading.Event()
        self._run = partial(self._write, bootstrap, kind, count)

    def __enter__(self) -> _Overwriting:
        self._pool = ThreadPoolExecutor(1)
        self._writing = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._writing.result()

    def _write(self, bootstrap: str, kind: Kind, count: int) -> None:
        producer = _producer(bootstrap, kind)
        step = min(max(count // 100, 1), 500)
        while not self._stop.wait(0.2):
            _produce(producer, kind, range(self.total, self.total + step), count)
            self.total += step


def _await_cleaner(loading: Loading, kind: Kind, total: int) -> None:
    """Waits until most of what the first load got is gone from the topic."""
    ends = loading.loader("whole").ends()
    deadline = time.monotonic() + 3 * _TIMEOUT_S
    while True:
        records = topic_records(loading.bootstrap, kind.name)
        if sum(record[0] < ends[partition] for partition, record in records) < total // 2:
            return
        assert time.monotonic() < deadline, f"{kind.name} isn't compacted"
        time.sleep(0.5)


def _check_compacted(lake: Lake, kind: Kind, count: int, total: int) -> int:
    """Each row is what was written there; the newest record of each key is in the lake.

    Returns how many rows there are.
    """
    numbers: list[list[int]] = [[] for _ in range(kind.partitions)]
    newest: dict[bytes | None, tuple[int, int]] = {}
    for number in range(total):
        key, partition = kind.place(number, count)
        newest[key] = partition, len(numbers[partition])
        numbers[partition].append(number)
    found = set()
    for partition, record in lake_records(lake, kind.name):
        assert (partition, record[0]) not in found
        found.add((partition, record[0]))
        _check_record(record, kind.record(numbers[partition][record[0]], count))
    assert set(newest.values()) <= found
    return len(found)


def _check_sample(kind: Kind, count: int, contents: dict[int, Content]) -> None:
    """Records are what was written; each partition has them in that order."""
    assert sum(len(content.sample) for content in contents.values()) > 0
    for partition, content in contents.items():
        for record in content.sample:
            _check_record(record, kind.record(record[0] * kind.partitions + partition, count))


def _check_record(record: Record, wanted: dict[str, Any]) -> None:
    _, timestamp_ms, type_, key, value, headers = record
    assert (timestamp_ms, type_) == (wanted["timestamp"], 0)
    assert (key, value) == (wanted["key"], wanted["value"])
    pairs = wanted["headers"]
    assert headers == (pairs and tuple((name.encode(), data) for name, data in pairs))


def main() -> None:
    """`python -m tests.spark.scale`: prints a table as it comes."""
    from tests.spark.conftest import prepare
    from tests.spark.jars import connector_jars
    from tests.spark.session import start_session

    parser = argparse.ArgumentParser(prog="make spark")
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
    print(f"proven with {wanted.records:,} records in {time.monotonic() - began:,.0f} s:")
    print(textwrap.indent(PROVEN, "  "))


if __name__ == "__main__":
    main()
