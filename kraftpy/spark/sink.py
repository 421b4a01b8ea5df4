"""The writers: rows of a DataFrame to records of topics, at least once.

The columns are those of Spark's Kafka sink: `value`, and if wanted `key`, `topic`, `partition` and
`headers`; with the option keepTimestamps also `timestamp`. A task writes through `kraftpy.client`'s
idempotent producer, and is done when everything it wrote is acknowledged; so nothing is lost. A
task that Spark runs again writes its rows again.

What a task does is `deliver`; what makes it a task of a batch or of a stream is around it. Rules:

* A task's rows are one part or several. A part is marked once all of it is acknowledged, before any
  row of the next is sent. A writer that commits a transaction for each part needs another producer
  and nothing else.
* Nothing is sent behind a batch that failed. So a part that is sent again repeats the beginning of
  a partition's rows and goes on: the first copies of all rows are in their order.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kraftpy.client.cluster import Cluster
from kraftpy.client.producer import Producer
from kraftpy.spark.encoder import Rows, encode_rows, partitions_of_keys, sizes_of
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kraftpy.spark.varints import Numbers

_TEXT = ("string", "binary")
_TYPES = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_TIMESTAMP = ("timestamp",)


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
    """What a task wrote."""

    records: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a task, and whom to tell how many they were once all of them are acknowledged."""

    tables: Iterable[pa.RecordBatch]
    mark: Callable[[int], None]


class _Task:
    """One task's rows on their way to their partitions."""

    def __init__(self, cluster: Cluster, producer: Producer, settings: WriteSettings) -> None:
        self._cluster = cluster
        self._producer = producer
        self._topic = settings.topic
        self._keep_timestamps = settings.keep_timestamps
        self._create_topics = settings.create_topics
        self._batch_size_bytes: int = settings.producer["batch_size_bytes"]
        self._turn = random.randrange(1 << 16)  # noqa: S311 - tasks should not all begin at 0

    async def send(self, table: pa.RecordBatch) -> None:
        """Encodes the rows of a table and queues them; returns when there is room for more."""
        for topic, places in self._topics(table):
            part = table if places is None else table.take(pa.array(places))
            rows = Rows(
                _binary(part, "key"),
                _binary(part, "value"),
                part.column("headers") if "headers" in part.schema.names else None,
                _timestamps_ms(part) if self._keep_timestamps else None,
            )
            info = await self._cluster.topic(topic, auto_create=self._create_topics)
            chosen = self._partitions(part, rows, len(info.partitions))
            now_ms = int(time.time() * 1000)
            for partition, here in _groups(chosen):
                taken = rows if here is None else rows.take(pa.array(here))
                for records in encode_rows(taken, self._batch_size_bytes, now_ms):
                    await self._producer.send_encoded(topic, partition, records)

    def _topics(self, table: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
        """(topic, numbers of its rows, None for all of them)."""
        if self._topic is not None:
            yield self._topic, None
            return
        column = table.column("topic")
        if column.null_count:
            raise ValueError("the column topic is null in some row; every row needs a topic")
        coded = column.dictionary_encode()
        for number, places in _groups(coded.indices.to_numpy().astype(np.int64)):
            yield coded.dictionary[number].as_py(), places

    def _partitions(self, table: pa.RecordBatch, rows: Rows, count: int) -> Numbers:
        chosen = partitions_of_keys(rows.key, count)
        keyless = np.flatnonzero(chosen < 0)
        if len(keyless):
            sizes = sizes_of(rows.value)[keyless]
            turns = np.cumsum(sizes) // self._batch_size_bytes
            chosen[keyless] = (turns + self._turn) % count
            self._turn += int(turns[-1]) + 1
        if "partition" in table.schema.names:
            given = table.column("partition")
            said = given.fill_null(-1).to_numpy().astype(np.int64)
            valid = given.is_valid().to_numpy(zero_copy_only=False)
            if np.any(said[valid] < 0):
                raise ValueError(f"the column partition has {said[valid].min()}, less than 0")
            chosen = np.where(valid, said, chosen)
        return chosen


def _binary(table: pa.RecordBatch, name: str) -> pa.Array:
    if name not in table.schema.names:
        return pa.nulls(table.num_rows, pa.binary())
    return table.column(name).cast(pa.binary())


def _timestamps_ms(table: pa.RecordBatch) -> Numbers:
    column = table.column("timestamp")
    if column.null_count:
        raise ValueError("the column timestamp is null in some row; every row needs one")
    return column.cast(pa.int64()).to_numpy().astype(np.int64) // 1000


def _groups(numbers: Numbers) -> Iterator[tuple[int, Any]]:
    """(number, places where it stands in rising order, None for everywhere)."""
    if len(numbers) and (numbers == numbers[0]).all():
        yield int(numbers[0]), None
        return
    order = np.argsort(numbers, kind="stable")
    edges = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, edges):
        if len(places):
            yield int(numbers[places[0]]), places


def deliver(settings: WriteSettings, tables: Iterable[pa.RecordBatch]) -> Written:
    """Writes the rows of a task; returns when all of them are acknowledged, or raises."""
    return deliver_parts(settings, [Part(tables, lambda _: None)])


def deliver_parts(settings: WriteSettings, parts: Iterable[Part]) -> Written:
    """Writes the parts of a task one after the other, and marks each; or raises."""

    async def run() -> Written:
        total = 0
        client = settings.client
        async with (
            Cluster(
                client.bootstrap,
                client_id=client.client_id,
                request_timeout_ms=client.request_timeout_ms,
                connect_timeout_ms=client.connect_timeout_ms,
            ) as cluster,
            Producer(
                cluster,
                stop_on_failure=True,
                auto_create=settings.create_topics,
                **settings.producer,
            ) as producer,
        ):
            task = _Task(cluster, producer, settings)
            for part in parts:
                records = 0
                for table in part.tables:
                    await task.send(table)
                    records += table.num_rows
                    await asyncio.sleep(0)  # the next table may be long in coming
                await producer.flush()
                part.mark(records)
                total += records
        return Written(total)

    return asyncio.run(run())


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to topics."""

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.settings, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to topics; a batch that is repeated is written again."""

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.settings, iterator)
