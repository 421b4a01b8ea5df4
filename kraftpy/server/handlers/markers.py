"""WriteTxnMarkers 1-2 (KIP-98, KIP-1228): coordinators, and operators, end transactions.

How they are written, and what is answered, is in `coordination.marker_writes`. Rules:

* All of them are in the log before the connection's next request is taken; that one needn't wait
  until they are committed: they are those of many transactions.
* `kafka-transactions abort` (KIP-664) sends one for a transaction that its coordinator has
  forgotten, with the epochs that DescribeProducers says, and without a version.
* Where there are ACLs, CLUSTER_ACTION or ALTER of the cluster is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.server.coordination.marker_writes import Answers, Wanted, write_markers
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


@handles(ApiKey.WRITE_TXN_MARKERS, long=True)
async def write_txn_markers(
    broker: Broker, ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Appends the markers to the partitions that are led here."""
    answers = await write_markers(broker, request.markers, ctx.let_overlap)
    results = list(zip(request.markers, answers, strict=True))
    return WriteTxnMarkersResponse(markers=elements(results, _result))


def _result(answered: tuple[Wanted, Answers]) -> Result:
    marker, answers = answered
    return Result(marker.producer_id, elements(list(answers.items()), _topic_result))


def _topic_result(answered: tuple[str, dict[int, ErrorCode]]) -> TopicResult:
    topic, errors = answered
    return TopicResult(topic, elements(list(errors.items()), lambda each: PartitionResult(*each)))
