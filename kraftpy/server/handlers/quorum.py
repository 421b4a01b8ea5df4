"""DescribeQuorum 0-2 (KIP-595, KIP-836, KIP-853): the metadata quorum, as its leader knows it.

Rules: the log that has a quorum here is `__cluster_metadata`, partition 0; its offsets are the
quorum's indexes. Any broker answers, with what the active controller told it just now. Voters are
static, so their directory ids are zero, as in a Kafka quorum that is given by
controller.quorum.voters; their addresses come from there too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse
from kraftpy.quorum.messages import QuorumDescription, QuorumReplica
from kraftpy.server.dispatch import RequestContext, handles

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0
TIMEOUT_MS = 4_000  # no field of the request says how long its client waits
_NO_DIRECTORY = bytes(16)

Partition = DescribeQuorumResponse.PartitionData


@handles(ApiKey.DESCRIBE_QUORUM)
async def describe_quorum(
    broker: Broker, ctx: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Leader, voters and observers of the metadata log, with how far each of them is."""
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, METADATA_PARTITION)]:
        return _refusal(request)
    described = await broker.controller.describe_quorum(TIMEOUT_MS)
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponse.TopicData(METADATA_TOPIC, [_partition(described)])],
        nodes=_nodes(broker),
    )


def _refusal(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = f"only {METADATA_TOPIC}, partition {METADATA_PARTITION}, has a quorum"
    return DescribeQuorumResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=message,
        topics=[
            DescribeQuorumResponse.TopicData(
                topic.topic_name,
                [
                    Partition(each.partition_index, error, message, leader_id=-1)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _partition(described: QuorumDescription) -> Partition:
    return Partition(
        METADATA_PARTITION,
        ErrorCode.NONE,
        None,
        described.leader_id,
        described.leader_epoch,
        described.high_watermark,
        _replicas(described.voters),
        _replicas(described.observers),
    )


def _replicas(replicas: Iterable[QuorumReplica]) -> list[DescribeQuorumResponse.ReplicaState]:
    return [
        DescribeQuorumResponse.ReplicaState(
            each.replica_id,
            _NO_DIRECTORY,
            each.log_end_offset,
            each.last_fetch_timestamp_ms,
            each.last_caught_up_timestamp_ms,
        )
        for each in replicas
    ]


def _nodes(broker: Broker) -> list[DescribeQuorumResponse.Node]:
    name = broker.config.controller_listener_names[0]
    return [
        DescribeQuorumResponse.Node(
            voter.id, [DescribeQuorumResponse.Listener(name, voter.host, voter.port)]
        )
        for voter in broker.config.voters
    ]
