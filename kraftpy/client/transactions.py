"""What a transactional producer asks of coordinators, again until it is answered.

Rules:

* Requests are tried again, over the coordinator's moves, while `transaction_state.judge` says that
  it may help and the caller's patience lasts. CONCURRENT_TRANSACTIONS says that the transaction
  before this one is still being ended: that takes milliseconds, so it is asked again that soon.
* InitProducerId names the epoch that this producer has, once it has one. So a producer that was
  replaced meanwhile is fenced, and doesn't fence its successor (KIP-360, Kafka 2.5).
* Which version of the protocol is used, the level of `transaction.version` decides at the moment
  when a transaction begins. The second one needs EndTxn 5, TxnOffsetCommit 5 and Produce 12, and
  those of the first one mustn't be sent in these versions (KIP-890).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from kraftpy.client.claims import claim_tags, not_taken, split
from kraftpy.client.cluster import Cluster, Retry, check, is_retriable
from kraftpy.client.commits import Claiming, Done
from kraftpy.client.coordinator import (
    MOVED,
    TRANSACTION_KEY,
    Coordinator,
    CoordinatorRoute,
    GroupMetadata,
)
from kraftpy.client.offsets import Partition, by_topic, with_metadata
from kraftpy.client.sender import CONCURRENT_PAUSE_S
from kraftpy.client.transaction_state import (
    NOBODY,
    OpenTransaction,
    OutcomeUnknownError,
    ProducerIdentity,
    Status,
    Step,
    TransactionState,
    Verdict,
    judge,
)
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import WAIT_FOR_STABLE_TAG, YES

FEATURE = "transaction.version"
_SECOND_VERSION = 2
_FLAG = {WAIT_FOR_STABLE_TAG: YES}
_FIRST_PRODUCE, _FIRST_END, _FIRST_OFFSETS = 11, 4, 4
_NAMES_EPOCH = 3
_NOT_TO_BLAME = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})

T = TypeVar("T")


class Transactions:
    """The transactions of one transactional id; `state` is how far the current one has come."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, *, timeout_ms: int, max_block_ms: int
    ) -> None:
        self.state = TransactionState()
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._max_block_ms = max_block_ms
        self._route = CoordinatorRoute(cluster, transactional_id, TRANSACTION_KEY)
        self._groups: dict[tuple[str, bool], Coordinator] = {}
        self._joining = asyncio.Lock()

    @property
    def produce_version(self) -> int | None:
        """The highest version of Produce to use, None for the highest that there is."""
        return None if self.state.second_version else _FIRST_PRODUCE

    async def close(self) -> None:
        """Closes the connections that are its own."""
        for coordinator in self._groups.values():
            await coordinator.close()

    # -- beginning

    async def begin(self) -> None:
        """Begins a transaction, with a producer id and epoch that are good for it."""
        state = self.state
        if state.status is Status.UNINITIALIZED:
            await self._initialize()
        state.begin()

    async def _initialize(self) -> None:
        known = self.state.producer
        request = messages.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.id,
            producer_epoch=known.epoch,
        )

        async def attempt() -> None:
            connection = await self._route.connection()
            if known != NOBODY and connection.version(request.API_KEY) < _NAMES_EPOCH:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} can't continue a producer: close it, and begin anew",
                )
            response = await self._route.ask(request, timeout_ms=self._answer_ms)
            check(response.error_code)
            self.state.initialized(
                ProducerIdentity(response.producer_id, response.producer_epoch),
                second_version=connection.feature(FEATURE) >= _SECOND_VERSION,
            )

        try:
            await self._patiently(attempt, self._route.forget)
        except KafkaError as error:
            if judge(Step.INITIALIZE, error.code) is Verdict.FENCED:
                raise self.state.fenced(self._fenced_text()) from error
            raise

    # -- in the transaction

    async def join(self, partition: Partition) -> None:
        """Has the coordinator know that a partition is part of the transaction, where it must.

        Whoever comes first announces all that are waiting.
        """
        state = self.state
        async with self._joining:
            while not state.has_joined(partition):
                await self._add_partitions(state.to_join())
        state.asked()

    async def _add_partitions(self, partitions: list[Partition]) -> None:
        kinds = messages.AddPartitionsToTxnRequest
        producer = self.state.producer
        request = kinds(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                kinds.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions).items()
            ],
        )

        async def attempt() -> None:
            response = await self._route.ask(request, timeout_ms=self._answer_ms)
            for topic in response.results_by_topic_v3_and_below:
                for partition in topic.results_by_partition:
                    code = error_code(partition.partition_error_code)
                    if code not in _NOT_TO_BLAME:
                        name = f"{topic.name}-{partition.partition_index}"
                        raise KafkaError(code, f"{name}: {code.message}")

        await self._step(Step.JOIN, attempt, self._route.forget)
        self.state.joined(partitions)

    async def send_offsets(
        self, done: Done, group: GroupMetadata, text: str, *, wait_for_stable: bool = False
    ) -> None:
        """Makes a group's offsets and claims part of the transaction: they count once it does.

        `text` is stored with each offset that has none of its own.
        """
        state = self.state
        state.check_open()
        offsets = {n: each for n, each in done.items() if not isinstance(each, Claiming)}
        dues = {
            name: each.dues.accounts
            for name, each in done.items()
            if isinstance(each, Claiming) and each.dues.accounts
        }
        if not offsets and not dues:
            return
        if dues and not state.second_version:
            raise not_taken(group.group_id)
        if state.group_to_join(group.group_id):
            await self._add_group(group.group_id)
            state.check_open()
        kinds = messages.TxnOffsetCommitRequest
        if offsets:
            await self._commit(
                {
                    name: kinds.TxnOffsetCommitRequestPartition(
                        partition_index=name[1],
                        committed_offset=each.offset,
                        committed_leader_epoch=each.leader_epoch,
                        committed_metadata=each.metadata or text,
                    )
                    for name, each in ((n, with_metadata(o)) for n, o in offsets.items())
                },
                group,
            )
        # What lies below of its own, nobody but the consumer brings, once this is committed.
        waiting = {
            name
            for name, each in done.items()
            if wait_for_stable and isinstance(each, Claiming) and name in dues
            if each.ledger.is_lowest(each.dues)
        }
        for part in split(dues):
            await self._commit(
                {
                    name: kinds.TxnOffsetCommitRequestPartition(
                        partition_index=name[1],
                        committed_offset=-1,
                        committed_metadata="",
                        _tags=claim_tags(accounts) | (_FLAG if name in waiting else {}),
                    )
                    for name, accounts in part.items()
                },
                group,
                claims=True,
                waits=not waiting.isdisjoint(part),
            )

    async def _add_group(self, group_id: str) -> None:
        producer = self.state.producer
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group_id,
        )

        async def attempt() -> None:
            response = await self._route.ask(request, timeout_ms=self._answer_ms)
            check(response.error_code)

        await self._step(Step.JOIN, attempt, self._route.forget)
        self.state.group_joined(group_id)

    async def _commit(
        self,
        partitions: Mapping[Partition, Any],
        group: GroupMetadata,
        *,
        claims: bool = False,
        waits: bool = False,
    ) -> None:
        kinds = messages.TxnOffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for (topic, _), partition in partitions.items():
            topics.setdefault(topic, []).append(partition)
        producer = self.state.producer
        request = kinds(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=group.generation.id,
            member_id=group.generation.member_id,
            group_instance_id=group.generation.instance_id,
            topics=[
                kinds.TxnOffsetCommitRequestTopic(name=topic, partitions=its)
                for topic, its in topics.items()
            ],
        )
        # What waits would hold up all that comes behind it on a connection.
        place = group.group_id, waits
        coordinator = self._groups.get(place)
        if coordinator is None:
            coordinator = Coordinator(self._cluster, group.group_id, shared=not waits)
            self._groups[place] = coordinator

        async def attempt() -> None:
            if claims and not await coordinator.knows_claims():
                raise not_taken(group.group_id)
            response = await coordinator.ask(
                request,
                timeout_ms=self._answer_ms,
                at_most=None if self.state.second_version else _FIRST_OFFSETS,
            )
            coordinator.check_partitions(response.topics)

        await self._step(Step.COMMIT_OFFSETS, attempt, coordinator.forget)

    async def _step(
        self, step: Step, attempt: Callable[[], Awaitable[None]], forget: Callable[[], None]
    ) -> None:
        """Does a part of the transaction; what goes wrong is the transaction's failure."""
        self.state.asked()
        try:
            await self._patiently(attempt, forget)
        except KafkaError as error:
            if judge(step, error.code) is Verdict.FENCED:
                raise self.state.fenced(self._fenced_text()) from error
            self.state.failed(error)
            raise
        except BaseException as error:
            # Cancelled, too, it may be done or not.
            self.state.failed(_as_failure(error))
            raise

    # -- handing over

    def hand_over(self) -> OpenTransaction | None:
        """Leaves the transaction open for `taken_over`; None if no broker has heard of it."""
        state = self.state
        if not state.hand_over():
            return None
        return OpenTransaction(self._id, state.producer, state.second_version, self._timeout_ms)

    @classmethod
    def taken_over(
        cls, cluster: Cluster, transaction: OpenTransaction, *, max_block_ms: int
    ) -> Transactions:
        """What somebody handed over, to be ended here."""
        found = cls(
            cluster,
            transaction.transactional_id,
            timeout_ms=transaction.timeout_ms,
            max_block_ms=max_block_ms,
        )
        found.state.take_over(
            ProducerIdentity(*transaction.producer), second_version=transaction.second_version
        )
        return found

    # -- ending

    async def commit(self) -> None:
        """Ends the transaction, so that all of it counts; `OutcomeUnknownError`."""
        if self.state.commit():
            await self._end(committed=True)

    async def abort(self) -> None:
        """Ends the transaction, so that nothing of it counts.

        After a `ConnectionError` or retriable KafkaError its end is still ahead: the next
        transaction brings it about, or the transaction's timeout.
        """
        if self.state.abort():
            await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        state = self.state
        request = messages.EndTxnRequest(
            transactional_id=self._id,
            producer_id=state.producer.id,
            producer_epoch=state.producer.epoch,
            committed=committed,
        )
        sent = False

        async def attempt() -> None:
            nonlocal sent
            await self._route.connection()  # what can't be sent can't be carried out
            if sent:
                state.end_repeated()
            sent = True
            response = await self._route.ask(
                request,
                timeout_ms=self._answer_ms,
                at_most=None if state.second_version else _FIRST_END,
            )
            check(response.error_code)
            state.ended(ProducerIdentity(response.producer_id, response.producer_epoch))

        try:
            await self._patiently(attempt, self._route.forget)
        except KafkaError as error:
            step = Step.COMMIT if committed else Step.ABORT
            verdict = judge(step, error.code)
            if verdict is Verdict.OVER:
                state.may_come_late()
                state.ended(None)
            elif verdict is Verdict.AGAIN:
                self._give_up(error, in_doubt=committed and sent)
            else:
                raise state.refused(error, self._fenced_text()) from error
        except ConnectionError as error:
            self._give_up(error, in_doubt=committed and sent)
        except BaseException:
            if state.status in (Status.COMMITTING, Status.ABORTING):
                state.not_ended()
            raise

    def _give_up(self, error: Exception, *, in_doubt: bool) -> None:
        self.state.not_ended()
        if in_doubt:
            raise OutcomeUnknownError(
                f"transaction of {self._id!r}: told to commit it, the coordinator gave no answer in"
                f" {self._max_block_ms} ms; it may be committed or not"
            ) from error
        raise error

    # -- asking

    @property
    def _answer_ms(self) -> int:
        return min(self._cluster.request_timeout_ms, self._max_block_ms)

    async def _patiently(
        self, attempt: Callable[[], Awaitable[T]], forget: Callable[[], None]
    ) -> T:
        """Tries until it is done; raises the last error when that can't help, or time is up."""
        retry = Retry(self._max_block_ms)
        deadline = time.monotonic() + self._max_block_ms / 1000
        while True:
            try:
                return await attempt()
            except (ConnectionError, KafkaError) as error:
                code = error.code if isinstance(error, KafkaError) else None
                if code in MOVED:
                    forget()
                if isinstance(error, ConnectionError):
                    self.state.may_come_late()
                if code == ErrorCode.CONCURRENT_TRANSACTIONS and time.monotonic() < deadline:
                    await asyncio.sleep(CONCURRENT_PAUSE_S)
                elif is_retriable(error):
                    await retry.wait(error)
                else:
                    raise

    def _fenced_text(self) -> str:
        return (
            f"another producer goes on with transactional id {self._id!r}, or a transaction of this"
            f" one was open for more than its timeout ({self._timeout_ms} ms): close this producer"
        )


def _as_failure(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    return ConnectionError("the request was cancelled, and may be carried out or not")
