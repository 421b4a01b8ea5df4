"""Transactional ids: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
DescribeTransactions, ListTransactions.

This module turns versions into one form and errors into the place where each response has them; the
rules are in `kraftpy.core.transactions`. Beyond that:

* PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients that are older than it.
* AddPartitionsToTxn adds all partitions of a transaction or none: if one isn't there, it is
  UNKNOWN_TOPIC_OR_PARTITION and the others are OPERATION_NOT_ATTEMPTED. A client adds none of the
  brokers' own topics: TOPIC_AUTHORIZATION_FAILED, as in Kafka. Versions 4 and 5 are those of
  brokers, which ask for many transactions, and may only ask whether a partition is in one.
* Offsets that a transaction commits are in a partition of the group's coordinator, which is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from kraftpy.batching import bounded
from kraftpy.core.groups.consumer.regex import SMALL_PROGRAM_BYTES, compile_pattern
from kraftpy.core.metadata.records import INTERNAL_TOPICS, OFFSETS_TOPIC
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.authorizer import View
from kraftpy.core.transactions import (
    VERSION_0,
    VERSION_2,
    Partition,
    Transaction,
    TransactionState,
    Wish,
)
from kraftpy.core.transactions.records import by_topic
from kraftpy.core.transactions.states import BY_LABEL, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, distinct

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_FIRST_INIT_WITH_FENCED = 4
_FIRST_WITH_FENCED = 2  # AddPartitionsToTxn, AddOffsetsToTxn and EndTxn
_FIRST_BATCHED_ADD = 4
_FIRST_END_OF_VERSION_2 = 5
_ADDED_TOGETHER = 100
_LOOKED_AT_TOGETHER = 1_000
_SHORT_CHARS = 1_000
# So many states are said to be none.
_UNKNOWN_NAMED_MAX = 1_000

AddedTopic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Topics = Sequence[AddedTopic]
AddedTransaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
Described = DescribeTransactionsResponse.TransactionState
Listed = ListTransactionsResponse.TransactionState


def _told(error: ErrorCode, ctx: RequestContext, first_with_fenced: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and ctx.api_version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# -- ids and epochs


async def init_transactional_id(
    broker: Broker, ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """InitProducerId with a transactional id: aborts what is open, fences who had the id before."""
    assert request.transactional_id is not None
    producer = request.producer_id, request.producer_epoch
    nobody = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if (producer[0] == NO_PRODUCER_ID) is not (producer[1] == NO_PRODUCER_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    wish = Wish(request.transaction_timeout_ms, None if producer == nobody else producer)
    try:
        answer = await broker.transactions.init_producer_id(request.transactional_id, wish)
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(
        error_code=_told(answer.error, ctx, _FIRST_INIT_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


# -- partitions


@handles(ApiKey.ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn(
    broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> Awaitable[AddPartitionsToTxnResponse]:
    """Adds partitions to a client's transaction, or to those of many that a broker speaks for."""
    if ctx.api_version < _FIRST_BATCHED_ADD:
        return _add_for_client(broker, ctx, request)
    return _add_for_broker(broker, ctx, request)


async def _add_for_broker(
    broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    ctx.let_overlap()  # those of many producers come over one connection
    results: list[TransactionResult] = []
    for some in _together(request.transactions):
        results += await asyncio.gather(*(_add_to_one(broker, ctx, each) for each in some))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _together(transactions: Iterable[AddedTransaction]) -> Iterator[list[AddedTransaction]]:
    """Some at a time, of which each may wait for the log: few of very many partitions."""
    weighed = (
        (each, 1 + sum([len(topic.partitions) for topic in each.topics])) for each in transactions
    )
    return bounded(weighed, _LOOKED_AT_TOGETHER, _ADDED_TOGETHER)


async def _add_for_client(
    broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    topics = request.v3_and_below_topics
    try:
        partitions = await _distinct(topics)
        errors = await _impossible(broker, partitions, INTERNAL_TOPICS)
        if errors is None:
            answer = await broker.transactions.add_partitions(
                request.v3_and_below_transactional_id,
                (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
                partitions,
                VERSION_0,
            )
            errors = dict.fromkeys(partitions, _told(answer.error, ctx, _FIRST_WITH_FENCED))
    except KafkaError as error:
        errors = dict.fromkeys(partitions, error.code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(ctx, topics, errors))


async def _add_to_one(
    broker: Broker, ctx: RequestContext, asked: AddedTransaction
) -> TransactionResult:
    producer = asked.producer_id, asked.producer_epoch
    adds = not asked.verify_only
    pace = Pace()
    try:
        partitions = await _distinct(asked.topics)
        errors = await _impossible(broker, partitions) if adds else None
        if errors is None:
            await pace.keep()
            found = await broker.transactions.admit(
                asked.transactional_id, producer, partitions, adds=adds
            )
            await pace.keep()  # those of many are told in the same turn
            errors = dict(zip(partitions, found, strict=True))
    except KafkaError as error:
        errors = dict.fromkeys(partitions, error.code)
    return TransactionResult(asked.transactional_id, _results(ctx, asked.topics, errors))


async def _distinct(topics: Topics) -> list[Partition]:
    """The partitions that are named, each once."""
    found: dict[Partition, None] = {}
    pace = Pace()
    for topic in topics:
        for start in range(0, len(topic.partitions), _LOOKED_AT_TOGETHER):
            await pace.keep()
            some = topic.partitions[start : start + _LOOKED_AT_TOGETHER]
            found.update(dict.fromkeys([(topic.name, index) for index in some]))
    return list(found)


async def _impossible(
    broker: Broker, partitions: Sequence[Partition], forbidden: frozenset[str] = frozenset()
) -> dict[Partition, ErrorCode] | None:
    """The errors of all partitions if one of them can't be in the transaction."""
    errors: dict[Partition, ErrorCode] = {}
    pace = Pace()
    for start in range(0, len(partitions), _LOOKED_AT_TOGETHER):
        await pace.keep()
        known = broker.metadata.topics
        for name, index in partitions[start : start + _LOOKED_AT_TOGETHER]:
            error = ErrorCode.OPERATION_NOT_ATTEMPTED
            if name in forbidden:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif name not in known or index not in known[name].partitions:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors[name, index] = error
    is_possible = set(errors.values()) <= {ErrorCode.OPERATION_NOT_ATTEMPTED}
    return None if is_possible else errors


def _results(
    ctx: RequestContext, topics: Topics, errors: Mapping[Partition, ErrorCode]
) -> list[TopicResult]:
    """The partitions' errors where the response has them; of many when they are encoded."""

    def of_topic(topic: AddedTopic) -> TopicResult:
        def of_index(index: int) -> PartitionResult:
            return PartitionResult(index, errors[topic.name, index])

        of_indexes = elements(topic.partitions, of_index)
        return TopicResult(topic.name, of_indexes if ctx.many else list(of_indexes))

    of_topics = elements(topics, of_topic)
    return of_topics if ctx.many else list(of_topics)


@handles(ApiKey.ADD_OFFSETS_TO_TXN)
async def add_offsets_to_txn(
    broker: Broker, ctx: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Adds the partition in which a group's offsets are kept."""
    try:
        index = await broker.groups.index_of(request.group_id)
        answer = await broker.transactions.add_partitions(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            [(OFFSETS_TOPIC, index)],
            VERSION_0,
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    return AddOffsetsToTxnResponse(error_code=_told(answer.error, ctx, _FIRST_WITH_FENCED))


# -- the end


@handles(ApiKey.END_TXN)
async def end_txn(broker: Broker, ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Decides: answered when that is committed, before the markers are written."""
    version = VERSION_2 if ctx.api_version >= _FIRST_END_OF_VERSION_2 else VERSION_0
    try:
        answer = await broker.transactions.end(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            version,
            is_commit=request.committed,
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code, producer_epoch=NO_PRODUCER_EPOCH)
    return EndTxnResponse(
        error_code=_told(answer.error, ctx, _FIRST_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


# -- what there is


@handles(ApiKey.DESCRIBE_TRANSACTIONS, long=True)
async def describe_transactions(
    broker: Broker, ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """State, owner and partitions of transactional ids, each once."""
    ids = await distinct(request.transactional_ids)
    return DescribeTransactionsResponse(
        transaction_states=elements(ids, partial(_describe, broker, ctx.session.view), ctx, _refuse)
    )


def _describe(broker: Broker, view: View | None, transactional_id: str) -> Described:
    try:
        found = broker.transactions.describe(transactional_id)
    except KafkaError as error:
        return Described(error_code=error.code, transactional_id=transactional_id)
    topics = [
        DescribeTransactionsResponse.TopicData(topic, indexes)
        for topic, indexes in by_topic(found.partitions)
        if view is None or view.may(Operation.DESCRIBE, Resource.TOPIC, topic)
    ]
    return Described(
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=topics,
    )


def _refuse(transactional_id: str) -> Described:
    return Described(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)


@handles(ApiKey.LIST_TRANSACTIONS, long=True)
async def list_transactions(
    broker: Broker, ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactional ids that this broker coordinates, those that pass all filters."""
    pace = Pace()
    state_filters = await distinct(request.state_filters)
    unknown = [name for name in state_filters if name not in BY_LABEL]
    await pace.keep()
    wanted = _Filter(request, state_filters, broker.now_ms())
    await pace.keep()
    listed: list[Listed] = []
    view = ctx.session.view
    try:
        pattern = request.transactional_id_pattern
        matches = _matcher(pattern) if pattern else None
        for some in broker.transactions.transactions():
            for name, found in some:
                if not wanted.passes(found) or not _may_be_listed(view, name):
                    pass
                elif matches is None or matches(name):
                    listed.append(Listed(name, found.producer_id, found.state.label))
                await pace.keep()  # to match a long one takes long
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=unknown[:_UNKNOWN_NAMED_MAX], transaction_states=listed
    )


def _may_be_listed(view: View | None, transactional_id: str) -> bool:
    return view is None or view.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)


def _matcher(pattern: str) -> Callable[[str], object]:
    """Says whether an id matches, which takes long for a long one unless the pattern is simple.

    Raises KafkaError: INVALID_REGULAR_EXPRESSION, as does what it returns.
    """
    of_short = compile_pattern(pattern).fullmatch
    of_long = cache(lambda: compile_pattern(pattern, SMALL_PROGRAM_BYTES).fullmatch)
    return lambda name: (of_short if len(name) <= _SHORT_CHARS else of_long())(name)


class _Filter:
    """What is asked for; an empty filter asks for all."""

    def __init__(
        self, request: ListTransactionsRequest, state_filters: Sequence[str], now_ms: int
    ) -> None:
        self._states = frozenset(BY_LABEL[name] for name in state_filters if name in BY_LABEL)
        self._any_state = not state_filters
        self._producer_ids = frozenset(request.producer_id_filters)
        self._started_before_ms = (
            now_ms - request.duration_filter if request.duration_filter >= 0 else None
        )

    def passes(self, found: Transaction) -> bool:
        """Whether it is asked for."""
        if not self._any_state and found.state not in self._states:
            return False
        if self._producer_ids and found.producer_id not in self._producer_ids:
            return False
        before_ms = self._started_before_ms
        return before_ms is None or (
            found.state is not TransactionState.EMPTY and found.start_ms < before_ms
        )
