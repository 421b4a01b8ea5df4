"""TxnOffsetCommit (KIP-98, KIP-447): a producer commits a group's offsets in its transaction.

The rules are in `kraftpy.core.groups.transactions`. Beyond that:

* The offsets are a transactional batch in the group's partition of the offsets topic, which has to
  be in the transaction: as with a Produce, its coordinator is asked before the first one. From
  version 5 on that adds it (KIP-890). So it is with claims and the twin of that topic.
* Claims that are to wait for those below (`wait_for_stable`) do so when their transaction has the
  partition, so that they hear of its end, and before they are written. The transaction may have
  ended then: its coordinator is asked anew.
* What passes by itself is COORDINATOR_LOAD_IN_PROGRESS, upon which clients send it again; before
  version 2 COORDINATOR_NOT_AVAILABLE, as some of those break upon the other (KAFKA-7296).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

from kraftpy.core.groups.individual.requests import ManyClaims, has_claims, waits
from kraftpy.core.groups.transactions import FIRST_WITH_CLAIMS, transactional_error_response
from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC, OFFSETS_TOPIC
from kraftpy.core.transactions import VERSION_0, VERSION_2
from kraftpy.core.transactions.admission import NO_TRANSACTIONS_YET, Token
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kraftpy.server.coordination.offset_forwarding import forwarded
from kraftpy.server.coordination.runtime import answer_of
from kraftpy.server.coordination.transaction_questions import FIRST_COMMIT_OF_VERSION_2
from kraftpy.server.handlers.claim_parts import commit_in_parts
from kraftpy.server.handlers.groups import exceeds_a_batch
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.transactional_batches import Question
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_FIRST_WITH_LOADING = 2

T = TypeVar("T")

_TopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_PartitionAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


@handles(ApiKey.TXN_OFFSET_COMMIT)
@forwarded
def txn_offset_commit(
    broker: Broker, ctx: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    """Commits offsets in a transaction, all in one batch."""
    try:
        if request.producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if request.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        partitions = _partitions(broker, ctx, request)
        if ctx.many and exceeds_a_batch(broker, request):
            return _refuse_many(request)
        if _waits(ctx, request):
            return _wait_and_commit(broker, ctx, request, partitions)
        if all(_is_admitted(each, request) for each in partitions):
            return broker.groups.commit_in_transaction(ctx.api_version, request)
    except ManyClaims:
        return _commit_claims(broker, ctx, request, partitions)
    except KafkaError as error:
        return _refuse(ctx, request, error.code)
    return _ask_and_commit(broker, ctx, request, partitions)


async def _commit_claims(
    broker: Broker,
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    partitions: list[Partition],
) -> TxnOffsetCommitResponse:
    """In parts, of which each needs the partitions that all of it does."""

    async def commit(part: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        answer = await _ask(
            broker,
            ctx,
            part,
            partitions,
            lambda: broker.groups.commit_in_transaction(ctx.api_version, part),
        )
        return await answer_of(answer)

    try:
        found = await commit_in_parts(request, commit, transactional_error_response)
    except KafkaError as error:
        return _refuse(ctx, request, error.code)
    return cast("TxnOffsetCommitResponse", found)


def _partitions(
    broker: Broker, ctx: RequestContext, request: TxnOffsetCommitRequest
) -> list[Partition]:
    """What is written for the request: where the group's offsets are kept, and its claims.

    Raises KafkaError if this broker doesn't coordinate the group.
    """
    index = broker.groups.served_partition(request.group_id)
    names = [(OFFSETS_TOPIC, index)]
    if ctx.api_version >= FIRST_WITH_CLAIMS and any(
        each._tags for topic in request.topics for each in topic.partitions
    ):
        claim = [has_claims(each._tags) for topic in request.topics for each in topic.partitions]
        if all(claim):
            names.clear()
        if any(claim) and broker.groups.served_claims(request.group_id) is not None:
            names.append((INDIVIDUAL_OFFSETS_TOPIC, index))
    found = [broker.replicas.get(*each) for each in names]
    partitions = [each for each in found if each is not None]
    if len(partitions) < len(names):
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    return partitions


def _waits(ctx: RequestContext, request: TxnOffsetCommitRequest) -> bool:
    return ctx.api_version >= FIRST_WITH_CLAIMS and any(
        each._tags and waits(each._tags) for topic in request.topics for each in topic.partitions
    )


def _is_admitted(
    partition: Partition, request: TxnOffsetCommitRequest, token: Token | None = None
) -> bool:
    producer = request.producer_id, request.producer_epoch
    log = partition.log
    return partition.admission.admits(producer, log.producers, log.uptime_ms(), token)


async def _wait_and_commit(
    broker: Broker,
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    partitions: list[Partition],
) -> TxnOffsetCommitResponse:
    try:
        await _ask(broker, ctx, request, partitions, lambda: None)
        ctx.patience_s = broker.config.offsets_commit_timeout_ms / 1000
        error = await answer_of(broker.groups.wait_for_stable(request))
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        partitions = _partitions(broker, ctx, request)
    except ManyClaims:
        return _refuse(ctx, request, ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED)
    except KafkaError as refused:
        return _refuse(ctx, request, refused.code)
    return await _ask_and_commit(broker, ctx, request, partitions)


async def _ask_and_commit(
    broker: Broker,
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    partitions: list[Partition],
) -> TxnOffsetCommitResponse:
    try:
        answer = await _ask(
            broker,
            ctx,
            request,
            partitions,
            lambda: broker.groups.commit_in_transaction(ctx.api_version, request),
        )
    except ManyClaims:
        return await _commit_claims(broker, ctx, request, partitions)
    except KafkaError as error:
        return _refuse(ctx, request, error.code)
    return await answer_of(answer)


async def _ask(
    broker: Broker,
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    partitions: list[Partition],
    admitted: Callable[[], T],
) -> T:
    """Does what is to be done at once when the transaction has all of these, or raises KafkaError.

    Its coordinator is asked unless the logs know that.
    """
    if all(_is_admitted(each, request) for each in partitions):
        return admitted()
    if not broker.serves_transactions:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, NO_TRANSACTIONS_YET)
    producer = request.producer_id, request.producer_epoch
    version = VERSION_2 if ctx.api_version >= FIRST_COMMIT_OF_VERSION_2 else VERSION_0
    questions = [Question(each, producer, version) for each in partitions]
    try:
        answers = broker.transaction_questions.admit_offsets(
            request.transactional_id, producer, [each.place for each in questions], ctx.api_version
        )
        for question in questions:
            question.answers = answers
        await answers
        tokens = [question.token() for question in questions]
        if not set(_partitions(broker, ctx, request)) <= set(partitions):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not all(map(_is_admitted, partitions, [request] * len(tokens), tokens)):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        return admitted()
    finally:
        for question in questions:
            question.settle()


def _refuse(
    ctx: RequestContext, request: TxnOffsetCommitRequest, error: ErrorCode
) -> TxnOffsetCommitResponse:
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        error = ErrorCode.NOT_COORDINATOR
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < _FIRST_WITH_LOADING:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return transactional_error_response(request, error)


def _refuse_many(request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """They are more than a batch takes."""
    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return TxnOffsetCommitResponse(
        topics=elements(
            request.topics,
            lambda topic: _TopicAnswer(
                topic.name,
                elements(
                    topic.partitions, lambda each: _PartitionAnswer(each.partition_index, error)
                ),
            ),
        )
    )
