"""Produce (KIP-98, KIP-467 record errors): the hot path.

Versions 0-2 are advertised (an old librdkafka otherwise sends uncompressed without a word,
docs/protocol.md) and answered with UNSUPPORTED_VERSION per partition. Version 13 names topics by
their ids. acks: 0 gets no answer (an error closes the connection, as the client can't learn of it
otherwise), 1 answers after the local append, -1 after the high watermark passed, with
min.insync.replicas in sync before the append and after (docs/rules.md, rule 12); either waits for
the flush that the topic's policy asks for.

The request's records are views of the receive buffer, so appends happen before this handler
returns, and only acknowledgements wait. But a batch that has to be opened and takes long, and what
the request has behind it or behind the first `SLICE_S`, is copied and appended in slices: the
connection's next request is taken when that is done, so that a producer's batches stay in order.
So is the first batch of a transaction, for which its coordinator is asked
(`transactional_batches`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from kraftpy.core.metadata.records import INTERNAL_TOPICS
from kraftpy.core.transactions.admission import NO_TRANSACTIONS_YET, NotAdmitted, Token
from kraftpy.metrics.instruments import Histogram
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import ProduceRequest, ProduceResponse
from kraftpy.protocol.record_rules import InvalidRecords, RecordRules
from kraftpy.protocol.record_walk import OversizedBatch
from kraftpy.protocol.records import CorruptBatch
from kraftpy.server.handlers.leader_hints import name_leaders_of_produce
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.transactional_batches import Question, are_of_several, note_refused
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.appended import Appended
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.record_policy import TakesLong

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

OLDEST_SUPPORTED_VERSION = 3
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
Pending = tuple[Partition, Appended, ProduceResponse.PartitionProduceResponse]


class _Later(NamedTuple):
    """A batch that can't be appended at once.

    `rules` if it has to be opened first, `question` if the coordinator is asked.
    """

    partition: Partition
    records: bytearray
    answer: ProduceResponse.PartitionProduceResponse
    rules: RecordRules | None = None
    question: Question | None = None


class _Waiting:
    """A Produce whose acknowledgements are still due, bounded by its timeout.

    The timeout is told of the partitions that are still due and of no other: a producer without
    idempotence writes twice what it is wrongly told to send again.
    """

    __slots__ = (
        "_acks",
        "_commits",
        "_deposed",
        "_due",
        "_errors",
        "_name_leaders",
        "_response",
        "_started_s",
        "_timer",
        "future",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        response: ProduceResponse,
        acks: int,
        timeout_ms: int,
        name_leaders: Callable[[ProduceResponse], None],
        errors: Counter[int],
        commits: Histogram,
    ) -> None:
        self._commits = commits
        self._started_s = perf_counter()
        self.future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._errors = errors
        self._response = response
        self._acks = acks
        self._name_leaders = name_leaders
        self._deposed = False
        self._due: dict[int, tuple[Partition, ProduceResponse.PartitionProduceResponse]] = {}
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)

    def start(self, pending: list[Pending]) -> None:
        """Waits for the flush, where one is pending, and then with acks=-1 for the watermark."""
        for number, (partition, _, answer) in enumerate(pending):
            self._due[number] = partition, answer
        for number, (partition, appended, _) in enumerate(pending):
            self._wait(number, partition, appended)

    def _wait(self, number: int, partition: Partition, appended: Appended) -> None:
        def reached(error: ErrorCode) -> None:
            self._reached(number, error)

        def flushed(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and self._acks == -1:
                partition.when_committed(appended.end_offset, reached)
            else:
                reached(error)

        if appended.flush_pending:
            partition.when_flushed(appended.end_offset, flushed)
        else:
            partition.when_committed(appended.end_offset, reached)

    def _reached(self, number: int, error: ErrorCode) -> None:
        partition, answer = self._due.pop(number)
        if error is ErrorCode.NONE and self._acks == -1 and partition.acks_all_error:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if error is not ErrorCode.NONE:
            _fail(answer, error, None, self._errors)
            self._deposed = self._deposed or error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self._due:
            if self._acks == -1:
                self._commits.observe(perf_counter() - self._started_s)
            # Also when the client left meanwhile: its timeout may be weeks away.
            self._timer.cancel()
            if not self.future.done():
                self._finish()

    def _finish(self) -> None:
        if self._deposed:
            self._name_leaders(self._response)
        self.future.set_result(self._response)

    def _time_out(self) -> None:
        if self.future.done():
            return
        for partition, answer in self._due.values():
            late = self._acks == -1
            error = partition.timeout_error if late else ErrorCode.REQUEST_TIMED_OUT
            _fail(answer, error, None, self._errors)
        self._finish()


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
    refused = _refusal(ctx, request)
    # What the coordinator is asked for all of the batches it is asked for at once.
    is_plain = request.transactional_id is None
    misdirected = False
    parts = 0
    slice_ends_s = math.inf
    for topic_data in request.topic_data:
        answers = []
        for data in topic_data.partition_data:
            answer = PartitionResponse(data.index)
            answers.append(answer)
            if refused is not None:
                _fail(answer, *refused, ctx.errors)
                continue
            partition = broker.replicas.get(topic_data.name, data.index)
            if topic_data.name in INTERNAL_TOPICS:
                _fail(
                    answer,
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{topic_data.name} belongs to the broker; clients can't write to it",
                    ctx.errors,
                )
            elif partition is None:
                error = broker.missing_partition_error(topic_data.name, data.index)
                if not topic_data.name and ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                _fail(answer, error, None, ctx.errors)
                misdirected = True
            elif (later and is_plain) or (
                parts >= SLICE_CHECK_PARTITIONS and perf_counter() > slice_ends_s
            ):
                later.append(_Later(partition, bytearray(data.records or b""), answer))
            else:
                parts += 1
                if parts == SLICE_CHECK_PARTITIONS:
                    slice_ends_s = perf_counter() + SLICE_S
                try:
                    appended = _append(broker, partition, data.records, request, answer, ctx)
                except (NotAdmitted, TakesLong) as error:
                    part = _Later(partition, bytearray(data.records or b""), answer)
                    later.append(_prepared(broker, ctx, request, part, error))
                else:
                    _note(pending, partition, appended, answer, acks)
        response.responses.append(TopicResponse(topic_data.name, topic_data.topic_id, answers))
    if later:
        ctx.may_overlap = False
        # The records of a client that leaves after acks=0 are written all the same.
        appending = _append_later(broker, ctx, request, response, pending, later, misdirected)
        return asyncio.shield(broker.loop.create_task(appending))
    return _answer(broker, ctx, request, response, pending, misdirected)


def _prepared(
    broker: Broker,
    ctx: RequestContext,
    request: ProduceRequest,
    part: _Later,
    error: NotAdmitted | TakesLong,
) -> _Later:
    """The same with what has to be done before it can be appended."""
    if isinstance(error, TakesLong):
        return part._replace(rules=error.rules)
    return part._replace(
        question=Question.of_batch(broker, ctx, request, part.partition, error.header)
    )


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
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """All has been appended that can be."""
    if request.acks == 0:
        _raise_if_failed(response)
        return None
    if misdirected:
        name_leaders_of_produce(broker, ctx, response)
    if not pending:
        return response
    name_leaders = partial(name_leaders_of_produce, broker, ctx)
    waiting = _Waiting(
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


async def _append_later(
    broker: Broker,
    ctx: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    pending: list[Pending],
    later: list[_Later],
    misdirected: bool,
) -> ProduceResponse | None:
    """Appends what couldn't be at once, in its order, and answers."""
    memory = broker.listener.request_memory
    size_bytes = sum(len(part.records) for part in later)
    memory.reserve(size_bytes)
    named = 0
    try:
        pace = Pace()
        for part in later:
            appended = await _append_elsewhere(broker, part, request, ctx)
            _note(pending, part.partition, appended, part.answer, request.acks)
            named = _bound_names(part.answer, named)
            await pace.keep()
    finally:
        memory.release(size_bytes)
    answer = _answer(broker, ctx, request, response, pending, misdirected)
    ctx.let_overlap()
    return await answer if isinstance(answer, asyncio.Future) else answer


def _bound_names(answer: PartitionResponse, named: int) -> int:
    """Leaves out which records are bad where the answer names enough; how many it would name."""
    named += len(answer.record_errors)
    if named > NAMED_RECORDS_MAX:
        answer.record_errors = []
    return named


async def _append_elsewhere(
    broker: Broker, part: _Later, request: ProduceRequest, ctx: RequestContext
) -> Appended | None:
    """As `_append`; the coordinator is asked if need be, and another process opens the batch."""
    partition, data, answer, rules, question = part
    records = memoryview(data)
    token: Token | None = None
    conforms = False
    try:
        while True:
            if question is not None and token is None:
                token = await question.answer()
            if rules is not None:
                records, rules = await broker.opener.conform(data, rules), None
                conforms = True
            try:
                return _append(broker, partition, records, request, answer, ctx, conforms, token)
            except TakesLong as error:
                rules = error.rules
            except NotAdmitted as error:
                question = Question.of_batch(broker, ctx, request, partition, error.header)
    except KafkaError as error:
        _refuse(partition, answer, error, ctx)
        if request.transactional_id is not None:
            note_refused(partition, records, error)
        return None
    finally:
        if question is not None:
            question.settle()


def _refusal(ctx: RequestContext, request: ProduceRequest) -> tuple[ErrorCode, str] | None:
    """Why the request as a whole can't be taken."""
    if ctx.api_version < OLDEST_SUPPORTED_VERSION:
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            "message formats before record batches (Kafka 0.11) are not written here",
        )
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
        )
    except (KafkaError, DecodeError) as error:
        if isinstance(error, NotAdmitted) and token is None:
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


def _refuse(
    partition: Partition,
    answer: ProduceResponse.PartitionProduceResponse,
    error: KafkaError | DecodeError,
    ctx: RequestContext,
) -> None:
    """Says in `answer` why the batch wasn't appended, and which of its records are to blame."""
    if isinstance(error, KafkaError):
        _fail(answer, error.code, error.message, ctx.errors)
    elif isinstance(error, CorruptBatch | OversizedBatch):
        _fail(answer, error.code, str(error), ctx.errors)
    else:
        _fail(answer, ErrorCode.CORRUPT_MESSAGE, str(error), ctx.errors)
    if isinstance(error, InvalidRecords):
        answer.record_errors = [RecordError(*each) for each in error.record_errors]
    partition.numbers.batches += 1
    partition.numbers.failed_batches += 1


def _fail(
    answer: ProduceResponse.PartitionProduceResponse,
    code: ErrorCode,
    message: str | None,
    errors: Counter[int],
) -> None:
    errors[code] += 1
    answer.error_code = code
    answer.base_offset = -1
    answer.error_message = message


def _raise_if_failed(response: ProduceResponse) -> None:
    """acks=0: the only way to tell the producer of an error is to hang up (as Kafka does)."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise KafkaError(
                    ErrorCode(answer.error_code), f"{topic.name}-{answer.index} with acks=0"
                )
