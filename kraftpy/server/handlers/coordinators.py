"""FindCoordinator 0-6: where groups, transactional ids and share-partitions are coordinated.

The first call makes the internal topic. One that is at this broker is named when it takes requests,
or a while has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.transactions.admission import NO_TRANSACTIONS_YET
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from kraftpy.server.cluster.features import require_share_groups
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, distinct

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

GROUP_KEY = 0
TRANSACTION_KEY = 1
SHARE_KEY = 2

# FindCoordinator waits this long for its own partition to load: clients back off for longer when
# they are sent to a coordinator that isn't ready.
LOAD_WAIT_S = 5.0

FIRST_BATCHED_FIND = 4
_FIRST_FIND_OF_SHARES = 6

# Where there are no transactions yet, a producer with a transactional id is to end at once. All do
# upon UNSUPPORTED_VERSION but librdkafka 2, which asks again for ever unless the error is that of a
# missing authorization.
_VERSION_OF_LIBRDKAFKA = 2

Coordinator = FindCoordinatorResponse.Coordinator


@handles(ApiKey.FIND_COORDINATOR, long=True)
async def find_coordinator(
    broker: Broker, ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Where each group, transactional id or share-partition is coordinated.

    The first call makes the topic.
    """
    deadline_s = broker.loop.time() + LOAD_WAIT_S
    if ctx.api_version >= FIRST_BATCHED_FIND:
        keys = await distinct(request.coordinator_keys)
        pace = Pace()
        coordinators = []
        for key in keys:
            coordinators.append(await _find(broker, ctx, request.key_type, key, deadline_s))
            await pace.keep()
        return FindCoordinatorResponse(coordinators=coordinators)
    found = await _find(broker, ctx, request.key_type, request.key, deadline_s)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find(
    broker: Broker, ctx: RequestContext, key_type: int, key: str, deadline_s: float
) -> Coordinator:
    try:
        if key_type == TRANSACTION_KEY and not broker.serves_transactions:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                if ctx.api_version == _VERSION_OF_LIBRDKAFKA
                else ErrorCode.UNSUPPORTED_VERSION,
                NO_TRANSACTIONS_YET,
            )
        if key_type == GROUP_KEY:
            node_id = await broker.groups.coordinator_of(key, deadline_s)
        elif key_type == TRANSACTION_KEY:
            node_id = await broker.transactions.coordinator_of(key, deadline_s)
        elif key_type == SHARE_KEY and ctx.api_version >= _FIRST_FIND_OF_SHARES:
            require_share_groups(broker.metadata)
            share_key = _share_key(key).coordinator_key
            node_id = await broker.share_coordinator.coordinator_of(share_key, deadline_s)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
            )
        for node in broker.reachable_nodes(ctx):
            if node.node_id == node_id:
                return Coordinator(key, node_id, node.host, node.port, ErrorCode.NONE, None)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {node_id} is not available")
    except KafkaError as error:
        return Coordinator(key, -1, "", -1, error.code, error.message)


def _share_key(text: str) -> ShareKey:
    try:
        return ShareKey.parse(text)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
