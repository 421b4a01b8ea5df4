"""The command on quotas of clients; `quota_commands` carries it out and has its rules.

alter_client_quotas  entities [{parts [[type, name]], values [[key, value]]}], validate_only?
                     -> {entities: [{error, message}]}

The name of a default is null, and so is the value of a quota that goes.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import AtMost, Length
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.levels import QUOTAS_AND_TOKENS
from kraftpy.core.metadata.limits import NAME_FIELD_LENGTH_MAX, QUOTAS_PER_COMMAND_MAX
from kraftpy.frozen import NamedTuple, dataclass

_Name = Annotated[str, Length(NAME_FIELD_LENGTH_MAX)]
_PARTS_MAX = 4
_VALUES_MAX = 16


class EntityPart(NamedTuple):
    """Whose quotas they are, or one half of it."""

    type: _Name
    name: _Name | None


class QuotaValue(NamedTuple):
    """What the entity is to have of one key."""

    key: _Name
    value: float | None


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """What changes of one entity; its other keys stay as they are."""

    parts: Annotated[tuple[EntityPart, ...], AtMost(_PARTS_MAX)]
    values: Annotated[tuple[QuotaValue, ...], AtMost(_VALUES_MAX)]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas(Command):
    """Sets and removes quotas; `validate_only`: only says whether it could."""

    NAME = "alter_client_quotas"
    LEVEL = QUOTAS_AND_TOKENS

    entities: Annotated[tuple[EntityQuotas, ...], AtMost(QUOTAS_PER_COMMAND_MAX)]
    validate_only: bool = False
    allowed_under: AllowedUnder = None
