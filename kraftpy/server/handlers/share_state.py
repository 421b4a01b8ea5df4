"""Initialize-, Read-, Write- and DeleteShareGroupState, ReadShareGroupStateSummary (KIP-932).

By these, brokers that lead partitions, or coordinate groups, have what becomes of leased records
kept at share coordinators (`coordination.share_persister`). Rules:

* A partition is answered when what is decided of it is committed, all that come together in a turn
  of the loop as one batch. One that is named twice is decided once, by what is said of it last.
* A write of more batches than a leader has leases is refused before it is looked at.
* Where there are ACLs, CLUSTER_ACTION is asked for. Clients aren't told of these APIs while there
  are no share groups, but brokers may use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.core.leases.state import BATCHES_MAX, StateAnswer, StateWrite
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.leases.terms import StateBatch
from kraftpy.core.security.acls import Operation
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kraftpy.server.coordination.share_state_calls import (
    KINDS,
    Answer,
    Call,
    Delete,
    Initialize,
    Place,
    Read,
    ReadSummary,
    by_topic,
    failure,
    perform,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

# A group's id is in the keys of records, whose strings have a 16-bit length, with 22 bytes more.
GROUP_ID_MAX_BYTES = 32_000

_Answers = list[tuple[Place, Answer]]


class _Form(NamedTuple):
    """How calls of a kind come, and are answered.

    `call` makes one of a partition's part of a request, None: it can't be one. `result` makes a
    partition's part of the answer, of its index and what was said.
    """

    call: Callable[[Any], Call | None]
    response: type[Any]
    topic: type[Any]
    result: Callable[[int, Any], Any]


_Initialized = InitializeShareGroupStateResponse.PartitionResult
_Written = WriteShareGroupStateResponse.PartitionResult
_Deleted = DeleteShareGroupStateResponse.PartitionResult
_Summarized = ReadShareGroupStateSummaryResponse.PartitionResult


def _read(index: int, said: StateAnswer) -> ReadShareGroupStateResponse.PartitionResult:
    kinds = ReadShareGroupStateResponse
    error, epoch, start, batches = said
    kept = elements(batches, lambda batch: kinds.StateBatch(*batch))
    return kinds.PartitionResult(index, error, None, epoch, start, kept)


def _write(each: WriteShareGroupStateRequest.PartitionData) -> StateWrite | None:
    if len(each.state_batches) > BATCHES_MAX:
        return None
    batches = tuple(
        StateBatch(some.first_offset, some.last_offset, some.delivery_state, some.delivery_count)
        for some in each.state_batches
    )
    return StateWrite(
        each.state_epoch,
        each.leader_epoch,
        each.start_offset,
        each.delivery_complete_count,
        batches,
    )


_FORMS: dict[type[Call], _Form] = {
    Initialize: _Form(
        lambda each: Initialize(each.state_epoch, each.start_offset),
        InitializeShareGroupStateResponse,
        InitializeShareGroupStateResponse.InitializeStateResult,
        lambda index, said: _Initialized(index, said.error),
    ),
    Read: _Form(
        lambda each: Read(each.leader_epoch),
        ReadShareGroupStateResponse,
        ReadShareGroupStateResponse.ReadStateResult,
        _read,
    ),
    StateWrite: _Form(
        _write,
        WriteShareGroupStateResponse,
        WriteShareGroupStateResponse.WriteStateResult,
        lambda index, said: _Written(index, said.error),
    ),
    Delete: _Form(
        lambda _: Delete(),
        DeleteShareGroupStateResponse,
        DeleteShareGroupStateResponse.DeleteStateResult,
        lambda index, said: _Deleted(index, said.error),
    ),
    ReadSummary: _Form(
        lambda each: ReadSummary(each.leader_epoch),
        ReadShareGroupStateSummaryResponse,
        ReadShareGroupStateSummaryResponse.ReadStateSummaryResult,
        lambda index, said: _Summarized(index, said[0], None, *said[1:]),
    ),
}


async def _serve(kind: type[Call], broker: Broker, ctx: RequestContext, request: Any) -> Any:
    """The answer to a request with calls of this kind."""
    call_of, response, topic_result, result = _FORMS[kind]
    pace = Pace()
    wanted: dict[Place, Any] = {}
    for topic in request.topics:
        topic_id = bytes(topic.topic_id)
        for each in topic.partitions:
            wanted[topic_id, each.partition] = each
            await pace.keep()
    group_id = request.group_id
    is_known = 0 < len(group_id.encode()) <= GROUP_ID_MAX_BYTES
    invalid = failure(kind, ErrorCode.INVALID_REQUEST)
    coming: list[tuple[Place, Answer | asyncio.Future[StateAnswer]]] = []
    for place, each in wanted.items():
        said: Answer | asyncio.Future[StateAnswer] = invalid
        call = call_of(each) if is_known else None
        if call is not None:
            try:
                said = perform(broker.share_coordinator, ShareKey(group_id, *place), call)
            except KafkaError as error:
                said = failure(kind, error.code)
        coming.append((place, said))
        await pace.keep()
    answers = [
        (place, await said if isinstance(said, asyncio.Future) else said) for place, said in coming
    ]

    def refuse(item: tuple[int, Answer]) -> Any:
        return result(item[0], invalid)

    def of_topic(item: tuple[bytes, list[tuple[int, Answer]]]) -> Any:
        topic_id, said = item
        return topic_result(topic_id, elements(said, lambda each: result(*each), ctx, refuse))

    return response(elements(list(by_topic(answers)), of_topic))


for _key, _kind in KINDS.items():
    handles(_key, concurrent=True, long=True, cluster=Operation.CLUSTER_ACTION)(
        partial(_serve, _kind)
    )


def denied(kind: type[Call], request: Any, error: ErrorCode) -> Any:
    """The answer to who has no right to it."""
    _, response, topic_result, result = _FORMS[kind]
    said = failure(kind, error)
    return response(
        elements(
            request.topics,
            lambda topic: topic_result(
                topic.topic_id,
                elements(topic.partitions, lambda each: result(each.partition, said)),
            ),
        )
    )
