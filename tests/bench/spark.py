"""Topics as Spark tables and as lakes: `format("kraftpy")` and Spark's own connector on local[2].

Both doors read the same topic of the same broker in the same session, in turn, after a warm-up of
each; who goes first changes from round to round, and the median counts. Rows are dropped by Spark's
`noop` sink, or written to Parquet. The broker shares the machine's cores with Spark, whichever door
is used. The CPU time is that of Spark with its Python workers, which other work on the machine
changes less. Memory is the most at once (proportional set size, 5 looks a second): of the
Python workers together, and of the JVM, whose heap may have 1 GiB and grows to what it is given.

`ARGS="spark read"` measures only reading; the others are `slices` (one partition, read by one task
and by two), `stream`, `write` and `pipeline`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tests.processes import Kraftpy, cpu_seconds_with_ended, descendants, memory_bytes, running

Format = Literal["kraftpy", "kafka"]
BOTH: tuple[Format, ...] = ("kraftpy", "kafka")
OURS: tuple[Format, ...] = ("kraftpy",)
PARTITIONS = 4
WARM_UP_ROWS = 200_000
SMALL = 1_000_000
WORKED_ROWS = 100_000
WORK_TURNS = 100  # of a hash, for each row
MICRO_BATCHES = 10
FLOOR = 1.0  # rows per second over the connector's, for records of 100 B

Say = Callable[[str], None]


@dataclass
class Work:
    """Something to do through a door, with this many rows of this many bytes together."""

    name: str
    rows: int
    size_bytes: int
    run: Callable[[Format], Any]
    doors: tuple[Format, ...] = BOTH
    rates: dict[Format, list[float]] = field(default_factory=dict)
    costs: dict[Format, list[float]] = field(default_factory=dict)
    peaks: dict[Format, list[tuple[int, int]]] = field(default_factory=dict)

    def measure(self, door: Format, broker: Kraftpy) -> None:
        """One more time."""
        with _Memory(broker) as memory:
            began, used = time.perf_counter(), _spark_cpu(broker)
            self.run(door)
            seconds = time.perf_counter() - began
        self.rates.setdefault(door, []).append(self.rows / seconds)
        cost = (_spark_cpu(broker) - used) / self.rows * 1e6
        self.costs.setdefault(door, []).append(cost)
        self.peaks.setdefault(door, []).append((memory.workers_bytes, memory.jvm_bytes))

    def told(self, door: Format) -> str:
        """What the last time gave."""
        rate, cost = self.rates[door][-1], self.costs[door][-1]
        return f"{self.name}: {door} {rate:,.0f} rows/s, {cost:.2f} µs each"

    def ratio(self) -> float | None:
        """Ours over theirs, if both were measured."""
        rates = [median(self.rates[door]) for door in self.doors]
        return rates[0] / rates[1] if len(rates) == 2 else None

    def lines(self) -> Iterator[str]:
        """The rows of the table."""
        rates = [median(self.rates[door]) for door in self.doors]
        costs = [median(self.costs[door]) for door in self.doors]
        sizes = [rate * self.size_bytes / self.rows / 1e6 for rate in rates]
        peaks = [
            [max(each) >> 20 for each in zip(*self.peaks[door], strict=True)] for door in self.doors
        ]
        yield _line(f"{self.name}, rows/s", rates, ",.0f")
        yield _line(f"{self.name}, MB/s", sizes, ",.0f")
        yield _line(f"{self.name}, CPU µs/row", costs, ".2f")
        yield _line(f"{self.name}, MiB of Python workers", [each[0] for each in peaks], ",.0f")
        yield _line(f"{self.name}, MiB of the JVM", [each[1] for each in peaks], ",.0f")


def _line(name: str, values: list[float], form: str) -> str:
    ratio = f"{values[0] / values[1]:.2f}" if len(values) == 2 and values[1] else ""
    cells = [f"{value:{form}}" for value in values] + [""] * (2 - len(values))
    return f"| {name} | {' | '.join(cells)} | {ratio} |"


class _Memory:
    """Looks at what is resident for as long as it is open."""

    def __init__(self, broker: Kraftpy) -> None:
        self.workers_bytes = self.jvm_bytes = 0
        self._others = {os.getpid(), *broker.pids()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            jvm = workers = 0
            for pid in set(descendants(os.getpid())) - self._others:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().startswith("java"):
                        jvm += memory_bytes([pid])
                    else:
                        workers += memory_bytes([pid])
            self.workers_bytes = max(self.workers_bytes, workers)
            self.jvm_bytes = max(self.jvm_bytes, jvm)


def run(rounds: int, say: Say, only: str = "") -> tuple[str, bool]:
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
                works = _Works(session, broker.bootstrap, Path(folder), say)
                return _measure(works, broker, rounds, say, only)
            finally:
                session.stop()


def _measure(works: _Works, broker: Kraftpy, rounds: int, say: Say, only: str) -> tuple[str, bool]:
    lines = ["| local[2] | kraftpy | Spark's connector | ratio |", "|" + " --- |" * 4]
    holds = True
    chosen = [make for make in works.all() if only in ("", make.__name__)]
    if not chosen:
        names = ", ".join(make.__name__ for make in works.all())
        raise RuntimeError(f"there is no {only} to measure, only {names}")
    works.warm_up()
    for make in chosen:
        for work in make():
            for number in range(rounds):
                for door in work.doors if number % 2 else work.doors[::-1]:
                    work.measure(door, broker)
                    say(work.told(door))
            if work.name == "read 100 B":
                holds = (work.ratio() or 0) >= FLOOR
            lines += work.lines()
    return "\n".join(lines), holds


def _spark_cpu(broker: Kraftpy) -> float:
    """CPU seconds of the JVM and its Python workers so far."""
    return cpu_seconds_with_ended(set(descendants(os.getpid())) - set(broker.pids()))


class _Works:
    """What is measured, in topics that are filled when their turn comes."""

    def __init__(self, spark: Any, bootstrap: str, folder: Path, say: Say) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.say = say
        self._numbers = itertools.count()
        self._lakes: list[Any] = []

    def all(self) -> list[Callable[[], Iterator[Work]]]:
        return [self.read, self.slices, self.stream, self.write, self.pipeline]

    def warm_up(self) -> None:
        self.say("filling a topic and warming up")
        _fill(self.bootstrap, "warm", WARM_UP_ROWS, 100)
        for door in BOTH:
            self._drop("warm")(door)

    def read(self) -> Iterator[Work]:
        small = _fill(self.bootstrap, "small", SMALL, 100)
        yield Work("read 100 B", SMALL, small, self._drop("small"))
        yield Work("read 100 B to Parquet", SMALL, small, self._parquet("small"))
        packed = _fill(self.bootstrap, "packed", SMALL, 100, "lz4")
        yield Work("read 100 B, lz4", SMALL, packed, self._drop("packed"))
        large = _fill(self.bootstrap, "large", SMALL // 5, 1000)
        yield Work("read 1 KB", SMALL // 5, large, self._drop("large"))
        headed = _fill(self.bootstrap, "headed", SMALL // 5, 100, headers=3)
        work = self._drop("headed", includeHeaders="true")
        yield Work("read 100 B, three headers", SMALL // 5, headed, work)

    def slices(self) -> Iterator[Work]:
        """One partition with work for each row: one task, two by keys, two by offsets."""
        size = _fill(self.bootstrap, "single", WORKED_ROWS, 100, partitions=1)
        for name, options in (
            ("one task", {}),
            ("slicesPerPartition 2", {"slicesPerPartition": "2"}),
            ("minPartitions 2", {"minPartitions": "2"}),
        ):
            work = self._work("single", **options)
            yield Work(f"one partition, {name}", WORKED_ROWS, size, work, OURS)

    def stream(self) -> Iterator[Work]:
        """Micro-batches that have next to nothing to do: what each costs by itself."""

        def follow(door: Format) -> None:
            reader = self.spark.readStream.format(door).options(
                **{
                    "kafka.bootstrap.servers": self.bootstrap,
                    "subscribe": "warm",
                    "startingOffsets": "earliest",
                    "maxOffsetsPerTrigger": str(WARM_UP_ROWS // MICRO_BATCHES),
                }
            )
            checkpoint = str(self.folder / f"checkpoint-{next(self._numbers)}")
            writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
            took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress[1:]]
            self.say(f"{door}: {median(took):.0f} ms per micro-batch but the first")

        size = WARM_UP_ROWS * 110
        yield Work(f"stream, {MICRO_BATCHES} micro-batches of 20,000", WARM_UP_ROWS, size, follow)

    def write(self) -> Iterator[Work]:
        _fill(self.bootstrap, "written", 1, 1)

        def write(door: Format) -> None:
            rows = self.spark.range(SMALL).selectExpr(
                "cast(id as string) as key", "repeat('x', 100) as value"
            )
            writer = rows.write.format(door).option("kafka.bootstrap.servers", self.bootstrap)
            writer.option("topic", "written").mode("append").save()

        yield Work("write 100 B", SMALL, SMALL * 106, write)

    def pipeline(self) -> Iterator[Work]:
        from kraftpy.pipeline.audit import audit, plan_audit
        from kraftpy.pipeline.bounds import Bound
        from kraftpy.pipeline.compaction import compact
        from kraftpy.pipeline.door import Door
        from kraftpy.pipeline.lake import Lake
        from kraftpy.pipeline.load import Limits, Loader

        def spark() -> Any:
            return self.spark

        def load(door: Format) -> Any:
            lake = Lake.at(str(self.folder / f"lake-{next(self._numbers)}"), create=True)
            limits = Limits(max_records_per_task=SMALL // 20)
            loader = Loader(lake, Door(self.bootstrap, door), "lake", spark, limits)
            plan = loader.plan_load(Bound("earliest"), Bound("latest"))
            assert plan is not None
            assert loader.run(plan).rows == SMALL
            self._lakes.append(lake)

        def merge(door: Format) -> None:
            # Each load has left a lake of small files.
            done = compact(self._lakes.pop(), spark, 256 << 20, keep_ms=0)
            assert (done.files, done.rows) == (PARTITIONS, SMALL)

        def check(door: Format) -> None:
            way = Door(self.bootstrap, "kraftpy")
            assert audit(plan_audit(way, "lake"), way, spark).clean

        def compare(door: Format) -> None:
            way = Door(self.bootstrap, "kraftpy")
            assert audit(plan_audit(way, "lake", self._lakes[-1]), way, spark).clean

        size = _fill(self.bootstrap, "lake", SMALL, 100)
        yield Work("load 100 B", SMALL, size, load)
        yield Work("audit 100 B", SMALL, size, check, OURS)
        yield Work("audit 100 B with a lake", SMALL, size, compare, OURS)
        yield Work("compact 100 B", SMALL, size, merge, OURS)

    def _frame(self, door: Format, topic: str, **options: str) -> Any:
        reader = self.spark.read.format(door).options(**options)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).load()

    def _drop(self, topic: str, **options: str) -> Callable[[Format], None]:
        def run(door: Format) -> None:
            self._frame(door, topic, **options).write.format("noop").mode("overwrite").save()

        return run

    def _work(self, topic: str, **options: str) -> Callable[[Format], None]:
        def work(tables: Iterator[Any]) -> Iterator[Any]:
            for table in tables:
                for value in table.column("value").to_pylist():
                    hashlib.pbkdf2_hmac("sha256", value, b"", WORK_TURNS)
                yield table.select(["offset"])

        def run(door: Format) -> None:
            worked = self._frame(door, topic, **options).mapInArrow(work, "offset long")
            worked.write.format("noop").mode("overwrite").save()

        return run

    def _parquet(self, topic: str) -> Callable[[Format], None]:
        out = str(self.folder / "parquet")
        return lambda door: self._frame(door, topic).write.mode("overwrite").parquet(out)


def _fill(
    bootstrap: str,
    topic: str,
    count: int,
    size: int,
    codec: str = "none",
    headers: int = 0,
    partitions: int = PARTITIONS,
) -> int:
    """Records with keys of 10 bytes and values that can be compressed by half; their bytes."""
    import pyarrow as pa

    from kraftpy.spark.decoder import COLUMNS
    from kraftpy.spark.delivery import deliver
    from kraftpy.spark.settings import write_settings
    from tests.spark.topics import create_topic

    create_topic(bootstrap, topic, partitions, accept_range_fetch="true")
    rng = random.Random(1)
    values = [rng.randbytes(-(-size // 2)).hex().encode()[:size] for _ in range(10_000)]

    def tables() -> Iterator[pa.RecordBatch]:
        for first in range(0, count, len(values)):
            rows = min(len(values), count - first)
            keys = [b"user%06d" % (n % 100_000) for n in range(first, first + rows)]
            columns = [pa.array(keys, pa.binary()), pa.array(values[:rows], pa.binary())]
            names = ["key", "value"]
            if headers:
                each = [{"key": f"header{n}", "value": b"%010d" % n} for n in range(headers)]
                columns.append(pa.array([each] * rows, COLUMNS["headers"]))
                names.append("headers")
            yield pa.RecordBatch.from_arrays(columns, names=names)

    said = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
    deliver(write_settings(said), tables())
    return count * (10 + size + headers * 17)
