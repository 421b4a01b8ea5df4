"""Rights on configurations, and how requests answer that need one right on the cluster."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from kraftpy.core.metadata import ResourceType
from kraftpy.core.security.acls import CLUSTER_NAME, Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kraftpy.server.coordination.share_state_calls import KINDS
from kraftpy.server.handlers.authorization.guards import (
    CLUSTER_DENIED,
    Check,
    adding,
    denies,
    guards,
    leaves_open,
)
from kraftpy.server.handlers.configs import BROKER_LOGGER
from kraftpy.server.handlers.quotas import altered
from kraftpy.server.handlers.rights import DENIED
from kraftpy.server.handlers.share_state import denied

for _key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
    leaves_open(_key, "none")
leaves_open(
    ApiKey.DESCRIBE_CLUSTER, "none; the cluster's operations are 0 without Cluster DESCRIBE"
)

_RESOURCES = {
    ResourceType.TOPIC: Resource.TOPIC,
    ResourceType.GROUP: Resource.GROUP,
    ResourceType.BROKER: Resource.CLUSTER,
    BROKER_LOGGER: Resource.CLUSTER,
    ResourceType.CLIENT_METRICS: Resource.CLUSTER,
}
"""On what rights are asked for, by what has a configuration; what can't have one is refused."""


@guards(
    ApiKey.DESCRIBE_CONFIGS,
    rights="Topic or Group DESCRIBE_CONFIGS; of brokers and client metrics of the Cluster",
)
def describe_configs(check: Check, request: DescribeConfigsRequest) -> Generator[None, None, Any]:
    """Each resource by itself."""
    kind = DescribeConfigsResponse.DescribeConfigsResult
    allowed, denied = yield from _split(check, request, Operation.DESCRIBE_CONFIGS)
    if not denied:
        return None
    request.resources = allowed

    def refuse(resource: tuple[int, str]) -> Any:
        error = DENIED[_RESOURCES[resource[0]]]
        return kind(
            error_code=error,
            error_message=error.message,
            resource_type=resource[0],
            resource_name=resource[1],
        )

    return adding("results", elements(denied, refuse))


@guards(
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    rights="Topic or Group ALTER_CONFIGS; of brokers and client metrics of the Cluster",
)
def alter_configs(
    check: Check, request: AlterConfigsRequest | IncrementalAlterConfigsRequest
) -> Generator[None, None, Any]:
    """Each resource by itself."""
    kind: Any = AlterConfigsResponse.AlterConfigsResourceResponse
    if isinstance(request, IncrementalAlterConfigsRequest):
        kind = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    allowed, denied = yield from _split(check, request, Operation.ALTER_CONFIGS)
    if not denied:
        return None
    request.resources = allowed

    def refuse(resource: tuple[int, str]) -> Any:
        error = DENIED[_RESOURCES[resource[0]]]
        return kind(error, error.message, *resource)

    return adding("responses", elements(denied, refuse))


def _split(
    check: Check, request: Any, operation: Operation
) -> Generator[None, None, tuple[list[Any], list[tuple[int, str]]]]:
    """The resources that are allowed, and what the others are called, each once."""
    allowed: list[Any] = []
    denied: dict[tuple[int, str], None] = {}
    for each in request.resources:
        yield
        resource_type = _RESOURCES.get(each.resource_type)
        name = CLUSTER_NAME if resource_type is Resource.CLUSTER else each.resource_name
        if resource_type is None or check.need(operation, resource_type, name):
            allowed.append(each)
        else:
            denied[each.resource_type, each.resource_name] = None
    return allowed, list(denied)


# -- answers that have no place for one error


for _state_key, _kind in KINDS.items():
    denies(_state_key)(partial(denied, _kind, error=CLUSTER_DENIED))


@denies(ApiKey.ALTER_REPLICA_LOG_DIRS)
def _log_dirs(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    kinds = AlterReplicaLogDirsResponse
    topics = [topic for each in request.dirs for topic in each.topics]
    return kinds(
        results=elements(
            topics,
            lambda topic: kinds.AlterReplicaLogDirTopicResult(
                topic.name,
                elements(
                    topic.partitions,
                    lambda index: kinds.AlterReplicaLogDirPartitionResult(index, CLUSTER_DENIED),
                ),
            ),
        )
    )


@denies(ApiKey.ELECT_LEADERS)
def _elections(request: ElectLeadersRequest) -> ElectLeadersResponse:
    kinds = ElectLeadersResponse
    message = CLUSTER_DENIED.message
    return kinds(
        error_code=CLUSTER_DENIED,
        replica_election_results=elements(
            request.topic_partitions or [],
            lambda topic: kinds.ReplicaElectionResult(
                topic.topic,
                elements(
                    topic.partitions,
                    lambda index: kinds.PartitionResult(index, CLUSTER_DENIED, message),
                ),
            ),
        ),
    )


@denies(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def _reassignments(
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse:
    kinds = AlterPartitionReassignmentsResponse
    message = CLUSTER_DENIED.message
    return kinds(
        error_code=CLUSTER_DENIED,
        error_message=message,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=elements(
            request.topics,
            lambda topic: kinds.ReassignableTopicResponse(
                topic.name,
                elements(
                    topic.partitions,
                    lambda each: kinds.ReassignablePartitionResponse(
                        each.partition_index, CLUSTER_DENIED, message
                    ),
                ),
            ),
        ),
    )


@denies(ApiKey.CREATE_ACLS)
def _creations(request: CreateAclsRequest) -> CreateAclsResponse:
    refused = CreateAclsResponse.AclCreationResult(CLUSTER_DENIED, CLUSTER_DENIED.message)
    return CreateAclsResponse(results=elements(request.creations, lambda _: refused))


@denies(ApiKey.DELETE_ACLS)
def _deletions(request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsResponse.DeleteAclsFilterResult(CLUSTER_DENIED, CLUSTER_DENIED.message)
    return DeleteAclsResponse(filter_results=elements(request.filters, lambda _: refused))


@denies(ApiKey.ALTER_CLIENT_QUOTAS)
def _quotas(request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=elements(
            request.entries, lambda each: altered(each, CLUSTER_DENIED, CLUSTER_DENIED.message)
        )
    )


@denies(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
def _credentials(request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
    kind = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = {each.name: None for each in request.deletions}
    names.update((each.name, None) for each in request.upsertions)
    return AlterUserScramCredentialsResponse(
        results=elements(
            list(names), lambda name: kind(name, CLUSTER_DENIED, CLUSTER_DENIED.message)
        )
    )
