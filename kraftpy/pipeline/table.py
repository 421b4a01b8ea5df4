"""A lake as a Spark table, and a Spark table as files of a lake."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kraftpy.pipeline.folder import url_of
from kraftpy.pipeline.lake import Lake, LakeVersion
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import FILES_DDL, Target, write_files
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


def write_table(table: DataFrame, target: Target) -> list[DataFile]:
    """Writes the table's records, which each Spark partition has in the order of their offsets.

    Returns the files; nobody sees them before a version of the lake names them.
    """
    rows = table.mapInArrow(write_files(target), FILES_DDL).collect()
    return [DataFile(**row.asDict()) for row in rows]
