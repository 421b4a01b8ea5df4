"""Rights on delegation tokens (KIP-373)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import CreateDelegationTokenRequest
from kraftpy.server.handlers.authorization.guards import Check, guards, leaves_open
from kraftpy.server.handlers.delegation_tokens import not_created, owner_of, refused

for _key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
    leaves_open(_key, "none; the token's owner and its renewers")
leaves_open(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    "none for one's own; DelegationToken DESCRIBE, or User DESCRIBE_TOKENS on its owner",
)


@guards(ApiKey.CREATE_DELEGATION_TOKEN, rights="none for oneself; User CREATE_TOKENS on the owner")
def create_delegation_token(
    check: Check, request: CreateDelegationTokenRequest
) -> Generator[None, None, Any]:
    """Another's token takes a right. First comes whether there is any on this connection."""
    session = check.ctx.session
    if refused(check.broker, session):
        return not_created(session, request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    owner = owner_of(session, request)
    if owner == session.principal or check.need(Operation.CREATE_TOKENS, Resource.USER, str(owner)):
        return None
    return not_created(session, request, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    yield
