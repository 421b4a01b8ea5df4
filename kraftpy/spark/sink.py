"""The writers: rows of a DataFrame to records of topics, at least once or exactly once.

The columns are those of Spark's Kafka sink: `value`, and if wanted `key`, `topic`, `partition` and
`headers`; with the option keepTimestamps also `timestamp`. What a task does is in
`kraftpy.spark.delivery`.

At least once, a task is done when everything it wrote is acknowledged; so nothing is lost. A task
that Spark runs again writes its rows again.

Exactly once (option exactlyOnce), a task writes in a transaction of its own and leaves it open; the
driver commits all of them when all tasks are done. Rules:

* What a task is called is the same whenever it is done again: a stream's query by its checkpoint,
  the batch and the task's number are Spark's; a batch job is named by the option jobId.
* A driver that dies before it has committed anything: the next attempt fences what is open, and
  writes all rows anew. One that dies amid: tasks whose marker is committed write nothing, the
  others all. So a batch has to have the same rows in the same tasks when it is repeated; rows are
  counted to see that.
* A task of which two attempts may be under way at once (spark.speculation) is refused: each would
  fence the other.
* The number of a stream's batch is a local property that Spark doesn't document. A task that
  doesn't find it writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kraftpy.client.transactional_producer import OpenTransaction
from kraftpy.spark.delivery import deliver, deliver_once
from kraftpy.spark.exactly_once import Series, end_all
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")
_TYPES = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_TIMESTAMP = ("timestamp",)
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


def check_columns(schema: StructType, settings: WriteSettings) -> None:
    """OptionError unless the columns can be written."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise OptionError(
            f"there is no column value among {', '.join(kinds)}; "
            "select to_json(struct(*)) as value makes one of all columns"
        )
    if settings.topic is None and "topic" not in kinds:
        raise OptionError('set the option topic, or have a column topic: .option("topic", "out")')
    types = {**_TYPES, "timestamp": _TIMESTAMP} if settings.keep_timestamps else _TYPES
    if settings.keep_timestamps and "timestamp" not in kinds:
        raise OptionError("option keepTimestamps is set, and there is no column timestamp")
    for name, allowed in types.items():
        if name in kinds and kinds[name] not in allowed:
            raise OptionError(
                f"column {name} is {kinds[name]} and has to be {' or '.join(allowed)}; cast it"
            )


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote, and the transaction that it left open for the driver."""

    records: int
    transaction: OpenTransaction | None = None


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to topics."""

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        job = self.settings.job_id
        if job is None:
            return Written(deliver(self.settings, iterator))
        return _write_once(self.settings, job, 0, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        end_all(self.settings, _open(messages), committed=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        end_all(self.settings, _open(messages), committed=False)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to topics.

    One that is repeated is written again, unless each is to be written exactly once.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self.settings.exactly_once:
            return Written(deliver(self.settings, iterator))
        return _write_once(self.settings, query_of_task(), int(_property(_BATCH)), iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        end_all(self.settings, _open(messages), committed=True)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        end_all(self.settings, _open(messages), committed=False)


def refuse_two_attempts() -> TaskContext:
    """The task that this is; raises OptionError if Spark may have another attempt of it now."""
    context = TaskContext.get()
    assert context is not None
    if (context.getLocalProperty("spark.speculation") or "false").lower() == "true":
        raise OptionError(
            "spark.speculation has tasks run twice at once, and of exactlyOnce each would stop the"
            " other: set it to false (--conf spark.speculation=false)"
        )
    return context


def query_of_task() -> str:
    """The id of the query that this task is of; raises OptionError if Spark doesn't say."""
    return _property(_QUERY)


def _property(name: str) -> str:
    """What Spark says of the task's query; raises OptionError if it doesn't."""
    context = TaskContext.get()
    assert context is not None
    value: str | None = context.getLocalProperty(name)
    if not value:
        raise OptionError(
            f"option exactlyOnce needs what this Spark doesn't tell its tasks (the property {name}"
            " of a stream's tasks): leave it out, or use PySpark 4.2"
        )
    return value


def _write_once(
    settings: WriteSettings, query: str, batch: int, tables: Iterable[pa.RecordBatch]
) -> Written:
    context = refuse_two_attempts()
    assert settings.topic is not None
    series = Series.of_task(query, context.partitionId(), settings.topic)
    return Written(*deliver_once(settings, series, batch, tables))


def _open(messages: Sequence[WriterCommitMessage | None]) -> list[OpenTransaction]:
    """The transactions that the driver has to end."""
    written = (message for message in messages if isinstance(message, Written))
    return [each.transaction for each in written if each.transaction is not None]
