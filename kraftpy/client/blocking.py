"""A producer for programs without asyncio: whoever calls waits until the records are written.

Rules:

* The `Producer` runs on an event loop of its own, in a thread of its own, until `close`.
* It may be called from several threads at once; what they send shares batches.
* It mustn't be called on an event loop, which would stand still meanwhile: that is refused.
* An error is raised where the record was sent, and not once more by `close`.

Source: the synchronous producer of Kafka's first API.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from kraftpy.client.batches import RecordMetadata
from kraftpy.client.cluster import Cluster
from kraftpy.client.interceptors import ProducerRecord
from kraftpy.client.options import ProducerOptions
from kraftpy.client.producer import Producer
from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.client.serializing import K, V
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import Header

_Result = TypeVar("_Result")


class BlockingProducer(Generic[K, V]):
    """Sends records from plain threads.

        with BlockingProducer("127.0.0.1:9092", value_serializer=str.encode) as producer:
            producer.send("orders", "coffee")
            producer.send_many([ProducerRecord("orders", "tea"), ProducerRecord("orders", "milk")])

    `client_id` and `security` are those of `Cluster`, the other options those of `Producer`, but
    that nothing lingers by default: each call waits, and batches fill while one is under way.
    """

    @overload
    def __init__(
        self: BlockingProducer[bytes, bytes],
        bootstrap: str | Iterable[str],
        *,
        client_id: str = ...,
        security: Secures = ...,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: BlockingProducer[bytes, V],
        bootstrap: str | Iterable[str],
        *,
        client_id: str = ...,
        security: Secures = ...,
        key_serializer: None = None,
        value_serializer: Callable[[V], bytes],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: BlockingProducer[K, bytes],
        bootstrap: str | Iterable[str],
        *,
        client_id: str = ...,
        security: Secures = ...,
        key_serializer: Callable[[K], bytes],
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: BlockingProducer[K, V],
        bootstrap: str | Iterable[str],
        *,
        client_id: str = ...,
        security: Secures = ...,
        key_serializer: Callable[[K], bytes],
        value_serializer: Callable[[V], bytes],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "kraftpy",
        security: Secures = NO_SECURITY,
        **options: Any,
    ) -> None:
        self._cluster = Cluster(bootstrap, client_id=client_id, security=security)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="kraftpy-producer", daemon=True)
        self._thread.start()
        try:
            self._producer: Producer[K, V] = self._wait(self._make(options))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """Sends a record and returns where it was written; raises what `Producer.send` does."""
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        return self._wait(self._send(record))

    def send_many(self, records: Iterable[ProducerRecord[K, V]]) -> list[RecordMetadata]:
        """Sends records and returns where each was written; see `Producer.send_many`."""
        return self._wait(self._producer.send_many(list(records)))

    def close(self) -> None:
        """Waits for what other threads have sent, and ends the producer."""
        self._check_thread()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            with contextlib.suppress(ConnectionError, KafkaError):
                asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        finally:
            self._end()

    # -- on the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _make(self, options: dict[str, Any]) -> Producer[K, V]:
        producer: Producer[K, V] = Producer(self._cluster, **{"linger_ms": 0, **options})
        return producer

    async def _send(self, record: ProducerRecord[K, V]) -> RecordMetadata:
        try:
            return await self._producer.send_and_wait(
                record.topic,
                record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
        except (ConnectionError, KafkaError) as error:
            error.add_note(f"when a record for topic {record.topic!r} was sent")
            raise

    async def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            raise RuntimeError("the producer was closed") from None
        finally:
            self._calls.discard(task)

    async def _finish(self) -> None:
        try:
            await self._producer.close()
        finally:
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await self._cluster.close()

    # -- elsewhere

    def _check_thread(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(
            "BlockingProducer would hold up the event loop: use Producer here, and await it"
        )

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            self._check_thread()
            with self._lock:
                if self._closed:
                    raise RuntimeError("the producer is closed")
                done = asyncio.run_coroutine_threadsafe(self._call(work), self._loop)
        except RuntimeError:
            work.close()
            raise
        return done.result()

    def _end(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
