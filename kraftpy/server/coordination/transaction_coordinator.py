"""The transaction coordinator of this broker: transactional ids in `__transaction_state`.

What a request does is `TransactionMachine`'s to decide; here is which of its operations that is.
What all coordinators have in common is in `runtime`, how markers get to the leaders in
`transaction_markers`.

* A machine that needs a producer id while there is none at hand says so; the request is carried out
  again when there is.
* Markers of a partition that isn't coordinated here any more are somebody else's to send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.coordination import partition_for
from kraftpy.core.transactions import (
    VERSION_2,
    Answer,
    Markers,
    Partition,
    Transaction,
    TransactionCodec,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    Wish,
)
from kraftpy.core.transactions.census import is_late
from kraftpy.core.transactions.events import tell_late
from kraftpy.core.transactions.records import TRANSACTIONAL_ID_MAX_BYTES
from kraftpy.core.transactions.rules import NO_ID_AT_HAND
from kraftpy.core.transactions.states import Cause, TransactionState
from kraftpy.events import emit
from kraftpy.metrics.instruments import (
    ABORTED,
    COMMITTED,
    FENCED,
    TIMED_OUT,
    TransactionNumbers,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.internal_topic import InternalTopic
from kraftpy.server.coordination.loading import Loading
from kraftpy.server.coordination.partition import CoordinatorLog, CoordinatorPartition
from kraftpy.server.coordination.producer_ids import ProducerIds
from kraftpy.server.coordination.runtime import CoordinatorRuntime, Host, Operation, answer_of
from kraftpy.server.coordination.transaction_markers import MarkerHost, MarkerSender

log = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = "__transaction_state"

# How long a request waits for its write; Kafka's transaction.state.log append has the same.
WRITE_TIMEOUT_MS = 5_000

_LISTED_TOGETHER = 500
_LATE_INTERVAL_S = 10.0
# An abort takes its time, and nobody has to hear of that.
_LATE_AFTER_MS = 10_000
_ABORTED = {Cause.PRODUCER: ABORTED, Cause.TIMEOUT: TIMED_OUT, Cause.FENCE: FENCED}
# An id that was at hand a moment ago may be another's now; so often a request tries for the next.
_ID_ATTEMPTS = 5


class TransactionHost(Host, MarkerHost, Protocol):
    """What the coordinator needs of its broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def producer_ids(self) -> ProducerIds: ...
    @property
    def in_touch(self) -> bool:
        """Whether the quorum was heard of lately, so that what is led here most likely still is."""


class TransactionCoordinator(CoordinatorRuntime[TransactionMachine]):
    """Transactional ids of this broker; handlers call it, the broker tells it what it leads."""

    _host: TransactionHost
    write_timeout_ms = WRITE_TIMEOUT_MS
    gathers = True

    def __init__(self, host: TransactionHost) -> None:
        config = host.config
        topic = InternalTopic(
            host,
            TRANSACTIONS_TOPIC,
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=config.transaction_state_log_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
            setting="transaction.state.log.replication.factor",
        )
        logs = [CoordinatorLog(TRANSACTIONS_TOPIC, TransactionCodec())]
        super().__init__(host, "transaction", topic, logs, self._new_machine)
        self.numbers = TransactionNumbers()
        self._memory = TransactionMemory(config.transaction_coordinator_max_memory_bytes)
        self._markers = MarkerSender(host, self._markers_written)
        self._fetching_ids: asyncio.Task[None] | None = None
        self._late: set[tuple[str, int, TransactionState]] = set()

    def _new_machine(self, leader_epoch: int) -> TransactionMachine:
        config = TransactionConfig(
            self._host.config.transactional_id_expiration_ms,
            self._host.config.add_partitions_to_txn_retry_backoff_max_ms,
        )
        return TransactionMachine(config, self._take_producer_id, self._memory, leader_epoch)

    def _take_producer_id(self) -> int | None:
        producer_id = self._host.producer_ids.take()
        if producer_id is None and (self._fetching_ids is None or self._fetching_ids.done()):
            self._fetching_ids = self._loop.create_task(self._fetch_ids())
        return producer_id

    async def _fetch_ids(self) -> None:
        # Whoever needs one tries again.
        with contextlib.suppress(KafkaError):
            await self._host.producer_ids.ready()

    # -- life

    def start(self) -> None:
        """Takes on the partitions that this broker leads, and begins to look after ids."""
        super().start()
        self.every(lambda: self._expiry_interval_s, self.expire)
        self.every(lambda: _LATE_INTERVAL_S, self.look_for_late)

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        await super().stop()
        await self._markers.stop()
        if self._fetching_ids is not None:
            self._fetching_ids.cancel()
            await asyncio.gather(self._fetching_ids, return_exceptions=True)

    def leads_changed(self, topic: str) -> None:
        """Partitions of this topic may have come or have another leader."""
        super().leads_changed(topic)
        self._markers.leaders_changed()

    def topic_changed(self, name: str) -> None:
        """A topic came, went or got partitions: nobody owes anything to one that is gone."""
        self._markers.leaders_changed()

    def metadata_replaced(self) -> None:
        """Any topic may have come, gone or have other leaders."""
        self._markers.leaders_changed()

    def released(self, partition: CoordinatorPartition[TransactionMachine]) -> None:
        self._markers.drop(partition.index)

    def contents(self, machine: TransactionMachine) -> str:
        return f"{len(machine)} transactional ids"

    def tell_loaded(
        self, loading: Loading[TransactionMachine], machine: TransactionMachine
    ) -> None:
        counts = loading.counts
        if counts.records or counts.skipped:
            emit(
                log,
                logging.INFO,
                "transactions-loaded",
                partition=loading.partition.index,
                epoch=loading.partition.leader_epochs[0],
                seconds=self._loop.time() - loading.started_s,
                records=counts.records,
                skipped=counts.skipped,
                ids=len(machine),
            )

    # -- markers

    def send(self, message: Any) -> None:
        assert isinstance(message, Markers)
        topic = self._host.metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is not None:
            index = partition_for(message.transactional_id, len(topic.partitions))
            self._markers.owe(index, message)

    def _markers_written(self, markers: Markers) -> None:
        now_ms = self._host.now_ms()
        self.numbers.count(
            COMMITTED if markers.is_commit else _ABORTED[markers.cause],
            # The clock of an earlier coordinator may have been ahead.
            max(now_ms - markers.start_ms, 0) / 1000,
            max(now_ms - markers.decided_ms, 0) / 1000,
        )
        producer = markers.producer_id, markers.producer_epoch
        # Who coordinates it now, if this broker doesn't, has the markers written again.
        with contextlib.suppress(KafkaError):
            self.write(
                markers.transactional_id,
                lambda machine, token, now_ms: machine.markers_written(
                    markers.transactional_id, producer, now_ms
                ),
            )

    # -- requests: each raises KafkaError if the id isn't (or isn't yet) coordinated here

    async def coordinator_of(self, key: str, load_deadline_s: float) -> int:
        """As of every coordinator. Raises KafkaError: INVALID_REQUEST, too."""
        return await super().coordinator_of(check_id(key), load_deadline_s)

    async def init_producer_id(self, transactional_id: str, wish: Wish) -> Answer:
        """InitProducerId with a transactional id; may wait for a transaction to be aborted."""
        check_id(transactional_id)
        if not 0 < wish.timeout_ms <= self._host.config.transaction_max_timeout_ms:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return await self._write_with_id(
            transactional_id,
            lambda machine, token, now_ms: machine.init_producer_id(
                token, transactional_id, wish, now_ms
            ),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[Partition],
        version: int,
    ) -> Answer:
        """AddPartitionsToTxn and AddOffsetsToTxn of one id."""
        return await answer_of(
            self.write(
                check_id(transactional_id),
                lambda machine, token, now_ms: machine.add_partitions(
                    token, transactional_id, producer, partitions, version, now_ms
                ),
            )
        )

    async def admit(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[Partition],
        *,
        adds: bool,
    ) -> list[ErrorCode]:
        """What each of these partitions is told; see `judge`."""
        found = self.judge(check_id(transactional_id), producer, partitions, adds=adds)
        if isinstance(found, asyncio.Future):
            return [(await found).error] * len(partitions)
        return found

    def judge(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[Partition],
        *,
        adds: bool,
    ) -> list[ErrorCode] | asyncio.Future[Answer]:
        """For each of these partitions, whether it is in the producer's transaction.

        As their leaders ask: with `adds` they are added to it, and all are told the same. That is
        in the log at once where nobody has to be waited for.
        """
        if not self._host.in_touch:
            # Another coordinator may have ended the transaction that is open here.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not adds:
            return self.read(
                transactional_id,
                lambda machine, now_ms: machine.verify(transactional_id, producer, partitions),
            )
        answer: Answer | asyncio.Future[Answer] = self.write(
            transactional_id,
            lambda machine, token, now_ms: machine.add_partitions(
                token, transactional_id, producer, partitions, VERSION_2, now_ms, from_broker=True
            ),
            at_once=True,
        )
        if isinstance(answer, asyncio.Future):
            return answer
        return [answer.error] * len(partitions)

    async def end(
        self, transactional_id: str, producer: tuple[int, int], version: int, *, is_commit: bool
    ) -> Answer:
        """EndTxn."""
        return await self._write_with_id(
            check_id(transactional_id),
            lambda machine, token, now_ms: machine.end(
                token, transactional_id, producer, version, now_ms, is_commit=is_commit
            ),
        )

    async def _write_with_id(
        self, transactional_id: str, operation: Operation[TransactionMachine, Answer]
    ) -> Answer:
        """Carries out what may need a producer id."""
        for _ in range(_ID_ATTEMPTS):
            answer = await answer_of(self.write(transactional_id, operation))
            if answer.error is not NO_ID_AT_HAND.error:
                break
            await self._host.producer_ids.ready()
        return answer

    def describe(self, transactional_id: str) -> Transaction:
        """One id of a DescribeTransactions; raises TRANSACTIONAL_ID_NOT_FOUND."""
        found = self.read(
            check_id(transactional_id), lambda machine, now_ms: machine.find(transactional_id)
        )
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    def transactions(self) -> Iterator[list[tuple[str, Transaction]]]:
        """ListTransactions: what this broker coordinates, some at a time.

        Ids may come and go in between. Raises KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        for machine in self.all_machines():
            yield from _pieces(machine)

    def loaded_transactions(self) -> Iterator[list[tuple[str, Transaction]]]:
        """As `transactions`, but for what is being loaded."""
        for _, machine in list(self.machines()):
            yield from _pieces(machine)

    # -- what happens by itself

    async def look_for_late(self) -> None:
        """Tells of transactions that should be over, once in each state; runs by itself, too."""
        late = set()
        for piece in self.loaded_transactions():
            now_ms = self.now_ms()
            for transactional_id, transaction in piece:
                if is_late(transaction, now_ms - _LATE_AFTER_MS):
                    key = transactional_id, transaction.start_ms, transaction.state
                    late.add(key)
                    if key not in self._late:
                        tell_late(transactional_id, transaction, now_ms)
            await asyncio.sleep(0)
        self._late = late

    async def expire(self) -> None:
        """Forgets the ids that nobody used for long; it also runs by itself."""
        await self.expire_all(
            "transactional ids",
            TransactionMachine.transactional_ids,
            TransactionMachine.expire,
            self._expiry_interval_s,
        )

    @property
    def _expiry_interval_s(self) -> float:
        config = self._host.config
        return config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000


def _pieces(machine: TransactionMachine) -> Iterator[list[tuple[str, Transaction]]]:
    ids = iter(machine.transactional_ids())
    while some := list(islice(ids, _LISTED_TOGETHER)):
        found = ((each, machine.find(each)) for each in some)
        yield [(each, known) for each, known in found if known is not None]


def check_id(transactional_id: str) -> str:
    """The id, if it may be one; raises KafkaError: INVALID_REQUEST."""
    length = len(transactional_id)
    if not length or (
        4 * length > TRANSACTIONAL_ID_MAX_BYTES
        and len(transactional_id.encode()) > TRANSACTIONAL_ID_MAX_BYTES
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return transactional_id
