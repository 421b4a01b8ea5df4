"""Commands on who may log in; `security_commands` carries them out and has their rules.

alter_scram  users [{name, upsertions? [{mechanism, iterations, salt, stored_key, server_key}],
             deletions? [mechanism]}], only_first?
             -> {users: [{name, error, message}]}
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from kraftpy.core.fields import AtMost, Length, Range
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.core.metadata.limits import (
    NAME_FIELD_LENGTH_MAX,
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    SCRAM_KEY_BYTES_MAX,
    SCRAM_SALT_BYTES_MAX,
    SCRAM_USERS_PER_COMMAND_MAX,
)
from kraftpy.frozen import dataclass

_Mechanism = Annotated[int, Range(-128, 127)]
_Key = Annotated[bytes, AtMost(SCRAM_KEY_BYTES_MAX)]
_MECHANISMS_MAX = 8


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A credential that a user is to have; the password can't be had from it."""

    mechanism: _Mechanism
    iterations: Annotated[int, Range(SCRAM_ITERATIONS_MIN, SCRAM_ITERATIONS_MAX)]
    salt: Annotated[bytes, AtMost(SCRAM_SALT_BYTES_MAX)] = field(repr=False)
    stored_key: _Key = field(repr=False)
    server_key: _Key = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramUser:
    """What changes of one user: the credentials set, and the mechanisms without one."""

    name: Annotated[str, Length(NAME_FIELD_LENGTH_MAX)]
    upsertions: Annotated[tuple[ScramUpsertion, ...], AtMost(_MECHANISMS_MAX)] = ()
    deletions: Annotated[tuple[_Mechanism, ...], AtMost(_MECHANISMS_MAX)] = ()


@dataclass(frozen=True, slots=True)
class AlterScram(Command):
    """Sets and deletes SCRAM credentials; `only_first`: if nobody has any yet, else nothing."""

    NAME = "alter_scram"
    LEVEL = SECURITY

    users: Annotated[tuple[ScramUser, ...], AtMost(SCRAM_USERS_PER_COMMAND_MAX)]
    only_first: bool = False
    allowed_under: AllowedUnder = None
