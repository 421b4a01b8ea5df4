"""DescribeQuorum (KIP-595, KIP-836, KIP-853): the metadata quorum, as its leader knows it.

Rules: the log that has a quorum here is `__cluster_metadata`, partition 0; its offsets are the
quorum's indexes. Any broker answers, with what the active controller told it just now. Voters are
static, so their directory ids are zero, as in a Kafka quorum that is given by
controller.quorum.voters; their addresses come from there too.

The quorum's leader hands its lead over when ElectLeaders names that partition with the voter that
is to lead in the tagged field `LEADER_TAG`: an extension, Kafka has no request for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from kraftpy.quorum.messages import QuorumDescription, QuorumReplica
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0
TRANSFER_TIMEOUT_MAX_MS = 60_000
# Short: no field of the request says how long its client waits, and clients ask again.
TIMEOUT_MS = 1_500
# Tagged field of ElectLeadersRequest: the voter's id in four bytes.
LEADER_TAG = 10_000
_NO_DIRECTORY = bytes(16)
_ONE_QUORUM = f"only {METADATA_TOPIC}, partition {METADATA_PARTITION}, has a quorum"

Partition = DescribeQuorumResponse.PartitionData


@handles(ApiKey.DESCRIBE_QUORUM, long=True, cluster=Operation.DESCRIBE)
async def describe_quorum(
    broker: Broker, ctx: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Leader, voters and observers of the metadata log, with how far each of them is."""
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics[:2]
        for partition in topic.partitions[:2]
    ]
    if asked != [(METADATA_TOPIC, METADATA_PARTITION)] or len(request.topics) > 1:
        return await _refusal(request)
    described = await broker.controller.describe_quorum(TIMEOUT_MS)
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponse.TopicData(METADATA_TOPIC, [_partition(described)])],
        nodes=_nodes(broker),
    )


async def _refusal(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    wanted: dict[str, dict[int, None]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        indexes = (each.partition_index for each in topic.partitions)
        wanted.setdefault(topic.topic_name, {}).update(dict.fromkeys(indexes))
    return DescribeQuorumResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=_ONE_QUORUM,
        topics=elements(list(wanted.items()), _refused),
    )


def _refused(wanted: tuple[str, dict[int, None]]) -> DescribeQuorumResponse.TopicData:
    name, indexes = wanted
    return DescribeQuorumResponse.TopicData(
        name,
        elements(
            list(indexes),
            lambda index: Partition(
                index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _ONE_QUORUM, leader_id=-1
            ),
        ),
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


def names_a_voter(request: ElectLeadersRequest) -> bool:
    """Whether the request is the extension that hands the lead over."""
    return request._tags is not None and LEADER_TAG in request._tags


async def elect_controller(broker: Broker, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Has the voter that the request names lead the quorum."""
    named = [(topic.topic, topic.partitions) for topic in request.topic_partitions or ()]
    voter = (request._tags or {})[LEADER_TAG]
    if named != [(METADATA_TOPIC, [METADATA_PARTITION])] or len(voter) != 4:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the lead of {METADATA_TOPIC}, partition {METADATA_PARTITION}, alone can be given "
            "to a voter, whose id has four bytes",
        )
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    try:
        await broker.controller.transfer_leadership(
            int.from_bytes(voter, "big"), max(1, min(request.timeout_ms, TRANSFER_TIMEOUT_MAX_MS))
        )
    except KafkaError as refusal:  # the response has a message for partitions only
        error, message = refusal.code, refusal.message
    result = ElectLeadersResponse.PartitionResult(METADATA_PARTITION, error, message)
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(METADATA_TOPIC, [result])
        ]
    )
