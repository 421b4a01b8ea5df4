"""Reads the fields of a command.

A command comes out of the replicated log, so every node reads the same bytes; but what wrote them
may be a newer release or damaged, and applying a command must be total. Whatever has the wrong
type, size or range is a `KafkaError` INVALID_REQUEST that names the field.
"""

from __future__ import annotations

from typing import Any

from kraftpy.protocol.errors import ErrorCode, KafkaError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Fields:
    """The fields of one command, or of one item in it."""

    __slots__ = ("_data", "_where")

    def __init__(self, data: object, where: str = "command") -> None:
        if not isinstance(data, dict):
            raise _wrong(where, "a map")
        self._data: dict[Any, Any] = data
        self._where = where

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._data.get(name) is not None

    def integer(self, name: str, minimum: int = 0, maximum: int = INT_MAX) -> int:
        value = self._data.get(name)
        if type(value) is int and minimum <= value <= maximum:
            return value
        return integer(value, self._at(name), minimum, maximum)

    def flag(self, name: str) -> bool:
        """A boolean; False if it is not there."""
        value = self._data.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise _wrong(self._at(name), "true or false")
        return value

    def text(self, name: str, maximum_length: int) -> str:
        return text(self._data.get(name), self._at(name), maximum_length)

    def optional_text(self, name: str, maximum_length: int) -> str | None:
        return self.text(name, maximum_length) if self.has(name) else None

    def uuid(self, name: str) -> bytes:
        return uuid(self._data.get(name), self._at(name))

    def array(self, name: str, maximum_length: int) -> list[Any]:
        return array(self._data.get(name), self._at(name), maximum_length)

    def items(self, name: str, maximum_length: int) -> list[Fields]:
        """An array of maps."""
        where = self._at(name)
        return [Fields(item, where) for item in self.array(name, maximum_length)]

    def texts(self, name: str, maximum_length: int) -> dict[str, str | None]:
        """A map of text to text or null; empty if it is not there."""
        value = self._data.get(name)
        where = self._at(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > maximum_length:
            raise _wrong(where, f"a map of at most {maximum_length} entries")
        found: dict[str, str | None] = {}
        for key, content in value.items():
            found[text(key, where, LONG_MAX)] = (
                None if content is None else text(content, where, LONG_MAX)
            )
        return found

    def _at(self, name: str) -> str:
        return f"{self._where}.{name}"


def integer(value: object, where: str, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise _wrong(where, f"a whole number from {minimum} to {maximum}")
    return value


def text(value: object, where: str, maximum_length: int) -> str:
    if not isinstance(value, str) or len(value) > maximum_length:
        raise _wrong(where, f"text of at most {maximum_length} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(where, "text that has a UTF-8 form") from None
    return value


def uuid(value: object, where: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != 16:
        raise _wrong(where, "16 bytes")
    return value


def array(value: object, where: str, maximum_length: int) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) > maximum_length:
        raise _wrong(where, f"an array of at most {maximum_length} elements")
    return list(value)


def _wrong(where: str, expected: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{where} must be {expected}")
