"""Batches of transactions in a Produce: what the coordinator is asked before they are taken.

`core.transactions.admission` says which batches need that, `coordination.transaction_questions` how
it's asked. Rules:

* A request has transactional batches of one producer: INVALID_PRODUCER_ID_MAPPING, as in Kafka.
* The coordinator is asked for all batches of a request together. For the only one of a request it
  is on the way into the log, so that a batch isn't tried twice where the answer comes at once.
* The answer counts for the leadership in which it was asked for.
* What is refused so that the producer sends it again is noted: what it has sent behind that doesn't
  come first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kraftpy.core.transactions import VERSION_0, VERSION_2
from kraftpy.core.transactions.admission import Token
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import ProduceRequest
from kraftpy.protocol.records import BatchHeader, read_batch_header
from kraftpy.server.coordination.transaction_questions import (
    FIRST_PRODUCE_OF_VERSION_2,
    Answers,
)
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_SENT_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


class Question:
    """The coordinator is asked for a producer (id and epoch); `settle` has to follow.

    `version` is that of its transactions. What the coordinator says of the partition (`place`) will
    be among `answers`.
    """

    __slots__ = ("_admission", "_partition", "_token", "answers", "place", "producer")

    def __init__(self, partition: Partition, producer: tuple[int, int], version: int) -> None:
        self.answers: asyncio.Future[Answers] | None = None
        self.place = partition.topic, partition.index
        self.producer = producer
        self._partition = partition
        self._admission = partition.admission
        self._token = self._admission.ask(*producer, version)

    def token(self) -> Token:
        """What lets the batch in, when there is an answer.

        Raises KafkaError as the producer is to hear it.
        """
        assert self.answers is not None
        error = self.answers.result()[self.place]
        if self._partition.admission is not self._admission:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        self._admission.vouch(self._token)
        return self._token

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer."""
        return self.answers is not None and self.answers.done()

    def settle(self) -> None:
        """The batch has been appended, or refused."""
        self._admission.settle(self._token)


def question_of_batch(ctx: RequestContext, partition: Partition, header: BatchHeader) -> Question:
    """For a batch of a Produce, which has yet to be asked (`ask_for_batches`)."""
    version = VERSION_2 if ctx.api_version >= FIRST_PRODUCE_OF_VERSION_2 else VERSION_0
    return Question(partition, (header.producer_id, header.producer_epoch), version)


def ask_for_batches(
    broker: Broker, ctx: RequestContext, request: ProduceRequest, questions: Iterable[Question]
) -> None:
    """Asks these, which are of one request, together; a producer's epochs each by itself."""
    by_producer: dict[tuple[int, int], list[Question]] = {}
    for question in questions:
        by_producer.setdefault(question.producer, []).append(question)
    for producer, some in by_producer.items():
        assert request.transactional_id is not None  # without one nobody is asked
        answers = broker.transaction_questions.admit(
            request.transactional_id, producer, [each.place for each in some], ctx.api_version
        )
        for each in some:
            each.answers = answers


class Asking:
    """Asks for the only batch of a request while that is being appended.

    `question` if that was needed, `token` if the answer came at once. `settle` has to follow, or
    who goes on with the question settles that.
    """

    __slots__ = ("_broker", "_ctx", "_partition", "_request", "question", "token")

    def __init__(
        self, broker: Broker, ctx: RequestContext, request: ProduceRequest, partition: Partition
    ) -> None:
        self.question: Question | None = None
        self.token: Token | None = None
        self._broker = broker
        self._ctx = ctx
        self._request = request
        self._partition = partition

    def ask(self, header: BatchHeader) -> Token | None:
        """See `admission.Ask`."""
        if not self._broker.serves_transactions:
            return None
        self.question = question_of_batch(self._ctx, self._partition, header)
        ask_for_batches(self._broker, self._ctx, self._request, [self.question])
        if self.question.is_answered:
            self.token = self.question.token()
        return self.token

    def settle(self) -> None:
        """The batch has been appended, or refused."""
        if self.question is not None:
            self.question.settle()


def is_of_one(request: ProduceRequest) -> bool:
    """Whether there is one batch in the request: a partition takes no more."""
    return len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1


def are_of_several(request: ProduceRequest) -> bool:
    """Whether there are transactional batches of more than one producer in the request."""
    if is_of_one(request):
        return False
    producer_ids = set()
    for topic in request.topic_data:
        for data in topic.partition_data:
            with contextlib.suppress(DecodeError):  # which its partition is answered
                header = read_batch_header(data.records or b"")
                if header.is_transactional:
                    producer_ids.add(header.producer_id)
    return len(producer_ids) > 1


def note_refused(partition: Partition, records: bytes | memoryview, error: KafkaError) -> None:
    """Notes that a batch of a request with a transactional id wasn't appended."""
    if error.code not in _SENT_AGAIN:
        return
    with contextlib.suppress(DecodeError):  # then it hasn't been looked at yet
        header = read_batch_header(records)
        if header.is_transactional and header.producer_id >= 0:
            partition.admission.refused(header)
