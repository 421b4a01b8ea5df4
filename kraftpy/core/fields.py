"""Reads records with named fields out of plain values: what msgpack and JSON have, from outside.

`reader(cls, place)` makes of a dataclass a function that takes a map and gives an instance. What a
field may be is its type, written once:

    int, str, float               any; bools are no numbers, text has a UTF-8 form
    Annotated[int, Range(0, 9)]   in that range, both ends included
    Annotated[str, Length(255)]   of at most so many characters
    Annotated[bytes, Length(16)]  of exactly so many bytes
    Annotated[bytes, AtMost(64)]  of at most so many bytes
    Literal["a", "b"]             one of these
    tuple[X, ...]                 an array; in `Annotated[..., AtMost(9)]` of at most so many
    Mapping[str, X]               a map, in the same way
    a dataclass                   a map with its fields
    a NamedTuple                  an array with its fields in their order
    X | None                      null, too

What else `Annotated` has is for others to read.

Rules:

* A field that isn't there has its default, and so has one that is null. Without a default it's an
  error.
* Whatever doesn't fit is a `FieldError` that says where and what belongs there. Nothing is guessed.
* Fields that aren't known are noted in the list that the function is given, by their places, and
  passed over: what that means is for the caller to say. They are noted once all others fit.
* Places have no numbers of elements in them, so all are known before anything is read; reading is
  as fast as it would be if it were written out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from kraftpy.frozen import NamedTuple

Reader = Callable[[Any, list[str]], Any]
"""Gives what a value stands for, and adds the places of unknown fields to the list."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class FieldError(ValueError):
    """Something isn't what it should be; the text says where."""


class Range(NamedTuple):
    """Of a number: from `minimum` to `maximum`."""

    minimum: int
    maximum: int


class Length(NamedTuple):
    """Of text the most characters, of bytes how many."""

    maximum: int


class AtMost(NamedTuple):
    """Of an array or a map: how many elements it may have; of bytes how many it may be."""

    elements: int


Int32 = Annotated[int, Range(0, INT_MAX)]
Int64 = Annotated[int, Range(0, LONG_MAX)]
SignedInt32 = Annotated[int, Range(-INT_MAX - 1, INT_MAX)]
Uuid = Annotated[bytes, Length(16)]


def reader(kind: Any, place: str) -> Reader:
    """The function that reads a value of this type; `place` is what errors call it."""
    bound: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *bounds = get_args(kind)
        bound = tuple(bounds)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (some,) = (each for each in inner if each is not types.NoneType)
        return _optional(reader(Annotated[some, *bound] if bound else some, place))
    if origin is Literal:
        return _choice(inner, place)
    if origin is tuple:
        return _array(reader(inner[0], place), place, _limit(bound))
    if origin is not None and issubclass(origin, Mapping):
        return _map(reader(inner[1], place), place, _limit(bound))
    if dataclasses.is_dataclass(kind):
        return _record(kind, place)
    if issubclass(kind, tuple):
        return _fixed(kind, place)
    return _SCALARS[kind](
        place, *(each for each in bound if isinstance(each, (Range, Length, AtMost)))
    )


def _limit(bound: tuple[Any, ...]) -> int | None:
    return next((each.elements for each in bound if isinstance(each, AtMost)), None)


def _wrong(place: str, expected: str) -> FieldError:
    return FieldError(f"{place} must be {expected}")


def _integer(place: str, bound: Range | None = None) -> Reader:
    low, high = bound or (None, None)

    def read(value: Any, _: list[str]) -> int:
        if (type(value) is int or (isinstance(value, int) and not isinstance(value, bool))) and (
            low is None or high is None or low <= value <= high
        ):
            return value
        span = "" if low is None else f" from {low} to {high}"
        raise _wrong(place, f"a whole number{span}")

    return read


def _number(place: str) -> Reader:
    def read(value: Any, _: list[str]) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return float(value)
        raise _wrong(place, "a number")

    return read


def _text(place: str, bound: Length | None = None) -> Reader:
    maximum = LONG_MAX if bound is None else bound.maximum

    def read(value: Any, _: list[str]) -> str:
        if not isinstance(value, str) or len(value) > maximum:
            span = "" if bound is None else f" of at most {maximum} characters"
            raise _wrong(place, f"text{span}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _wrong(place, "text that has a UTF-8 form") from None
        return value

    return read


def _bytes(place: str, bound: Length | AtMost) -> Reader:
    if isinstance(bound, Length):
        low = high = bound.maximum
        expected = f"{high} bytes"
    else:
        low, high = 0, bound.elements
        expected = f"at most {high} bytes"

    def read(value: Any, _: list[str]) -> bytes:
        if isinstance(value, bytes) and low <= len(value) <= high:
            return value
        raise _wrong(place, expected)

    return read


def _flag(place: str) -> Reader:
    def read(value: Any, _: list[str]) -> bool:
        if isinstance(value, bool):
            return value
        raise _wrong(place, "true or false")

    return read


_SCALARS: Mapping[Any, Callable[..., Reader]] = {
    int: _integer,
    float: _number,
    str: _text,
    bytes: _bytes,
    bool: _flag,
}


def _choice(choices: tuple[Any, ...], place: str) -> Reader:
    def read(value: Any, _: list[str]) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        raise _wrong(place, f"one of {', '.join(choices)}")

    return read


def _optional(some: Reader) -> Reader:
    def read(value: Any, unknown: list[str]) -> Any:
        return None if value is None else some(value, unknown)

    return read


def _array(element: Reader, place: str, maximum: int | None) -> Reader:
    limit = LONG_MAX if maximum is None else maximum

    def read(value: Any, unknown: list[str]) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > limit:
            span = "" if maximum is None else f" of at most {maximum} elements"
            raise _wrong(place, f"an array{span}")
        return tuple([element(each, unknown) for each in value])

    return read


def _map(content: Reader, place: str, maximum: int | None) -> Reader:
    key = _text(place)
    limit = LONG_MAX if maximum is None else maximum

    def read(value: Any, unknown: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > limit:
            span = "" if maximum is None else f" of at most {maximum} entries"
            raise _wrong(place, f"a map{span}")
        return {key(name, unknown): content(each, unknown) for name, each in value.items()}

    return read


def _fixed(kind: Any, place: str) -> Reader:
    """An array that is a NamedTuple."""
    hints = get_type_hints(kind, include_extras=True)
    readers = [reader(hints[name], place) for name in kind._fields]
    expected = f"[{', '.join(kind._fields)}]"

    def read(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise _wrong(place, expected)
        return kind(*[each(one, unknown) for each, one in zip(readers, value, strict=True)])

    return read


_REQUIRED: Any = object()


def default_of(field: dataclasses.Field[Any]) -> Any:
    """What a field has that isn't given; `is_required` if it must be."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED if field.default is dataclasses.MISSING else field.default


def is_required(default: Any) -> bool:
    return default is _REQUIRED


def _record(kind: Any, place: str) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (field.name, reader(hints[field.name], f"{place}.{field.name}"), default_of(field))
        for field in dataclasses.fields(kind)
    ]
    names = frozenset(name for name, _, _ in fields)

    def read(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "a map")
        values = []
        count = 0
        for name, read_field, default in fields:
            found = value.get(name, _REQUIRED)
            if found is not _REQUIRED:
                count += 1
            if (found is None or found is _REQUIRED) and default is not _REQUIRED:
                values.append(default)
            else:
                values.append(read_field(None if found is _REQUIRED else found, unknown))
        record = kind(*values)
        if count < len(value):
            unknown += [f"{place}.{name}" for name in value if name not in names]
        return record

    return read
