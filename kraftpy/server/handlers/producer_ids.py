"""InitProducerId (KIP-98, KIP-360): ids for idempotent producers (those of transactional ids:
`transactional_ids`).

Ids come from blocks that the controller hands out, so no two producers of a cluster ever share one,
whatever is killed. An idempotent producer that asks again gets a new id, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.transactional_ids import init_transactional_id
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker


@handles(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(
    broker: Broker, ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A fresh producer id with epoch 0, or the id and the next epoch of a transactional id."""
    if request.transactional_id is not None:
        if broker.serves_transactions:
            return await init_transactional_id(broker, ctx, request)
        # What FindCoordinator answers, for clients that didn't ask it.
        return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
