"""Groups whose coordinator assigns partitions (KIP-848): ConsumerGroupHeartbeat,
ConsumerGroupDescribe.

The rules are in `kraftpy.core.groups.consumer`; here errors get to where each response has them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.server.cluster.operations import GROUP_OPERATIONS, NOT_ASKED
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
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return ConsumerGroupDescribeResponse(
        groups=elements(group_ids, partial(_describe, broker, operations), ctx, _refuse)
    )


def _describe(
    broker: Broker, operations: int, group_id: str
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    try:
        group = broker.groups.describe_consumer_group(group_id)
    except KafkaError as error:
        return ConsumerGroupDescribeResponse.DescribedGroup(
            error_code=error.code, error_message=error.message, group_id=group_id
        )
    if not group.error_code:
        group.authorized_operations = operations
    return group


def _refuse(group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the answer is too large: describe fewer groups at a time",
        group_id=group_id,
    )
