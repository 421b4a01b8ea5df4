"""A lake with something in it and a topic that it is written to, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kraftpy.pipeline.target import Target
from kraftpy.pipeline.write import Wanted, WriteOutcome, Writer
from tests.spark.loading import Loading

PART = 200
ALL = Wanted()
COLUMNS = ("partition", "key", "value", "timestamp", "headers")


def records(spark: Any, bootstrap: str, topic: str, **options: str) -> list[tuple[Any, ...]]:
    """What is in a topic, partition by partition, in the order of its offsets."""
    frame = (
        spark.read.format("kraftpy")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .options(**options)
        .load()
    )
    found = frame.orderBy("partition", "offset").select(*COLUMNS).collect()
    return [tuple(row) for row in found]


class Writing:
    """What `loading` has in its lake, on its way to `target`."""

    def __init__(self, loading: Loading, target: str) -> None:
        self.loading = loading
        self.target = target

    def writer(self, max_part_rows: int = PART, **options: str) -> Writer:
        target = Target(self.loading.bootstrap, self.target, options)
        return Writer(self.loading.lake(), target, lambda: self.loading.spark, max_part_rows)

    def write(
        self,
        wanted: Wanted = ALL,
        *,
        max_part_rows: int = PART,
        abandon: bool = False,
        **options: str,
    ) -> list[WriteOutcome]:
        return list(self.writer(max_part_rows, **options).write(wanted, abandon=abandon))

    def wanted(self) -> list[tuple[Any, ...]]:
        """The rows of the lake as they should be in the topic."""
        # partition, offset, key, value, timestamp, timestampType, headers
        return [(row[0], *row[2:5], row[6]) for row in self.loading.rows()]

    def written(self) -> list[tuple[Any, ...]]:
        return records(self.loading.spark, self.loading.bootstrap, self.target)

    def committed(self) -> list[tuple[Any, ...]]:
        """What readers of committed records find."""
        isolation = {"kafka.isolation.level": "read_committed"}
        return records(self.loading.spark, self.loading.bootstrap, self.target, **isolation)


def first_copies(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows without those that came before, in their order; no two were the same at first."""
    seen: set[str] = set()
    found = []
    for row in rows:
        name = repr(row)
        if name not in seen:
            seen.add(name)
            found.append(row)
    return found


def repeated(rows: Sequence[tuple[Any, ...]]) -> Counter[int]:
    """How many rows of each partition came again."""
    again = Counter(row[0] for row in rows)
    again.subtract(Counter(row[0] for row in first_copies(rows)))
    return again
