"""The transactional producer: records and offsets that count together or not at all (KIP-98).

Rules:

* Outside of a transaction nothing can be sent, nor while one is being begun or ended: what is sent
  in one is out when it is committed.
* When a record fails for good, the transaction has: what waits isn't sent any more, and all that
  can be done is to abort. Deliveries and `commit_transaction` say what failed first.
* Aborting drops what wasn't sent, waits for what is under way, and then tells the coordinator: so
  nothing of the transaction is written behind its end.
* A batch keeps its sequence numbers for good: one that fails isn't sent under others, because only
  a new epoch tells the copies of it that may come late from what is written instead. One that is
  refused as too large at once has no copies: its halves have its numbers.
* What is handed over is complete: all of it is acknowledged. Whoever ends it needs no producer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Unpack, overload

from kraftpy.client.batches import Batch, PartitionQueue
from kraftpy.client.cluster import Cluster, is_retriable
from kraftpy.client.commits import Claiming, Done
from kraftpy.client.coordinator import GroupMetadata
from kraftpy.client.offsets import Offset, Partition
from kraftpy.client.options import TransactionalOptions
from kraftpy.client.producer import Producer
from kraftpy.client.serializing import K, V
from kraftpy.client.transaction_state import (
    OpenTransaction,
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionError,
)
from kraftpy.client.transactions import Transactions
from kraftpy.protocol.errors import KafkaError

__all__ = [
    "OpenTransaction",
    "OutcomeUnknownError",
    "ProducerFencedError",
    "TransactionAbortedError",
    "TransactionError",
    "TransactionalProducer",
    "end_transaction",
]

_log = logging.getLogger(__name__)


class TransactionalProducer(Producer[K, V]):
    """A `Producer` that writes in transactions.

        async with TransactionalProducer(cluster, "billing-1") as producer:
            async with producer.transaction():
                await producer.send("invoices", invoice)
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata)

    Options beside those of `Producer`, with Kafka's names and defaults: transactional.id, which is
    one producer's alone and stays the same when that is started again; transaction.timeout.ms,
    after which the coordinator aborts; max.block.ms, how long coordinators are asked.
    """

    @overload
    def __init__(
        self: TransactionalProducer[bytes, bytes],
        cluster: Cluster,
        transactional_id: str,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[TransactionalOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: TransactionalProducer[bytes, V],
        cluster: Cluster,
        transactional_id: str,
        *,
        key_serializer: None = None,
        value_serializer: Callable[[V], bytes],
        **options: Unpack[TransactionalOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: TransactionalProducer[K, bytes],
        cluster: Cluster,
        transactional_id: str,
        *,
        key_serializer: Callable[[K], bytes],
        value_serializer: None = None,
        **options: Unpack[TransactionalOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: TransactionalProducer[K, V],
        cluster: Cluster,
        transactional_id: str,
        *,
        key_serializer: Callable[[K], bytes],
        value_serializer: Callable[[V], bytes],
        **options: Unpack[TransactionalOptions],
    ) -> None: ...

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        max_block_ms: int = 60_000,
        **options: Any,
    ) -> None:
        if not transactional_id:
            raise ValueError("a transactional id can't be empty")
        super().__init__(cluster, idempotent=True, stop_on_failure=True, **options)
        self._transactional_id = transactional_id
        self._transactions = Transactions(
            cluster, transactional_id, timeout_ms=transaction_timeout_ms, max_block_ms=max_block_ms
        )
        self._state = self._transactions.state
        self._claiming: list[Claiming] = []
        self._busy = ""

    # -- transactions

    def transaction(self) -> AbstractAsyncContextManager[TransactionalProducer[K, V]]:
        """A transaction for `async with`: committed at its end, aborted after an exception."""
        return _Transaction(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, and has to be committed or aborted."""
        return self._state.in_transaction

    async def begin_transaction(self) -> None:
        """Begins a transaction.

        The first one takes the transactional id over: producers that have had it are fenced, and
        what they left open is aborted. Raises `ProducerFencedError` when this one was.
        """
        self._check_running()
        with self._alone("begun"):
            await self._transactions.begin()
            self._claiming.clear()
            self._stopped = None
            self._failed.clear()
            self._producer = self._state.producer
            self._produce_version = self._transactions.produce_version

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[Partition, Offset] | None,
        group_metadata: GroupMetadata,
        text: str = "",
        *,
        wait_for_stable: bool = False,
    ) -> None:
        """Commits offsets with the transaction: each that of the next record to process.

        `text` is stored with each that has none of its own (4096 bytes at most). Of
        parts of partitions it's claimed that all below is done; without `offsets`, what the
        consumer has done is committed. Once the transaction is, the consumer doesn't claim that
        again; when it's aborted, `Consumer.rewind` brings the records again. `wait_for_stable`: not
        before other members have claimed what lies below, in their transactions or without; what
        this one has yet to do of slices that it took over isn't waited for.

        Raises KafkaError (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID: the group has
        given the partitions to others); then the transaction can only be aborted.
        """
        self._check_running()
        done: Done
        if group_metadata.done is not None:
            done = group_metadata.done(offsets)
        elif offsets is not None:
            done = dict(offsets)
        else:
            raise ValueError("what is done, only a consumer's group_metadata says")
        try:
            await self._transactions.send_offsets(
                done, group_metadata, text, wait_for_stable=wait_for_stable
            )
        except (ConnectionError, KafkaError) as error:
            self._stop(error)
            raise
        self._claiming += [each for each in done.values() if isinstance(each, Claiming)]

    async def commit_transaction(self) -> None:
        """Writes what still waits, then has all of the transaction count.

        Raises what failed in it; it has to be aborted then. `OutcomeUnknownError` when the
        coordinator doesn't say what it did: the transaction is over for this producer.
        """
        self._state.check_open()
        with self._alone("committed"):
            await self._flush_all()
            await self._transactions.commit()
        for each in self._claiming:
            each.ledger.answered(each.dues, -1)
        self._claiming.clear()

    async def hand_over_transaction(self) -> OpenTransaction | None:
        """Writes what still waits and leaves the transaction open, for `end_transaction`.

        None if nothing was sent in it. Raises what failed in it; it has to be aborted then. Until
        somebody ends it, its timeout does, or the next transaction of this transactional id.
        """
        self._state.check_open()
        with self._alone("handed over"):
            await self._flush_all()
            return self._transactions.hand_over()

    async def _flush_all(self) -> None:
        """Raises what failed in the transaction, whoever has been told of it."""
        await self.flush()
        self._state.check_open()

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Nothing is sent, and no transaction begun or ended, by other tasks meanwhile."""
        if self._busy:
            raise RuntimeError(f"the transaction is being {self._busy} by another task")
        self._busy = what
        try:
            yield
        finally:
            self._busy = ""

    async def abort_transaction(self) -> None:
        """Has nothing of the transaction count; what still waits isn't written."""
        if self._state.in_transaction:
            self._stop(TransactionAbortedError("the transaction was aborted"))
            self._wake.set()
            await self._idle.wait()
        self._failed.clear()
        await self._transactions.abort()

    async def close(self, *, flush: bool = True) -> None:
        """Stops; an open transaction is aborted."""
        try:
            if self._state.in_transaction and not self._closed:
                await self._abort_quietly()
        finally:
            await self._transactions.close()
            await super().close(flush=False)

    async def _abort_quietly(self) -> None:
        """Aborts, or leaves that to the transaction's timeout."""
        try:
            await self.abort_transaction()
        except (ConnectionError, KafkaError) as error:
            _log.warning("transaction of %r: could not abort it: %s", self._transactional_id, error)

    # -- what is different from other producers

    def _check_running(self) -> None:
        if self._closed:
            raise RuntimeError("the producer is closed")

    def _check_open(self) -> None:
        self._check_running()
        if self._busy:
            raise RuntimeError(
                f"the transaction is being {self._busy}: send before, or in the next"
            )
        self._state.check_open()
        super()._check_open()

    def _new_batch(self, topic: str, partition: int, now: float) -> Batch:
        self._state.want((topic, partition))
        return super()._new_batch(topic, partition, now)

    async def _prepare(self, names: list[Partition]) -> None:
        for name in names:
            await self._transactions.join(name)
            if self._stopped is not None:
                raise self._stopped

    def _sends_again(self, queue: PartitionQueue, error: Exception, overdue: bool) -> bool:
        goes_on = self._stopped is None and self._state.failure is None
        return goes_on and not overdue and is_retriable(error)

    def _finish(self, batch: Batch, outcome: int | Exception) -> None:
        if isinstance(outcome, TransactionAbortedError):
            if batch.encoded is not None:
                self._state.may_come_late()
        elif isinstance(outcome, Exception):
            self._state.failed(outcome)
        super()._finish(batch, outcome)


async def end_transaction(
    cluster: Cluster, transaction: OpenTransaction, *, committed: bool, max_block_ms: int = 60_000
) -> None:
    """Ends what `hand_over_transaction` left open, so that all of it counts or nothing.

    The same end may be asked for again. Raises `ProducerFencedError` when somebody goes on with the
    transactional id, or the transaction's time was over: nothing of it counts then, unless an end
    before this one has committed it. `OutcomeUnknownError`, `ConnectionError` and KafkaError are
    those of `commit_transaction` and `abort_transaction`.
    """
    taken = Transactions.taken_over(cluster, transaction, max_block_ms=max_block_ms)
    await (taken.commit() if committed else taken.abort())


class _Transaction(AbstractAsyncContextManager[TransactionalProducer[K, V]]):
    """What `TransactionalProducer.transaction` gives."""

    def __init__(self, producer: TransactionalProducer[K, V]) -> None:
        self._producer = producer

    async def __aenter__(self) -> TransactionalProducer[K, V]:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        producer = self._producer
        if error is None:
            try:
                await producer.commit_transaction()
            except BaseException:
                await self._leave()
                raise
        else:
            await self._leave()

    async def _leave(self) -> None:
        """Aborts what is still open; the error that led here is the one to be seen."""
        if self._producer.in_transaction:
            await self._producer._abort_quietly()
