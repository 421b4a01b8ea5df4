"""WriteTxnMarkers 1-2 (KIP-98, KIP-1228): coordinators, and operators, end transactions.

* Each marker is answered for each of its partitions, once all in-sync replicas have it; what isn't
  committed in time is REQUEST_TIMED_OUT, and may be committed later.
* A request's markers for a partition are one write (`replication.markers`), unless they are many.
* All of them are in the log before the connection's next request is taken; that one needn't wait
  until they are committed: they are those of many transactions.
* `kafka-transactions abort` (KIP-664) sends one for a transaction that its coordinator has
  forgotten, with the epochs that DescribeProducers says, and without a version.
* Where there are ACLs, CLUSTER_ACTION or ALTER of the cluster is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, elements
from kraftpy.server.replication.markers import Marker, append_markers
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

COMMIT_TIMEOUT_S: Final = 1.0
# So many markers for a partition are one write: it takes a few milliseconds.
TOGETHER_MAX: Final = 200

Answers = dict[str, dict[int, ErrorCode]]
"""Of one marker: by topic and partition."""
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
                if isinstance(outcome, KafkaError):
                    answers[number][name][index] = outcome.code
                else:
                    waits.add(*outcome, answers[number][name], index)
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
) -> list[tuple[Partition, int] | KafkaError]:
    """Where each marker has to be committed, and up to which offset; or why it isn't taken."""
    partition = broker.replicas.get(topic, index)
    if partition is None:
        return [KafkaError(broker.missing_partition_error(topic, index))] * len(markers)
    if too_few := partition.acks_all_error:
        return [KafkaError(too_few)] * len(markers)
    return [
        outcome if isinstance(outcome, KafkaError) else (partition, outcome)
        for outcome in append_markers(partition, markers, broker.now_ms())
    ]


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

    def add(
        self, partition: Partition, offset: int, answers: dict[int, ErrorCode], index: int
    ) -> None:
        """Has the answer of a partition be what becomes of the marker below this offset."""
        self._left += 1
        answers[index] = ErrorCode.REQUEST_TIMED_OUT

        def committed(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and partition.acks_all_error:
                error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            answers[index] = error
            self._left -= 1
            if not self._left and self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

        partition.when_committed(offset, committed)

    async def end(self, timeout_s: float) -> None:
        """Returns when all have been committed, or the time is over."""
        if self._left:
            self._ended = self._loop.create_future()
            await asyncio.wait([self._ended], timeout=timeout_s)
