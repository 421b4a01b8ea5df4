"""What a topic and a lake hold, told by programs that share no code with the pipeline.

A topic is read by librdkafka's consumer, a lake's files by pyarrow. Both give for each partition
the number of records and a hash over all of each of them, in the order of their offsets; a sample
of records is kept to compare byte by byte.
"""

from __future__ import annotations

import hashlib
import marshal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from kraftpy.pipeline.lake import Lake

SAMPLE_EVERY = 997
_TIMEOUT_S = 60.0

Record = tuple[Any, ...]
"""offset, timestamp (ms), its type, key, value, headers (None, or pairs of bytes)."""


@dataclass
class Content:
    """A partition's records: how many, which are first and last, a hash over all, a sample."""

    rows: int = 0
    first: int = -1
    last: int = -1
    digest: str = ""
    sample: list[Record] = field(default_factory=list)


class _Sum:
    def __init__(self) -> None:
        self.content = Content()
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, record: Record) -> None:
        content, offset = self.content, record[0]
        assert offset > content.last, f"offset {offset} comes after {content.last}"
        if not content.rows:
            content.first = offset
        content.rows += 1
        content.last = offset
        if offset % SAMPLE_EVERY == 0:
            content.sample.append(record)
        # Version 2 has no references: equal records give equal bytes.
        self._hash.update(marshal.dumps(record, 2))

    def end(self) -> Content:
        self.content.digest = self._hash.hexdigest()
        return self.content


def of_topic(bootstrap: str, topic: str) -> dict[int, Content]:
    """What a consumer that reads committed records gets of each partition, to its end."""
    return _sums(topic_records(bootstrap, topic))


def topic_records(bootstrap: str, topic: str) -> Iterator[tuple[int, Record]]:
    """The same record by record, each with its partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checksums",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        left = set(partitions)
        deadline = time.monotonic() + _TIMEOUT_S
        while left:
            # It waits for that many or that long, also at the end of all partitions.
            messages = consumer.consume(1000, 0.2)
            if messages:
                deadline = time.monotonic() + _TIMEOUT_S
            assert time.monotonic() < deadline, f"the consumer got nothing for {_TIMEOUT_S:g} s"
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.partition(), _record(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(str(error))
    finally:
        consumer.close()


def _sums(records: Iterable[tuple[int, Record]]) -> dict[int, Content]:
    sums: dict[int, _Sum] = {}
    for partition, record in records:
        sums.setdefault(partition, _Sum()).add(record)
    return {partition: each.end() for partition, each in sums.items()}


def _record(message: Any) -> Record:
    # librdkafka counts the types from 1, as 0 is "none" for it.
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    pairs = None if headers is None else tuple((name.encode(), value) for name, value in headers)
    return message.offset(), timestamp_ms, kind - 1, message.key(), message.value(), pairs


def of_lake(lake: Lake, topic: str) -> dict[int, Content]:
    """What the newest version's files have of each partition."""
    return _sums(lake_records(lake, topic))


def lake_records(lake: Lake, topic: str) -> Iterator[tuple[int, Record]]:
    """The same record by record, each with its partition."""
    files = [file for file in lake.latest().files.values() if file.topic == topic]
    for file in sorted(files, key=lambda one: (one.partition, one.first_offset)):
        path = lake.folder / file.path
        assert path.stat().st_size == file.size_bytes
        for batch in pq.ParquetFile(path).iter_batches(8192):
            for record in _records(batch):
                yield file.partition, record


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    timestamps_us = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    columns = (
        batch.column("offset").to_pylist(),
        (timestamps_us // 1000).tolist(),
        batch.column("timestampType").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        _headers(batch.column("headers")),
    )
    return zip(*columns, strict=True)


def _headers(column: Any) -> list[tuple[tuple[bytes, bytes | None], ...] | None]:
    entries = column.flatten()
    names = entries.field("key").cast(pa.binary()).to_pylist()
    pairs = list(zip(names, entries.field("value").to_pylist(), strict=True))
    found: list[tuple[tuple[bytes, bytes | None], ...] | None] = []
    at = 0
    for count in column.value_lengths().to_pylist():
        found.append(None if count is None else tuple(pairs[at : at + count]))
        at += count or 0
    return found


def rows(contents: Mapping[int, Content]) -> int:
    """All partitions' together."""
    return sum(content.rows for content in contents.values())
