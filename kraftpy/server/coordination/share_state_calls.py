"""What share coordinators are asked for, of a share-partition each: here and over the wire.

The APIs are those of KIP-932. Which version is sent isn't negotiated: the level of the feature
`share.version` says that all brokers know them, while clients don't hear of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from kraftpy.core.leases.share_state import Summary
from kraftpy.core.leases.state import UNKNOWN, StateAnswer, StateWrite
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.leases.terms import StateBatch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, error_code
from kraftpy.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
)

T = TypeVar("T")


class Initialize(NamedTuple):
    """Begins to keep something, or begins anew with the next state epoch."""

    state_epoch: int
    start_offset: int


class Read(NamedTuple):
    """All of it, for the leader of this epoch."""

    leader_epoch: int


class Delete(NamedTuple):
    """Nothing is kept any more."""


class ReadSummary(NamedTuple):
    """All but its batches."""

    leader_epoch: int


Call: TypeAlias = Initialize | Read | StateWrite | Delete | ReadSummary

KINDS: Mapping[ApiKey, type[Call]] = MappingProxyType(
    {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: Initialize,
        ApiKey.READ_SHARE_GROUP_STATE: Read,
        ApiKey.WRITE_SHARE_GROUP_STATE: StateWrite,
        ApiKey.DELETE_SHARE_GROUP_STATE: Delete,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: ReadSummary,
    }
)
"""What each of the APIs asks for."""

PersistedState: TypeAlias = StateAnswer


class StateSummary(NamedTuple):
    """What a `ReadSummary` gives; start offset -1: nobody has begun to read."""

    error: ErrorCode
    state_epoch: int = UNKNOWN.state_epoch
    leader_epoch: int = UNKNOWN.leader_epoch
    start_offset: int = UNKNOWN.start_offset
    finished_count: int = UNKNOWN.finished_count


Answer: TypeAlias = PersistedState | StateSummary

Place: TypeAlias = tuple[bytes, int]
"""A partition: its topic's id, and its index."""


class Coordinator(Protocol):
    """The share coordinator of this broker; each raises KafkaError if it isn't the key's."""

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int
    ) -> StateAnswer | asyncio.Future[StateAnswer]: ...
    def read_state(
        self, key: ShareKey, leader_epoch: int
    ) -> StateAnswer | asyncio.Future[StateAnswer]: ...
    def write_state(
        self, key: ShareKey, write: StateWrite
    ) -> StateAnswer | asyncio.Future[StateAnswer]: ...
    def delete_state(self, key: ShareKey) -> StateAnswer | asyncio.Future[StateAnswer]: ...
    def summary(self, key: ShareKey) -> Summary: ...


def perform(
    coordinator: Coordinator, key: ShareKey, call: Call
) -> Answer | asyncio.Future[StateAnswer]:
    """Has the coordinator of this broker do it. Raises KafkaError if it isn't the key's."""
    match call:
        case Initialize(state_epoch, start_offset):
            return coordinator.initialize(key, state_epoch, start_offset)
        case Read(leader_epoch):
            return coordinator.read_state(key, leader_epoch)
        case StateWrite():
            return coordinator.write_state(key, call)
        case Delete():
            return coordinator.delete_state(key)
        case ReadSummary():
            return StateSummary(ErrorCode.NONE, *coordinator.summary(key))


def failure(kind: type[Call], error: ErrorCode) -> Answer:
    """The answer to such a call that says nothing else."""
    return StateSummary(error) if kind is ReadSummary else StateAnswer(error)


# -- over the wire


class _Form(NamedTuple):
    """How calls of a kind are sent: `partition` makes its part of index and call."""

    request: type[Any]
    topic: type[Any]
    partition: Callable[[int, Any], Any]
    version: int


_Initialized = InitializeShareGroupStateRequest.PartitionData
_Written = WriteShareGroupStateRequest.PartitionData
_Summarized = ReadShareGroupStateSummaryRequest.PartitionData
_WrittenBatch = WriteShareGroupStateRequest.StateBatch


def _written(index: int, call: StateWrite) -> _Written:
    state_epoch, leader_epoch, start_offset, finished_count, batches = call
    written = [_WrittenBatch(*each) for each in batches]
    return _Written(index, state_epoch, leader_epoch, start_offset, finished_count, written)


_FORMS: dict[type[Call], _Form] = {
    Initialize: _Form(
        InitializeShareGroupStateRequest,
        InitializeShareGroupStateRequest.InitializeStateData,
        lambda index, call: _Initialized(index, call.state_epoch, call.start_offset),
        0,
    ),
    Read: _Form(
        ReadShareGroupStateRequest,
        ReadShareGroupStateRequest.ReadStateData,
        lambda index, call: ReadShareGroupStateRequest.PartitionData(index, call.leader_epoch),
        0,
    ),
    StateWrite: _Form(
        WriteShareGroupStateRequest,
        WriteShareGroupStateRequest.WriteStateData,
        _written,
        1,
    ),
    Delete: _Form(
        DeleteShareGroupStateRequest,
        DeleteShareGroupStateRequest.DeleteStateData,
        lambda index, call: DeleteShareGroupStateRequest.PartitionData(index),
        0,
    ),
    ReadSummary: _Form(
        ReadShareGroupStateSummaryRequest,
        ReadShareGroupStateSummaryRequest.ReadStateSummaryData,
        lambda index, call: _Summarized(index, call.leader_epoch),
        1,
    ),
}


def by_topic(items: Iterable[tuple[Place, T]]) -> Iterable[tuple[bytes, list[tuple[int, T]]]]:
    """These by the ids of their topics."""
    found: dict[bytes, list[tuple[int, T]]] = {}
    for (topic_id, index), item in items:
        found.setdefault(topic_id, []).append((index, item))
    return found.items()


def request_of(
    kind: type[Call], group_id: str, calls: Sequence[tuple[ShareKey, Call]]
) -> tuple[Any, int]:
    """The request with these calls of one kind, no partition twice, and its version."""
    request, topic, partition, version = _FORMS[kind]
    places = (((key.topic_id, key.partition), call) for key, call in calls)
    topics = [
        topic(topic_id, [partition(index, call) for index, call in some])
        for topic_id, some in by_topic(places)
    ]
    return request(group_id, topics), version


def answers_of(response: Any) -> dict[Place, Answer]:
    """What a response to one of those requests says."""
    is_summary = isinstance(response, ReadShareGroupStateSummaryResponse)
    return {
        (bytes(topic.topic_id), each.partition): _summary(each) if is_summary else _state(each)
        for topic in response.results
        for each in topic.partitions
    }


def _summary(said: ReadShareGroupStateSummaryResponse.PartitionResult) -> StateSummary:
    return StateSummary(
        error_code(said.error_code),
        said.state_epoch,
        said.leader_epoch,
        said.start_offset,
        said.delivery_complete_count,
    )


def _state(said: Any) -> PersistedState:
    error = error_code(said.error_code)
    if error or not hasattr(said, "state_batches"):
        return StateAnswer(error)
    batches = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in said.state_batches
    )
    return StateAnswer(error, said.state_epoch, said.start_offset, batches)
