"""What all classes of messages have in common; `messages` has them."""

from __future__ import annotations


class Message:
    """Base of every message and nested struct: equality and `repr` by fields."""

    __slots__: tuple[str, ...] = ()

    _tags: dict[int, bytes] | None

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # messages are mutable

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__slots__ if name != "_tags")
        tags = getattr(self, "_tags", None)
        shown = [*fields, f"_tags={tags!r}"] if tags else [*fields]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"
