"""Rights on share groups at their coordinator: ShareGroupHeartbeat, ShareGroupDescribe,
DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets (KIP-932).

ShareGroupDescribe looks at rights on topics itself, once it knows which there are.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kraftpy.server.handlers.authorization.guards import (
    GROUP_DENIED,
    TOPIC_DENIED,
    Check,
    Then,
    deny_described,
    deny_heartbeat,
    guards,
    joined,
)

READ, DELETE, DESCRIBE = Operation.READ, Operation.DELETE, Operation.DESCRIBE


@guards(ApiKey.SHARE_GROUP_HEARTBEAT, rights="Group READ, Topic DESCRIBE of all names")
def share_group_heartbeat(
    check: Check, request: ShareGroupHeartbeatRequest
) -> Generator[None, None, Any]:
    """The group, then all topics that are named."""
    return deny_heartbeat(check, request, ShareGroupHeartbeatResponse)


@guards(
    ApiKey.SHARE_GROUP_DESCRIBE,
    rights="Group DESCRIBE; without Topic DESCRIBE of all its topics no members",
)
def share_group_describe(
    check: Check, request: ShareGroupDescribeRequest
) -> Generator[None, None, Any]:
    """Each group by itself."""
    return deny_described(check, request, ShareGroupDescribeResponse.DescribedGroup)


@guards(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    rights="Group DESCRIBE, Topic DESCRIBE; of all topics those without it are left out",
)
def describe_share_group_offsets(
    check: Check, request: DescribeShareGroupOffsetsRequest
) -> Generator[None, None, Any]:
    """Each group by itself, then its topics."""
    kinds = DescribeShareGroupOffsetsResponse
    allowed: list[Any] = []
    refused: dict[str, None] = {}
    everything: set[str] = set()
    denied: dict[str, dict[str, Any]] = {}
    for group in request.groups:
        yield
        if not check.group(DESCRIBE, group.group_id):
            refused[group.group_id] = None
            continue
        allowed.append(group)
        if group.topics is None:
            everything.add(group.group_id)
            continue
        group.topics, some = yield from check.split(
            DESCRIBE, Resource.TOPIC, group.topics, lambda topic: topic.topic_name
        )
        for topic in some:
            denied.setdefault(group.group_id, {}).setdefault(topic.topic_name, topic)
    request.groups = allowed
    if not (refused or everything or denied):
        return None

    def work(answer: DescribeShareGroupOffsetsResponse) -> DescribeShareGroupOffsetsResponse:
        for group in answer.groups:
            if group.error_code:
                continue
            if group.group_id in everything:
                group.topics = _shown(check, group.topics)
            elif group.group_id in denied:
                more = elements(list(denied[group.group_id].values()), _denied_offsets)
                group.topics = joined(group.topics, more)
        kind = kinds.DescribeShareGroupOffsetsResponseGroup
        no_groups = elements(
            list(refused), lambda name: kind(name, [], GROUP_DENIED, GROUP_DENIED.message)
        )
        answer.groups = joined(answer.groups, no_groups)
        return answer

    return Then(work) if allowed else work(kinds())


def _shown(check: Check, topics: Any) -> Any:
    """Of all that a group has, what may be known of."""

    def shown() -> list[Any]:
        may = check.view.may
        return [each for each in topics if may(DESCRIBE, Resource.TOPIC, each.topic_name)]

    return elements(shown, lambda topic: topic)


def _denied_offsets(topic: Any) -> Any:
    kinds = DescribeShareGroupOffsetsResponse
    return kinds.DescribeShareGroupOffsetsResponseTopic(
        topic.topic_name,
        partitions=elements(
            topic.partitions,
            lambda index: kinds.DescribeShareGroupOffsetsResponsePartition(
                index, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
            ),
        ),
    )


@guards(ApiKey.ALTER_SHARE_GROUP_OFFSETS, rights="Group READ, Topic READ")
def alter_share_group_offsets(
    check: Check, request: AlterShareGroupOffsetsRequest
) -> Generator[None, None, Any]:
    """The group, then each topic by itself."""
    kinds = AlterShareGroupOffsetsResponse
    if not check.group(READ, request.group_id):
        return kinds(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message)
    request.topics, denied = yield from check.split(
        READ, Resource.TOPIC, request.topics, lambda topic: topic.topic_name
    )
    return _without_denied(
        kinds,
        bool(request.topics),
        elements(
            denied,
            lambda topic: kinds.AlterShareGroupOffsetsResponseTopic(
                topic.topic_name,
                partitions=elements(
                    topic.partitions,
                    lambda each: kinds.AlterShareGroupOffsetsResponsePartition(
                        each.partition_index, TOPIC_DENIED, TOPIC_DENIED.message
                    ),
                ),
            ),
        ),
    )


@guards(ApiKey.DELETE_SHARE_GROUP_OFFSETS, rights="Group DELETE, Topic READ")
def delete_share_group_offsets(
    check: Check, request: DeleteShareGroupOffsetsRequest
) -> Generator[None, None, Any]:
    """The group, then each topic by itself."""
    kinds = DeleteShareGroupOffsetsResponse
    if not check.group(DELETE, request.group_id):
        return kinds(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message)
    request.topics, denied = yield from check.split(
        READ, Resource.TOPIC, request.topics, lambda topic: topic.topic_name
    )
    return _without_denied(
        kinds,
        bool(request.topics),
        elements(
            denied,
            lambda topic: kinds.DeleteShareGroupOffsetsResponseTopic(
                topic.topic_name, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
            ),
        ),
    )


def _without_denied(kinds: Any, some_are_allowed: bool, refused: Any) -> Any:
    if not len(refused):
        return None
    if not some_are_allowed:
        return kinds(error_message=None, responses=refused)

    def work(answer: Any) -> Any:
        if not answer.error_code:
            answer.responses = joined(answer.responses, refused)
        return answer

    return Then(work)
