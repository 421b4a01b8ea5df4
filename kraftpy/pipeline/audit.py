"""`audit`: is a topic whole, and does a lake have what the topic has?

Rules:

* Each partition's log is read once, raw and uncommitted, by one task, from where it begins to where
  it ended when the audit was planned; `inspector` says what is wrong with it.
* A lake is compared over the offsets that it says it has and that the topic still has: every record
  that a reader of committed records gets is in it once, the same in key, value, headers and time.
  A row whose record is gone from the topic is legal where the cleaner works.
* A partition whose log can't be read past its damage isn't compared, and that is told: its readers
  end there too.
* An audit changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kraftpy.client.admin import Admin
from kraftpy.client.fetcher import READ_UNCOMMITTED
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.inspector import FINDINGS_MAX, Counts, Finding, Inspector
from kraftpy.pipeline.lake import Lake
from kraftpy.pipeline.ranges import OffsetRange, common
from kraftpy.pipeline.stored import StoredLog
from kraftpy.pipeline.table import read_lake
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.brokers import Brokers, DataLossError
from kraftpy.spark.decoder import Slice
from kraftpy.spark.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What an audit looks at: the log of each partition, and whether the cleaner works on it."""

    topic: str
    ranges: tuple[OffsetRange, ...]
    compacted: bool


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """What a partition consists of, and what is wrong with it."""

    topic: str
    partition: int
    start: int
    end: int
    counts: Counts
    findings: tuple[Finding, ...] = ()

    @property
    def readable(self) -> bool:
        """Whether consumers get through it: lost records and odd epochs don't stop them."""
        told = [one.kind in ("gap", "epoch") for one in self.findings]
        return all(told) and len(told) == self.counts.findings


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of a lake that aren't as in the topic; offsets inclusive."""

    partition: int
    kind: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; the rest only with a lake: `skipped` are partitions that weren't compared."""

    partitions: tuple[PartitionAudit, ...]
    differences: tuple[Difference, ...] = ()
    compared: tuple[OffsetRange, ...] = ()
    skipped: tuple[int, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.differences and not any(one.counts.findings for one in self.partitions)


def plan_audit(door: Door, topic: str) -> AuditPlan:
    """Raises OptionError if there is no such topic."""
    with door.brokers(topic) as brokers:
        _, partitions = door.describe(brokers, topic)
        names = [(topic, partition) for partition in partitions]
        first, last = brokers.earliest(names), brokers.latest(names)
        configs = brokers.run(Admin(brokers.cluster()).describe_configs(topic))
        policy = next((one.value for one in configs if one.name == "cleanup.policy"), None)
    ranges = tuple(OffsetRange(*name, first[name], last[name]) for name in names)
    return AuditPlan(topic, ranges, "compact" in (policy or ""))


def audit(
    plan: AuditPlan, door: Door, spark: Callable[[], SparkSession], lake: Lake | None = None
) -> Audit:
    """Raises DataLossError if the log's start moves past what is still to be read."""
    partitions = _inspect(plan, door, spark)
    if lake is None:
        return Audit(partitions)
    skipped = tuple(one.partition for one in partitions if not one.readable)
    version = lake.latest()
    version.check_topics(_identity(door, plan.topic))
    compared = tuple(
        OffsetRange(one.topic, one.partition, start, end)
        for one in plan.ranges
        if one.partition not in skipped
        for start, end in common(
            version.covered.get((one.topic, one.partition), ()), one.start, one.end
        )
    )
    stored = read_lake(spark(), lake, plan.topic, version)
    covered = [
        OffsetRange(plan.topic, partition, *span)
        for (topic, partition), spans in version.covered.items()
        for span in spans
        if topic == plan.topic
    ]
    differences = (
        *_differences(
            plan, door.table(spark(), compared, max_records_per_task=_TASK), stored, compared
        ),
        *_outside(stored, covered),
    )
    return Audit(partitions, differences, compared, skipped)


def _identity(door: Door, topic: str) -> dict[str, Any]:
    with door.brokers(topic) as brokers:
        return {topic: door.describe(brokers, topic)[0]}


# The topic

_REPORT = pa.schema([("report", pa.string())])


def _inspect(
    plan: AuditPlan, door: Door, spark: Callable[[], SparkSession]
) -> tuple[PartitionAudit, ...]:
    tasks = [one for one in plan.ranges if one.start < one.end]
    empty = [PartitionAudit(*one, counts=Counts()) for one in plan.ranges if one.start >= one.end]
    if not tasks:
        return tuple(empty)
    with door.brokers(plan.topic) as brokers:
        settings = brokers.settings
    numbers = spark().range(0, len(tasks), 1, numPartitions=len(tasks))
    rows = numbers.mapInArrow(_task(settings, tasks, plan.compacted), "report string").collect()
    found = [_decode(row.report) for row in rows]
    return tuple(sorted([*empty, *found], key=lambda one: one.partition))


def _task(
    settings: ClientSettings, tasks: list[OffsetRange], compacted: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                report = json.dumps(asdict(inspect(settings, tasks[number], compacted)))
                yield pa.RecordBatch.from_pylist([{"report": report}], schema=_REPORT)

    return run


def inspect(settings: ClientSettings, wanted: OffsetRange, compacted: bool) -> PartitionAudit:
    """Reads a partition's log as it is stored, and says what is wrong with it."""
    inspector = Inspector(wanted.start, wanted.end, compacted)
    # What aborted transactions wrote is part of the log.
    with Brokers(replace(settings, isolation=READ_UNCOMMITTED)) as brokers:
        log = StoredLog(lambda at, size: _fetch(brokers, wanted, log, at, size), *wanted[2:])
        for one in log:
            inspector.take(one)
    inspector.finish()
    return PartitionAudit(
        *wanted, counts=inspector.counts, findings=tuple(inspector.findings[:FINDINGS_MAX])
    )


def _fetch(
    brokers: Brokers, wanted: OffsetRange, log: StoredLog, at: int, size: int
) -> bytes | None:
    try:
        return bytes(brokers.fetch_stored(Slice(*wanted[:2], at, wanted.end), size).records)
    except KafkaError as error:
        if error.code == ErrorCode.CORRUPT_MESSAGE:
            return None
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
    start = brokers.earliest([wanted[:2]])[wanted[:2]]
    if not at < start <= log.reached:
        raise DataLossError(
            f"{wanted.topic}-{wanted.partition} has no offset {log.reached} any more: its log"
            f" starts at {start} now"
        )
    return _fetch(brokers, wanted, log, start, size)


def _decode(text: str) -> PartitionAudit:
    fields = json.loads(text)
    findings = tuple(Finding(**one) for one in fields.pop("findings"))
    return PartitionAudit(counts=Counts(**fields.pop("counts")), findings=findings, **fields)


# The lake

_TASK: Final = 1_000_000


def _differences(
    plan: AuditPlan,
    topic: DataFrame | None,
    stored: DataFrame,
    compared: Sequence[OffsetRange],
) -> tuple[Difference, ...]:
    from pyspark.sql import functions as sql

    if topic is None:
        return ()
    mine = (
        _with_digest(stored.where(_within(compared)))
        .groupBy("partition", "offset")
        .agg(sql.count("*").alias("times"), sql.first("digest").alias("stored"))
    )
    both = _with_digest(topic).join(mine, ["partition", "offset"], "full_outer")
    gone = sql.lit(None) if plan.compacted else sql.lit("not in the topic")
    kind = (
        sql.when(sql.col("times").isNull(), "not in the lake")
        .when(sql.col("times") > 1, "more than once in the lake")
        .when(sql.col("digest").isNull(), gone)
        .when(sql.col("digest") != sql.col("stored"), "not the same in the lake")
    )
    return _collect(both.withColumn("kind", kind).where("kind is not null"))


def _outside(stored: DataFrame, covered: Sequence[OffsetRange]) -> tuple[Difference, ...]:
    """Rows of offsets that the lake doesn't say it has."""
    from pyspark.sql import functions as sql

    rows = stored.where(~_within(covered))
    return _collect(rows.withColumn("kind", sql.lit("outside of what was loaded")))


def _collect(rows: DataFrame) -> tuple[Difference, ...]:
    """The rows, which have a `kind`, by partition and kind."""
    from pyspark.sql import functions as sql

    offsets = (sql.min("offset").alias("first"), sql.max("offset").alias("last"))
    counted = rows.groupBy("partition", "kind").agg(sql.count("*").alias("rows"), *offsets)
    found = counted.select(*Difference.__annotations__).orderBy("partition", "kind").collect()
    return tuple(Difference(*row) for row in found)


def _within(ranges: Iterable[OffsetRange]) -> Column:
    from pyspark.sql import functions as sql

    offset = sql.col("offset")
    each = [
        (sql.col("partition") == one.partition) & (offset >= one.start) & (offset < one.end)
        for one in ranges
    ]
    return reduce(lambda one, other: one | other, each, sql.lit(False))


def _with_digest(records: DataFrame) -> DataFrame:
    """Partition, offset and a digest of all that a record says.  A hash by itself skips nulls."""
    return records.selectExpr(
        "partition",
        "offset",
        "xxhash64(topic, key is null, key, value is null, value, to_json(headers), timestamp,"
        " timestampType) as digest",
    )
