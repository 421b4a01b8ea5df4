"""Rights on groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit,
OffsetFetch, OffsetDelete, DescribeGroups, DeleteGroups, ConsumerGroupHeartbeat.

ListGroups and ConsumerGroupDescribe look at rights themselves, once they know what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from kraftpy.core.groups.commits import commit_error_response
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.principals import BROKER
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kraftpy.server.handlers.authorization.guards import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTION_DENIED,
    Check,
    Then,
    adding,
    deny_described,
    deny_heartbeat,
    guards,
    joined,
    leaves_open,
)
from kraftpy.server.handlers.coordinators import FIRST_BATCHED_FIND, SHARE_KEY, TRANSACTION_KEY

READ, DELETE, DESCRIBE = Operation.READ, Operation.DELETE, Operation.DESCRIBE

_FIRST_FETCH_WITH_TOP_ERROR = 2
_FIRST_FETCH_OF_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10

leaves_open(
    ApiKey.LIST_GROUPS,
    "Cluster DESCRIBE, or Group DESCRIBE: those without it are left out",
)


@guards(
    ApiKey.FIND_COORDINATOR,
    rights="Group DESCRIBE, TransactionalId DESCRIBE or Cluster CLUSTER_ACTION, as the key is",
)
def find_coordinator(check: Check, request: FindCoordinatorRequest) -> Generator[None, None, Any]:
    """Each key by itself."""
    resource_type, error = Resource.GROUP, GROUP_DENIED
    if request.key_type == TRANSACTION_KEY:
        resource_type, error = Resource.TRANSACTIONAL_ID, TRANSACTION_DENIED
    kinds = FindCoordinatorResponse
    if request.key_type == SHARE_KEY and not check.cluster(Operation.CLUSTER_ACTION):
        error = CLUSTER_DENIED
        return kinds(
            coordinators=elements(
                request.coordinator_keys,
                lambda key: kinds.Coordinator(key, -1, "", -1, error, error.message),
            )
        )
    if request.key_type == SHARE_KEY:
        return None
    if check.ctx.api_version < FIRST_BATCHED_FIND:
        if check.may(DESCRIBE, resource_type, request.key):
            return None
        return kinds(error_code=error, error_message=error.message, node_id=-1, host="", port=-1)
    request.coordinator_keys, denied = yield from check.split(
        DESCRIBE, resource_type, request.coordinator_keys, lambda key: key
    )
    if not denied:
        return None
    refused = elements(
        list(dict.fromkeys(denied)),
        lambda key: kinds.Coordinator(key, -1, "", -1, error, error.message),
    )
    return adding("coordinators", refused)


@guards(ApiKey.JOIN_GROUP, rights="Group READ")
def join_group(check: Check, request: JoinGroupRequest) -> Generator[None, None, Any]:
    """The group."""
    if check.group(READ, request.group_id):
        return None
    return JoinGroupResponse(error_code=GROUP_DENIED, member_id=request.member_id)
    yield


@guards(ApiKey.SYNC_GROUP, rights="Group READ")
def sync_group(check: Check, request: SyncGroupRequest) -> Generator[None, None, Any]:
    """The group."""
    if check.group(READ, request.group_id):
        return None
    return SyncGroupResponse(error_code=GROUP_DENIED)
    yield


@guards(ApiKey.HEARTBEAT, rights="Group READ")
def heartbeat(check: Check, request: HeartbeatRequest) -> Generator[None, None, Any]:
    """The group."""
    if check.group(READ, request.group_id):
        return None
    return HeartbeatResponse(error_code=GROUP_DENIED)
    yield


@guards(ApiKey.LEAVE_GROUP, rights="Group READ")
def leave_group(check: Check, request: LeaveGroupRequest) -> Generator[None, None, Any]:
    """The group."""
    if check.group(READ, request.group_id):
        return None
    return LeaveGroupResponse(error_code=GROUP_DENIED)
    yield


@guards(ApiKey.OFFSET_COMMIT, rights="Group READ, Topic READ")
def offset_commit(check: Check, request: OffsetCommitRequest) -> Generator[None, None, Any]:
    """The group, then each topic by itself."""
    if not check.group(READ, request.group_id):
        return commit_error_response(request, GROUP_DENIED)
    by_id = check.ctx.api_version >= _FIRST_WITH_TOPIC_IDS
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in request.topics:
        name = check.name_of(topic.topic_id) if by_id else topic.name
        may = name is None or check.topic(READ, name)
        (allowed if may else denied).append(topic)
        yield
    if not denied:
        return None
    request.topics = allowed
    kinds = OffsetCommitResponse
    refused = elements(
        denied,
        lambda topic: kinds.OffsetCommitResponseTopic(
            topic.name,
            topic.topic_id,
            elements(
                topic.partitions,
                lambda each: kinds.OffsetCommitResponsePartition(
                    each.partition_index, TOPIC_DENIED
                ),
            ),
        ),
    )
    return adding("topics", refused) if allowed else kinds(topics=refused)


@guards(
    ApiKey.OFFSET_FETCH,
    rights="Group DESCRIBE, Topic DESCRIBE; of all topics those without it are left out; "
    "as a broker Cluster CLUSTER_ACTION",
)
def offset_fetch(check: Check, request: OffsetFetchRequest) -> Generator[None, None, Any]:
    """Each group by itself, then its topics; leaders read claims as brokers."""
    if check.view.principal.type == BROKER and check.cluster(Operation.CLUSTER_ACTION):
        return None
    kinds = OffsetFetchResponse
    if check.ctx.api_version < _FIRST_FETCH_OF_GROUPS:
        return (yield from _fetch_of_one(check, request))
    allowed, refused = [], []
    denied: dict[str, list[Any]] = {}
    everything: set[str] = set()
    for group in request.groups:
        yield
        if not check.group(DESCRIBE, group.group_id):
            refused.append(
                kinds.OffsetFetchResponseGroup(group_id=group.group_id, error_code=GROUP_DENIED)
            )
            continue
        allowed.append(group)
        if group.topics is None:
            everything.add(group.group_id)
            continue
        group.topics, some = yield from _describable(check, group.topics)
        if some:
            denied.setdefault(group.group_id, []).extend(some)
    request.groups = allowed
    if not (denied or everything or refused):
        return None

    def work(answer: OffsetFetchResponse) -> OffsetFetchResponse:
        for group in answer.groups:
            if group.error_code:
                continue
            if group.group_id in everything:
                group.topics = _shown(check, group.topics)
            elif group.group_id in denied:
                group.topics = joined(
                    group.topics,
                    elements(denied[group.group_id], _refused(kinds.OffsetFetchResponseTopics)),
                )
        answer.groups = joined(answer.groups, refused)
        return answer

    return Then(work) if allowed else kinds(groups=refused)


def _fetch_of_one(check: Check, request: OffsetFetchRequest) -> Generator[None, None, Any]:
    kinds = OffsetFetchResponse
    if not check.group(DESCRIBE, request.group_id):
        if check.ctx.api_version >= _FIRST_FETCH_WITH_TOP_ERROR:
            return kinds(error_code=GROUP_DENIED)
        refused = _refused(kinds.OffsetFetchResponseTopic, GROUP_DENIED)
        return kinds(topics=elements(request.topics or [], refused))
    if request.topics is None:

        def work(answer: OffsetFetchResponse) -> OffsetFetchResponse:
            answer.topics = _shown(check, answer.topics)
            return answer

        return Then(work)
    allowed, denied = yield from _describable(check, request.topics)
    request.topics = allowed
    if not denied:
        return None

    def add(answer: OffsetFetchResponse) -> OffsetFetchResponse:
        if not answer.error_code:
            more = elements(denied, _refused(kinds.OffsetFetchResponseTopic))
            answer.topics = joined(answer.topics, more)
        return answer

    return Then(add)


def _describable(check: Check, topics: Any) -> Generator[None, None, tuple[list[Any], list[Any]]]:
    by_id = check.ctx.api_version >= _FIRST_WITH_TOPIC_IDS
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        name = check.name_of(topic.topic_id) if by_id else topic.name
        may = name is None or check.topic(DESCRIBE, name)
        (allowed if may else denied).append(topic)
        yield
    return allowed, denied


def _shown(check: Check, topics: Any) -> Any:
    """Of all that a group has committed, what may be known of."""
    by_id = check.ctx.api_version >= _FIRST_WITH_TOPIC_IDS

    def shown() -> list[Any]:
        found = []
        for topic in topics:
            name = check.name_of(topic.topic_id) if by_id else topic.name
            if name is not None and check.view.may(DESCRIBE, Resource.TOPIC, name):
                found.append(topic)
        return found

    return elements(shown, lambda topic: topic)


def _refused(kind: Any, error: ErrorCode = TOPIC_DENIED) -> Callable[[Any], Any]:
    """Makes the answer to a topic whose offsets nobody is told."""
    partition: Any = OffsetFetchResponse.OffsetFetchResponsePartition
    if kind is OffsetFetchResponse.OffsetFetchResponseTopics:
        partition = OffsetFetchResponse.OffsetFetchResponsePartitions

    def refuse(topic: Any) -> Any:
        answer = kind(name=topic.name)
        if hasattr(topic, "topic_id"):
            answer.topic_id = topic.topic_id
        answer.partitions = elements(
            topic.partition_indexes, lambda index: partition(index, -1, -1, "", error)
        )
        return answer

    return refuse


@guards(ApiKey.OFFSET_DELETE, rights="Group DELETE, Topic READ")
def offset_delete(check: Check, request: OffsetDeleteRequest) -> Generator[None, None, Any]:
    """The group, then each topic by itself."""
    kinds = OffsetDeleteResponse
    if not check.group(DELETE, request.group_id):
        return kinds(error_code=GROUP_DENIED)
    allowed, denied = yield from check.split(
        READ, Resource.TOPIC, request.topics, lambda each: each.name
    )
    if not denied:
        return None
    request.topics = allowed
    refused = elements(
        denied,
        lambda topic: kinds.OffsetDeleteResponseTopic(
            topic.name,
            elements(
                topic.partitions,
                lambda each: kinds.OffsetDeleteResponsePartition(
                    each.partition_index, TOPIC_DENIED
                ),
            ),
        ),
    )
    if not allowed:
        return kinds(topics=refused)

    def work(answer: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not answer.error_code:
            answer.topics = joined(answer.topics, refused)
        return answer

    return Then(work)


@guards(ApiKey.DESCRIBE_GROUPS, rights="Group DESCRIBE")
def describe_groups(check: Check, request: DescribeGroupsRequest) -> Generator[None, None, Any]:
    """Each group by itself."""
    request.groups, denied = yield from check.split(
        DESCRIBE, Resource.GROUP, request.groups, lambda name: name
    )
    if not denied:
        return None
    kind = DescribeGroupsResponse.DescribedGroup
    return adding(
        "groups",
        elements(
            list(dict.fromkeys(denied)), lambda name: kind(error_code=GROUP_DENIED, group_id=name)
        ),
    )


@guards(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    rights="Group DESCRIBE; without Topic DESCRIBE of all its topics no members",
)
def consumer_group_describe(
    check: Check, request: ConsumerGroupDescribeRequest
) -> Generator[None, None, Any]:
    """Each group by itself."""
    return deny_described(check, request, ConsumerGroupDescribeResponse.DescribedGroup)


@guards(ApiKey.DELETE_GROUPS, rights="Group DELETE")
def delete_groups(check: Check, request: DeleteGroupsRequest) -> Generator[None, None, Any]:
    """Each group by itself."""
    request.groups_names, denied = yield from check.split(
        DELETE, Resource.GROUP, request.groups_names, lambda name: name
    )
    if not denied:
        return None
    kind = DeleteGroupsResponse.DeletableGroupResult
    return adding(
        "results",
        elements(
            list(dict.fromkeys(denied)), lambda name: kind(name, GROUP_DENIED, GROUP_DENIED.message)
        ),
    )


@guards(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    rights="Group READ, Topic DESCRIBE of all names; what a pattern matches without it is left out",
)
def consumer_group_heartbeat(
    check: Check, request: ConsumerGroupHeartbeatRequest
) -> Generator[None, None, Any]:
    """The group, then all topics that are named."""
    return deny_heartbeat(check, request, ConsumerGroupHeartbeatResponse)
