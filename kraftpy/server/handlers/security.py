"""DescribeClientQuotas.

There are no quotas of clients yet, and the request says so as Kafka does where nothing was set, by
an empty list. A broker that doesn't know a request closes the connection, and tools that begin with
it would take the broker for dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, cluster=Operation.DESCRIBE_CONFIGS)
def describe_client_quotas(
    broker: Broker, ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """No quotas match; INVALID_REQUEST or UNSUPPORTED_VERSION for a filter that none could."""
    try:
        _check_filter(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    return DescribeClientQuotasResponse(entries=[])


def _check_filter(components: Sequence[DescribeClientQuotasRequest.ComponentData]) -> None:
    """Raises KafkaError as Kafka's `ClientQuotasImage.describe` refuses filters."""
    types: set[str] = set()
    for component in components:
        kind = component.entity_type
        problem = None
        if not kind:
            problem = "an entity type is empty"
        elif kind in types:
            problem = f"entity type {kind} is in the filter twice"
        elif component.match_type not in (EXACT, DEFAULT, ANY):
            problem = f"there is no match type {component.match_type}"
        elif component.match_type == EXACT and component.match is None:
            problem = f"{kind} is to match exactly (type 0), but the filter doesn't say what"
        elif component.match_type != EXACT and component.match is not None:
            problem = f"{kind} has something to match, which only match type 0 looks at"
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"there are quotas of {USER}, {CLIENT_ID} and {IP}, not of {kind[:120]}",
            )
        types.add(kind)
    if IP in types and len(types) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{IP} goes with no other entity type")
