"""`audit`: is a topic whole, and does a lake have what the topic has?

Rules:

* Each partition's log is read once, raw and uncommitted, by one task, from where it begins to where
  it ended when the audit was planned; `inspector` says what is wrong with it.
* A lake is compared over the offsets that it says it has and that the topic still has: every record
  that a reader of committed records gets is in it once, the same in key, value, headers and time.
  A row whose record is gone from the topic is legal where the cleaner works.
* Offsets between those that a lake has are a hole, which no later load sees by itself. Where a
  lake begins is its owner's choice (`load --from`).
* The lake's version is frozen with the plan, and each of its files is as it was written.
* A partition whose log can't be read past its damage isn't compared, and that is told: its readers
  end there too. Nor is one of which the lake has a file that can't be read.
* An audit changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kraftpy.client.admin import Admin
from kraftpy.client.offsets import READ_UNCOMMITTED
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.inspector import FINDINGS_MAX, Counts, Finding, Inspector
from kraftpy.pipeline.lake import Lake, LakeVersion
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import batch_rows
from kraftpy.pipeline.ranges import OffsetRange, common, missing
from kraftpy.pipeline.report.source import LakeSource
from kraftpy.pipeline.stored import StoredLog
from kraftpy.pipeline.table import read_lake
from kraftpy.pipeline.tasks import run_tasks
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.brokers import Brokers, DataLossError
from kraftpy.spark.decoder import Slice
from kraftpy.spark.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What an audit looks at: the log of each partition, and whether the cleaner works on it.

    `stored`: what is compared with it.
    """

    topic: str
    ranges: tuple[OffsetRange, ...]
    compacted: bool
    stored: LakeSource | None = None


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
class ChangedFile:
    """A file of a lake that isn't as it was written, and whether its rows can be read yet."""

    path: str
    partition: int
    text: str
    readable: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; the rest only with a lake.

    `holes` are offsets that the topic has, and the lake doesn't, though it has some on both sides;
    `skipped` are partitions that weren't compared.
    """

    partitions: tuple[PartitionAudit, ...]
    differences: tuple[Difference, ...] = ()
    holes: tuple[OffsetRange, ...] = ()
    changed: tuple[ChangedFile, ...] = ()
    compared: tuple[OffsetRange, ...] = ()
    skipped: tuple[int, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        of_lake = self.differences or self.holes or self.changed
        return not of_lake and not any(one.counts.findings for one in self.partitions)


def plan_audit(door: Door, topic: str, lake: Lake | None = None) -> AuditPlan:
    """Raises OptionError if there is no such topic, LakeError if the lake has nothing of it."""
    stored = None if lake is None else LakeSource.newest(lake, topic)
    with door.brokers(topic) as brokers:
        identity, partitions = door.describe(brokers, topic)
        if stored is not None:
            stored.version.check_topics({topic: identity})
        names = [(topic, partition) for partition in partitions]
        first, last = brokers.earliest(names), brokers.latest(names)
        configs = brokers.run(Admin(brokers.cluster()).describe_configs(topic))
        policy = next((one.value for one in configs if one.name == "cleanup.policy"), None)
    ranges = tuple(OffsetRange(*name, first[name], last[name]) for name in names)
    return AuditPlan(topic, ranges, "compact" in (policy or ""), stored)


def audit(plan: AuditPlan, door: Door, spark: Callable[[], SparkSession]) -> Audit:
    """Raises DataLossError if the log's start moves past what is still to be read."""
    door = door.strict()  # what is gone meanwhile isn't missing in the topic
    partitions = _inspect(plan, door, spark)
    if plan.stored is None:
        return Audit(partitions)
    version = plan.stored.version
    changed = _check_files(spark(), plan.stored)
    unreadable = {one.path for one in changed if not one.readable}
    skipped = {one.partition for one in partitions if not one.readable}
    skipped |= {one.partition for one in changed if not one.readable}
    compared = [
        OffsetRange(one.topic, one.partition, *span)
        for one in plan.ranges
        if one.partition not in skipped
        for span in common(version.covered.get(one[:2], ()), one.start, one.end)
    ]
    files = {path: file for path, file in version.files.items() if path not in unreadable}
    rows = read_lake(spark(), plan.stored.lake, plan.topic, replace(version, files=files))
    covered = [
        OffsetRange(*name, *span)
        for name, spans in version.covered.items()
        for span in spans
        if name[0] == plan.topic
    ]
    table = door.table(spark(), compared, max_records_per_task=_TASK)
    return Audit(
        partitions,
        differences=(*_differences(plan, table, rows, compared), *_outside(rows, covered)),
        holes=tuple(_holes(plan, version)),
        changed=changed,
        compared=tuple(compared),
        skipped=tuple(sorted(skipped)),
    )


# -- the topic

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
    calls = [partial(_report, settings, one, plan.compacted) for one in tasks]
    rows = run_tasks(spark(), calls, "report string")
    found = [_decode(row.report) for row in rows]
    return tuple(sorted([*empty, *found], key=lambda one: one.partition))


def _report(
    settings: ClientSettings, wanted: OffsetRange, compacted: bool
) -> Iterator[pa.RecordBatch]:
    report = json.dumps(asdict(inspect(settings, wanted, compacted)))
    yield pa.RecordBatch.from_pylist([{"report": report}], schema=_REPORT)


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
            f" starts at {start} now",
            "Retention was faster than the audit: type the same again",
        )
    return _fetch(brokers, wanted, log, start, size)


def _decode(text: str) -> PartitionAudit:
    fields = json.loads(text)
    findings = tuple(Finding(**one) for one in fields.pop("findings"))
    return PartitionAudit(counts=Counts(**fields.pop("counts")), findings=findings, **fields)


# -- the lake

_TASK: Final = 1_000_000
_CHECKS_MAX: Final = 200
_CHANGED: Final = pa.schema([("changed", pa.string())])


def _holes(plan: AuditPlan, version: LakeVersion) -> Iterator[OffsetRange]:
    for one in plan.ranges:
        if spans := version.covered.get(one[:2], ()):
            start, end = max(one.start, spans[0][0]), min(one.end, spans[-1][1])
            for span in missing(spans, start, end):
                yield OffsetRange(one.topic, one.partition, *span)


def _check_files(spark: SparkSession, stored: LakeSource) -> tuple[ChangedFile, ...]:
    """The topic's files that aren't as the lake knows them; each is read once, by some task."""
    folder = stored.lake.folder
    files = [file for file in stored.version.files.values() if file.topic == stored.topic]
    calls = [partial(_tell_changed, folder, file) for file in files]
    rows = run_tasks(spark, calls, "changed string", partitions_max=_CHECKS_MAX)
    found = [ChangedFile(**json.loads(row.changed)) for row in rows]
    return tuple(sorted(found, key=lambda one: one.path))


def _tell_changed(folder: Path, file: DataFile) -> Iterator[pa.RecordBatch]:
    if (found := check_file(folder, file)) is not None:
        told = {"changed": json.dumps(asdict(found))}
        yield pa.RecordBatch.from_pylist([told], schema=_CHANGED)


def check_file(folder: Path, file: DataFile) -> ChangedFile | None:
    """What became of a file since it was written; None: nothing."""
    path = folder / file.path
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        text = f"it can't be read: {error.strerror}"
        return ChangedFile(file.path, file.partition, text, readable=False)
    if digest == file.sha256:
        return None
    try:
        with pq.ParquetFile(path) as parquet:
            for _ in parquet.iter_batches(batch_rows(parquet, range(parquet.num_row_groups))):
                pass
    except (OSError, pa.ArrowException) as error:
        text = f"its checksum is wrong, and it can't be read: {error}"
        return ChangedFile(file.path, file.partition, text, readable=False)
    return ChangedFile(file.path, file.partition, "its checksum is wrong", readable=True)


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
    """Partition, offset and a digest of all that a record says. A hash by itself skips nulls."""
    return records.selectExpr(
        "partition",
        "offset",
        "xxhash64(topic, key is null, key, value is null, value, to_json(headers), timestamp,"
        " timestampType) as digest",
    )
