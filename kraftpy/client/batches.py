"""Record batches on their way to the broker, and the deliveries that their senders wait for.

When they are encoded and sent is for `producer` to say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    RecordInput,
    build_batch,
    build_batch_of_data,
)

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

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def partition(self) -> int:
        return self._batch.partition

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        base_offset = yield from asyncio.shield(self._batch.done).__await__()
        return self._batch.metadata(self._index, base_offset)


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

    They are `records`, or all of them are `ready` encoded.
    """

    __slots__ = (
        "callbacks",
        "created",
        "done",
        "encoded",
        "error",
        "partition",
        "ready",
        "records",
        "size",
        "topic",
    )

    def __init__(self, topic: str, partition: int, now: float) -> None:
        self.topic = topic
        self.partition = partition
        self.created = now
        self.records: list[RecordInput] = []
        self.ready: EncodedRecords | None = None
        self.callbacks: list[tuple[int, DeliveryCallback]] = []
        self.size = RECORD_BATCH_OVERHEAD
        self.encoded: bytes | None = None
        self.error: Exception | None = None
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Marks the error as seen: flush() reports it whether or not somebody awaits a delivery.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def count(self) -> int:
        return len(self.records) if self.ready is None else self.ready.records_count

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
    """One partition's batches in order; the first may be in flight, the last may be open."""

    __slots__ = ("batches", "in_flight", "next_sequence", "not_before", "producer")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.in_flight = False
        self.not_before = 0.0
        self.producer: tuple[int, int] = (-1, -1)
        self.next_sequence = 0
