"""What a producer does with batches once they are there: sends them, again if need be.

Rules:

* A partition has one batch in flight. So order holds over retries with and without idempotence; a
  broker serves many partitions in one request, and batches grow while one is under way.
* A batch is encoded once, with its producer id, epoch and first sequence number, and sent byte for
  byte the same on every retry: the broker recognises what it wrote already (KIP-98).
  DUPLICATE_SEQUENCE_NUMBER therefore means delivered.
* When an idempotent batch fails for good, it may or may not have been written, and the sequence
  behind it has a gap. The partition goes on at sequence 0 of the next epoch (KIP-360), so that a
  copy of the lost batch that is still on its way is refused once a later one is written.
* OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID say that the leader lacks what came before
  the batch, and so the batch, the only one in flight: it is sent again with the next epoch.
* A batch that a broker refuses as too large is cut in two, and so are its halves (KIP-126); from
  then on batches of that partition are no larger. They go on at its sequence number, as it wasn't
  written: so only its first attempt is believed, because of one before no answer may have come.
* With `stop_on_failure` nothing is sent behind a batch that failed for good: what waits fails with
  it, and so does what comes. Else records of a partition may be written behind one that wasn't.
* A batch that is not acknowledged `delivery_timeout_ms` after its first record fails with its last
  error, and isn't sent any more; one that is under way is waited for as long as requests are.
* What is wrong with one batch, that it can't be encoded for instance, is no other's error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from kraftpy.client.arguments import checked_cluster
from kraftpy.client.batches import Batch, PartitionQueue
from kraftpy.client.cluster import Cluster, Retry, check, is_retriable
from kraftpy.client.interceptors import BatchInfo, Interceptors, ProducerInterceptor
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.records import RECORD_BATCH_OVERHEAD

_LAST_EPOCH = 0x7FFF
_SEQUENCE_LOST = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_RETRY_PAUSE_S = 0.1
CONCURRENT_PAUSE_S = 0.02
_FAILED_MAX = 100  # of so many in a row that nobody has been told of, the first is enough


class Sender:
    """The part of `Producer` that sends; it begins at once, and `_end` ends it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int,
        compression: str,
        linger_ms: int,
        batch_size_bytes: int,
        delivery_timeout_ms: int,
        idempotent: bool,
        stop_on_failure: bool,
        interceptors: Sequence[ProducerInterceptor[Any, Any]],
    ) -> None:
        self._cluster = checked_cluster(cluster, type(self).__name__)
        self._acks = acks
        self._compression = compression
        self._linger_s = linger_ms / 1000
        self._batch_size_bytes = batch_size_bytes
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._idempotent = idempotent
        self._stop_on_failure = stop_on_failure
        self._interceptors = Interceptors(interceptors) if interceptors else None
        self._transactional_id: str | None = None
        self._produce_version: int | None = None
        self._stopped: Exception | None = None
        self._producer = (-1, -1)
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._active: set[tuple[str, int]] = set()
        self._buffered_bytes = 0
        self._flushing = 0
        self._failed: list[Batch] = []
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._wake = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._sender = asyncio.create_task(self._send_forever())

    async def _end(self) -> None:
        """Sends nothing more; what waits fails."""
        tasks = [self._sender, *self._requests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in list(self._active):
            while self._queues[name].batches:
                self._complete(name, ConnectionError("the producer was closed"))

    def _new_batch(self, topic: str, partition: int, now: float) -> Batch:
        name = (topic, partition)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = PartitionQueue()
        batch = Batch(topic, partition, now)
        queue.batches.append(batch)
        self._active.add(name)
        self._idle.clear()
        # The sender sets a timer for the new batch, or sends the one that is full now.
        self._wake.set()
        return batch

    async def _send_forever(self) -> None:
        while True:
            ready, timeout_s = self._ready()
            for node_id, names in ready.items():
                task = asyncio.create_task(self._deliver(node_id, names))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _ready(self) -> tuple[dict[int, list[tuple[str, int]]], float | None]:
        """Partitions to send now, by leader (-1: unknown), and seconds until the next is due."""
        now = time.monotonic()
        ready: dict[int, list[tuple[str, int]]] = {}
        due_in: float | None = None
        for name in list(self._active):
            queue = self._queues[name]
            if queue.in_flight:
                continue
            self._expire(name, queue, now)
            if not queue.batches:
                continue
            batch = queue.batches[0]
            due = queue.not_before
            full = len(queue.batches) > 1 or batch.size >= self._batch_size_bytes
            if not (full or self._flushing or batch.encoded or batch.ready):
                due = max(due, batch.created + self._linger_s)
            if due > now:
                due_in = due - now if due_in is None else min(due_in, due - now)
                continue
            queue.in_flight = True
            try:
                leader = self._cluster.leader(*name)
            except KafkaError as error:
                batch.error = error
                leader = -1
            ready.setdefault(leader, []).append(name)
        return ready, due_in

    def _expire(self, name: tuple[str, int], queue: PartitionQueue, now: float) -> None:
        """Fails what has waited for too long behind others, or for another attempt."""
        # From when it was due: what lingers for longer than that is sent once.
        created_before = now - self._linger_s - self._delivery_timeout_s
        while queue.batches and (batch := queue.batches[0]).created <= created_before:
            waited = f"{name[0]}-{name[1]}: not written within {self._delivery_timeout_s:g} s"
            self._settle(name, batch.error or KafkaError(ErrorCode.REQUEST_TIMED_OUT, waited))

    async def _deliver(self, node_id: int, names: list[tuple[str, int]]) -> None:
        """Sends the first batch of each partition to their leader and settles what came of it."""
        outcomes: dict[tuple[str, int], int | Exception] = {}
        try:
            if node_id < 0:
                await self._cluster.refresh(sorted({topic for topic, _ in names}))
                outcomes = {
                    name: self._queues[name].batches[0].error
                    or KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
                    for name in names
                }
            else:
                await self._produce(node_id, names, outcomes)
        except Exception as error:  # whatever it is: their records must not wait for ever
            outcomes = {**dict.fromkeys(names, error), **outcomes}
        stale = set()
        for name in names:
            outcome = outcomes.get(name, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            if self._settle(name, outcome) and node_id >= 0:
                stale.add(name[0])
        self._wake.set()
        if stale:
            await self._refresh_quietly(sorted(stale))

    async def _refresh_quietly(self, topics: list[str]) -> None:
        """Looks for new leaders; a failure shows in the next attempt."""
        try:
            await self._cluster.refresh(topics)
        except (ConnectionError, KafkaError):
            return
        self._wake.set()

    async def _produce(
        self,
        node_id: int,
        names: list[tuple[str, int]],
        outcomes: dict[tuple[str, int], int | Exception],
    ) -> None:
        """Puts into `outcomes` what became of each; what it raises is of all that aren't there."""
        await self._prepare(names)
        kinds = messages.ProduceRequest
        topics: dict[str, list[Any]] = {}
        for name in names:
            try:
                records = self._encode(name)
            except Exception as error:
                outcomes[name] = error
                continue
            partition = kinds.PartitionProduceData(index=name[1], records=records)
            topics.setdefault(name[0], []).append(partition)
            if self._interceptors is not None:
                self._interceptors.send(_info(self._queues[name].batches[0]), node_id)
        if not topics:
            return
        request = kinds(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._cluster.request_timeout_ms,
            topic_data=[
                kinds.TopicProduceData(name=topic, partition_data=partitions)
                for topic, partitions in topics.items()
            ],
        )
        if self._acks == 0:
            connection = await self._cluster.connection(node_id)
            await connection.send_unanswered(request, timeout_ms=self._cluster.request_timeout_ms)
            for name in names:
                outcomes.setdefault(name, -1)
            return
        response = await self._cluster.request(
            request, node_id=node_id, at_most=self._produce_version
        )
        for topic in response.responses:
            for partition in topic.partition_responses:
                code = error_code(partition.error_code)
                name = (topic.name, partition.index)
                if code == ErrorCode.NONE:
                    outcomes[name] = partition.base_offset
                elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    outcomes[name] = -1
                else:
                    said = partition.error_message or code.message
                    outcomes[name] = KafkaError(code, f"{name[0]}-{name[1]}: {said}")

    def _encode(self, name: tuple[str, int]) -> bytes:
        queue = self._queues[name]
        batch = queue.batches[0]
        batch.attempts += 1
        if batch.encoded is None:
            if queue.producer != self._producer:
                queue.producer = self._producer
                queue.next_sequence = 0
            sequence = queue.next_sequence if self._idempotent else -1
            batch.encoded = batch.encode(
                self._compression,
                self._producer,
                sequence,
                transactional=self._transactional_id is not None,
            )
            # Sequence numbers wrap to 0 after the largest 32-bit one.
            queue.next_sequence = (queue.next_sequence + batch.count) & 0x7FFFFFFF
            if self._interceptors is not None:
                self._interceptors.batch(_info(batch))
        return batch.encoded

    async def _prepare(self, names: list[tuple[str, int]]) -> None:
        """Has what is needed to produce to these partitions."""
        if self._idempotent and self._producer[0] < 0:
            await self._init_producer_id()

    async def _init_producer_id(self) -> None:
        retry = Retry(self._cluster.request_timeout_ms)
        request = messages.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        refused_by = ""
        while self._producer[0] < 0:
            try:
                connection = await self._cluster.any_connection(but=refused_by)
                refused_by = connection.address
                response = await connection.request(
                    request, timeout_ms=self._cluster.request_timeout_ms
                )
                check(response.error_code)
            except (ConnectionError, KafkaError) as error:
                await retry.wait(error)
            else:
                # Two deliveries may ask at once; both must go on with the same id.
                if self._producer[0] < 0:
                    self._producer = (response.producer_id, response.producer_epoch)

    def _settle(self, name: tuple[str, int], outcome: int | Exception) -> bool:
        """Completes the partition's first batch; or keeps it for a retry and returns True."""
        queue = self._queues[name]
        batch = queue.batches[0]
        now = time.monotonic()
        queue.in_flight = False
        if isinstance(outcome, Exception):
            if self._cuts(batch, outcome):
                self._cut(queue)
                return False
            overdue = now + _RETRY_PAUSE_S > batch.created + self._delivery_timeout_s
            if self._sends_again(queue, outcome, overdue):
                batch.error = outcome
                queue.not_before = now + _retry_pause_s(outcome)
                return True
        queue.not_before = 0.0
        self._complete(name, outcome)
        return False

    def _cuts(self, batch: Batch, error: Exception) -> bool:
        """Whether a batch, which failed, is sent as two."""
        return (
            isinstance(error, KafkaError)
            and error.code == ErrorCode.MESSAGE_TOO_LARGE
            and batch.attempts == 1
            and len(batch.records) > 1
            and self._stopped is None
        )

    def _cut(self, queue: PartitionQueue) -> None:
        batch = queue.batches.popleft()
        if self._idempotent:
            queue.next_sequence = (queue.next_sequence - batch.count) & 0x7FFFFFFF
        queue.size_max_bytes = batch.size // 2
        queue.batches.extendleft(reversed(batch.cut()))

    def _sends_again(self, queue: PartitionQueue, error: Exception, overdue: bool) -> bool:
        """Whether the partition's first batch, which failed, is sent another time."""
        code = error.code if isinstance(error, KafkaError) else None
        sequence_lost = self._idempotent and code in _SEQUENCE_LOST
        again = not overdue and (sequence_lost or is_retriable(error))
        if self._idempotent and (sequence_lost or not again):
            self._start_epoch(queue, code)
        if again and sequence_lost:
            queue.batches[0].encoded = None
        return again

    def _start_epoch(self, queue: PartitionQueue, code: ErrorCode | None) -> None:
        """Lets the partition's next batch begin at sequence 0, and fences off those before it."""
        if queue.producer != self._producer:
            return  # another partition's failure did it
        producer_id, epoch = self._producer
        if epoch in (-1, _LAST_EPOCH) or code == ErrorCode.INVALID_PRODUCER_EPOCH:
            self._producer = (-1, -1)
        else:
            self._producer = (producer_id, epoch + 1)

    def _complete(self, name: tuple[str, int], outcome: int | Exception) -> None:
        batch = self._queues[name].batches.popleft()
        self._note_activity(name)
        self._finish(batch, outcome)

    def _note_activity(self, name: tuple[str, int]) -> None:
        """Batches were taken out of the partition's queue: it may have none left."""
        if not self._queues[name].batches:
            self._active.discard(name)
            if not self._active:
                self._idle.set()

    def _finish(self, batch: Batch, outcome: int | Exception) -> None:
        self._buffered_bytes -= batch.size - RECORD_BATCH_OVERHEAD
        self._room.set()
        if batch.done.cancelled():
            return
        if isinstance(outcome, Exception):
            if self._interceptors is not None:
                self._interceptors.done(_info(batch), -1, outcome)
            batch.fail(outcome)
            self._note_failed(batch)
            if self._stop_on_failure:
                self._stop(outcome)
        else:
            batch.done.set_result(outcome)
            if self._interceptors is not None:
                self._interceptors.done(_info(batch), outcome, None)
        for index, callback in batch.callbacks:
            asyncio.get_running_loop().call_soon(
                callback,
                None if isinstance(outcome, Exception) else batch.metadata(index, outcome),
                outcome if isinstance(outcome, Exception) else None,
            )

    def _note_failed(self, batch: Batch) -> None:
        """Keeps it for `flush`: what somebody is told of meanwhile isn't reported again."""
        if len(self._failed) == _FAILED_MAX:
            self._failed = [each for each in self._failed if each.untold]
        if len(self._failed) < _FAILED_MAX:
            self._failed.append(batch)

    def _first_failure(self) -> BaseException | None:
        """The first error that nobody has been told of since this was last asked."""
        failed, self._failed = self._failed, []
        return next((each.done.exception() for each in failed if each.untold), None)

    def _stop(self, error: Exception) -> None:
        """Lets nothing more be sent, and fails what waits; what is in flight is still answered."""
        if self._stopped is not None:
            return
        self._stopped = error
        for name in list(self._active):
            batches = self._queues[name].batches
            sent = [batches.popleft()] if self._queues[name].in_flight else []
            waiting = list(batches)
            batches.clear()
            batches.extend(sent)
            self._note_activity(name)
            for batch in waiting:
                self._finish(batch, error)


def _info(batch: Batch) -> BatchInfo:
    """What interceptors are told of a batch."""
    size_bytes = batch.size if batch.encoded is None else len(batch.encoded)
    return BatchInfo(batch.topic, batch.partition, batch.count, size_bytes)


def _retry_pause_s(error: Exception) -> float:
    """How long to wait; the transaction before this one takes milliseconds to be ended."""
    if isinstance(error, KafkaError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
        return CONCURRENT_PAUSE_S
    return _RETRY_PAUSE_S
