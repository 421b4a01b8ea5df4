"""WriteTxnMarkers 1-2 (KIP-98, KIP-1228): coordinators, and operators, end transactions.

* Each marker is answered for each of its partitions, once all in-sync replicas have it; what isn't
  committed in time is REQUEST_TIMED_OUT, and may be committed later.
* A request's markers for a partition are one write (`replication.markers`), unless they are many.
* Those of offsets go to the group coordinator, and are answered when they have taken effect there;
  who leads a partition and doesn't coordinate it yet is NOT_LEADER_OR_FOLLOWER.
* All of them are in the log before the connection's next request is taken; that one needn't wait
  until they are committed: they are those of many transactions.
* `kafka-transactions abort` (KIP-664) sends one for a transaction that its coordinator has
  forgotten, with the epochs that DescribeProducers says, and without a version.
* Where there are ACLs, CLUSTER_ACTION or ALTER of the cluster is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.server.coordination.group_coordinator import OFFSETS_TOPIC
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, elements
from kraftpy.server.replication.markers import Marker, append_markers
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.waiters import Waiter

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

COMMIT_TIMEOUT_S: Final = 1.0
# So many markers for a partition are one write: it takes a few milliseconds.
TOGETHER_MAX: Final = 200

Answers = dict[str, dict[int, ErrorCode]]
"""Of one marker: by topic and partition."""
_End = Callable[[Waiter], None]
"""Calls whom it is given when a marker has been committed, or with the error."""
Wanted = WriteTxnMarkersRequest.WritableTxnMarker
Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


@handles(ApiKey.WRITE_TXN_MARKERS, long=True)
async def write_txn_markers(
    broker: Broker, ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Appends the markers to the partitions that are led here."""
    answers: list[Answers] = [{} for _ in request.markers]
    by_partition: dict[tuple[str, int], list[int]] = {}
    pace = Pace()
    for number, marker in enumerate(request.markers):
        for topic in marker.topics:
            mine = answers[number].setdefault(topic.name, {})
            for index in topic.partition_indexes:
                await pace.keep()
                if index not in mine:
                    mine[index] = ErrorCode.INVALID_REQUEST
                    by_partition.setdefault((topic.name, index), []).append(number)
    waits = _Waits(broker.loop)
    for (name, index), numbers in by_partition.items():
        for start in range(0, len(numbers), TOGETHER_MAX):
            await pace.keep()
            some = {n: _marker(request.markers[n]) for n in numbers[start : start + TOGETHER_MAX]}
            sound = {number: marker for number, marker in some.items() if marker is not None}
            outcomes = _append(broker, name, index, list(sound.values()))
            for number, outcome in zip(sound, outcomes, strict=True):
                if isinstance(outcome, ErrorCode):
                    answers[number][name][index] = outcome
                else:
                    waits.add(outcome, answers[number][name], index)
    ctx.let_overlap()
    await waits.end(COMMIT_TIMEOUT_S)
    results = list(zip(request.markers, answers, strict=True))
    return WriteTxnMarkersResponse(markers=elements(results, _result))


def _marker(wanted: Wanted) -> Marker | None:
    """None if there can't be one like this."""
    if wanted.producer_id < 0 or wanted.producer_epoch < 0 or wanted.coordinator_epoch < 0:
        return None
    return Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        EndTxnMarker(wanted.transaction_result, wanted.coordinator_epoch),
        wanted.transaction_version,
    )


def _append(
    broker: Broker, topic: str, index: int, markers: Sequence[Marker]
) -> Sequence[ErrorCode | _End]:
    """Why each marker isn't taken, or how to hear of its end."""
    partition = broker.replicas.get(topic, index)
    if partition is None:
        return [broker.missing_partition_error(topic, index)] * len(markers)
    if topic == OFFSETS_TOPIC:
        outcomes = broker.groups.write_markers(index, markers)
        return [each if isinstance(each, ErrorCode) else _end_of(each) for each in outcomes]
    if too_few := partition.acks_all_error:
        return [too_few] * len(markers)
    return [
        outcome.code if isinstance(outcome, KafkaError) else _committed(partition, outcome)
        for outcome in append_markers(partition, markers, broker.now_ms())
    ]


def _committed(partition: Partition, offset: int) -> _End:
    def when(ended: Waiter) -> None:
        def reached(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and partition.acks_all_error:
                error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            ended(error)

        partition.when_committed(offset, reached)

    return when


def _end_of(future: asyncio.Future[ErrorCode]) -> _End:
    return lambda ended: future.add_done_callback(lambda done: ended(done.result()))


def _result(answered: tuple[Wanted, Answers]) -> Result:
    marker, answers = answered
    return Result(marker.producer_id, elements(list(answers.items()), _topic_result))


def _topic_result(answered: tuple[str, dict[int, ErrorCode]]) -> TopicResult:
    topic, errors = answered
    return TopicResult(topic, elements(list(errors.items()), lambda each: PartitionResult(*each)))


class _Waits:
    """Markers that are in the log and not committed yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0
        self._ended: asyncio.Future[None] | None = None

    def add(self, when: _End, answers: dict[int, ErrorCode], index: int) -> None:
        """Has the answer of a partition be what becomes of its marker."""
        self._left += 1
        answers[index] = ErrorCode.REQUEST_TIMED_OUT

        def ended(error: ErrorCode) -> None:
            answers[index] = error
            self._left -= 1
            if not self._left and self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

        when(ended)

    async def end(self, timeout_s: float) -> None:
        """Returns when all have been committed, or the time is over."""
        if self._left:
            self._ended = self._loop.create_future()
            await asyncio.wait([self._ended], timeout=timeout_s)
