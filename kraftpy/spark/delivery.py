"""Rows of Arrow tables to records of topics: what a task of a writer does.

Rules:

* A task's rows are one part or several. A part is marked once all of it is acknowledged, before any
  row of the next is sent.
* Nothing is sent behind a batch that failed. So a part that is sent again repeats the beginning of
  a partition's rows and goes on: the first copies of all rows are in their order.
* `deliver_once`, `deliver_parts_once` and `deliver_behind` write in transactions, and a marker goes
  into each. So what was committed is known by its marker, and isn't written when it comes again
  (see `kraftpy.spark.exactly_once`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kraftpy.client.cluster import Cluster
from kraftpy.client.producer import Producer
from kraftpy.client.transactional_producer import OpenTransaction
from kraftpy.spark.encoder import Rows, encode_rows, partitions_of_keys, sizes_of
from kraftpy.spark.exactly_once import (
    Marker,
    MarkingProducer,
    RepeatedError,
    Series,
)
from kraftpy.spark.settings import WriteSettings

if TYPE_CHECKING:
    from kraftpy.spark.varints import Numbers


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a task, and whom to tell how many they were once all of them are acknowledged."""

    tables: Iterable[pa.RecordBatch]
    mark: Callable[[int], None]


class Sender:
    """One task's rows on their way to their partitions."""

    def __init__(
        self, cluster: Cluster, producer: Producer[bytes, bytes], settings: WriteSettings
    ) -> None:
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


def deliver(settings: WriteSettings, tables: Iterable[pa.RecordBatch]) -> int:
    """Writes the rows of a task, at least once; how many, when all are acknowledged, or raises."""
    return deliver_parts(settings, [Part(tables, lambda _: None)])


def deliver_parts(settings: WriteSettings, parts: Iterable[Part]) -> int:
    """Writes the parts of a task one after the other, and marks each; how many rows, or raises."""

    async def run() -> int:
        total = 0
        async with (
            settings.client.connect() as cluster,
            Producer(
                cluster,
                stop_on_failure=True,
                auto_create=settings.create_topics,
                **settings.producer,
            ) as producer,
        ):
            sender = Sender(cluster, producer, settings)
            for part in parts:
                rows = await _send_all(sender, part.tables)
                await producer.flush()
                part.mark(rows)
                total += rows
        return total

    return asyncio.run(run())


def deliver_once(
    settings: WriteSettings, series: Series, batch: int, tables: Iterable[pa.RecordBatch]
) -> tuple[int, OpenTransaction | None]:
    """Writes what a task has of a batch in a transaction, and leaves that open for who ends it.

    Where a transaction with these rows was committed before, they are only counted. Returns how
    many rows there are, and the transaction. Raises OptionError, RepeatedError, KafkaError,
    ConnectionError.
    """

    async def run() -> tuple[int, OpenTransaction | None]:
        async with settings.client.connect() as cluster:
            await cluster.topic(series.place[0], auto_create=settings.create_topics)
            producer = MarkingProducer(cluster, settings, series)
            async with producer:
                marker = await producer.begin()
                if marker is not None and marker.offset > batch:
                    rows = sum(table.num_rows for table in tables)
                    series.check_repeated(marker, Marker(batch + 1, rows))
                    return rows, None
                rows = await _send_all(Sender(cluster, producer, settings), tables)
                await producer.mark(Marker(batch + 1, rows))
                return rows, await producer.hand_over_transaction()

    return asyncio.run(run())


def deliver_parts_once(
    settings: WriteSettings, series: Series, parts: Iterable[tuple[int, Part]]
) -> int:
    """Writes parts with rising numbers, each in a transaction, and marks each once it is committed.

    One that was committed before is only counted. How many rows they have, or raises.
    """

    async def run() -> int:
        total = 0
        async with settings.client.connect() as cluster:
            producer = MarkingProducer(cluster, settings, series)
            async with producer:
                sender = Sender(cluster, producer, settings)
                for number, part in parts:
                    marker = await producer.begin()
                    if marker is not None and marker.offset > number:
                        await producer.abort_transaction()
                        rows = sum(table.num_rows for table in part.tables)
                    else:
                        rows = await _send_all(sender, part.tables)
                        await producer.mark(Marker(number + 1, rows))
                        await producer.commit_transaction()
                    part.mark(rows)
                    total += rows
        return total

    return asyncio.run(run())


def deliver_behind(
    settings: WriteSettings,
    series_of: Callable[[str, int], Series],
    tables: Iterable[pa.RecordBatch],
) -> int:
    """Writes rows of one partition of a source from the marker on, in a transaction; how many.

    Their columns `partition` and `offset` say where they come from, `topic` (unless the settings
    do) where they go; the marker is the offset behind the last of them. Raises as `deliver_once`
    does.
    """
    rest = iter(tables)
    first = next((table for table in rest if table.num_rows), None)
    if first is None:
        return 0
    partition = first.column("partition")[0].as_py()
    topic = settings.topic or first.column("topic")[0].as_py()

    async def run() -> int:
        async with settings.client.connect() as cluster:
            producer = MarkingProducer(cluster, settings, series_of(topic, partition))
            async with producer:
                marker = await producer.begin()
                start = 0 if marker is None else marker.offset
                source = _Behind(None if settings.topic else topic, partition, start)
                new = source.rows(itertools.chain([first], rest))
                rows = await _send_all(Sender(cluster, producer, settings), new)
                if rows:
                    await producer.mark(Marker(source.next, rows))
                await producer.commit_transaction()
                return rows

    return asyncio.run(run())


class _Behind:
    """The rows of a partition of a source from an offset on; `next` is behind the last of them.

    All are for one topic, if one is named.
    """

    def __init__(self, topic: str | None, partition: int, start: int) -> None:
        self.next = start
        self._topic = topic
        self._partition = partition

    def rows(self, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            if table.num_rows == 0:
                continue
            offsets = table.column("offset").to_numpy()
            partitions = table.column("partition").to_numpy()
            mixed = (partitions != self._partition).any()
            if self._topic is not None:
                mixed = mixed or table.column("topic").unique().to_pylist() != [self._topic]
            if mixed or (np.diff(offsets) <= 0).any():
                raise RepeatedError(
                    "a task has rows of several partitions, or not in the order of their offsets"
                )
            new = table.slice(int(np.searchsorted(offsets, self.next)))
            if new.num_rows:
                self.next = int(offsets[-1]) + 1
                yield new


async def _send_all(sender: Sender, tables: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for table in tables:
        await sender.send(table)
        rows += table.num_rows
        await asyncio.sleep(0)  # the next table may be long in coming
    return rows
