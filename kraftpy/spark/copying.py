"""The sink of a mirror that copies exactly once.

Rules:

* A task's rows go to one topic, from one partition of the source, in the order of their offsets.
  They are written in a transaction, which the task commits itself; its marker is the offset behind
  the last of them.
* Rows below the marker are in the target, so they are dropped. So it doesn't matter whether a batch
  that is repeated has the same end, and an older copy of the checkpoint will do.
* A mirror is known by the id of its query, which is in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kraftpy.spark.delivery import deliver_behind
from kraftpy.spark.exactly_once import Series
from kraftpy.spark.settings import WriteSettings, write_settings
from kraftpy.spark.sink import Written, query_of_task, refuse_two_attempts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SINK = "kraftpy-mirror"


class CopyingSink(DataSource):
    """Takes a mirror's columns, `partition` and `offset` among them, and the sink's options."""

    @classmethod
    def name(cls) -> str:
        return SINK

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> CopyingWriter:
        return CopyingWriter(write_settings(self.options, by_topic=True))


class CopyingWriter(DataSourceStreamArrowWriter):
    """Copies the batches of a stream; a batch that is repeated goes on behind its markers."""

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        refuse_two_attempts()
        query = query_of_task()

        def series(topic: str, partition: int) -> Series:
            name = f"{query}.{topic}.{partition}"
            return Series(f"kraftpy.{name}", f"kraftpy-mirror.{name}", (topic, partition))

        return Written(deliver_behind(self.settings, series, iterator))
