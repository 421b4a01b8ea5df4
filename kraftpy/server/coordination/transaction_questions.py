"""What the leaders of partitions ask transaction coordinators before they take a batch (KIP-890).

A batch of a transaction that its coordinator doesn't know of would never end. So the leader asks
whether its partition is in the transaction, or, for producers of version 2, has it added. Rules:

* What is asked in a turn of the loop goes to a coordinator in one request; one that is at this
  broker is asked directly.
* A question is asked once, and so many are open at a time. Who gets no answer hears that the
  coordinator isn't available, and the producer sends its batch again.
* A producer that may wait has CONCURRENT_TRANSACTIONS asked again for a while: the markers of its
  last transaction are about to be written.
* With `transaction.partition.verification.enable=false` nobody is asked for the old ones.
* Producers hear errors that they know: before version 11 of Produce there is no
  TRANSACTION_ABORTABLE, and what passes by itself is NOT_ENOUGH_REPLICAS, upon which all of them
  try again. For TxnOffsetCommit that is version 4, and COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.core.coordination import partition_for
from kraftpy.core.transactions import Partition
from kraftpy.core.transactions.records import by_topic
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kraftpy.server.coordination.peers import QUESTIONS, Peers
from kraftpy.server.coordination.transaction_coordinator import (
    TRANSACTIONS_TOPIC,
    WRITE_TIMEOUT_MS,
    TransactionCoordinator,
    check_id,
)

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

OPEN_MAX = 10_000
REQUEST_MAX = 1_000
# The coordinator gives up on a write before; its answer is on its way.
ANSWER_TIMEOUT_MS = WRITE_TIMEOUT_MS + 1_000

FIRST_PRODUCE_WITH_ABORTABLE = 11
FIRST_PRODUCE_OF_VERSION_2 = 12
FIRST_COMMIT_WITH_ABORTABLE = 4
FIRST_COMMIT_OF_VERSION_2 = 5
_PAUSE_MIN_MS = 1

_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

AddedTransaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
AddedTopic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


class Subject(NamedTuple):
    """Whose transaction, and whether partitions are to be added to it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


Answers = dict[Partition, ErrorCode]


class QuestionHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def transactions(self) -> TransactionCoordinator: ...


class _Question(NamedTuple):
    subject: Subject
    asked: dict[Partition, list[asyncio.Future[ErrorCode]]]

    def settle(self, answers: Answers) -> None:
        """What isn't answered is not available."""
        for partition, futures in self.asked.items():
            error = answers.get(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for future in futures:
                if not future.done():
                    future.set_result(error)


class TransactionQuestions:
    """The questions of this broker; `answers` counts them by what was said."""

    def __init__(self, host: QuestionHost) -> None:
        self.answers = Counter({ErrorCode.NONE: 0})
        self._host = host
        self._due: dict[Subject, _Question] = {}
        self._open = 0
        self._asking: set[asyncio.Task[None]] = set()

    async def admit(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partition: Partition,
        produce_version: int,
    ) -> ErrorCode:
        """Whether the partition is in the producer's transaction, as a Produce is to be told.

        Raises KafkaError: INVALID_REQUEST for what is no transactional id.
        """
        adds = produce_version >= FIRST_PRODUCE_OF_VERSION_2
        error = await self._admit(Subject(transactional_id, *producer, adds), partition)
        if error is ErrorCode.TRANSACTION_ABORTABLE:
            knows_it = produce_version >= FIRST_PRODUCE_WITH_ABORTABLE
            return error if knows_it else ErrorCode.INVALID_TXN_STATE
        return _told(error, ErrorCode.NOT_ENOUGH_REPLICAS, knows_concurrent=adds)

    async def admit_offsets(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partition: Partition,
        commit_version: int,
    ) -> ErrorCode:
        """The same as a TxnOffsetCommit is to be told. Raises KafkaError as `admit` does."""
        adds = commit_version >= FIRST_COMMIT_OF_VERSION_2
        error = await self._admit(Subject(transactional_id, *producer, adds), partition)
        if error is ErrorCode.TRANSACTION_ABORTABLE:
            knows_it = commit_version >= FIRST_COMMIT_WITH_ABORTABLE
            return error if knows_it else ErrorCode.INVALID_TXN_STATE
        return _told(error, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, knows_concurrent=adds)

    async def _admit(self, subject: Subject, partition: Partition) -> ErrorCode:
        """What the coordinator says in the end. Raises KafkaError: INVALID_REQUEST."""
        check_id(subject.transactional_id)
        is_version_2 = subject.adds
        loop, config = self._host.loop, self._host.config
        if not is_version_2 and not config.transaction_partition_verification_enable:
            return ErrorCode.NONE
        deadline_s = loop.time() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        pause_ms = _PAUSE_MIN_MS
        while True:
            error = await self.ask(subject, partition)
            is_over = loop.time() + pause_ms / 1000 > deadline_s
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS or not is_version_2 or is_over:
                return error
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, config.add_partitions_to_txn_retry_backoff_ms)

    def ask(self, subject: Subject, partition: Partition) -> asyncio.Future[ErrorCode]:
        """The coordinator's answer, once."""
        loop = self._host.loop
        future: asyncio.Future[ErrorCode] = loop.create_future()
        if self._open >= OPEN_MAX:
            self.answers[ErrorCode.COORDINATOR_NOT_AVAILABLE] += 1
            future.set_result(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return future
        self._open += 1
        future.add_done_callback(self._ended)
        if not self._due:
            loop.call_soon(self._send)
        question = self._due.setdefault(subject, _Question(subject, {}))
        question.asked.setdefault(partition, []).append(future)
        return future

    def _ended(self, future: asyncio.Future[ErrorCode]) -> None:
        self._open -= 1
        if not future.cancelled():
            self.answers[future.result()] += 1

    def _send(self) -> None:
        due, self._due = self._due, {}
        by_node: dict[int, list[_Question]] = {}
        for question in due.values():
            node_id = self._coordinator(question.subject.transactional_id)
            if node_id is None:
                question.settle({})
            else:
                by_node.setdefault(node_id, []).append(question)
        for node_id, questions in by_node.items():
            if node_id == self._host.node_id:
                for question in questions:
                    self._start(self._ask_here(question))
            else:
                for some in _requests(questions):
                    self._start(self._ask_there(node_id, some))

    def _coordinator(self, transactional_id: str) -> int | None:
        topic = self._host.metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return None if leader < 0 else leader

    def _start(self, asking: Coroutine[Any, Any, None]) -> None:
        task = self._host.loop.create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_here(self, question: _Question) -> None:
        transactional_id, producer_id, epoch, adds = question.subject
        producer = producer_id, epoch
        partitions = list(question.asked)
        try:
            errors = await self._host.transactions.admit(
                transactional_id, producer, partitions, adds=adds
            )
        except KafkaError as error:
            errors = [error.code] * len(partitions)
        question.settle(dict(zip(partitions, errors, strict=True)))

    async def _ask_there(self, node_id: int, questions: list[_Question]) -> None:
        found: dict[str, Answers] = {}
        try:
            with contextlib.suppress(ConnectionLostError, KafkaError):
                response = await self._host.peers.request(
                    node_id, QUESTIONS, _message(questions), timeout_ms=ANSWER_TIMEOUT_MS
                )
                found = _answers(response)
        finally:
            for question in questions:
                question.settle(found.get(question.subject.transactional_id, {}))


def _requests(questions: Iterable[_Question]) -> Iterable[list[_Question]]:
    """The questions in requests of bounded size, in which an id is named once."""
    requests: list[dict[str, _Question]] = []
    counts: Counter[str] = Counter()
    for number, question in enumerate(questions):
        transactional_id = question.subject.transactional_id
        # The next one of an id goes behind the one before.
        place = number // REQUEST_MAX + counts[transactional_id]
        counts[transactional_id] += 1
        while len(requests) <= place:
            requests.append({})
        requests[place][transactional_id] = question
    return [list(each.values()) for each in requests]


def _message(questions: Iterable[_Question]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddedTransaction(
                transactional_id=subject.transactional_id,
                producer_id=subject.producer_id,
                producer_epoch=subject.producer_epoch,
                verify_only=not subject.adds,
                topics=[AddedTopic(topic, indexes) for topic, indexes in by_topic(asked)],
            )
            for subject, asked in questions
        ]
    )


def _answers(response: AddPartitionsToTxnResponse) -> dict[str, Answers]:
    """By transactional id."""
    return {
        result.transactional_id: {
            (topic.name, partition.partition_index): error_code(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


def _told(error: ErrorCode, again: ErrorCode, *, knows_concurrent: bool) -> ErrorCode:
    """What a producer hears of a coordinator's answer; `again` has it send its request again."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in _PASSING:
        return again
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and not knows_concurrent:
        return again
    return error
