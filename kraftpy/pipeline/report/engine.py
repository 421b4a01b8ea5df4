"""A report's numbers, computed by Spark from all records at once.

Rules:

* The result depends on the records alone, not on the order in which they came or were loaded: what
  came late is in it, and a report after late data is the one that would be made from scratch.
* A record is late if, when it came, its partition had already brought one that happened more than
  the allowance after it: what a job with that watermark would have dropped. Late ones are counted,
  for the whole and for each row.
* Records that can't be read are counted by reason, with examples, and are in no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Window as Over
from pyspark.sql import functions as fn

from kraftpy.pipeline.report.columns import TIME_MS, Columns
from kraftpy.pipeline.report.definition import Definition, Named, Sessions, Table
from kraftpy.pipeline.report.records import (
    NO_TIME,
    TIME_MAX_MS,
    TIME_MIN_MS,
    column_of,
    columns_ddl,
    decode,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_MAX: Final = 1_000_000
"""The most rows that a table may have: they are put together in the driver."""
EXAMPLES: Final = 3

LATENESS_MS: Final = (60_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
"""Where one class of lateness ends and the next begins."""

_BEHIND: Final = "behind_ms"
_LATE: Final = "is_late"
_SESSION: Final = "#session"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


class TooManyRowsError(Exception):
    """A table is larger than a report's may be; the text says which and what to change."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What became of the records: `read` = `used` + `left_out` (by `where`) + those with problems.

    `problems`: how many by reason; `examples`: (reason, partition, offset, beginning of the value);
    `mistyped`: by field, how many values had another type and were taken as null.
    """

    read: int
    used: int
    left_out: int
    problems: dict[str, int]
    examples: list[tuple[str, int, int, str]]
    mistyped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Lateness:
    """`behind`: records that happened before one that came earlier in their partition; `late`:
    those of them that did by more than the allowance; `classes`: `behind` by LATENESS_MS."""

    behind: int
    late: int
    most_ms: int
    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A table's rows, sorted; `whole` has a row for each window, all groups together."""

    rows: pa.Table
    whole: pa.Table | None = None
    keyless: int = 0
    """Records that are in no session because they lack the key."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """All that a report shows. `first_ms` and `last_ms` are event times, None without any."""

    quality: Quality
    lateness: Lateness
    first_ms: int | None
    last_ms: int | None
    figures: list[Any] = field(default_factory=list)
    tables: list[Made] = field(default_factory=list)
    sessions: list[Made] = field(default_factory=list)


def compute(spark: SparkSession, definition: Definition, records: DataFrame) -> Numbers:
    """Computes a report from a topic's records, in whatever order they are.

    `records` has partition, offset, key, value and timestamp. Raises TooManyRowsError and Spark's
    errors.
    """
    with _settings(spark):
        return _Engine(definition).run(records)


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """UTC, which functions of times are to mean: ours are shifted to the report's zone before.

    And not 200 partitions: a report is a dozen of small jobs, whose time would go into empty tasks.
    """
    wanted = {"spark.sql.session.timeZone": "UTC"}
    if _PARTITIONS not in dict(spark.sparkContext.getConf().getAll()):
        wanted[_PARTITIONS] = str(2 * spark.sparkContext.defaultParallelism)
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


class _Engine:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._columns = Columns(definition.zone.key)

    def run(self, records: DataFrame) -> Numbers:
        prepared = self._prepared(records).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            used = prepared.where(self._is_used())
            quality = self._quality(prepared)
            lateness, first_ms, last_ms, figures, keyless = self._head(used)
            return Numbers(
                quality=quality,
                lateness=lateness,
                first_ms=first_ms,
                last_ms=last_ms,
                figures=figures,
                tables=[self._table(each, used) for each in self._definition.tables],
                sessions=[
                    Made(self._sessions(each, used), keyless=count)
                    for each, count in zip(self._definition.sessions, keyless, strict=True)
                ],
            )
        finally:
            prepared.unpersist()

    # -- records

    def _prepared(self, records: DataFrame) -> DataFrame:
        """A row for each record: its fields, what is computed of them, how late it came."""
        wanted = records.select("partition", "offset", "key", "value", "timestamp")
        found = wanted.mapInArrow(decode(self._definition), columns_ddl(self._definition))
        found = found.withColumn(TIME_MS, self._time())
        found = found.withColumn(
            "problem",
            fn.coalesce("problem", fn.when(fn.col(TIME_MS).isNull(), fn.lit(NO_TIME))),
        )
        for name, expression in self._definition.computed.items():
            found = found.withColumn(column_of(name), self._columns.expression(expression))
        came_before = (
            Over.partitionBy("partition").orderBy("offset").rowsBetween(Over.unboundedPreceding, -1)
        )
        ahead = fn.max(TIME_MS).over(came_before)
        found = found.withColumn(_BEHIND, fn.greatest(ahead - fn.col(TIME_MS), fn.lit(0)))
        return found.withColumn(_LATE, fn.col(_BEHIND) > self._definition.late_ms)

    def _time(self) -> Column:
        plus = self._definition.time.plus
        time_ms = fn.col(TIME_MS)
        if plus is None:
            return time_ms
        added_ms = fn.floor(self._columns.expression(plus).cast("double") * 1000)
        sum_ms = fn.try_add(time_ms, added_ms)
        return fn.when(sum_ms.between(TIME_MIN_MS, TIME_MAX_MS), sum_ms)

    def _is_used(self) -> Column:
        readable = fn.col("problem").isNull()
        where = self._definition.where
        return readable if where is None else readable & self._columns.expression(where)

    def _quality(self, prepared: DataFrame) -> Quality:
        is_used = fn.coalesce(self._is_used(), fn.lit(False))
        names = [each.name for each in self._definition.fields]
        wrong = fn.split("mistyped", ",")
        counted = prepared.groupBy("problem").agg(
            fn.count(fn.lit(1)),
            fn.count(fn.when(is_used, 1)),
            *(fn.count(fn.when(fn.array_contains(wrong, name), 1)) for name in names),
        )
        rows = [tuple(row) for row in counted.collect()]
        problems = {row[0]: row[1] for row in rows if row[0] is not None}
        read, used, *mistyped = (
            sum(row[place] for row in rows) for place in range(1, 3 + len(names))
        )
        return Quality(
            read=read,
            used=used,
            left_out=read - used - sum(problems.values()),
            problems=dict(sorted(problems.items(), key=lambda each: (-each[1], each[0]))),
            examples=self._examples(prepared) if problems else [],
            mistyped={name: count for name, count in zip(names, mistyped, strict=True) if count},
        )

    def _examples(self, prepared: DataFrame) -> list[tuple[str, int, int, str]]:
        each = Over.partitionBy("problem").orderBy("partition", "offset")
        chosen = (
            prepared.where(fn.col("problem").isNotNull())
            .withColumn("number", fn.row_number().over(each))
            .where(fn.col("number") <= EXAMPLES)
            .select("problem", "partition", "offset", "excerpt")
        )
        return sorted(
            (row["problem"], row["partition"], row["offset"], row["excerpt"] or "")
            for row in chosen.collect()
        )

    def _head(
        self, used: DataFrame
    ) -> tuple[Lateness, int | None, int | None, list[Any], list[int]]:
        """How late, from when to when, the figures, and how many have no key for sessions."""
        behind = fn.col(_BEHIND)
        limits = [0, *LATENESS_MS]
        classes = [
            fn.count(fn.when((behind > low) & (behind <= high), 1))
            for low, high in zip(limits, LATENESS_MS, strict=False)
        ]
        (row,) = used.agg(
            fn.min(TIME_MS),
            fn.max(TIME_MS),
            fn.count(fn.when(behind > 0, 1)),
            fn.count(fn.when(fn.col(_LATE), 1)),
            fn.max(_BEHIND),
            *classes,
            fn.count(fn.when(behind > LATENESS_MS[-1], 1)),
            *(self._keyless(each) for each in self._definition.sessions),
            *self._measures(self._definition.figures),
        ).collect()
        first_ms, last_ms, were_behind, late, most_ms, *rest = row
        count = len(classes) + 1
        lateness = Lateness(were_behind, late, most_ms or 0, tuple(rest[:count]))
        figures_from = count + len(self._definition.sessions)
        return lateness, first_ms, last_ms, rest[figures_from:], rest[count:figures_from]

    def _keyless(self, sessions: Sessions) -> Column:
        chosen = ~_has_key(sessions)
        if sessions.where is not None:
            chosen = chosen & self._columns.expression(sessions.where)
        return fn.count(fn.when(chosen, 1))

    # -- tables

    def _table(self, table: Table, used: DataFrame) -> Made:
        chosen = self._chosen(used, table.where)
        keys = []
        if table.window is not None:
            keys = ["start"]
            chosen = chosen.withColumn("start", self._columns.window_start(table.window))
        numbers = [*self._measures(table.measures), _late()]
        groups = [fn.col(column_of(name)).alias(name) for name in table.by]
        rows = _collected(table.name, chosen.groupBy(*keys, *groups).agg(*numbers))
        whole = None
        if table.window is not None and table.by:
            whole = _sorted(_collected(table.name, chosen.groupBy(*keys).agg(*numbers)), keys)
        return Made(_sorted(rows, [*keys, *table.by]), whole)

    def _sessions(self, sessions: Sessions, used: DataFrame) -> pa.Table:
        chosen = self._chosen(used, sessions.where)
        keys = [column_of(name) for name in sessions.by]
        in_order = Over.partitionBy(*keys).orderBy(TIME_MS, "partition", "offset")
        since_ms = fn.col(TIME_MS) - fn.lag(TIME_MS).over(in_order)
        begins = fn.when(since_ms <= sessions.gap_ms, 0).otherwise(1)
        so_far = in_order.rowsBetween(Over.unboundedPreceding, Over.currentRow)
        numbered = (
            chosen.where(_has_key(sessions))
            .withColumn("begins", begins)
            .withColumn(_SESSION, fn.sum("begins").over(so_far))
        )
        groups = [fn.col(key).alias(name) for key, name in zip(keys, sessions.by, strict=True)]
        rows = (
            numbered.groupBy(*groups, _SESSION)
            .agg(
                fn.min(TIME_MS).alias("start"),
                fn.max(TIME_MS).alias("end"),
                fn.count(fn.lit(1)).alias("events"),
                *self._measures(sessions.measures),
                _late(),
            )
            .drop(_SESSION)
        )
        return _sorted(_collected(sessions.name, rows), [*sessions.by, "start"])

    def _chosen(self, used: DataFrame, where: Any) -> DataFrame:
        return used if where is None else used.where(self._columns.expression(where))

    def _measures(self, measures: Sequence[Named]) -> list[Column]:
        return [self._columns.measure(each.measure).alias(each.name) for each in measures]


def _has_key(sessions: Sessions) -> Column:
    return reduce(and_, (fn.col(column_of(name)).isNotNull() for name in sessions.by))


def _late() -> Column:
    return fn.count(fn.when(fn.col(_LATE), 1)).alias("late")


def _collected(name: str, rows: DataFrame) -> pa.Table:
    found = rows.limit(ROWS_MAX + 1).toArrow()
    if found.num_rows > ROWS_MAX:
        raise TooManyRowsError(
            f"{name!r} has more than {ROWS_MAX:,} rows: give it a longer window, or group by less"
        )
    return found


def _sorted(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """By these columns, which make rows unique; null comes last."""
    return rows.sort_by([(key, "ascending") for key in keys])
