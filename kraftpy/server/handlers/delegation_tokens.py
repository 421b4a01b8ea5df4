"""Create-, Renew-, Expire- and DescribeDelegationToken (KIP-48, KIP-373).

The controller's state machine decides (`core.metadata.token_commands`), by the times of the broker
that was asked. What a token logs in with, its HMAC, is in answers alone: in no command and no log.
Rules, as in Kafka:

* Who hasn't said who it is, or can be listened to, gets none, and neither does who has logged in by
  one: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, before anything else (`refused`).
* Without `delegation.token.secret.key` all of them are DELEGATION_TOKEN_AUTH_DISABLED.
* Owners, requesters and renewers see their tokens. Others see those that they may, and aren't told
  of the rest.
"""

from __future__ import annotations

import base64
import logging
import os
from typing import TYPE_CHECKING, Any

from kraftpy.core.config.listeners import PLAINTEXT, security_protocol
from kraftpy.core.fields import LONG_MAX
from kraftpy.core.metadata import DelegationToken
from kraftpy.core.metadata.commands import Command, CreateToken, ExpireToken, RenewToken
from kraftpy.core.metadata.limits import TOKEN_RENEWERS_MAX
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.principals import ANONYMOUS, USER, Principal, parsed
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kraftpy.server.cluster.membership import METADATA_TIMEOUT_MS
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import in_parts

if TYPE_CHECKING:
    from kraftpy.core.security.token_logins import TokenLogins
    from kraftpy.server.broker import Broker
    from kraftpy.server.network.session import Session

NO_TIME = -1
"""What stands for a time in the answer to what failed."""

audit = logging.getLogger("kafka.authorizer.logger")


def refused(broker: Broker, session: Session) -> bool:
    """Whether requests on tokens are out of place on this connection."""
    return (
        session.token_id is not None
        or security_protocol(broker.config, session.listener) == PLAINTEXT
        or session.principal == ANONYMOUS
    )


def owner_of(session: Session, request: CreateDelegationTokenRequest) -> Principal:
    """Whose token is asked for."""
    if not request.owner_principal_name:
        return session.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def not_created(
    session: Session, request: CreateDelegationTokenRequest, error: ErrorCode
) -> CreateDelegationTokenResponse:
    """The answer to who gets none."""
    owner = owner_of(session, request)
    return CreateDelegationTokenResponse(
        error, *owner, *session.principal, NO_TIME, NO_TIME, NO_TIME
    )


@handles(ApiKey.CREATE_DELEGATION_TOKEN)
async def create_delegation_token(
    broker: Broker, ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """A new token; its guard has looked at the rights."""
    session = ctx.session
    try:
        tokens = _tokens(broker, session, request.renewers)
        command = _creation(broker, session, request)
        await _decided(broker, ctx, command)
    except KafkaError as error:
        return not_created(session, request, error.code)
    audit.info(
        "%s from %s has created the delegation token %s of %s",
        session.principal,
        session.host,
        command.token_id,
        command.owner,
    )
    return CreateDelegationTokenResponse(
        ErrorCode.NONE,
        *parsed(command.owner),
        *session.principal,
        command.issued_ms,
        command.expires_ms,
        command.max_ms,
        command.token_id,
        tokens.hmac(command.token_id),
    )


def _creation(
    broker: Broker, session: Session, request: CreateDelegationTokenRequest
) -> CreateToken:
    config, now_ms = broker.config, broker.now_ms()
    lifetime_ms = _at_most(config.delegation_token_max_lifetime_ms, request.max_lifetime_ms)
    max_ms = _later(now_ms, lifetime_ms)
    return CreateToken(
        _new_id(),
        str(owner_of(session, request)),
        str(session.principal),
        now_ms,
        min(_later(now_ms, config.delegation_token_expiry_time_ms), max_ms),
        max_ms,
        tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers),
    )


@handles(ApiKey.RENEW_DELEGATION_TOKEN)
async def renew_delegation_token(
    broker: Broker, ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Has a token last from now on for the time that is asked for, as far as it may."""
    try:
        token = await _found(_tokens(broker, ctx.session), request.hmac)
        now_ms = broker.now_ms()
        period_ms = _at_most(broker.config.delegation_token_expiry_time_ms, request.renew_period_ms)
        who = str(ctx.session.principal)
        command = RenewToken(token.id, who, now_ms, _later(now_ms, period_ms))
        value = await _decided(broker, ctx, command)
    except KafkaError as error:
        return RenewDelegationTokenResponse(error.code, NO_TIME)
    return RenewDelegationTokenResponse(ErrorCode.NONE, value["expires_ms"])


@handles(ApiKey.EXPIRE_DELEGATION_TOKEN)
async def expire_delegation_token(
    broker: Broker, ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Has a token end when the time that is asked for is over; below 0 it's gone at once."""
    try:
        token = await _found(_tokens(broker, ctx.session), request.hmac)
        now_ms, period_ms = broker.now_ms(), request.expiry_time_period_ms
        ends_ms = None if period_ms < 0 else _later(now_ms, period_ms)
        command = ExpireToken(token.id, str(ctx.session.principal), now_ms, ends_ms)
        value = await _decided(broker, ctx, command)
    except KafkaError as error:
        return ExpireDelegationTokenResponse(error.code, NO_TIME)
    return ExpireDelegationTokenResponse(ErrorCode.NONE, value["expires_ms"])


@handles(ApiKey.DESCRIBE_DELEGATION_TOKEN, long=True)
async def describe_delegation_token(
    broker: Broker, ctx: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens of these owners, or of all, that the client may know."""
    try:
        tokens = _tokens(broker, ctx.session)
    except KafkaError as error:
        return DescribeDelegationTokenResponse(error.code)
    owners: set[str] | None = None
    if request.owners is not None:
        owners = set()
        async for some in in_parts(request.owners):
            owners.update(f"{each.principal_type}:{each.principal_name}" for each in some)
    found: list[DelegationToken] = []
    if owners != set():
        async for parts in in_parts(list(broker.metadata.tokens.values())):
            found += [each for each in parts if _shown(ctx.session, each, owners)]
    return DescribeDelegationTokenResponse(
        ErrorCode.NONE, elements(found, lambda token: _described(token, tokens))
    )


def _shown(session: Session, token: DelegationToken, owners: set[str] | None) -> bool:
    if owners is not None and owners.isdisjoint((token.owner, token.requester, *token.renewers)):
        return False
    view = session.view
    return (
        view is None
        or token.concerns(str(session.principal))
        or view.may(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.id)
        or view.may(Operation.DESCRIBE_TOKENS, Resource.USER, token.owner)
    )


def _described(
    token: DelegationToken, tokens: TokenLogins
) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    kinds = DescribeDelegationTokenResponse
    renewers = [kinds.DescribedDelegationTokenRenewer(*parsed(each)) for each in token.renewers]
    return kinds.DescribedDelegationToken(
        *parsed(token.owner),
        *parsed(token.requester),
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.id,
        tokens.hmac(token.id),
        renewers,
    )


def _tokens(broker: Broker, session: Session, renewers: Any = ()) -> TokenLogins:
    """The brokers' key to tokens. Raises KafkaError if nothing can be asked of them."""
    if refused(broker, session):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if len(renewers) > TOKEN_RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if any(each.principal_type != USER for each in renewers):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if broker.tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return broker.tokens


async def _found(tokens: TokenLogins, digest: Any) -> DelegationToken:
    async for some in in_parts(tokens.unnoted()):
        for token_id in some:
            tokens.note(token_id)
    token = tokens.find(bytes(digest))
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


async def _decided(broker: Broker, ctx: RequestContext, command: Command) -> Any:
    _, result = await controller_of(broker, ctx).propose(command, METADATA_TIMEOUT_MS)
    if result.error is not ErrorCode.NONE:
        raise KafkaError(result.error, result.message)
    return result.value


def _new_id() -> str:
    """An id as Kafka's are: 16 random bytes, which no tool takes for an option."""
    while True:
        found = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        if not found.startswith("-"):
            return found


def _at_most(limit_ms: int, wanted_ms: int) -> int:
    return min(limit_ms, wanted_ms) if wanted_ms > 0 else limit_ms


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, LONG_MAX)
