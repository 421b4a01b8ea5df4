"""The table of settings is the dataclass itself: what a field's metadata says of its key.

The field `log_retention_ms` is the key `log.retention.ms`: underscore for dot, no exceptions. So a
setting is written down once, and type checkers know it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any

from kraftpy.core.config.kinds import ConfigError, ConfigType, Kind
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What the table knows of one key. `default` is text, as it'd stand in server.properties.

    `kind` is how a value is read that is in force already, `proposed` what a new one must be: it
    may be stricter, so that what an earlier release took still loads. An `internal` setting is for
    tests and is shown only where it's set.
    """

    key: str
    attribute: str
    kind: Kind
    default: str | None
    doc: str
    dynamic: bool
    broker_keys: tuple[tuple[str, int], ...] = ()
    proposed: Kind | None = None
    internal: bool = False


def setting(
    kind: Kind,
    default: str | None,
    doc: str,
    *,
    dynamic: bool = False,
    broker_keys: tuple[tuple[str, int], ...] = (),
    proposed: Kind | None = None,
    internal: bool = False,
) -> Any:
    """A dataclass field that is a setting; typed Any so that the field's annotation counts."""
    value = None if default is None else kind.parse(default)
    metadata = {"setting": (kind, default, doc, dynamic, broker_keys, proposed, internal)}
    return field(default=value, metadata=metadata)


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass made with `setting`, by key, in the order of the class."""
    found = {}
    for each in dataclasses.fields(cls):
        if "setting" in each.metadata:
            key = each.name.replace("_", ".")
            kind, *others = each.metadata["setting"]
            found[key] = Setting(key, each.name, kind, *others)
    return found


def parse_value(definition: Setting, value: str) -> Any:
    """The value of one setting that is in force. Raises ConfigError."""
    return _parse(definition.key, definition.kind, value)


def judge_value(definition: Setting, value: str) -> None:
    """Whether a new value may be set. Raises ConfigError."""
    _parse(definition.key, definition.proposed or definition.kind, value)


def _parse(key: str, kind: Kind, value: str) -> Any:
    if len(value) <= kind.length_max:
        try:
            return kind.parse(value)
        except ValueError:
            pass
    if kind.type is ConfigType.PASSWORD:
        raise ConfigError(key, None, kind.allowed, f"{key}: must be {kind.allowed}")
    raise ConfigError(key, value, kind.allowed)
