"""The schema of every message: Kafka's field names, types and version ranges, parsed from tables.

The tables in `kraftpy.protocol.schemas` hold one message per paragraph and one field per line:

    FetchRequest request 1 v4-18 flex12+
      cluster_id     string?        12+ tag0 =null
      topics         []FetchTopic
        topic        string         4-12

* First line: name, kind (`request`, `response` with the API key behind it, or `data`), the versions
  that exist, and the first flexible version (KIP-482) if there is one.
* A field: name, type, versions (left out: wherever its struct exists), `tagN` if it is a tagged
  field, `=default` where Kafka's default is not zero, empty or false.
* `[]T` is an array. `?` allows null wherever the field exists, `?9+` from version 9 on.
* A type in capitals is a struct; its fields are indented below its first use. A later use of the
  name within the message means the same struct.

Nothing is parsed before it is asked for: importing this module costs a few string splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.schemas import (
    cluster,
    data,
    embedded,
    groups,
    security,
    share,
    topics,
    transactions,
)

_TABLES = (cluster, data, embedded, groups, security, share, topics, transactions)

ZERO_UUID = bytes(16)

FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` format character of every type whose size does not depend on its value."""

Default = int | float | str | bytes | tuple[()] | None
"""`()` stands for an empty list; None for null, or for a struct with its fields' defaults."""


class Field(NamedTuple):
    """One field of a struct. `type` is a primitive's name or a struct's; `versions` inclusive."""

    name: str
    type: str
    is_array: bool
    first_version: int
    last_version: int
    nullable_from: int | None
    tag: int | None
    default: Default

    def exists_in(self, version: int) -> bool:
        return self.first_version <= version <= self.last_version

    def nullable_in(self, version: int) -> bool:
        return self.nullable_from is not None and version >= self.nullable_from

    @property
    def is_struct(self) -> bool:
        """A single struct, not an array of them."""
        return not self.is_array and self.type[0].isupper()


class Schema(NamedTuple):
    """One message: its header line and its structs; the root struct has the message's own name."""

    name: str
    kind: str
    api_key: int | None
    first_version: int
    last_version: int
    flexible_from: int | None
    structs: dict[str, tuple[Field, ...]]

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


class Header(NamedTuple):
    """The first line of a message's table."""

    name: str
    kind: str
    api_key: int | None
    first_version: int
    last_version: int
    flexible_from: int | None


def _parse_header(line: str) -> Header:
    name, kind, *rest = line.split()
    api_key = int(rest.pop(0)) if kind != "data" else None
    first, last = rest[0].removeprefix("v").split("-")
    flexible = int(rest[1].removeprefix("flex").removesuffix("+")) if len(rest) > 1 else None
    return Header(name, kind, api_key, int(first), int(last), flexible)


@cache
def _paragraphs() -> dict[str, str]:
    """Message name -> its table, unparsed."""
    return {
        text.split(None, 1)[0]: text
        for module in _TABLES
        for text in module.TABLES.strip().split("\n\n")
    }


def names() -> Iterator[str]:
    """Yields the name of every message there is, in table order."""
    yield from _paragraphs()


@cache
def headers() -> tuple[Header, ...]:
    """The first line of every table: cheap, no field is parsed."""
    return tuple(_parse_header(text.partition("\n")[0]) for text in _paragraphs().values())


def _parse_default(text: str | None, field_type: str, is_array: bool) -> Default:
    if text == "null" or field_type == "records":
        return None
    if is_array:
        return ()
    if field_type[0].isupper():
        return None
    if field_type == "string":
        return text or ""
    if field_type == "bytes":
        return b""
    if field_type == "uuid":
        return ZERO_UUID
    if field_type == "bool":
        return text == "true"
    if field_type == "float64":
        return float(text or 0)
    return int(text or 0)


def _parse_versions(token: str, last: int) -> tuple[int, int]:
    if token.endswith("+"):
        return int(token[:-1]), last
    first, _, end = token.partition("-")
    return int(first), int(end or first)


def _parse_field(line: str, first: int, last: int) -> Field:
    name, type_, *rest = line.split()
    type_, question, nullable = type_.partition("?")
    tag: int | None = None
    default: str | None = None
    for token in rest:
        if token.startswith("tag"):
            tag = int(token[3:])
        elif token.startswith("="):
            default = token[1:]
        else:
            first, last = _parse_versions(token, last)
    nullable_from = None
    if question:
        nullable_from = int(nullable.removesuffix("+")) if nullable else first
    is_array = type_.startswith("[]")
    type_ = type_.removeprefix("[]")
    value = _parse_default(default, type_, is_array)
    return Field(name, type_, is_array, first, last, nullable_from, tag, value)


@cache
def load(name: str) -> Schema:
    """Parses and returns the schema of the message `name`; `KeyError` when there is none."""
    head, *lines = _paragraphs()[name].split("\n")
    header = _parse_header(head)
    structs: dict[str, list[Field]] = {name: []}
    levels = [structs[name]]  # the struct that each open indentation level adds fields to
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        del levels[depth:]
        field = _parse_field(line, header.first_version, header.last_version)
        levels[-1].append(field)
        if field.type[0].isupper():
            levels.append(structs.setdefault(field.type, []))
    return Schema(*header, {struct: tuple(fields) for struct, fields in structs.items()})
