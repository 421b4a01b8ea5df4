"""The producer: records to batches; `sender` brings these to the brokers that lead.

Rules:

* At most `buffer_size_bytes` of records wait; `send` waits for room.
* `send_many` sends nothing of what it's given if one of the records can't be sent as it is. Of
  those that were sent it's told one by one what became of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from kraftpy.client.batches import (
    Batch,
    Delivery,
    DeliveryCallback,
    EncodedRecords,
    QueuedRecord,
    RecordMetadata,
)
from kraftpy.client.cluster import Cluster, TopicInfo
from kraftpy.client.interceptors import ProducerInterceptor, ProducerRecord
from kraftpy.client.options import Partitioner, ProducerOptions
from kraftpy.client.partitioner import StickyPartitioner, partition_of_key
from kraftpy.client.sender import Sender
from kraftpy.client.serializing import K, V, record_size, serialized
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import COMPRESSION_NAMES, Header
from kraftpy.wording import counted


class UnknownPartitionError(ValueError):
    """A record names a partition that its topic has not."""


class SendManyError(Exception):
    """Not all of many records were written.

    `results` has for each, in order, where it was written or the exception that says why not.
    """

    def __init__(
        self, records: Sequence[ProducerRecord[Any, Any]], results: list[RecordMetadata | Exception]
    ) -> None:
        failed = [n for n, each in enumerate(results) if isinstance(each, Exception)]
        first = results[failed[0]]
        super().__init__(
            f"{len(failed)} of {counted(len(results), 'record')} not written; the first of them, "
            f"records[{failed[0]}] for topic {records[failed[0]].topic!r}: {first}"
        )
        self.results = results


_Checked = tuple[str, int, int, QueuedRecord]
"""Topic, partition, size and record of what can be queued."""


class Producer(Sender, Generic[K, V]):
    """Sends records through a `Cluster`; `async with Producer(...)` flushes at the end.

    The options are Kafka's: acks (-1 all, 1, 0), compression.type (none, gzip, snappy, lz4, zstd),
    linger.ms, batch.size, buffer.memory, delivery.timeout.ms, enable.idempotence (by default with
    acks=-1), partitioner.class, interceptor.classes, key.serializer and value.serializer.

    Keys and values are bytes, or what the serializers take: `Producer[str, Order]`.
    """

    @overload
    def __init__(
        self: Producer[bytes, bytes],
        cluster: Cluster,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, V],
        cluster: Cluster,
        *,
        key_serializer: None = None,
        value_serializer: Callable[[V], bytes],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes],
        cluster: Cluster,
        *,
        key_serializer: Callable[[K], bytes],
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, V],
        cluster: Cluster,
        *,
        key_serializer: Callable[[K], bytes],
        value_serializer: Callable[[V], bytes],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        compression: str = "none",
        linger_ms: int = 5,
        batch_size_bytes: int = 128 * 1024,
        buffer_size_bytes: int = 32 * 1024 * 1024,
        delivery_timeout_ms: int = 120_000,
        idempotent: bool | None = None,
        stop_on_failure: bool = False,
        auto_create: bool = True,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[ProducerInterceptor[Any, Any]] = (),
        key_serializer: Callable[[Any], bytes] | None = None,
        value_serializer: Callable[[Any], bytes] | None = None,
    ) -> None:
        if compression not in COMPRESSION_NAMES:
            raise ValueError(
                f"compression={compression!r} must be one of {', '.join(COMPRESSION_NAMES)}"
            )
        if acks not in (-1, 0, 1):
            raise ValueError(f"acks={acks!r} must be -1 (all), 1 or 0")
        if idempotent and acks != -1:
            raise ValueError("an idempotent producer needs acks=-1 (all)")
        super().__init__(
            cluster,
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            batch_size_bytes=batch_size_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            idempotent=acks == -1 if idempotent is None else idempotent,
            stop_on_failure=stop_on_failure,
            interceptors=interceptors,
        )
        self._buffer_size_bytes = buffer_size_bytes
        self._auto_create = auto_create
        self._partitioner = partitioner
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._sticky: dict[str, StickyPartitioner] = {}
        self._rng = random.Random()  # noqa: S311
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    async def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Queues a record and returns its `Delivery` (await that to know it is written).

        Key and value are bytes or None, or what the serializers take. `on_delivery` is called once
        it is known what became of the record, in the order of the partition's records.

        Waits for the topic's metadata (a missing topic is created if `auto_create` and
        the broker allow it) and for
        room in the buffer. Raises UnknownPartitionError, and KafkaError(MESSAGE_TOO_LARGE) for a
        record that is larger than the whole buffer.
        """
        self._check_open()
        if self._interceptors is not None:
            record = self._interceptors.enqueue(
                ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            )
            topic, value, key = record.topic, record.value, record.key
            partition, timestamp_ms = record.partition, record.timestamp_ms
            headers = record.headers
        info = await self._cluster.topic(topic, auto_create=self._auto_create)
        checked = self._checked(info, value, key, partition, timestamp_ms, headers)
        if self._buffered_bytes + checked[2] > self._buffer_size_bytes:
            await self._wait_for_room(checked[2])
        return self._enqueue(checked, on_delivery)

    async def send_and_wait(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """`send` a record and wait until it is written; a whole batch is quicker than one each."""
        delivery = await self.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return await delivery

    async def send_many(self, records: Iterable[ProducerRecord[K, V]]) -> list[RecordMetadata]:
        """Sends records, waits until all are written, and returns where, in their order.

        Raises what `send` does, with a note which record it's about, before any is sent; and
        `SendManyError` if some couldn't be written.
        """
        self._check_open()
        wanted = list(records)
        if self._interceptors is not None:
            wanted = [self._interceptors.enqueue(record) for record in wanted]
        checked = []
        for index, r in enumerate(wanted):
            try:
                info = await self._cluster.topic(r.topic, auto_create=self._auto_create)
                checked.append(
                    self._checked(info, r.value, r.key, r.partition, r.timestamp_ms, r.headers)
                )
            except Exception as error:
                error.add_note(f"it's about records[{index}]; none of them was sent")
                raise
        queued: list[Delivery | Exception] = []
        for each in checked:
            try:
                if self._buffered_bytes + each[2] > self._buffer_size_bytes:
                    await self._wait_for_room(each[2])
                queued.append(self._enqueue(each, None))
            except Exception as error:
                queued.append(error)
        return _all_written(wanted, await self._outcomes(queued))

    async def _outcomes(
        self, queued: Sequence[Delivery | Exception]
    ) -> list[RecordMetadata | Exception]:
        """What became of records; nothing waits for `linger_ms` meanwhile."""
        outcomes: list[RecordMetadata | Exception] = []
        self._flushing += 1
        self._wake.set()
        try:
            for each in queued:
                try:
                    outcomes.append(each if isinstance(each, Exception) else await each)
                except Exception as error:
                    outcomes.append(error)
        finally:
            self._flushing -= 1
        return outcomes

    async def send_encoded(self, topic: str, partition: int, records: EncodedRecords) -> Delivery:
        """Queues a whole batch; its `Delivery` tells where its first record was written.

        Waits and raises as `send` does.
        """
        self._check_open()
        info = await self._cluster.topic(topic, auto_create=self._auto_create)
        if partition not in info.partitions:
            raise _unknown_partition(topic, partition, len(info.partitions))
        if len(records.data) > self._buffer_size_bytes:
            raise self._too_large(topic, len(records.data))
        if self._buffered_bytes + len(records.data) > self._buffer_size_bytes:
            await self._wait_for_room(len(records.data))
        self._check_open()
        batch = self._new_batch(topic, partition, time.monotonic())
        batch.ready = records
        batch.size += len(records.data)
        self._buffered_bytes += len(records.data)
        return Delivery(batch, 0)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the producer is closed")
        if self._stopped is not None:
            raise self._stopped

    def _choose(self, info: TopicInfo, key: bytes | None, size: int) -> int:
        partitions = info.partitions
        if key is not None:
            return partition_of_key(key, len(partitions))
        sticky = self._sticky.get(info.name)
        if sticky is None:
            sticky = StickyPartitioner(self._batch_size_bytes, self._rng)
            self._sticky[info.name] = sticky
        available = [p.id for p in partitions.values() if p.leader >= 0]
        return sticky.partition(size, available or list(partitions))

    def _checked(
        self,
        info: TopicInfo,
        value: V | None,
        key: K | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> _Checked:
        """A record as it's queued; raises what is wrong with it."""
        topic = info.name
        key_data = serialized(self._key_serializer, key, "key", topic)
        data = serialized(self._value_serializer, value, "value", topic)
        size = record_size(key_data, data, headers, topic)
        if size > self._buffer_size_bytes:
            raise self._too_large(topic, size)
        if partition is None and self._partitioner is not None:
            partition = self._partitioner(topic, key_data, len(info.partitions))
        if partition is None:
            partition = self._choose(info, key_data, size)
        elif partition not in info.partitions:
            raise _unknown_partition(topic, partition, len(info.partitions))
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        elif not -(1 << 63) <= timestamp_ms < 1 << 63:
            raise ValueError(f"topic {topic!r}: timestamp_ms {timestamp_ms} is no 64-bit number")
        return topic, partition, size, (timestamp_ms, key_data, data, list(headers))

    def _enqueue(self, checked: _Checked, on_delivery: DeliveryCallback | None) -> Delivery:
        """Puts a record, for which there is room, into a batch."""
        self._check_open()
        topic, partition, size, record = checked
        batch = self._open_batch(topic, partition, size, time.monotonic())
        index = len(batch.records)
        batch.records.append(record)
        batch.size += size
        self._buffered_bytes += size
        if on_delivery is not None:
            batch.callbacks.append((index, on_delivery))
        return Delivery(batch, index)

    def _too_large(self, topic: str, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"topic {topic!r}: a record of {size} bytes is larger than the producer's buffer "
            f"({self._buffer_size_bytes} bytes)",
        )

    async def _wait_for_room(self, size: int) -> None:
        while self._buffered_bytes + size > self._buffer_size_bytes:
            self._room.clear()
            self._flushing += 1
            self._wake.set()
            try:
                await self._room.wait()
            finally:
                self._flushing -= 1

    def _open_batch(self, topic: str, partition: int, size: int, now: float) -> Batch:
        """The batch that takes a record of this size: the partition's open one, or a new one."""
        queue = self._queues.get((topic, partition))
        if queue is not None and queue.batches:
            batch = queue.batches[-1]
            is_open = batch.encoded is None and batch.ready is None
            if is_open and batch.size + size <= min(self._batch_size_bytes, queue.size_max_bytes):
                return batch
        return self._new_batch(topic, partition, now)

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged or has failed.

        Raises the first error since the last flush that nobody got by awaiting its delivery.
        """
        waiting = [batch for name in self._active for batch in self._queues[name].batches]
        while waiting:
            self._flushing += 1
            self._wake.set()
            try:
                await asyncio.wait([batch.done for batch in waiting])
            finally:
                self._flushing -= 1
            waiting = [half for batch in waiting for _, half in batch.halves]
        failure = self._first_failure()
        if failure is not None:
            raise failure

    async def close(self, *, flush: bool = True) -> None:
        """Flushes (unless told not to) and stops; records not sent fail with ConnectionError."""
        self._closed = True
        try:
            if flush:
                await self.flush()
        finally:
            await self._end()


def _all_written(
    records: Sequence[ProducerRecord[Any, Any]], outcomes: list[RecordMetadata | Exception]
) -> list[RecordMetadata]:
    """The outcomes, if all are good. Raises `SendManyError`."""
    written = [each for each in outcomes if isinstance(each, RecordMetadata)]
    if len(written) < len(outcomes):
        first = next(each for each in outcomes if isinstance(each, Exception))
        raise SendManyError(records, outcomes) from first
    return written


def _unknown_partition(topic: str, partition: object, count: int) -> UnknownPartitionError:
    if not isinstance(partition, int):
        raise TypeError(
            f"topic {topic!r}: partition={partition!r} has to be a number, not "
            f"{type(partition).__name__}"
        )
    return UnknownPartitionError(
        f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
    )
