"""The command on configuration; `config_commands` carries it out and has its rules.

alter_configs  resources [{type, name, ops [[key, op, value]], defaults? {key: value}} or
               {type, name, configs {}}], validate_only?
               -> {resources: [{type, name, error, message}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from kraftpy.core.fields import AtMost, Length, Range
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.limits import (
    CONFIGS_MAX,
    NAME_FIELD_LENGTH_MAX,
    RESOURCES_PER_COMMAND_MAX,
)
from kraftpy.frozen import NamedTuple, dataclass

OP_SET = 0
OP_DELETE = 1
OP_APPEND = 2
OP_SUBTRACT = 3

Int8 = Annotated[int, Range(-128, 127)]


class ConfigOp(NamedTuple):
    """A change of one key; see `OP_SET` and its like."""

    key: str
    op: Int8
    value: str | None


_Values = Annotated[Mapping[str, str | None], AtMost(CONFIGS_MAX)]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What to change of one resource: `ops`, or if that is None, `configs` replace everything.

    `defaults` has what lists start from that aren't set.
    """

    type: Int8
    name: Annotated[str, Length(NAME_FIELD_LENGTH_MAX)]
    ops: Annotated[tuple[ConfigOp, ...], AtMost(CONFIGS_MAX)] | None = None
    configs: _Values = field(default_factory=dict)
    defaults: _Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterConfigs(Command):
    """Changes the configuration of topics, brokers, groups and clients' metrics."""

    NAME = "alter_configs"

    resources: Annotated[tuple[ConfigChange, ...], AtMost(RESOURCES_PER_COMMAND_MAX)]
    validate_only: bool = False
    allowed_under: AllowedUnder = None
