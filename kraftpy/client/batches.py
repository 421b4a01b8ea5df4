"""Record batches on their way to the broker, and the deliveries that their senders wait for.

When they are encoded and sent is for `producer` to say.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from kraftpy.client.serializing import record_size
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    Header,
    build_batch,
    build_batch_of_data,
)

QueuedRecord = tuple[int, bytes | None, bytes | None, list[Header]]
"""Timestamp in milliseconds, key, value and headers."""

DeliveryCallback = Callable[["RecordMetadata | None", "Exception | None"], None]
"""Called with where a record was written, or with why it was not."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record was written; offset -1 when the broker did not say (acks=0, a duplicate)."""

    topic: str
    partition: int
    offset: int


class Delivery:
    """A record on its way: `await delivery` gives its RecordMetadata or raises its batch's error.

    A failed delivery that nobody awaits is reported by `Producer.flush`.
    """

    __slots__ = ("_batch", "_index", "_told")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._told = False

    @property
    def partition(self) -> int:
        return self._batch.partition

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch, index = self._batch, self._index
        try:
            base_offset = yield from asyncio.shield(batch.done).__await__()
            while batch.halves:
                batch, index = batch.place_of(index)
                base_offset = yield from asyncio.shield(batch.done).__await__()
        except Exception:
            batch.untold -= not self._told
            self._told = True
            raise
        return batch.metadata(index, base_offset)


class EncodedRecords(NamedTuple):
    """Records for one batch as the format has them: offset deltas from 0 on.

    Timestamp deltas are from `timestamp_ms` on; None for the largest says that all are 0.
    """

    data: bytes | memoryview
    records_count: int
    timestamp_ms: int
    max_timestamp_ms: int | None = None


class Batch:
    """Records of one partition; `done` becomes the base offset or the error.

    They are `records`, or all of them are `ready` encoded. One that was cut has none, but `halves`,
    each with the index of its first record: what becomes of the records is told there.
    """

    __slots__ = (
        "attempts",
        "callbacks",
        "created",
        "done",
        "encoded",
        "error",
        "halves",
        "partition",
        "ready",
        "records",
        "size",
        "topic",
        "untold",
    )

    def __init__(self, topic: str, partition: int, now: float) -> None:
        self.topic = topic
        self.partition = partition
        self.created = now
        self.records: list[QueuedRecord] = []
        self.ready: EncodedRecords | None = None
        self.callbacks: list[tuple[int, DeliveryCallback]] = []
        self.size = RECORD_BATCH_OVERHEAD
        self.encoded: bytes | None = None
        self.error: Exception | None = None
        self.attempts = 0
        self.halves: list[tuple[int, Batch]] = []
        self.untold = 0
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Marks the error as seen: flush() reports what nobody awaits.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def count(self) -> int:
        return len(self.records) if self.ready is None else self.ready.records_count

    def cut(self) -> tuple[Batch, Batch]:
        """Two batches in its place, each with half of its records, of which it has two or more."""
        first, second = (Batch(self.topic, self.partition, self.created) for _ in range(2))
        middle = len(self.records) // 2
        self.halves = [(0, first), (middle, second)]
        first.records, second.records = self.records[:middle], self.records[middle:]
        first.size += sum(
            record_size(key, value, headers, self.topic) for _, key, value, headers in first.records
        )
        second.size += self.size - first.size
        for index, callback in self.callbacks:
            half, place = self.place_of(index)
            half.callbacks.append((place, callback))
        self.records, self.callbacks, self.encoded = [], [], None
        if not self.done.cancelled():
            self.done.set_result(-1)
        return first, second

    def place_of(self, index: int) -> tuple[Batch, int]:
        """Which of its halves has one of its records, and there as which."""
        (_, first), (middle, second) = self.halves
        return (first, index) if index < middle else (second, index - middle)

    def fail(self, error: Exception) -> None:
        """Its deliveries raise this; `untold` counts those that nobody has awaited."""
        self.untold = len(self.records) if self.ready is None else 1
        self.records, self.ready, self.encoded = [], None, None
        self.done.set_exception(error)

    def encode(
        self,
        compression: str,
        producer: tuple[int, int],
        sequence: int,
        *,
        transactional: bool = False,
    ) -> bytes:
        """The batch as it is sent."""
        if self.ready is None:
            return build_batch(
                self.records,
                compression=compression,
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=sequence,
                transactional=transactional,
            )
        return build_batch_of_data(
            *self.ready,
            compression=compression,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=transactional,
        )

    def metadata(self, index: int, base_offset: int) -> RecordMetadata:
        """Where a record of this batch was written."""
        offset = base_offset + index if base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset)


class PartitionQueue:
    """One partition's batches in order; the first may be in flight, the last may be open.

    `size_max_bytes` is what the broker has taught: what is larger has to be cut.
    """

    __slots__ = (
        "batches", "in_flight", "next_sequence", "not_before", "producer", "size_max_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.size_max_bytes = sys.maxsize
        self.in_flight = False
        self.not_before = 0.0
        self.producer: tuple[int, int] = (-1, -1)
        self.next_sequence = 0
