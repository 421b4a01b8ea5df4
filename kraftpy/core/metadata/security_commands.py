"""Carries out the commands on who may log in: SCRAM credentials (KIP-554).

Rules:

* A credential has salt, iterations, stored key and server key (RFC 5802): enough to check who knows
  the password, and to prove that to them. Neither password nor salted password, which logs in as
  well, is ever here.
* Each user changes as a whole or not at all: one mechanism that is wrong leaves the others as they
  are. What is deleted has to be there.
* Names that a client could never log in with, or that stand for somebody else, get no credentials.
  Which those are, `scram_name_error` says; brokers log in as `__broker_ID`, by a key of their own.
* As many users can have credentials as `limits` says.
* `only_first` is for the first credential of a cluster: it's refused once anybody has one, so that
  a file which is there for that alone gives nobody a password back.
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.metadata.commands import AlterScram, ScramUpsertion, ScramUser
from kraftpy.core.metadata.limits import SCRAM_NAME_LENGTH_MAX, SCRAM_USERS_MAX
from kraftpy.core.metadata.records import (
    SCRAM_KEY_BYTES,
    Change,
    ScramChanged,
    ScramCredential,
    ScramMechanism,
)
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.security.principals import reserved
from kraftpy.protocol.errors import ErrorCode, KafkaError


def alter_scram(
    state: MetadataTables, _index: int, command: AlterScram, changes: list[Change]
) -> dict[str, Any]:
    """Sets and deletes credentials of users."""
    if command.only_first and state.scram:
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "there are SCRAM credentials already")
    answers: list[dict[str, Any]] = []
    seen: set[str] = set()
    for user in command.users:
        error, message = ErrorCode.NONE, None
        try:
            if user.name in seen:
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "the user is in the request twice")
            seen.add(user.name)
            _alter(state, user, changes)
        except KafkaError as problem:
            error, message = problem.code, problem.message
        answers.append({"name": user.name, "error": int(error), "message": message})
    return {"users": answers}


def _alter(state: MetadataTables, user: ScramUser, changes: list[Change]) -> None:
    old = state.scram.get(user.name, {})
    mechanisms = [_mechanism(each.mechanism) for each in user.upsertions]
    deleted = [_mechanism(each) for each in user.deletions]
    if len({*mechanisms, *deleted}) < len(mechanisms) + len(deleted):
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE, "a credential can't be altered twice in one request"
        )
    for each in deleted:
        if each not in old:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND, f"the user has no credential for {each.wire_name}"
            )
    if mechanisms:
        problem = scram_name_error(user.name)
        if problem is not None:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
        if not old and len(state.scram) >= SCRAM_USERS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{SCRAM_USERS_MAX} users have credentials, and no more can: delete others first",
            )
    new = {mechanism: each for mechanism, each in old.items() if mechanism not in deleted}
    for mechanism, upsertion in zip(mechanisms, user.upsertions, strict=True):
        new[mechanism] = _credential(mechanism, upsertion)
    if new == old:
        return
    if new:
        state.scram[user.name] = dict(sorted(new.items()))
    else:
        del state.scram[user.name]
    changes.append(ScramChanged(user.name, tuple(sorted(deleted))))


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {number}"
        ) from None


def _credential(mechanism: ScramMechanism, given: ScramUpsertion) -> ScramCredential:
    size = SCRAM_KEY_BYTES[mechanism]
    if not given.salt:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt is empty")
    if len(given.stored_key) != size or len(given.server_key) != size:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a key of {mechanism.wire_name} has {size} bytes",
        )
    return ScramCredential(given.iterations, given.salt, given.stored_key, given.server_key)


def scram_name_error(name: str) -> str | None:
    """Why nobody of this name can have a credential; None if one can.

    SCRAM's user names are printable ASCII for Kafka's brokers and clients, which prepare no other
    text (RFC 4013) and know no other.
    """
    if not name:
        return "the name is empty"
    if len(name) > SCRAM_NAME_LENGTH_MAX:
        return f"the name has more than {SCRAM_NAME_LENGTH_MAX} characters"
    if not all(" " <= letter <= "~" for letter in name):
        return "the name has other characters than printable ASCII, and nobody could log in with it"
    if reserved(name):
        return f"{name!r} stands for others than a user of that name"
    return None
