"""Transactional ids: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
DescribeTransactions, ListTransactions.

This module turns versions into one form and errors into the place where each response has them; the
rules are in `kraftpy.core.transactions`. Beyond that:

* PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients that are older than it.
* AddPartitionsToTxn adds all partitions of a transaction or none: if one isn't there, it is
  UNKNOWN_TOPIC_OR_PARTITION and the others are OPERATION_NOT_ATTEMPTED. Versions 4 and 5 are
  those of brokers, which ask for many transactions, and may only ask whether a partition is in one.
* Offsets that a transaction commits are in a partition of the group's coordinator, which is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.core.groups.consumer.regex import compile_pattern
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
from kraftpy.server.coordination.group_coordinator import OFFSETS_TOPIC
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, elements

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_FIRST_INIT_WITH_FENCED = 4
_FIRST_WITH_FENCED = 2  # AddPartitionsToTxn, AddOffsetsToTxn and EndTxn
_FIRST_BATCHED_ADD = 4
_FIRST_END_OF_VERSION_2 = 5
_ADDED_TOGETHER = 1_000

Topics = Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
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
    for start in range(0, len(request.transactions), _ADDED_TOGETHER):
        some = request.transactions[start : start + _ADDED_TOGETHER]
        results += await asyncio.gather(*(_add_to_one(broker, each) for each in some))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _add_for_client(
    broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    topics = request.v3_and_below_topics
    try:
        errors = _missing(broker, topics)
        if errors is None:
            answer = await broker.transactions.add_partitions(
                request.v3_and_below_transactional_id,
                (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
                _partitions(topics),
                VERSION_0,
            )
            errors = _same(topics, _told(answer.error, ctx, _FIRST_WITH_FENCED))
    except KafkaError as error:
        errors = _same(topics, error.code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, errors))


async def _add_to_one(broker: Broker, asked: AddedTransaction) -> TransactionResult:
    producer = asked.producer_id, asked.producer_epoch
    adds = not asked.verify_only
    try:
        errors = _missing(broker, asked.topics) if adds else None
        if errors is None:
            errors = await broker.transactions.admit(
                asked.transactional_id, producer, _partitions(asked.topics), adds=adds
            )
    except KafkaError as error:
        errors = _same(asked.topics, error.code)
    return TransactionResult(asked.transactional_id, _results(asked.topics, errors))


def _partitions(topics: Topics) -> list[Partition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _missing(broker: Broker, topics: Topics) -> list[ErrorCode] | None:
    """The errors of all partitions if one of them isn't there."""
    known = broker.metadata.topics
    there = [
        name in known and index in known[name].partitions for name, index in _partitions(topics)
    ]
    if all(there):
        return None
    unknown, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    return [others if is_there else unknown for is_there in there]


def _same(topics: Topics, error: ErrorCode) -> list[ErrorCode]:
    return [error] * sum(len(topic.partitions) for topic in topics)


def _results(topics: Topics, errors: Iterable[ErrorCode]) -> list[TopicResult]:
    """The errors of the partitions, in their order, where the response has them."""
    following = iter(errors)
    return [
        TopicResult(
            topic.name,
            [PartitionResult(index, next(following)) for index in topic.partitions],
        )
        for topic in topics
    ]


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
def describe_transactions(
    broker: Broker, ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """State, owner and partitions of transactional ids, each once."""
    ids = list(dict.fromkeys(request.transactional_ids))
    return DescribeTransactionsResponse(
        transaction_states=elements(ids, partial(_describe, broker), ctx, _refuse)
    )


def _describe(broker: Broker, transactional_id: str) -> Described:
    try:
        found = broker.transactions.describe(transactional_id)
    except KafkaError as error:
        return Described(error_code=error.code, transactional_id=transactional_id)
    topics = [
        DescribeTransactionsResponse.TopicData(topic, indexes)
        for topic, indexes in by_topic(found.partitions)
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
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in BY_LABEL]
    wanted = _Filter(request, broker.now_ms())
    listed: list[Listed] = []
    pace = Pace()
    try:
        pattern = request.transactional_id_pattern
        matches = compile_pattern(pattern).fullmatch if pattern else None
        for some in broker.transactions.transactions():
            listed += [
                Listed(name, found.producer_id, found.state.label)
                for name, found in some
                if wanted.passes(found) and (matches is None or matches(name))
            ]
            await pace.keep()
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)


class _Filter:
    """What is asked for; an empty filter asks for all."""

    def __init__(self, request: ListTransactionsRequest, now_ms: int) -> None:
        self._states = frozenset(
            BY_LABEL[name] for name in request.state_filters if name in BY_LABEL
        )
        self._any_state = not request.state_filters
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
