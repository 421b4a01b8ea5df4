"""Carries out the commands on delegation tokens (KIP-48, KIP-373).

Rules:

* There is no secret in here: what a token logs in with is an HMAC of its id under a key that only
  the brokers' configuration has.
* A token's owner is a user that could be somebody: nobody gets a token of everybody, of nobody or
  of a broker.
* A token never lasts longer than `max_ms`, which never changes. Times come with the commands: that
  of who proposes them, as any clock would be another one on each node.
* Only the owner and the renewers renew and expire a token. One that is over can't be renewed, nor
  get another end, but be removed; the controller that leads removes it now and then.
* As many tokens can be there, and belong to one owner, as `limits` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kraftpy.core.metadata.commands import (
    CreateToken,
    ExpireToken,
    RemoveExpiredTokens,
    RenewToken,
)
from kraftpy.core.metadata.limits import TOKEN_TEXT_LENGTH_MAX, TOKENS_MAX, TOKENS_PER_OWNER_MAX
from kraftpy.core.metadata.records import Change, DelegationToken, TokenChanged, TokensRemoved
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.security.principals import USER, is_user, parsed
from kraftpy.protocol.errors import ErrorCode, KafkaError


def create_token(
    state: MetadataTables, _index: int, command: CreateToken, changes: list[Change]
) -> dict[str, Any]:
    """Adds a token."""
    if not command.token_id or command.token_id in state.tokens:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no id, or that of another token")
    if any(parsed(each).type != USER for each in (command.owner, *command.renewers)):
        raise KafkaError(
            ErrorCode.INVALID_PRINCIPAL_TYPE, f"owners and renewers of tokens are of type {USER}"
        )
    if not is_user(command.owner):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "nobody logs in as the owner, or more than one user does"
        )
    text_length = sum(map(len, (command.owner, command.requester, *command.renewers)))
    if text_length > TOKEN_TEXT_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the principals of a token have at most {TOKEN_TEXT_LENGTH_MAX} characters",
        )
    of_owner = sum(each.owner == command.owner for each in state.tokens.values())
    if of_owner >= TOKENS_PER_OWNER_MAX or len(state.tokens) >= TOKENS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"there can be {TOKENS_PER_OWNER_MAX} delegation tokens of an owner, and "
            f"{TOKENS_MAX} in all: expire others first",
        )
    token = DelegationToken(
        command.token_id,
        command.owner,
        command.requester,
        tuple(dict.fromkeys(command.renewers)),
        command.issued_ms,
        min(command.expires_ms, command.max_ms),
        command.max_ms,
    )
    state.tokens[token.id] = token
    changes.append(TokenChanged(None, token))
    return {"expires_ms": token.expires_ms}


def renew_token(
    state: MetadataTables, _index: int, command: RenewToken, changes: list[Change]
) -> dict[str, Any]:
    """Moves a token's end."""
    token = _found(state, command.token_id)
    _check_lasts(token, command.now_ms)
    _check_renewer(token, command.principal)
    return _end(state, token, command.expires_ms, changes)


def expire_token(
    state: MetadataTables, _index: int, command: ExpireToken, changes: list[Change]
) -> dict[str, Any]:
    """Moves a token's end, or removes it."""
    token = _found(state, command.token_id)
    _check_renewer(token, command.principal)
    if command.expires_ms is None:
        _remove(state, [token], changes)
        return {"expires_ms": command.now_ms}
    _check_lasts(token, command.now_ms)
    return _end(state, token, command.expires_ms, changes)


def remove_expired_tokens(
    state: MetadataTables, _index: int, command: RemoveExpiredTokens, changes: list[Change]
) -> dict[str, Any]:
    """Removes all that are over."""
    over = [each for each in state.tokens.values() if each.expired(command.now_ms)]
    _remove(state, over, changes)
    return {"removed": len(over)}


def _found(state: MetadataTables, token_id: str) -> DelegationToken:
    token = state.tokens.get(token_id)
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _check_lasts(token: DelegationToken, now_ms: int) -> None:
    if token.expired(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.renewed_by(principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _end(
    state: MetadataTables, token: DelegationToken, expires_ms: int, changes: list[Change]
) -> dict[str, Any]:
    new = replace(token, expires_ms=min(expires_ms, token.max_ms))
    if new != token:
        state.tokens[token.id] = new
        changes.append(TokenChanged(token, new))
    return {"expires_ms": new.expires_ms}


def _remove(state: MetadataTables, tokens: list[DelegationToken], changes: list[Change]) -> None:
    for token in tokens:
        del state.tokens[token.id]
    if tokens:
        changes.append(TokensRemoved(tuple(tokens)))
