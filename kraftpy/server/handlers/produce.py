"""Produce (KIP-98, KIP-467 record errors): the hot path.

Versions 0-2 have message sets of magic 0 or 1, which are made into batches (docs/rules.md, rule
300); later ones may have none. Version 13 names topics by their ids. acks: 0 gets no answer (an
error closes the connection, as the client can't learn of it otherwise), 1 answers after the local
append, -1 after the high watermark passed, with min.insync.replicas in sync before the append and
after (docs/rules.md, rule 12); either waits for the flush that the topic's policy asks for.

The request's records are views of the receive buffer, so appends happen before this handler
returns, and only acknowledgements wait. But a batch that has to be opened and takes long, and what
the request has behind it or behind the first `SLICE_S`, is copied and appended in slices: the
connection's next request is taken when that is done, so that a producer's batches stay in order.
So is the first batch of a transaction whose coordinator is asked (`transactional_batches`), and
hasn't answered yet.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from kraftpy.core.metadata.records import INTERNAL_TOPICS
from kraftpy.core.transactions.admission import NO_TRANSACTIONS_YET, NotAdmitted, Token
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import ProduceRequest, ProduceResponse
from kraftpy.protocol.record_rules import InvalidRecords, RecordRules
from kraftpy.protocol.record_walk import OversizedBatch
from kraftpy.protocol.records import CorruptBatch, UnsupportedMagic, read_batch_header
from kraftpy.server.handlers.acknowledgements import Pending, Waiting, fail
from kraftpy.server.handlers.leader_hints import name_leaders_of_produce
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.transactional_batches import (
    Asking,
    Question,
    are_of_several,
    ask_for_batches,
    is_of_one,
    note_refused,
    question_of_batch,
)
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.network.prompt_future import PromptFuture, when_done
from kraftpy.server.replication.appended import Appended
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.record_policy import (
    TakesLong,
    UpconvertRules,
    upconvert_quickly,
)

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_BATCHES = 3
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_TOPIC_IDS = 13
# So long is appended in one go; the clock is looked at from that many partitions on.
SLICE_S = 0.005
SLICE_CHECK_PARTITIONS = 8
# So many records are named in one answer at most (KIP-467).
NAMED_RECORDS_MAX = 1000
# Of a request with very many partitions so many are appended before others have the loop.
TOGETHER_MAX = 200

PartitionResponse = ProduceResponse.PartitionProduceResponse
RecordError = ProduceResponse.BatchIndexAndErrorMessage
TopicResponse = ProduceResponse.TopicProduceResponse
_Answer = ProduceResponse | asyncio.Future[ProduceResponse] | None


class _Later(NamedTuple):
    """A batch that can't be appended at once.

    `rules` if it has to be opened first, `question` if the coordinator is asked; `conforms` when it
    has been opened.
    """

    partition: Partition
    records: memoryview
    answer: ProduceResponse.PartitionProduceResponse
    rules: RecordRules | UpconvertRules | None = None
    question: Question | None = None
    conforms: bool = False


@handles(ApiKey.PRODUCE, concurrent=True)
def produce(
    broker: Broker, ctx: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Appends each partition's batch and answers as `acks` says."""
    if ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        _name_topics(broker, request)
    if ctx.many:
        return _produce_many(broker, ctx, request)
    return _produce(broker, ctx, request)


def _name_topics(broker: Broker, request: ProduceRequest) -> None:
    """Gives topics their names, none to those that aren't known."""
    for topic_data in request.topic_data:
        known = broker.metadata.topics_by_id.get(topic_data.topic_id)
        topic_data.name = "" if known is None else known.name


async def _produce_many(
    broker: Broker, ctx: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    """A request of many partitions, as if it were several of TOGETHER_MAX."""
    ctx.let_overlap = lambda: None  # for none of them before the last
    response = ProduceResponse()
    endpoints: dict[int, ProduceResponse.NodeEndpoint] = {}
    named = 0
    pace = Pace()
    for topic_data in request.topic_data:
        answered: TopicResponse | None = None
        for start in range(0, len(topic_data.partition_data), TOGETHER_MAX):
            part = ProduceRequest.TopicProduceData(
                topic_data.name,
                topic_data.topic_id,
                topic_data.partition_data[start : start + TOGETHER_MAX],
            )
            answer = _produce(
                broker,
                ctx,
                ProduceRequest(
                    request.transactional_id, request.acks, request.timeout_ms, topic_data=[part]
                ),
            )
            if answer is not None and not isinstance(answer, ProduceResponse):
                answer = await answer
            await pace.keep()
            if answer is None:
                continue
            endpoints.update((each.node_id, each) for each in answer.node_endpoints)
            (topic,) = answer.responses
            for each in topic.partition_responses:
                named = _bound_names(each, named)
            if answered is None:
                answered = topic
                response.responses.append(topic)
            else:
                answered.partition_responses += topic.partition_responses
    response.node_endpoints = list(endpoints.values())
    return None if request.acks == 0 else response


def _produce(
    broker: Broker, ctx: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    acks = request.acks
    response = ProduceResponse()
    pending: list[Pending] = []
    later: list[_Later] = []
    refused = _refusal(request)
    # What the coordinator is asked for all of the batches it is asked for at once.
    is_plain = request.transactional_id is None
    asks = not is_plain and is_of_one(request)
    misdirected = False
    # A message set that is made into a batch takes as long as several batches.
    check_from = SLICE_CHECK_PARTITIONS if ctx.api_version >= FIRST_VERSION_WITH_BATCHES else 1
    parts, slice_ends_s = 0, math.inf
    for topic_data in request.topic_data:
        answers = []
        for data in topic_data.partition_data:
            answer = PartitionResponse(data.index)
            answers.append(answer)
            if refused is not None:
                fail(answer, *refused, ctx.errors)
                continue
            partition = broker.replicas.get(topic_data.name, data.index)
            if topic_data.name in INTERNAL_TOPICS:
                fail(
                    answer,
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{topic_data.name} belongs to the broker; clients can't write to it",
                    ctx.errors,
                )
            elif partition is None:
                error = broker.missing_partition_error(topic_data.name, data.index)
                if not topic_data.name and ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                fail(answer, error, None, ctx.errors)
                misdirected = True
            elif (later and is_plain) or (parts >= check_from and perf_counter() > slice_ends_s):
                later.append(_later(partition, data, answer))
            else:
                parts += 1
                if parts == check_from:
                    slice_ends_s = perf_counter() + SLICE_S
                asking = Asking(broker, ctx, request, partition) if asks else None
                try:
                    appended = _append(
                        broker, partition, data.records, request, answer, ctx, asking=asking
                    )
                except TakesLong as error:
                    question = None if asking is None else asking.question
                    later.append(_later(partition, data, answer, error.rules, question))
                except NotAdmitted as error:
                    question = None if asking is None else asking.question
                    if question is None:
                        question = question_of_batch(ctx, partition, error.header)
                    later.append(_later(partition, data, answer, question=question))
                else:
                    if asking is not None:
                        asking.settle()
                    _note(pending, partition, appended, answer, acks)
        response.responses.append(TopicResponse(topic_data.name, topic_data.topic_id, answers))
    if later:
        end = partial(_answer, broker, ctx, request, response, pending, misdirected)
        return _Rest(broker, ctx, request, deque(later), end, pending).start()
    return _answer(broker, ctx, request, response, pending, misdirected)


def _later(
    partition: Partition,
    data: ProduceRequest.PartitionProduceData,
    answer: PartitionResponse,
    rules: RecordRules | UpconvertRules | None = None,
    question: Question | None = None,
) -> _Later:
    return _Later(partition, data.records or memoryview(b""), answer, rules, question)


def _note(
    pending: list[Pending],
    partition: Partition,
    appended: Appended | None,
    answer: ProduceResponse.PartitionProduceResponse,
    acks: int,
) -> None:
    """Adds to `pending` what has to wait."""
    if appended is not None and (
        appended.flush_pending or (acks == -1 and partition.high_watermark < appended.end_offset)
    ):
        pending.append((partition, appended, answer))


def _answer(
    broker: Broker,
    ctx: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    pending: list[Pending],
    misdirected: bool,
) -> _Answer:
    """All has been appended that can be."""
    if request.acks == 0:
        _raise_if_failed(response)
        return None
    if misdirected:
        name_leaders_of_produce(broker, ctx, response)
    if not pending:
        return response
    name_leaders = partial(name_leaders_of_produce, broker, ctx)
    waiting = Waiting(
        broker.loop,
        response,
        request.acks,
        request.timeout_ms,
        name_leaders,
        ctx.errors,
        broker.replicas.traffic.commits,
    )
    waiting.start(pending)
    return waiting.future


def _bound_names(answer: PartitionResponse, named: int) -> int:
    """Leaves out which records are bad where the answer names enough; how many it would name."""
    named += len(answer.record_errors)
    if named > NAMED_RECORDS_MAX:
        answer.record_errors = []
    return named


def _copied(part: _Later) -> _Later:
    return part._replace(records=memoryview(bytearray(part.records)))


class _Rest:
    """What is left of a request: batches that couldn't be appended at once, in their order.

    Those that only wait for a coordinator's answer go on in the turns of such answers, others in a
    task. The records of a client that leaves after acks=0 are written all the same.
    """

    def __init__(
        self,
        broker: Broker,
        ctx: RequestContext,
        request: ProduceRequest,
        later: deque[_Later],
        answer: Callable[[], _Answer],
        pending: list[Pending],
    ) -> None:
        self._broker = broker
        self._ctx = ctx
        self._request = request
        self._later = later
        self._answer = answer
        self._pending = pending
        self._named = 0
        self._held_bytes = 0
        self._future: asyncio.Future[ProduceResponse | None] | None = None

    def start(self) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
        """Asks the coordinator; gives the answer to the request."""
        questions = [
            part.question
            for part in self._later
            if part.question is not None and part.question.answers is None
        ]
        ask_for_batches(self._broker, self._ctx, self._request, questions)
        is_asked = self._later[0].question is not None
        if is_asked and len(self._later) <= SLICE_CHECK_PARTITIONS and self._append_answered():
            return self._answer()
        self._ctx.may_overlap = False
        self._later = deque(_copied(part) for part in self._later)
        self._held_bytes = sum(len(part.records) for part in self._later)
        self._broker.listener.request_memory.reserve(self._held_bytes)
        self._future = PromptFuture(loop=self._broker.loop)
        self._wait()
        return self._future

    def _wait(self) -> None:
        part = self._later[0]
        if part.rules is None and part.question is not None:
            assert part.question.answers is not None
            turns = self._broker.transaction_questions.turns
            when_done(part.question.answers, lambda _: turns.soon(self._go_on))
        else:
            self._broker.loop.create_task(self._append_others()).add_done_callback(self._ended)

    def _go_on(self) -> None:
        """The coordinator has answered."""
        try:
            if self._append_answered():
                self._finish()
            else:
                self._wait()
        except Exception as error:
            self._give_up(error)

    def _append_answered(self) -> bool:
        """Appends up to a batch that has to wait, as long as a slice; whether that was all."""
        ends_s = perf_counter() + SLICE_S
        while self._later:
            part = self._later[0]
            answers = None if part.question is None else part.question.answers
            if part.rules is not None or (answers is not None and not answers.done()):
                return False
            self._append_next(part)
            if perf_counter() >= ends_s:
                break
        return not self._later

    async def _append_others(self) -> None:
        pace = Pace()
        while self._later:
            part = self._later[0]
            if part.question is not None and part.question.answers is not None:
                await part.question.answers
            if part.rules is not None:
                try:
                    part = await self._opened(part, part.rules)
                except KafkaError as error:
                    self._refuse(part, error)
                    self._done(part)
                    continue
            self._append_next(part)
            await pace.keep()

    async def _opened(self, part: _Later, rules: RecordRules | UpconvertRules) -> _Later:
        opener, records = self._broker.opener, bytes(part.records)
        if isinstance(rules, UpconvertRules):
            batch = await opener.upconvert(records, rules.max_uncompressed_bytes)
            _count_converted(part.partition, batch)
            return part._replace(records=batch, rules=None)
        batch = await opener.conform(records, rules)
        return part._replace(records=batch, rules=None, conforms=True)

    def _append_next(self, part: _Later) -> None:
        """Appends the first batch, or notes what has to be done before."""
        broker, ctx, request = self._broker, self._ctx, self._request
        partition, records, answer, _, question, conforms = part
        try:
            token = None if question is None else question.token()
            appended = _append(broker, partition, records, request, answer, ctx, conforms, token)
        except TakesLong as error:
            self._later[0] = part._replace(rules=error.rules)
        except NotAdmitted as error:
            asked = question_of_batch(ctx, partition, error.header)
            self._later[0] = part._replace(question=asked)
            ask_for_batches(broker, ctx, request, [asked])
        except KafkaError as error:
            self._refuse(part, error)
            self._done(part)
        else:
            _note(self._pending, partition, appended, answer, request.acks)
            self._done(part)

    def _refuse(self, part: _Later, error: KafkaError) -> None:
        _refuse(part.partition, part.answer, error, self._ctx)
        if self._request.transactional_id is not None:
            note_refused(part.partition, part.records, error)

    def _done(self, part: _Later) -> None:
        self._later.popleft()
        self._named = _bound_names(part.answer, self._named)
        if part.question is not None:
            part.question.settle()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._give_up(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._give_up(error)
        else:
            self._finish()

    def _finish(self) -> None:
        try:
            answer = self._answer()
        except KafkaError as error:
            self._give_up(error)
            return
        self._release()
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda done: self._tell(done.result()))
            self._ctx.let_overlap()
        else:
            self._tell(answer)

    def _tell(self, answer: ProduceResponse | None) -> None:
        assert self._future is not None
        if not self._future.done():  # done: the client has gone
            self._future.set_result(answer)

    def _give_up(self, error: BaseException) -> None:
        for part in self._later:
            if part.question is not None:
                part.question.settle()
        self._later.clear()
        self._release()
        assert self._future is not None
        if not self._future.done():
            self._future.set_exception(error)

    def _release(self) -> None:
        self._broker.listener.request_memory.release(self._held_bytes)
        self._held_bytes = 0


def _refusal(request: ProduceRequest) -> tuple[ErrorCode, str] | None:
    """Why the request as a whole can't be taken."""
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1"
    if request.transactional_id is not None and are_of_several(request):
        return (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "transactional records of more than one producer",
        )
    return None


def _append(
    broker: Broker,
    partition: Partition,
    records: memoryview | None,
    request: ProduceRequest,
    answer: ProduceResponse.PartitionProduceResponse,
    ctx: RequestContext,
    conforms: bool = False,
    token: Token | None = None,
    asking: Asking | None = None,
) -> Appended | None:
    """One partition's append; errors go into `answer`.

    But TakesLong is raised, and NotAdmitted if the coordinator is to be asked.
    """
    answer.log_start_offset = partition.log.log_start_offset
    try:
        if not records:
            raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch for the partition")
        if request.acks == -1 and (too_few := partition.acks_all_error):
            raise KafkaError(too_few)
        appended = partition.append(
            records,
            broker.now_ms(),
            conforms=conforms,
            allow_zstd=ctx.api_version >= FIRST_VERSION_WITH_ZSTD,
            named=request.transactional_id is not None,
            token=token,
            ask=None if asking is None else asking.ask,
        )
    except (KafkaError, DecodeError) as error:
        is_old = isinstance(error, UnsupportedMagic)
        if is_old and records and ctx.api_version < FIRST_VERSION_WITH_BATCHES:
            return _append_messages(broker, partition, records, request, answer, ctx)
        is_answered = token is not None or (asking is not None and asking.token is not None)
        if isinstance(error, NotAdmitted) and not is_answered:
            if broker.serves_transactions:
                raise
            error = KafkaError(error.code, NO_TRANSACTIONS_YET)
        _refuse(partition, answer, error, ctx)
        if request.transactional_id is not None and isinstance(error, KafkaError) and records:
            note_refused(partition, records, error)
        return None
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    return appended


def _append_messages(
    broker: Broker,
    partition: Partition,
    messages: memoryview,
    request: ProduceRequest,
    answer: ProduceResponse.PartitionProduceResponse,
    ctx: RequestContext,
) -> Appended | None:
    """`_append` of a message set of magic 0 or 1."""
    try:
        batch = upconvert_quickly(messages, partition.config)
    except (KafkaError, DecodeError) as error:
        _refuse(partition, answer, error, ctx)
        return None
    try:
        appended = _append(broker, partition, batch, request, answer, ctx)
    except TakesLong as error:  # it is made into a batch once more, where it is opened then
        limit = error.rules.max_uncompressed_bytes
        raise TakesLong(UpconvertRules(limit)) from None
    if appended is not None:
        _count_converted(partition, batch)
    return appended


def _count_converted(partition: Partition, batch: memoryview) -> None:
    partition.numbers.upconverted_records += read_batch_header(batch).records_count


def _refuse(
    partition: Partition,
    answer: ProduceResponse.PartitionProduceResponse,
    error: KafkaError | DecodeError,
    ctx: RequestContext,
) -> None:
    """Says in `answer` why the batch wasn't appended, and which of its records are to blame."""
    if isinstance(error, KafkaError):
        fail(answer, error.code, error.message, ctx.errors)
    elif isinstance(error, CorruptBatch | OversizedBatch | UnsupportedMagic):
        fail(answer, error.code, str(error), ctx.errors)
    else:
        fail(answer, ErrorCode.CORRUPT_MESSAGE, str(error), ctx.errors)
    if isinstance(error, InvalidRecords):
        answer.record_errors = [RecordError(*each) for each in error.record_errors]
    partition.numbers.batches += 1
    partition.numbers.failed_batches += 1


def _raise_if_failed(response: ProduceResponse) -> None:
    """acks=0: the only way to tell the producer of an error is to hang up (as Kafka does)."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise KafkaError(
                    ErrorCode(answer.error_code), f"{topic.name}-{answer.index} with acks=0"
                )
