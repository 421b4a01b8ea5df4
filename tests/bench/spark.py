"""Topics as Spark tables: `format("kraftpy")` beside Spark's own Kafka connector, on local[2].

Both doors read the same topic of the same broker in the same session, in turn, after a warm-up of
each; who goes first changes from round to round. Rows are dropped by Spark's `noop` sink, or
written to Parquet. The broker shares the machine's cores with Spark, whichever door is used. The
CPU time is that of Spark with its Python workers, which other work on the machine changes less.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.processes import CLOCK_TICKS, Kraftpy, descendants, running

DOORS = ("kraftpy", "kafka")
PARTITIONS = 4
WARM_UP_ROWS = 200_000
SMALL = 1_000_000
FLOOR = 1.0  # rows per second over the connector's, for records of 100 B

Say = Callable[[str], None]
Work = Callable[[str], Any]


def run(rounds: int, say: Say) -> tuple[str, bool]:
    """The table, and whether the floor holds. RuntimeError when the extra is not installed."""
    try:
        from tests.spark.jars import connector_jars
        from tests.spark.session import start_session
    except ImportError as error:
        hint = "`make .venv/bin/.group-spark` installs what is needed"
        raise RuntimeError(f"{error}: {hint}") from None
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        broker = Kraftpy(Path(folder))
        with running(broker):
            session = start_session(Path(folder), connector_jars(), cores=2)
            try:
                return _measure(session, broker.bootstrap, Path(folder), broker, rounds, say)
            finally:
                session.stop()


def _measure(
    spark: Any, bootstrap: str, folder: Path, broker: Kraftpy, rounds: int, say: Say
) -> tuple[str, bool]:
    lines = ["| local[2] | kraftpy | Spark's connector | ratio |", "|" + " --- |" * 4]
    holds = True
    for name, count, work in _works(spark, bootstrap, folder, say):
        rates: dict[str, list[float]] = {door: [] for door in DOORS}
        costs: dict[str, list[float]] = {door: [] for door in DOORS}
        for number in range(rounds):
            for door in DOORS if number % 2 else DOORS[::-1]:
                began, used = time.perf_counter(), _spark_cpu(broker)
                work(door)
                rates[door].append(count / (time.perf_counter() - began))
                costs[door].append((_spark_cpu(broker) - used) / count * 1e6)
                say(f"{name}: {door} {rates[door][-1]:,.0f} rows/s, {costs[door][-1]:.2f} µs each")
        rate = {door: median(rates[door]) for door in DOORS}
        cost = {door: median(costs[door]) for door in DOORS}
        ratio = rate["kraftpy"] / rate["kafka"]
        holds &= ratio >= FLOOR or not name.startswith("read 100 B")
        lines += (
            f"| {name}, rows/s | {rate['kraftpy']:,.0f} | {rate['kafka']:,.0f} | {ratio:.2f} |",
            f"| {name}, CPU µs/row | {cost['kraftpy']:.2f} | {cost['kafka']:.2f} "
            f"| {cost['kraftpy'] / cost['kafka']:.2f} |",
        )
    return "\n".join(lines), holds


def _spark_cpu(broker: Kraftpy) -> float:
    """CPU seconds of the JVM and its Python workers so far, with threads and workers that ended."""
    ticks = 0
    for pid in set(descendants(os.getpid())) - set(broker.pids()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / CLOCK_TICKS


def _works(spark: Any, bootstrap: str, folder: Path, say: Say) -> Iterator[tuple[str, int, Work]]:
    def frame(door: str, topic: str) -> Any:
        reader = spark.read.format(door).option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).load()

    def drop(topic: str) -> Work:
        return lambda door: frame(door, topic).write.format("noop").mode("overwrite").save()

    def parquet(topic: str) -> Work:
        out = str(folder / "parquet")
        return lambda door: frame(door, topic).write.mode("overwrite").parquet(out)

    def write(door: str) -> None:
        rows = spark.range(SMALL // 5).selectExpr(
            "cast(id as string) as key", "repeat('x', 100) as value"
        )
        writer = rows.write.format(door).option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", "written").mode("append").save()

    say("filling topics and warming up")
    _fill(bootstrap, "warm", WARM_UP_ROWS, 100)
    for door in DOORS:
        drop("warm")(door)
    _fill(bootstrap, "small", SMALL, 100)
    yield "read 100 B", SMALL, drop("small")
    yield "read 100 B to Parquet", SMALL, parquet("small")
    _fill(bootstrap, "packed", SMALL, 100, "lz4")
    yield "read 100 B, lz4", SMALL, drop("packed")
    _fill(bootstrap, "large", SMALL // 5, 1000)
    yield "read 1 KB", SMALL // 5, drop("large")
    _fill(bootstrap, "written", 1, 1)
    yield "write 100 B", SMALL // 5, write


def _fill(bootstrap: str, topic: str, count: int, size: int, codec: str = "none") -> None:
    """Records with keys of 10 bytes and values that can be compressed by half."""
    import pyarrow as pa

    from kraftpy.spark.settings import write_settings
    from kraftpy.spark.sink import deliver
    from tests.spark.topics import create_topic

    create_topic(bootstrap, topic, PARTITIONS)
    rng = random.Random(1)
    values = [rng.randbytes(-(-size // 2)).hex().encode()[:size] for _ in range(10_000)]

    def tables() -> Iterator[pa.RecordBatch]:
        for first in range(0, count, len(values)):
            rows = min(len(values), count - first)
            keys = [b"user%06d" % (n % 100_000) for n in range(first, first + rows)]
            columns = [pa.array(keys, pa.binary()), pa.array(values[:rows], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])

    said = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
    deliver(write_settings(said), tables())
