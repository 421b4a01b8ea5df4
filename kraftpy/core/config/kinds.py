"""What a configuration value may be: how its text is read, checked, named to people and shown.

A `Kind` belongs to one setting. Its parser is stricter than Python's own `int` and `float` (no
underscores, no other digits, no "nan"), because what Kafka refuses must not pass here. A parser
raises `ValueError` for text that is not allowed; the caller turns that into a `ConfigError`, which
says what is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import IntEnum
from typing import Any

from kraftpy.core.security.acls import principals_in
from kraftpy.frozen import dataclass
from kraftpy.secret import HIDDEN, Secret

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
KEY_LENGTH_MAX = 256
VALUE_LENGTH_MAX = 8192

PARTITIONS_MAX = 10_000
"""The largest number of partitions a topic may have."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


class ConfigError(ValueError):
    """A setting that can't be used. `str()` is a sentence for people.

    `key` and `value` are what was given (`value` is None if it's missing or is not to be shown);
    `allowed` says what would have been right.
    """

    def __init__(self, key: str, value: str | None, allowed: str, message: str = "") -> None:
        super().__init__(message or f"{key}={shorten(value or '')}: must be {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


def unknown_key(key: str, value: str | None, known: Iterable[str]) -> ConfigError:
    """The error for a broker's key that is not in `known`."""
    close = closest(key, known)
    hint = f"did you mean {close}?" if close else "remove it, or check how it is spelled"
    allowed = close or "a broker setting"
    return ConfigError(key, value, allowed, f"unknown broker setting {shorten(key)!r}: {hint}")


def closest(key: str, known: Iterable[str]) -> str | None:
    """The one of `known` that somebody who wrote `key` probably meant."""
    from difflib import get_close_matches  # for mistakes alone

    return next(iter(get_close_matches(key[:KEY_LENGTH_MAX], known, n=1, cutoff=0.75)), None)


def shorten(text: str, length: int = 120) -> str:
    """`text` cut to `length` characters, for messages."""
    return text if len(text) <= length else text[: length - 3] + "..."


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Kind:
    """How one setting is read and shown. `allowed` completes the sentence "must be ...".

    `length_max` is in characters; longer text is not even parsed.
    """

    type: ConfigType
    allowed: str
    parse: Callable[[str], Any]
    render: Callable[[Any], str] = str
    length_max: int = VALUE_LENGTH_MAX


def _parse_whole(text: str) -> int:
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _whole(type_: ConfigType, minimum: int, maximum: int, type_maximum: int) -> Kind:
    if maximum < type_maximum:
        allowed = f"a whole number from {minimum} to {maximum}"
    elif minimum < -1:
        allowed = "a whole number"
    else:
        allowed = f"a whole number, {minimum} or more"

    def parse(text: str) -> int:
        number = _parse_whole(text)
        if not minimum <= number <= min(maximum, type_maximum):
            raise ValueError(text)
        return number

    return Kind(type_, allowed, parse)


def int32(minimum: int, maximum: int = INT_MAX) -> Kind:
    """A 32-bit number."""
    return _whole(ConfigType.INT, minimum, maximum, INT_MAX)


def int64(minimum: int, maximum: int = LONG_MAX) -> Kind:
    """A 64-bit number."""
    return _whole(ConfigType.LONG, minimum, maximum, LONG_MAX)


def int64_or_unlimited(minimum: int) -> Kind:
    """A 64-bit number where -1 stands for no limit; -1 is read as the largest number."""

    def parse(text: str) -> int:
        number = _parse_whole(text)
        if number == -1:
            return LONG_MAX
        if not minimum <= number <= LONG_MAX:
            raise ValueError(text)
        return number

    def render(number: int) -> str:
        return "-1" if number == LONG_MAX else str(number)

    allowed = f"a whole number, {minimum} or more, or -1 for no limit"
    return Kind(ConfigType.LONG, allowed, parse, render)


def gzip_level() -> Kind:
    """A compression level of gzip, where -1 stands for the codec's own."""
    whole = int32(-1, 9)

    def parse(text: str) -> int:
        number: int = whole.parse(text)
        if number == 0:
            raise ValueError(text)
        return number

    return Kind(ConfigType.INT, "a whole number from 1 to 9, or -1 for gzip's own", parse)


def only(kind: Kind, text: str, why: str) -> Kind:
    """The one value of `kind` that is true here, given as text; `why` says what makes it so."""
    wanted = kind.parse(text)

    def parse(value: str) -> Any:
        found = kind.parse(value)
        if found != wanted:
            raise ValueError(value)
        return found

    return replace(kind, allowed=f"{text}: {why}", parse=parse)


def ratio() -> Kind:
    """A decimal number from 0 to 1."""

    def parse(text: str) -> float:
        text = text.strip()
        if not _DECIMAL.fullmatch(text) or not 0.0 <= float(text) <= 1.0:
            raise ValueError(text)
        return float(text)

    return Kind(ConfigType.DOUBLE, "a number from 0 to 1", parse)


def positive() -> Kind:
    """A decimal number above 0."""

    def parse(text: str) -> float:
        text = text.strip()
        if not _DECIMAL.fullmatch(text) or not 0.0 < float(text) < math.inf:
            raise ValueError(text)
        return float(text)

    return Kind(ConfigType.DOUBLE, "a number above 0", parse)


def boolean() -> Kind:
    """true or false, in any case."""
    words = {"true": True, "false": False}

    def parse(text: str) -> bool:
        try:
            return words[text.strip().lower()]
        except KeyError:
            raise ValueError(text) from None

    return Kind(ConfigType.BOOLEAN, "true or false", parse, lambda value: str(value).lower())


def text(allowed: str = "some text", *, empty: bool = False) -> Kind:
    """A line of text; surrounding blanks don't count."""

    def parse(value: str) -> str:
        value = value.strip()
        if not (value or empty) or not is_line(value):
            raise ValueError(value)
        return value

    return Kind(ConfigType.STRING, allowed, parse)


def class_path() -> Kind:
    """Where a class of Python is: module and name, with dots."""

    def parse(value: str) -> str:
        value = value.strip()
        parts = value.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ValueError(value)
        return value

    return Kind(ConfigType.STRING, "a class, as my_package.my_module.MyClass", parse)


def password(allowed: str = "a password", length_max: int = VALUE_LENGTH_MAX) -> Kind:
    """What must not be read by others: read as a `Secret`, and never shown.

    It may have several lines, as a key in PEM has, and blanks around it don't count.
    """

    def parse(value: str) -> Secret:
        value = value.strip()
        if not value or "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
            raise ValueError(allowed)
        return Secret(value)

    return Kind(ConfigType.PASSWORD, allowed, parse, lambda _: HIDDEN, length_max)


def one_of(*words: str) -> Kind:
    """One of a few words, spelled exactly."""

    def parse(value: str) -> str:
        value = value.strip()
        if value not in words:
            raise ValueError(value)
        return value

    return Kind(ConfigType.STRING, "one of " + ", ".join(words), parse)


def codec_name() -> Kind:
    """A topic's compression.type. "uncompressed" is read as "none", the codec's own name."""
    words = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

    def parse(value: str) -> str:
        value = str(words.parse(value))
        return "none" if value == "uncompressed" else value

    def render(value: str) -> str:
        return "uncompressed" if value == "none" else value

    return Kind(ConfigType.STRING, words.allowed, parse, render)


def codec_number() -> Kind:
    """A compression codec by its number in a record batch; read as the codec's name."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    numbers = int32(0, len(names) - 1)
    meanings = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
    return Kind(
        ConfigType.INT,
        "one of " + meanings,
        lambda value: names[numbers.parse(value)],
        lambda name: str(names.index(name)),
    )


def word_set(*words: str, empty: bool = False) -> Kind:
    """Some of a few words, comma-separated, one or more unless `empty`; read as a frozenset."""

    def parse(value: str) -> frozenset[str]:
        found = split_list(value)
        if not set(found) <= set(words) or not (found or (empty and not value.strip())):
            raise ValueError(value)
        return frozenset(found)

    def render(value: frozenset[str]) -> str:
        return ",".join(word for word in words if word in value)

    allowed = " or ".join(words) + " or both, comma-separated" + (", or empty" if empty else "")
    return Kind(ConfigType.LIST, allowed, parse, render)


def text_list(allowed: str, *words: str) -> Kind:
    """Comma-separated texts, at least one, each once; of these words if any. Read as a tuple."""

    def parse(value: str) -> tuple[str, ...]:
        found = split_list(value)
        is_known = not words or set(found) <= set(words)
        if (
            not found
            or len(set(found)) < len(found)
            or not is_known
            or not all(map(is_line, found))
        ):
            raise ValueError(value)
        return tuple(found)

    return Kind(ConfigType.LIST, allowed, parse, ",".join)


def texts() -> Kind:
    """Comma-separated texts, or none; read as a tuple."""

    def parse(value: str) -> tuple[str, ...]:
        found = split_list(value)
        if not all(map(is_line, found)):
            raise ValueError(value)
        return tuple(found)

    return Kind(ConfigType.LIST, "texts, comma-separated", parse, ",".join)


def is_line(text: str) -> bool:
    """Whether it's without control characters, and can be written as UTF-8.

    Nothing else can be the name of a file, or go into a log or over the wire.
    """
    return not any(ord(each) < 32 or "\ud800" <= each <= "\udfff" for each in text)


def split_list(value: str) -> list[str]:
    """The parts of a comma-separated list, without blanks and empty parts."""
    return [part for part in (part.strip() for part in value.split(",")) if part]


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def authorizer() -> Kind:
    """Kafka's name of the class that decides by ACLs, the only one; or nothing."""

    def parse(text: str) -> str:
        name = text.strip()
        if name not in ("", STANDARD_AUTHORIZER):
            raise ValueError(text)
        return name

    return Kind(ConfigType.STRING, f"{STANDARD_AUTHORIZER}, or empty", parse)


def principals() -> Kind:
    """Principals, separated by semicolons."""

    def parse(text: str) -> frozenset[Any]:
        if not is_line(text):
            raise ValueError(text)
        return principals_in(text)

    def render(value: frozenset[Any]) -> str:
        return ";".join(sorted(map(str, value)))

    return Kind(
        ConfigType.STRING,
        "principals as User:admin, separated by semicolons",
        parse,
        render,
    )
