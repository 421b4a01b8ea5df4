"""Random messages of any schema and version, from a seed.

hypothesis draws the seed, not the fields: drawing hundreds of fields one by one is too slow for
five hundred message versions, and a failing seed names its message as well as a shrunk example.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from kraftpy.protocol import messages, schema
from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import FIXED_FORMATS, Field, Schema

SEEDS = st.integers(0, 2**32)


def examples(count: int = 15) -> settings:
    """So many examples a test."""
    return settings(max_examples=count)


# Around the border between one-byte and two-byte varints, whose value is the length plus one.
_LENGTHS = (0, 1, 1, 2, 3, 7, 20, 125, 126, 127, 128, 200)
_COUNTS = (0, 1, 1, 2, 3)
_ALPHABET = "abcXYZ019._-/ äß漢🐍\0"
_INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}


class RandomMessages:
    """Makes messages.

    `unknown_tags` adds tagged fields that no schema knows; `plausible` keeps error codes to those
    that Kafka has and times to the range of `datetime`, because kio turns them into objects.
    """

    def __init__(self, seed: int, *, unknown_tags: bool = True, plausible: bool = False) -> None:
        self._random = random.Random(seed)
        self._with_unknown_tags = unknown_tags
        self._plausible = plausible

    def message(self, name: str, version: int) -> Any:
        self._schema: Schema = schema.load(name)
        self._version = version
        self._root = getattr(messages, name)
        return self._struct(name)

    def _struct(self, struct_name: str) -> Any:
        cls = self._root if struct_name == self._schema.name else getattr(self._root, struct_name)
        obj = cls()
        for field in self._schema.structs[struct_name]:
            if field.exists_in(self._version):
                setattr(obj, field.name, self._field(field))
        if self._schema.is_flexible(self._version) and self._with_unknown_tags:
            obj._tags = self._unknown_tags()
        return obj

    def _unknown_tags(self) -> dict[int, bytes] | None:
        if self._random.random() < 0.7:
            return None
        tags = self._random.sample((100, 127, 128, 10_000, 2**31 - 1), k=self._random.randint(1, 3))
        return {tag: self._bytes() for tag in tags}

    def _field(self, field: Field) -> Any:
        if field.nullable_in(self._version) and self._random.random() < 0.25:
            return None
        if field.is_array:
            big = field.type in FIXED_FORMATS and self._random.random() < 0.1
            count = self._random.choice((16, 17, 126, 127, 128)) if big else None
            count = self._random.choice(_COUNTS) if count is None else count
            return [self._value(field) for _ in range(count)]
        if field.is_struct and field.tag is not None and self._random.random() < 0.5:
            return None
        return self._value(field)

    def _value(self, field: Field) -> Any:
        kind = field.type
        if kind[0].isupper():
            return self._struct(kind)
        if kind == "string":
            return "".join(self._random.choices(_ALPHABET, k=self._random.choice(_LENGTHS)))
        if kind in ("bytes", "records"):
            return self._bytes()
        if kind == "uuid":
            return self._random.choice((schema.ZERO_UUID, self._random.randbytes(16)))
        if kind == "bool":
            return self._random.random() < 0.5
        if kind == "float64":
            return self._random.choice((0.0, -1.5, 1e300, self._random.random()))
        return self._integer(field)

    def _integer(self, field: Field) -> int:
        if self._plausible and field.name.endswith("error_code"):
            return self._random.randint(-1, 120)
        bits = _INT_BITS[field.type]
        unsigned = field.type.startswith("u")
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if self._plausible and bits == 64 and ("time" in field.name or field.name.endswith("_ms")):
            return self._random.choice((0, 1, 1_700_000_000_123, 2**41))
        return self._random.choice((low, high, 0, 1, self._random.randint(low, high)))

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice(_LENGTHS))


def all_versions(name: str) -> range:
    head = schema.load(name)
    return range(head.first_version, head.last_version + 1)


def plain(value: Any) -> Any:
    """The value with `records` as bytes, so that messages can be compared after a round trip."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, Message):
        return (
            value.__class__.__qualname__,
            [(name, plain(getattr(value, name))) for name in value.__slots__],
        )
    return value
