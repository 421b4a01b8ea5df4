"""Work of one's own for Spark's tasks, where no table is read: a call for each.

Rule: a Spark partition has one call, or some that follow each other. They go to workers pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row, SparkSession

Call: TypeAlias = "Callable[[], Iterator[pa.RecordBatch]]"


def run_tasks(
    spark: SparkSession, calls: Sequence[Call], ddl: str, *, partitions_max: int | None = None
) -> list[Row]:
    """Makes the calls in tasks; the rows of what they yield, in the columns that `ddl` names.

    `partitions_max`: how many Spark partitions there are at most; None: one for each call. Raises
    Spark's errors.
    """
    if not calls:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from calls[number]()

    count = min(len(calls), partitions_max or len(calls))
    numbers = spark.range(0, len(calls), 1, numPartitions=count)
    rows: list[Row] = numbers.mapInArrow(run, ddl).collect()
    return rows
