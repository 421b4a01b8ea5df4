"""Writes counters of errors: schema and version in, the source of `count(message, errors)` out.

* Counted are the error codes of the message and those of its topics, partitions, groups and so on.
* Of each kind of parts at most `parts_max` are looked at.
* A counter calls nothing: it looks at each answer of hot requests, and if it was long ago that it
  looked at one, what it costs is its code that isn't in the CPU's caches any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.protocol.schema import Schema

_Path = tuple[str, ...]


def write_error_counter(schema: Schema, version: int, parts_max: int) -> str | None:
    """Returns the source, None if there is nothing to count."""
    lines = []
    if any(field.name == "error_code" for field in schema.structs[schema.name]):
        lines += [" if message.error_code:", "  errors[message.error_code] += 1"]
    if parts_max:
        for path in _paths(schema, schema.name, version, ()):
            lines += _loops(path, parts_max)
    return "\n".join(["def count(message, errors):", *lines]) if lines else None


def _paths(schema: Schema, struct: str, version: int, so_far: _Path) -> Iterator[_Path]:
    """The arrays whose elements have an error code: the names of the fields that lead there."""
    for field in schema.structs[struct]:
        if not field.exists_in(version):
            continue
        if field.name == "error_code" and so_far:
            yield so_far
        elif field.is_array and field.type in schema.structs:
            yield from _paths(schema, field.type, version, (*so_far, field.name))


def _loops(path: _Path, parts_max: int) -> Iterator[str]:
    yield f" left = {parts_max}"
    part, indent = "message", ""
    for name in path:
        indent += " "
        yield f"{indent}for {part}_part in {part}.{name} or ():"
        part += "_part"
        yield f"{indent} if not left:"
        yield f"{indent}  break"
    yield f"{indent} left -= 1"
    yield f"{indent} if {part}.error_code:"
    yield f"{indent}  errors[{part}.error_code] += 1"
