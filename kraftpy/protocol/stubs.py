"""Writes `messages.pyi`, so that type checkers know the classes that `messages` builds on demand.

`python -m kraftpy.protocol.stubs`, or `make docs`, after a change to the
schema tables; a test compares.
"""

from __future__ import annotations

from pathlib import Path

from kraftpy.protocol import schema as schemas
from kraftpy.protocol.schema import Field, Schema

_HEAD = '''\
"""Written by `python -m kraftpy.protocol.stubs` from the schema tables; not edited by hand."""
# ruff: noqa
# fmt: off

from collections.abc import Sized
from typing import ClassVar

from kraftpy.protocol.message import Message
'''

_TYPES = {
    "bool": "bool",
    "bytes": "bytes",
    "float64": "float",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "records": "memoryview",
    "string": "str",
    "uint16": "int",
    "uint32": "int",
    "uuid": "bytes",
}


def render() -> str:
    """Returns the text of `messages.pyi`."""
    return "\n".join([_HEAD, *(_message(schemas.load(name)) for name in schemas.names())])


def _message(schema: Schema) -> str:
    root = schema.name
    lines = [f"class {root}(Message):"]
    if schema.api_key is not None:
        lines.append(f"    API_KEY: ClassVar[int] = {schema.api_key}")
    for struct, fields in schema.structs.items():
        if struct != root:
            lines += [f"    class {struct}(Message):", *_members(root, fields, " " * 8)]
    lines += _members(root, schema.structs[root], " " * 4)
    return "\n".join(lines) + "\n"


def _members(root: str, fields: tuple[Field, ...], indent: str) -> list[str]:
    lines: list[str] = []
    for field in fields:
        if field.type == "records":
            lines += [
                "@property",
                f"def {field.name}(self) -> {_type(root, field)}: ...",
                f"@{field.name}.setter",
                f"def {field.name}(self, value: {_parameter_type(root, field)}) -> None: ...",
            ]
        else:
            lines.append(f"{field.name}: {_type(root, field)}")
    lines += ["def __init__(", "    self,"]
    lines += [f"    {f.name}: {_parameter_type(root, f)} = ...," for f in fields]
    lines += ["    _tags: dict[int, bytes] | None = ...,", ") -> None: ..."]
    return [indent + line for line in lines]


def _type(root: str, field: Field) -> str:
    name = _TYPES.get(field.type) or f"{root}.{field.type}"
    if field.is_array:
        name = f"list[{name}]"
    absent_is_none = field.is_struct and field.tag is not None
    return f"{name} | None" if field.nullable_from is not None or absent_is_none else name


def _parameter_type(root: str, field: Field) -> str:
    """The type that the constructor takes: records in any form, None for a struct's defaults."""
    if field.type == "records":
        return "Sized | None"
    name = _type(root, field)
    return f"{name} | None" if field.is_struct and not name.endswith("None") else name


if __name__ == "__main__":
    Path(__file__).with_name("messages.pyi").write_text(render(), encoding="utf-8")
