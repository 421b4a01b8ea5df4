"""DescribeCluster, UnregisterBroker, DescribeLogDirs and AlterReplicaLogDirs.

DescribeCluster (KIP-700, KIP-1073) names every live broker, and the fenced ones if they are asked
for, under the address that this client can use. The controller is the active one where that node
takes clients; any broker passes on to the quorum what only a controller can do.
UnregisterBroker (KIP-631) forgets a broker that won't come back.
DescribeLogDirs (KIP-113, KIP-827) says how much of what lies in this broker's folders; none of them
is ever cordoned off (version 5).
AlterReplicaLogDirs (KIP-113) says whether replicas are in the folders that they are wanted in, as
kafka-reassign-partitions asks for every plan with folders; nothing moves between folders here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.metadata.commands import UnregisterBroker
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import METRICS_TAG, REGISTERED_TAG, encode_int64
from kraftpy.protocol.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kraftpy.server.cluster.operations import cluster_operations
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker
    from kraftpy.server.network.addresses import Node
    from kraftpy.storage.manager import LogDirDescription

ENDPOINT_TYPE_BROKERS = 1
UNREGISTRATION_TIMEOUT_MS = 30_000

LogDirResult = DescribeLogDirsResponse.DescribeLogDirsResult
LogDirTopic = DescribeLogDirsResponse.DescribeLogDirsTopic


@handles(ApiKey.DESCRIBE_CLUSTER)
def describe_cluster(
    broker: Broker, ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The cluster's id, controller and brokers."""
    if request.endpoint_type != ENDPOINT_TYPE_BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker: ask for endpoint type 1 (brokers)",
            endpoint_type=ENDPOINT_TYPE_BROKERS,
        )
    nodes = broker.all_nodes if request.include_fenced_brokers else broker.reachable_nodes
    return DescribeClusterResponse(
        endpoint_type=ENDPOINT_TYPE_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id(),
        brokers=[_broker_of(broker, node) for node in nodes(ctx)],
        cluster_authorized_operations=cluster_operations(
            ctx.session.view, request.include_cluster_authorized_operations
        ),
    )


def _broker_of(broker: Broker, node: Node) -> DescribeClusterResponse.DescribeClusterBroker:
    known = broker.metadata.brokers[node.node_id]
    tags = {}
    if known.registered_ms:
        tags[REGISTERED_TAG] = encode_int64(known.registered_ms)
    if known.metrics is not None:
        tags[METRICS_TAG] = known.metrics.encode()
    return DescribeClusterResponse.DescribeClusterBroker(
        node.node_id, node.host, node.port, node.rack, node.fenced, _tags=tags or None
    )


@handles(ApiKey.UNREGISTER_BROKER, cluster=Operation.ALTER)
async def unregister_broker(
    broker: Broker, ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Forgets a broker's registration; its replicas stay in their partitions' lists."""
    if request.broker_id < 0:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "a broker id is 0 or more")
    command = UnregisterBroker(request.broker_id)
    _, result = await controller_of(broker, ctx).propose(command, UNREGISTRATION_TIMEOUT_MS)
    return UnregisterBrokerResponse(error_code=result.error, error_message=result.message)


@handles(ApiKey.DESCRIBE_LOG_DIRS, long=True, cluster=Operation.DESCRIBE)
async def describe_log_dirs(
    broker: Broker, ctx: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """The folders, their room, and the size of the partitions asked for (all if none are)."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = set()
        pace = Pace()
        for asked in request.topics:
            await pace.keep()
            wanted.update((asked.topic, partition) for partition in asked.partitions)
    return DescribeLogDirsResponse(
        results=[await _log_dir(each, wanted) for each in broker.logs.describe()]
    )


async def _log_dir(
    described: LogDirDescription, wanted: set[tuple[str, int]] | None
) -> LogDirResult:
    topics: dict[str, LogDirTopic] = {}
    pace = Pace()
    for name, partition, size_bytes in sorted(described.logs):
        await pace.keep()
        if wanted is not None and (name, partition) not in wanted:
            continue
        topic = topics.setdefault(name, LogDirTopic(name))
        topic.partitions.append(
            # offset_lag 0 and no future log: a replica is never being moved between folders here.
            DescribeLogDirsResponse.DescribeLogDirsPartition(partition, size_bytes, 0, False)
        )
    return LogDirResult(
        log_dir=described.path,
        topics=list(topics.values()),
        total_bytes=described.total_bytes,
        usable_bytes=described.usable_bytes,
    )


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, long=True, cluster=Operation.ALTER)
async def alter_replica_log_dirs(
    broker: Broker, ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Whether each replica is in the folder that the request wants it in.

    REPLICA_NOT_AVAILABLE, which tools try again on, if it isn't on this broker (yet);
    LOG_DIR_NOT_FOUND if this broker has no such folder, INVALID_REQUEST if the replica is in
    another one.
    """
    described = broker.logs.describe()
    folders = {each.path for each in described}
    places = {(name, index): each.path for each in described for name, index, _ in each.logs}
    results: dict[str, dict[int, ErrorCode]] = {}
    pace = Pace()
    for wanted in request.dirs:
        for topic in wanted.topics:
            await pace.keep()
            for index in topic.partitions:
                place = places.get((topic.name, index))
                if wanted.path not in folders:
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                elif place is None:
                    error = ErrorCode.REPLICA_NOT_AVAILABLE
                else:
                    same = place == wanted.path
                    error = ErrorCode.NONE if same else ErrorCode.INVALID_REQUEST
                results.setdefault(topic.name, {})[index] = error
    return AlterReplicaLogDirsResponse(results=elements(list(results.items()), _moved))


def _moved(
    found: tuple[str, dict[int, ErrorCode]],
) -> AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult:
    name, partitions = found
    kinds = AlterReplicaLogDirsResponse
    return kinds.AlterReplicaLogDirTopicResult(
        name,
        elements(
            list(partitions.items()),
            lambda each: kinds.AlterReplicaLogDirPartitionResult(*each),
        ),
    )
