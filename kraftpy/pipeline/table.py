"""A lake as a Spark table, and a Spark table as files of a lake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kraftpy.pipeline.door import Door
from kraftpy.pipeline.folder import url_of
from kraftpy.pipeline.lake import Lake, LakeVersion
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import FILES_DDL, Target, write_files
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.tasks import Call, run_tasks
from kraftpy.spark.source import SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB = re.compile(r"[\\*?{}\[\]]")
"""What Spark takes for a pattern in a path."""


def read_lake(
    spark: SparkSession, lake: Lake, topic: str, version: LakeVersion | None = None
) -> DataFrame:
    """The records of a topic as of one version of the lake (the newest), in no order.

    The columns are those of the topic as Spark reads it, with headers.
    """
    version = version or lake.latest()
    folder = _GLOB.sub(r"\\\g<0>", url_of(lake.folder))
    paths = [f"{folder}/{file.path}" for file in version.files.values() if file.topic == topic]
    if not paths:
        return spark.createDataFrame([], SCHEMA_WITH_HEADERS)
    return spark.read.schema(SCHEMA_WITH_HEADERS).parquet(*paths)


def write_ranges(
    spark: SparkSession,
    door: Door,
    ranges: Iterable[OffsetRange],
    target: Target,
    max_records_per_task: int,
) -> list[DataFile]:
    """Writes the records of the ranges, each Spark partition's in the order of their offsets.

    Returns the files; nobody sees them before a version of the lake names them. With our own
    reader a task writes what it reads: on the way through Spark's rows each record would be copied
    and converted four times, which costs ten times as much as to read and write it.
    """
    if door.format == "kraftpy":
        readers = door.readers(ranges, max_records_per_task=max_records_per_task)
        return write_tasks(spark, [_copying(reader, target) for reader in readers])
    table = door.table(spark, ranges, max_records_per_task=max_records_per_task)
    if table is None:
        return []
    rows = table.mapInArrow(write_files(target), FILES_DDL).collect()
    return [DataFile(**row.asDict()) for row in rows]


def write_tasks(spark: SparkSession, calls: Sequence[Call]) -> list[DataFile]:
    """Makes the calls in tasks, each of which writes files and tells of them in `FILES_SCHEMA`."""
    return [DataFile(**row.asDict()) for row in run_tasks(spark, calls, FILES_DDL)]


def _copying(reader: Call, target: Target) -> Call:
    write = write_files(target)
    return lambda: write(reader())
