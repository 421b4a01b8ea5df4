"""A metadata command as an object, and as the map that the journal and the wire have of it.

    {"type": NAME, field: value, ...}

Rules:

* What a field may hold is said by its type (`kraftpy.core.fields`) and by nothing else: lengths and
  ranges are judged when a command is read, before any rule looks at it.
* A field that has its default isn't written. So a field that a later release adds can't be seen
  in what is proposed without it.
* A command, and a field, is only proposed at a metadata level that knows it (`level_of`): `LEVEL`
  of its class, and `Since(level)` in the type of a field, 0 unless they are given. Whatever was
  there before there were levels is of level 0, and its bytes are what they were.
* A name or a field that this release doesn't know was written by a later one; `decode` tells them
  apart from what is merely wrong, which every release answers alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from kraftpy.core.fields import LONG_MAX, FieldError, Range, default_of, reader
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError

TYPE = "type"


class Since(NamedTuple):
    """The metadata level from which on a field may have another value than its default."""

    level: int


AllowedUnder = Annotated[int, Range(0, LONG_MAX), Since(SECURITY)] | None
"""The field `allowed_under` of what clients change: the version of the ACLs that allowed it."""


class Command:
    """What can be proposed; frozen dataclasses below it say what each consists of."""

    __slots__ = ()
    NAME: ClassVar[str]
    LEVEL: ClassVar[int] = 0


class Codec:
    """The commands that there are, by name."""

    def __init__(self, commands: Iterable[type[Command]]) -> None:
        self._commands: Mapping[str, type[Command]] = {each.NAME: each for each in commands}

    def knows(self, name: str) -> bool:
        """Whether there is a command of that name."""
        return name in self._commands

    def __iter__(self) -> Iterator[type[Command]]:
        return iter(self._commands.values())

    def __getitem__(self, name: str) -> type[Command]:
        return self._commands[name]

    def decode(self, data: Mapping[str, Any]) -> tuple[Command, list[str]]:
        """The command in a map whose `type` is known, and the places of fields that aren't.

        Raises KafkaError(INVALID_REQUEST) that names the field.
        """
        kind: Any = self._commands[data[TYPE]]
        unknown: list[str] = []
        fields = dict(data)
        del fields[TYPE]
        try:
            command: Command = _reader(kind)(fields, unknown)
        except FieldError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        return command, unknown


@cache
def _reader(kind: Any) -> Callable[[Any, list[str]], Any]:
    return reader(kind, "command")


def encode(command: Command) -> dict[str, Any]:
    """The map of a command; `Codec.decode` gives back an equal one."""
    kind: Any = type(command)
    return {TYPE: command.NAME, **_writer(kind)(command)}


@cache
def _writer(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Writes the fields of a record that haven't their defaults."""
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (field.name, default_of(field), _record_in(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]

    def write(record: Any) -> dict[str, Any]:
        written = {}
        for name, default, inner in fields:
            value = getattr(record, name)
            if value == default and type(value) is type(default):
                continue
            if inner is not None and value is not None:
                write_inner = _writer(inner)
                value = [write_inner(each) for each in value]
            written[name] = value
        return written

    return write


def level_of(command: Command) -> int:
    """The metadata level that it takes to propose the command."""
    return max(command.LEVEL, _level_in(command))


def has_newer_fields(kind: Any) -> bool:
    """Whether it takes a look at the fields to know the level of such a command."""
    return bool(_newer_fields(kind))


def _level_in(record: Any) -> int:
    level = 0
    kind: Any = type(record)
    for name, since, default, inner in _newer_fields(kind):
        value = getattr(record, name)
        if value == default:
            continue
        level = max(level, since)
        if inner is not None:
            level = max(level, *map(_level_in, value), 0)
    return level


@cache
def _newer_fields(kind: Any) -> list[tuple[str, int, Any, Any]]:
    """Fields that have come later, or in whose records there are such: (name, level, ...)."""
    found = []
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        since = max((each.level for each in _within(hint) if isinstance(each, Since)), default=0)
        inner = _record_in(hint)
        if since or (inner is not None and _newer_fields(inner)):
            found.append((field.name, since, default_of(field), inner))
    return found


def _record_in(hint: Any) -> Any:
    """The dataclass of which a field has an array; None for any other field."""
    return next((each for each in _within(hint) if dataclasses.is_dataclass(each)), None)


def _within(hint: Any) -> list[Any]:
    """A type with all that it is made of."""
    if isinstance(hint, Since) or not (get_args(hint) or get_origin(hint) is Annotated):
        return [hint]
    return [hint, *(each for inner in get_args(hint) for each in _within(inner))]
