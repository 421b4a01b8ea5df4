"""What the leaders of partitions ask transaction coordinators before they take a batch (KIP-890).

A batch of a transaction that its coordinator doesn't know of would never end. So the leader asks
whether its partition is in the transaction, or, for producers of version 2, has it added. Rules:

* All partitions of a request are asked about together, and what is asked in a turn of the loop goes
  to a coordinator in one request.
* One that is at this broker is called directly, and may have answered when `admit` returns. So few
  are in one turn of the loop (`AT_ONCE_MAX`); the others are called in turns. Who waited for an
  answer goes on in `turns`, as one write of a coordinator may answer many.
* A question is asked once, and about so many partitions at a time. Who gets no answer hears that
  the coordinator isn't available, and the producer sends its batch again.
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
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.core.coordination import partition_for
from kraftpy.core.transactions import Answer, Partition
from kraftpy.core.transactions.records import by_topic
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kraftpy.server.coordination.peers import QUESTIONS, Peers
from kraftpy.server.coordination.transaction_coordinator import (
    TRANSACTIONS_TOPIC,
    WRITE_TIMEOUT_MS,
    TransactionCoordinator,
    check_id,
)
from kraftpy.server.coordination.turns import Turns
from kraftpy.server.network.prompt_future import PromptFuture, when_done

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

OPEN_MAX = 10_000
REQUEST_MAX = 1_000
AT_ONCE_MAX = 20
TURN_S = 0.002
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
_Answered = Callable[[Answers], None]
_Tell = Callable[[ErrorCode], ErrorCode]


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
    """`asked`: who is to hear of which partitions."""

    subject: Subject
    asked: list[tuple[Sequence[Partition], _Answered]]

    def partitions(self) -> list[Partition]:
        """Each once."""
        return list(dict.fromkeys(each for some, _ in self.asked for each in some))

    def settle(self, answers: Answers) -> None:
        """What isn't answered is not available."""
        for partitions, answered in self.asked:
            missing = ErrorCode.COORDINATOR_NOT_AVAILABLE
            answered({each: answers.get(each, missing) for each in partitions})


class _Inquiry:
    """The partitions of one request; `future` gives what its producer is told of each."""

    __slots__ = (
        "_answers",
        "_deadline_s",
        "_pause_ms",
        "_questions",
        "_tell",
        "future",
        "subject",
    )

    def __init__(self, questions: TransactionQuestions, subject: Subject, tell: _Tell) -> None:
        self.future: PromptFuture[Answers] = PromptFuture(loop=questions.loop)
        self.subject = subject
        self._questions = questions
        self._tell = tell
        self._answers: Answers = {}
        self._deadline_s = questions.loop.time() + questions.patience_s
        self._pause_ms = _PAUSE_MIN_MS

    def ask(self, partitions: Sequence[Partition]) -> None:
        self._questions.ask(self, partitions)

    def answered(self, answers: Answers) -> None:
        """The coordinator has spoken, about all that it was asked."""
        self._questions.count(answers)
        self._answers |= answers
        if self.subject.adds and ErrorCode.CONCURRENT_TRANSACTIONS in answers.values():
            loop, pause_s = self._questions.loop, self._pause_ms / 1000
            if not self.future.done() and loop.time() + pause_s <= self._deadline_s:
                self._pause_ms = min(2 * self._pause_ms, self._questions.pause_max_ms)
                concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
                again = [each for each, error in answers.items() if error is concurrent]
                loop.call_later(pause_s, self.ask, again)
                return
        if not self.future.done():  # done: whoever asked has gone
            told = {each: self._tell(error) for each, error in self._answers.items()}
            self.future.set_result(told)


class TransactionQuestions:
    """The questions of this broker; `answers` counts them by what was said."""

    def __init__(self, host: QuestionHost) -> None:
        self.answers = Counter({ErrorCode.NONE: 0})
        self.loop = host.loop
        self.turns = Turns(host.loop, TURN_S)
        self._host = host
        self._due: dict[Subject, _Question] = {}
        self._open = 0
        self._at_once = 0
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def patience_s(self) -> float:
        """For how long producers that may wait have their questions asked again."""
        return self._host.config.add_partitions_to_txn_retry_backoff_max_ms / 1000

    @property
    def pause_max_ms(self) -> int:
        """How long the pause between two of them becomes."""
        return self._host.config.add_partitions_to_txn_retry_backoff_ms

    def admit(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[Partition],
        produce_version: int,
    ) -> asyncio.Future[Answers]:
        """Whether they are in the producer's transaction, as a Produce is to be told."""
        adds = produce_version >= FIRST_PRODUCE_OF_VERSION_2
        subject = Subject(transactional_id, *producer, adds)
        return self._inquire(subject, partitions, _told_by_produce(produce_version))

    def admit_offsets(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[Partition],
        commit_version: int,
    ) -> asyncio.Future[Answers]:
        """The same as a TxnOffsetCommit is to be told."""
        adds = commit_version >= FIRST_COMMIT_OF_VERSION_2
        subject = Subject(transactional_id, *producer, adds)
        return self._inquire(subject, partitions, _told_by_commit(commit_version))

    def _inquire(
        self, subject: Subject, partitions: Sequence[Partition], tell: _Tell
    ) -> asyncio.Future[Answers]:
        inquiry = _Inquiry(self, subject, tell)
        try:
            check_id(subject.transactional_id)
        except KafkaError as error:
            inquiry.future.set_result(dict.fromkeys(partitions, error.code))
        else:
            if subject.adds or self._host.config.transaction_partition_verification_enable:
                self.ask(inquiry, list(dict.fromkeys(partitions)))
            else:
                inquiry.future.set_result(dict.fromkeys(partitions, ErrorCode.NONE))
        return inquiry.future

    def ask(self, inquiry: _Inquiry, partitions: Sequence[Partition]) -> None:
        """Has it hear what the coordinator says of each, maybe before this returns."""
        subject = inquiry.subject
        is_refused = self._open >= OPEN_MAX
        self._open += len(partitions)
        if is_refused:
            inquiry.answered(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif self._is_next(subject.transactional_id):
            self._ask_here(subject, partitions, inquiry.answered)
        else:
            if not self._due:
                self.loop.call_soon(self._send)
            question = self._due.setdefault(subject, _Question(subject, []))
            question.asked.append((partitions, inquiry.answered))

    def count(self, answers: Answers) -> None:
        """These have been answered."""
        self._open -= len(answers)
        for error in answers.values():
            self.answers[error] += 1

    def _is_next(self, transactional_id: str) -> bool:
        """Whether a coordinator at this broker may be called in this turn of the loop."""
        if self._due or self._at_once >= AT_ONCE_MAX:
            return False
        if self._coordinator(transactional_id) != self._host.node_id:
            return False
        if not self._at_once:
            self.loop.call_soon(self._turn_over)
        self._at_once += 1
        return True

    def _turn_over(self) -> None:
        self._at_once = 0

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
                    asking = (question.subject, question.partitions(), question.settle)
                    self.turns.soon(partial(self._ask_here, *asking))
            else:
                for some in _requests(questions):
                    task = self.loop.create_task(self._ask_there(node_id, some))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)

    def _coordinator(self, transactional_id: str) -> int | None:
        topic = self._host.metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return None if leader < 0 else leader

    def _ask_here(
        self, subject: Subject, partitions: Sequence[Partition], settle: _Answered
    ) -> None:
        transactional_id, producer_id, epoch, adds = subject
        try:
            found = self._host.transactions.judge(
                transactional_id, (producer_id, epoch), partitions, adds=adds
            )
        except KafkaError as error:
            settle(dict.fromkeys(partitions, error.code))
            return
        if isinstance(found, asyncio.Future):
            when_done(found, lambda done: settle(_of_all(partitions, done)))
        else:
            settle(dict(zip(partitions, found, strict=True)))

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
                topics=[
                    AddedTopic(topic, indexes) for topic, indexes in by_topic(question.partitions())
                ],
            )
            for question in questions
            for subject in (question.subject,)
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


def _of_all(partitions: Sequence[Partition], done: asyncio.Future[Answer]) -> Answers:
    lost = done.cancelled()
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE if lost else done.result().error
    return dict.fromkeys(partitions, error)


@cache
def _told_by_produce(version: int) -> _Tell:
    return partial(
        _told,
        again=ErrorCode.NOT_ENOUGH_REPLICAS,
        knows_abortable=version >= FIRST_PRODUCE_WITH_ABORTABLE,
        knows_concurrent=version >= FIRST_PRODUCE_OF_VERSION_2,
    )


@cache
def _told_by_commit(version: int) -> _Tell:
    return partial(
        _told,
        again=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        knows_abortable=version >= FIRST_COMMIT_WITH_ABORTABLE,
        knows_concurrent=version >= FIRST_COMMIT_OF_VERSION_2,
    )


def _told(
    error: ErrorCode, *, again: ErrorCode, knows_abortable: bool, knows_concurrent: bool
) -> ErrorCode:
    """What a producer hears of a coordinator's answer; `again` has it send its request again."""
    if error is ErrorCode.NONE:
        return error
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in _PASSING:
        return again
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and not knows_concurrent:
        return again
    return error
