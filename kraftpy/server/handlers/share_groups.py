"""Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, DescribeShareGroupOffsets,
AlterShareGroupOffsets, DeleteShareGroupOffsets.

The rules are in `kraftpy.core.groups.share`; here errors get to where each response has them. All
go to the group's coordinator. Where the cluster has no share groups (the feature `share.version` is
at 0) all are answered with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.core.groups.share.states import UNKNOWN_OFFSET
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.authorizer import View
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
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
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.server.cluster.features import require_share_groups
from kraftpy.server.cluster.operations import group_operations
from kraftpy.server.coordination.share_groups import Start
from kraftpy.server.handlers.groups import client_of
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, distinct

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_TOO_LARGE = "the answer is too large: describe fewer groups at a time"
_NOTHING_TO_DELETE = "There is no offset information to delete."

Described = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
Wanted = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup


@handles(ApiKey.SHARE_GROUP_HEARTBEAT)
def share_group_heartbeat(
    broker: Broker, ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and is told what to read."""
    try:
        require_share_groups(broker.metadata)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        return broker.share_groups.heartbeat(client_of(ctx), request)
    except KafkaError as error:
        return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.SHARE_GROUP_DESCRIBE, long=True)
async def share_group_describe(
    broker: Broker, ctx: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """State, members and assignments of share groups, each once."""
    group_ids = await distinct(request.group_ids)
    operations = group_operations(ctx.session.view, request.include_authorized_operations)
    describe = partial(_describe, broker, ctx.session.view, operations)
    return ShareGroupDescribeResponse(groups=elements(group_ids, describe, ctx, _refuse))


def _describe(
    broker: Broker, view: View | None, operations: Callable[[str], int], group_id: str
) -> ShareGroupDescribeResponse.DescribedGroup:
    try:
        require_share_groups(broker.metadata)
        group = broker.share_groups.describe(group_id)
    except KafkaError as error:
        return _failed(group_id, error.code, error.message)
    if not group.error_code:
        group.authorized_operations = operations(group_id)
        if view is not None and not all(
            view.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in _topics_of(group)
        ):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _failed(group_id, denied, denied.message)
    return group


def _failed(
    group_id: str, error: ErrorCode, message: str | None
) -> ShareGroupDescribeResponse.DescribedGroup:
    return ShareGroupDescribeResponse.DescribedGroup(
        error_code=error, error_message=message, group_id=group_id
    )


def _refuse(group_id: str) -> ShareGroupDescribeResponse.DescribedGroup:
    return _failed(group_id, ErrorCode.INVALID_REQUEST, _TOO_LARGE)


def _topics_of(group: ShareGroupDescribeResponse.DescribedGroup) -> set[str]:
    """All topics that the description tells of."""
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        names.update(each.topic_name for each in member.assignment.topic_partitions)
    return names


# -- offsets


@handles(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, long=True)
async def describe_share_group_offsets(
    broker: Broker, ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Where groups begin, and how far they are behind; in all their partitions or in some."""
    pace = Pace()
    wanted: dict[str, dict[str, dict[int, None]] | None] = {}
    for group in request.groups:
        await pace.keep()
        known = wanted.setdefault(group.group_id, {})
        if known is None or group.topics is None:
            wanted[group.group_id] = None
            continue
        for topic in group.topics:
            known.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
            await pace.keep()
    groups = [await _offsets_of(broker, ctx, *each) for each in wanted.items()]
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _offsets_of(
    broker: Broker,
    ctx: RequestContext,
    group_id: str,
    wanted: Mapping[str, Mapping[int, None]] | None,
) -> Described:
    try:
        require_share_groups(broker.metadata)
        found = await broker.share_groups.offsets(group_id, wanted)
    except KafkaError as error:
        return Described(group_id, [], error.code, error.message or error.code.message)
    kinds = DescribeShareGroupOffsetsResponse

    def of_topic(
        name: str,
    ) -> DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic:
        rows = elements(list(found[name].items()), _started)
        return kinds.DescribeShareGroupOffsetsResponseTopic(name, _id_of(broker, name), rows)

    answer = Described(group_id)

    def names() -> list[str]:
        if ctx.answer_full:
            answer.error_code = ErrorCode.INVALID_REQUEST  # it comes behind the topics
            answer.error_message = _TOO_LARGE
            return []
        return list(found)

    answer.topics = elements(names, of_topic)
    return answer


def _started(
    item: tuple[int, Start],
) -> DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition:
    index, (offset, epoch, lag, error) = item
    return DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition(
        index, offset, epoch, lag, error, error.message if error else None
    )


def _id_of(broker: Broker, name: str) -> bytes:
    topic = broker.metadata.topics.get(name)
    return ZERO_UUID if topic is None else topic.id


@handles(ApiKey.ALTER_SHARE_GROUP_OFFSETS, long=True)
async def alter_share_group_offsets(
    broker: Broker, ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Has a group without members begin somewhere else; each partition once."""
    pace = Pace()
    asked: dict[str, dict[int, int]] = {}
    possible: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        of_topic = asked.setdefault(topic.topic_name, {})
        for each in topic.partitions:
            of_topic[each.partition_index] = each.start_offset
            await pace.keep()
    for name, starts in asked.items():
        known = broker.metadata.topics.get(name)
        if known is not None:
            possible[name] = {
                index: offset
                for index, offset in starts.items()
                if index in known.partitions and offset >= UNKNOWN_OFFSET
            }
        await pace.keep()
    try:
        require_share_groups(broker.metadata)
        done = await broker.share_groups.alter_offsets(request.group_id, possible)
    except KafkaError as error:
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    kinds = AlterShareGroupOffsetsResponse

    def row(
        name: str,
    ) -> AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic:
        topic_id = _id_of(broker, name)

        def altered(
            item: tuple[int, int],
        ) -> AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition:
            index, offset = item
            error = done.get((topic_id, index), _UNKNOWN)
            if offset < UNKNOWN_OFFSET:
                error = ErrorCode.INVALID_REQUEST
            message = error.message if error else None
            return kinds.AlterShareGroupOffsetsResponsePartition(index, error, message)

        rows = elements(list(asked[name].items()), altered)
        return kinds.AlterShareGroupOffsetsResponseTopic(name, topic_id, rows)

    return kinds(error_message=None, responses=elements(list(asked), row))


@handles(ApiKey.DELETE_SHARE_GROUP_OFFSETS, long=True)
async def delete_share_group_offsets(
    broker: Broker, ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Forgets where a group without members is in topics; each topic once."""
    names = await distinct(topic.topic_name for topic in request.topics)
    known = [name for name in names if name in broker.metadata.topics]
    try:
        require_share_groups(broker.metadata)
        done = await broker.share_groups.delete_offsets(request.group_id, known)
    except KafkaError as error:
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    kinds = DeleteShareGroupOffsetsResponse

    def row(
        name: str,
    ) -> DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic:
        topic_id = _id_of(broker, name)
        error = done.get(topic_id, _UNKNOWN)
        message = error.message if error else None
        if topic_id != ZERO_UUID and topic_id not in done:
            message = _NOTHING_TO_DELETE
        return kinds.DeleteShareGroupOffsetsResponseTopic(name, topic_id, error, message)

    return kinds(error_message=None, responses=elements(names, row))
