"""The batch reader: ranges of offsets fixed when Spark plans, a task for each part of them.

`PushingBatchReader` lets filters on topic, partition and offset choose what is read at all; one on
timestamp lets the broker's index skip what is older, and Spark filters again. It is a class of its
own because Spark refuses a reader with `pushFilters` unless the session's
spark.sql.python.filterPushdown.enabled is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from kraftpy.spark.brokers import Brokers
from kraftpy.spark.planning import batch_ranges, tasks_of
from kraftpy.spark.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from kraftpy.spark.decoder import Slice

_NEVER_NULL = {"topic", "partition", "offset", "timestamp", "timestampType"}


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, part: Slice) -> None:
        super().__init__(part)


def read_task(
    settings: ReadSettings, columns: Sequence[str], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of a task; runs where Spark runs it.

    Spark starts one task, of None, for a plan that has none.
    """
    if task.value is None:
        return
    with Brokers(settings.client) as brokers:
        yield from brokers.read(task.value, columns, fail_on_data_loss=settings.fail_on_data_loss)


class BatchReader(DataSourceReader):
    """Reads what lies between two positions of each partition when it is planned."""

    def __init__(self, settings: ReadSettings, columns: Sequence[str]) -> None:
        self.settings = settings
        self.columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        settings = self.settings
        with Brokers(settings.client) as brokers:
            ranges = self._prune(brokers, self._ranges(brokers))
        return [Task(part) for part in tasks_of(ranges, settings)]

    def _ranges(self, brokers: Brokers) -> list[Slice]:
        settings = self.settings
        return batch_ranges(
            brokers,
            settings.topics,
            settings.starting,
            settings.ending,
            fail_on_data_loss=settings.fail_on_data_loss,
        )

    def _prune(self, brokers: Brokers, ranges: list[Slice]) -> list[Slice]:
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.settings, self.columns, partition)


class PushingBatchReader(BatchReader):
    """The same, but reads only what filters leave over."""

    def __init__(self, settings: ReadSettings, columns: Sequence[str]) -> None:
        super().__init__(settings, columns)
        self.chosen: dict[str, set[Any]] = {}
        self.low, self.high = 0, 1 << 63
        self.since_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return [each for each in filters if not self._take(each)]

    def _take(self, each: Filter) -> bool:
        """Remembers what a filter says; whether Spark need not look at it again."""
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
        value = getattr(each, "value", None)
        if isinstance(each, IsNotNull):
            return column in _NEVER_NULL
        if value is None:
            return False
        if column in ("topic", "partition"):
            return self._choose(column, each, value)
        if column == "offset":
            return self._bound(each, value)
        if column == "timestamp" and isinstance(value, datetime):
            self._skip_older(each, value)
        return False

    def _choose(self, column: str, each: Filter, value: Any) -> bool:
        if isinstance(each, EqualTo | EqualNullSafe):
            values = {value}
        elif isinstance(each, In):
            values = set(value)
        else:
            return False
        self.chosen[column] = self.chosen.get(column, values) & values
        return True

    def _bound(self, each: Filter, value: int) -> bool:
        low, high = self.low, self.high
        if isinstance(each, EqualTo | EqualNullSafe):
            low, high = value, value + 1
        elif isinstance(each, GreaterThan):
            low = value + 1
        elif isinstance(each, GreaterThanOrEqual):
            low = value
        elif isinstance(each, LessThan):
            high = value
        elif isinstance(each, LessThanOrEqual):
            high = value + 1
        else:
            return False
        self.low, self.high = max(self.low, low), min(self.high, high)
        return True

    def _skip_older(self, each: Filter, value: datetime) -> None:
        if isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            when = value.astimezone(UTC)
            since_ms = int(when.timestamp() * 1000) - 1  # rounding must not skip a record
            self.since_ms = max(since_ms, self.since_ms or 0, 0)

    def _prune(self, brokers: Brokers, ranges: list[Slice]) -> list[Slice]:
        kept = []
        for each in ranges:
            if each.topic not in self.chosen.get("topic", {each.topic}):
                continue
            if each.partition not in self.chosen.get("partition", {each.partition}):
                continue
            cut = replace(each, start=max(each.start, self.low), end=min(each.end, self.high))
            if cut.start < cut.end:
                kept.append(cut)
        if self.since_ms is None:
            return kept
        found = brokers.offsets({(e.topic, e.partition): self.since_ms for e in kept})
        # -1: no record of the partition is that young. Its end was fixed before this was asked.
        firsts = [(each, found[each.topic, each.partition]) for each in kept]
        return [
            replace(each, start=max(each.start, first))
            for each, first in firsts
            if 0 <= first < each.end
        ]
