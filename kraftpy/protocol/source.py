"""What the two code writers share: lines with indentation, fresh names, and prepared `struct`s."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import FIXED_FORMATS, Field, Schema

SHORT_ARRAY = 17
"""Arrays of numbers shorter than this have their `struct` prepared."""


ARRAY_ELEMENT = Field("", "", False, 0, 0, None, None, None)
"""To be given a primitive's name as its type: an array's elements have no name and are not null."""


class CodeWriter:
    """The source of one function under construction, and the names that it may use.

    `schema` and `version` say what the function is for; `classes` maps struct names to their
    classes. Only names and numbers out of our own schema tables get into the source.
    """

    def __init__(self, schema: Schema, version: int, classes: Mapping[str, type[Message]]) -> None:
        self.schema = schema
        self.version = version
        self.flexible = schema.is_flexible(version)
        self.namespace: dict[str, Any] = {f"C_{name}": cls for name, cls in classes.items()}
        self._lines: list[str] = []
        self._indent = 1
        self._functions: list[str] = []
        self._names = 0
        self._pending: list[tuple[str, str]] = []

    def emit(self, line: str) -> None:
        self._lines.append(" " * self._indent + line)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.emit(opening)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def function(self, signature: str) -> Iterator[None]:
        """Writes a function of its own beside the one under way."""
        outer = self._lines, self._indent, self._pending
        self._lines, self._indent, self._pending = [], 1, []
        yield
        self._functions.append("\n".join([f"def {signature}:", *self._lines]))
        self._lines, self._indent, self._pending = outer

    def fresh(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def source(self) -> str:
        return "\n".join(self._functions) + "\n"

    def struct_method(self, method: str, formats: str) -> str:
        """Returns a name for `struct.Struct('>' + formats)`'s bound `method`."""
        name = f"{method}_{formats.replace('?', 'o')}"
        if name not in self.namespace:
            self.namespace[name] = getattr(struct.Struct(">" + formats), method)
        return name

    def short_array_methods(self, method: str, fmt: str) -> str:
        """Returns a name for the tuple of `method`s for 0, 1, 2, ... numbers of format `fmt`."""
        name = f"{method}_up_to_{fmt}"
        if name not in self.namespace:
            structs = [struct.Struct(f">{n}{fmt}") for n in range(SHORT_ARRAY)]
            self.namespace[name] = tuple(getattr(s, method) for s in structs)
        return name

    def split(self, struct_name: str) -> tuple[list[Field], list[Field], list[Field]]:
        """The struct's fields in this version: (in order on the wire, tagged, not in it)."""
        regular: list[Field] = []
        tagged: list[Field] = []
        absent: list[Field] = []
        for field in self.schema.structs[struct_name]:
            if not field.exists_in(self.version):
                absent.append(field)
            elif field.tag is None:
                regular.append(field)
            else:
                tagged.append(field)
        return regular, tagged, absent

    def is_fixed_size(self, struct_name: str) -> bool:
        """Whether every value of the struct has the same size (unknown tags aside)."""
        regular, tagged, _ = self.split(struct_name)
        return not tagged and all(f.type in FIXED_FORMATS and not f.is_array for f in regular)

    def min_size(self, struct_name: str) -> int:
        """The fewest bytes that a value of the struct takes; never 0 for an array's element."""
        regular, _, _ = self.split(struct_name)
        return sum(map(self._min_field_size, regular)) + self.flexible

    def _min_field_size(self, field: Field) -> int:
        if field.is_struct:
            return 1 if field.nullable_in(self.version) else self.min_size(field.type)
        if field.type in FIXED_FORMATS and not field.is_array:
            return struct.calcsize(">" + FIXED_FORMATS[field.type])
        if self.flexible:
            return 1
        return 2 if field.type == "string" and not field.is_array else 4
