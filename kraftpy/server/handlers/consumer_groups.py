"""Groups whose coordinator assigns partitions (KIP-848): ConsumerGroupHeartbeat,
ConsumerGroupDescribe.

The rules are in `kraftpy.core.groups.consumer`; here errors get to where each response has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.authorizer import View
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.server.cluster.operations import group_operations
from kraftpy.server.handlers.groups import client_of
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import distinct

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def consumer_group_heartbeat(
    broker: Broker, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """A member joins, stays or leaves; it says what it owns and is told what to own."""
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        return broker.groups.consumer_heartbeat(client_of(ctx), request)
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, long=True)
async def consumer_group_describe(
    broker: Broker, ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """State, members, assignments and targets of consumer groups, each once."""
    group_ids = await distinct(request.group_ids)
    operations = group_operations(ctx.session.view, request.include_authorized_operations)
    describe = partial(_describe, broker, ctx.session.view, operations)
    return ConsumerGroupDescribeResponse(groups=elements(group_ids, describe, ctx, _refuse))


def _describe(
    broker: Broker, view: View | None, operations: Callable[[str], int], group_id: str
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    try:
        group = broker.groups.describe_consumer_group(group_id)
    except KafkaError as error:
        return ConsumerGroupDescribeResponse.DescribedGroup(
            error_code=error.code, error_message=error.message, group_id=group_id
        )
    if not group.error_code:
        group.authorized_operations = operations(group_id)
        if view is not None and not all(
            view.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in _topics_of(group)
        ):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return ConsumerGroupDescribeResponse.DescribedGroup(
                error_code=denied, error_message=denied.message, group_id=group_id
            )
    return group


def _topics_of(group: ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    """All topics that the description tells of."""
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            names.update(each.topic_name for each in assignment.topic_partitions)
    return names


def _refuse(group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the answer is too large: describe fewer groups at a time",
        group_id=group_id,
    )
