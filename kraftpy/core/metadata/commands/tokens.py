"""Commands on delegation tokens; `token_commands` carries them out and has their rules.

create_token           token_id, owner, requester, renewers?, issued_ms, expires_ms, max_ms
                       -> {expires_ms}
renew_token            token_id, principal, now_ms, expires_ms -> {expires_ms}
expire_token           token_id, principal, now_ms, expires_ms? -> {expires_ms}
remove_expired_tokens  now_ms -> {removed}
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import AtMost, Int64, Length
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.levels import QUOTAS_AND_TOKENS
from kraftpy.core.metadata.limits import (
    TOKEN_ID_LENGTH_MAX,
    TOKEN_RENEWERS_MAX,
    TOKEN_TEXT_LENGTH_MAX,
)
from kraftpy.frozen import dataclass

_Id = Annotated[str, Length(TOKEN_ID_LENGTH_MAX)]
_Principal = Annotated[str, Length(TOKEN_TEXT_LENGTH_MAX)]


@dataclass(frozen=True, slots=True)
class CreateToken(Command):
    """A token that logs in as its owner."""

    NAME = "create_token"
    LEVEL = QUOTAS_AND_TOKENS

    token_id: _Id
    owner: _Principal
    requester: _Principal
    issued_ms: Int64
    expires_ms: Int64
    max_ms: Int64
    renewers: Annotated[tuple[_Principal, ...], AtMost(TOKEN_RENEWERS_MAX)] = ()
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class RenewToken(Command):
    """Lets a token last until another time, as far as it may."""

    NAME = "renew_token"
    LEVEL = QUOTAS_AND_TOKENS

    token_id: _Id
    principal: _Principal
    now_ms: Int64
    expires_ms: Int64


@dataclass(frozen=True, slots=True)
class ExpireToken(Command):
    """Lets a token end at another time; without one it is gone at once."""

    NAME = "expire_token"
    LEVEL = QUOTAS_AND_TOKENS

    token_id: _Id
    principal: _Principal
    now_ms: Int64
    expires_ms: Int64 | None = None


@dataclass(frozen=True, slots=True)
class RemoveExpiredTokens(Command):
    """Removes what is over: of the controller that leads."""

    NAME = "remove_expired_tokens"
    LEVEL = QUOTAS_AND_TOKENS

    now_ms: Int64
