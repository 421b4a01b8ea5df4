"""Errors inside answers: those of a request's topics, partitions, groups and so on, one by one.

Rules:

* Where they are is read off the schema once for each kind of answer. Answers to Produce and Fetch
  aren't looked through: their handlers count an error when it happens, which costs nothing else.
* Of one answer at most `LOOKED_AT_MAX` parts of a kind are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from kraftpy.protocol import schema
from kraftpy.protocol.api import RESPONSE_NAMES, ApiKey

LOOKED_AT_MAX = 1000
_COUNTED_BY_HANDLERS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})

Path = tuple[str, ...]


def error_paths(key: ApiKey, version: int) -> tuple[Path, ...]:
    """The arrays whose elements have an error code: the names of the fields that lead there."""
    if key in _COUNTED_BY_HANDLERS:
        return ()
    name = RESPONSE_NAMES[key]
    return tuple(_paths(schema.load(name), name, version, ()))


def _paths(message: schema.Schema, struct: str, version: int, so_far: Path) -> Iterator[Path]:
    for field in message.structs[struct]:
        if not field.exists_in(version):
            continue
        if field.name == "error_code" and so_far:
            yield so_far
        elif field.is_array and field.type in message.structs:
            yield from _paths(message, field.type, version, (*so_far, field.name))


def count_errors(response: Any, paths: Iterable[Path], errors: Counter[int]) -> None:
    """Adds the error codes that an answer has at these places."""
    for path in paths:
        _count(response, path, 0, LOOKED_AT_MAX, errors)


def _count(holder: Any, path: Path, depth: int, most: int, errors: Counter[int]) -> int:
    """Looks at no more than `most` parts; how many those were."""
    parts = getattr(holder, path[depth]) or ()
    depth += 1
    looked = 0
    if depth < len(path):
        for part in parts:
            looked += _count(part, path, depth, most - looked, errors)
            if looked >= most:
                break
        return looked
    for part in parts:
        if looked >= most:
            break
        looked += 1
        if part.error_code:
            errors[part.error_code] += 1
    return looked
