"""SaslHandshake, SaslAuthenticate of who needn't, or needn't any more, log in.

Whoever has to log in is answered by its connection's gate (`server.network.gate`). Behind it, and
on listeners without one, both are out of place and change nothing, as in Kafka: ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker


@handles(ApiKey.SASL_HANDSHAKE)
def sasl_handshake(
    broker: Broker, ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """ILLEGAL_SASL_STATE."""
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)


@handles(ApiKey.SASL_AUTHENTICATE)
def sasl_authenticate(
    broker: Broker, ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        ErrorCode.ILLEGAL_SASL_STATE,
        "SaslAuthenticate request received outside of a login",
    )
