"""Which partitions to read, and from where to where: what options say, before brokers are asked.

Offsets are written as Spark's Kafka source writes them: `{"flights":{"0":23,"1":-2}}`, -2 for the
log's start and -1 for its end. `Offsets` is what such a text means, by (topic, partition).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]


class OptionError(ValueError):
    """An option that can't be followed; the text says what is wrong and what to type."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """All partitions of these topics."""

    names: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Subscribed:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise OptionError('option subscribe names no topic: .option("subscribe", "flights")')
        return cls(names)


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of the topics whose whole name the expression matches."""

    expression: str

    @classmethod
    def read(cls, text: str) -> Pattern:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                f"option subscribePattern is no regular expression: {error}"
            ) from None
        if not text:
            raise OptionError('option subscribePattern is empty: ".*" matches every topic')
        return cls(text)

    def choose(self, names: Iterable[str]) -> list[str]:
        """The names that match."""
        expression = re.compile(self.expression)
        return sorted(name for name in names if expression.fullmatch(name))


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions."""

    partitions: tuple[Partition, ...]

    @classmethod
    def read(cls, text: str) -> Assigned:
        return cls(read_assignment(text))


Topics: TypeAlias = Subscribed | Pattern | Assigned


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition: earliest, latest, offsets, or the first record from a time on.

    `by_partition` has offsets or, for kind "timestamps", milliseconds. `strict` makes it an error
    if no record is that young; else that is the log's end.
    """

    kind: str
    by_partition: Offsets | None = None
    timestamp_ms: int | None = None
    strict: bool = False
    option: str = ""


def at_timestamp(when_ms: int, strict: bool) -> Position:
    """The same time in all partitions."""
    return Position("timestamp", timestamp_ms=when_ms, strict=strict)


def position_by_offsets(option: str, text: str) -> Position:
    """The position that a text like `{"flights":{"0":23}}` says."""
    example = 'earliest, latest or {"flights":{"0":23,"1":-2}}'
    return Position("offsets", _by_partition(option, text, -2, example), option=option)


def position_by_timestamps(option: str, text: str, strict: bool) -> Position:
    """The position that a text like `{"flights":{"0":1700000000000}}` says."""
    found = _by_partition(option, text, 0, '{"flights":{"0":1700000000000}}')
    return Position("timestamps", found, strict=strict, option=option)


def read_assignment(text: str) -> tuple[Partition, ...]:
    """The partitions that a text like `{"flights":[0,1]}` says; OptionError."""
    wrong = OptionError(f'option assign is like {{"flights":[0,1]}}, not {text!r}')
    found = _json(text)
    if not isinstance(found, dict) or not found:
        raise wrong
    names: list[Partition] = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(_is_number(n) and n >= 0 for n in numbers):
            raise wrong
        names += [(topic, number) for number in numbers]
    if not names:
        raise wrong
    return tuple(sorted(set(names)))


def _by_partition(option: str, text: str, least: int, example: str) -> Offsets:
    try:
        found = offsets_of(_json(text))
    except ValueError:
        raise OptionError(f"option {option} is {example}, not {text!r}") from None
    if not found or min(found.values()) < least:
        raise OptionError(f"option {option} is {example}, not {text!r}")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def offsets_of(table: object) -> Offsets:
    """Offsets out of `{topic: {partition: offset}}`, partitions as text; ValueError."""
    if not isinstance(table, Mapping):
        raise ValueError("no table of topics")
    found: Offsets = {}
    for topic, numbers in table.items():
        if not isinstance(numbers, Mapping):
            raise ValueError(f"no table of partitions for {topic!r}")
        for number, offset in numbers.items():
            if not str(number).isascii() or not str(number).isdigit() or not _is_number(offset):
                raise ValueError(f"no offset of a partition: {number!r}: {offset!r}")
            found[str(topic), int(number)] = offset
    return found


def table_of(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """`{topic: {partition: offset}}`, sorted, partitions as text: what JSON can hold."""
    table: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        table.setdefault(topic, {})[str(partition)] = offset
    return table
