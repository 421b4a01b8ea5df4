"""`dataclass(frozen=True)` and `NamedTuple` that cost the start of a node little.

The standard library writes and compiles seven methods of every frozen dataclass when its module is
imported, and a node imports a hundred of them. Here `__init__` is compiled, by the standard
library, when the first instance is made; the other methods are closures. Of its two hundred named
tuples it compiles each annotation; here they stay the text that they are.

Rules:

* What has been decorated is a dataclass: `fields`, `replace`, `asdict` and `match` work, and type
  checkers see the standard library's decorator.
* Its base classes are plain, or come from here.
* To make the first instance reads no file: it may be on an event loop.
* A named tuple is the standard library's (`collections.namedtuple`), with the class's own methods.
  A generic one has to be `typing.NamedTuple`.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from typing import NamedTuple
else:

    class _Tuples(type):
        """Makes of `class X(NamedTuple)` the named tuple that it describes."""

        def __new__(mcs, name, bases, contents):
            if not bases:
                return super().__new__(mcs, name, bases, contents)
            assert len(bases) == 1, "a named tuple has no other base"
            types = contents.get("__annotations__", {})
            values = [contents[field] for field in types if field in contents]
            made = namedtuple(name, types, defaults=values, module=contents["__module__"])
            made.__annotations__ = made.__new__.__annotations__ = types
            for key, value in contents.items():
                if key not in types and key not in ("__annotations__", "__module__"):
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Tuples):
        """As the standard library's."""

    def dataclass(*, frozen, slots=False, kw_only=False):
        """As the standard library's, with what this one is for: classes that are frozen."""
        assert frozen

        def decorate(cls):
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )(cls)
            for name, method in _methods(made).items():
                if made.__dict__.get(name) is None:  # `__hash__` is None beside an `__eq__`
                    setattr(made, name, method)
            return made

        return decorate


__all__ = ["NamedTuple", "dataclass"]


def _methods(cls: Any) -> dict[str, Callable[..., Any]]:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    shown = [field.name for field in fields if field.repr]
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _compiled_init(cls)
        cls.__init__(self, *args, **kwargs)

    def text(self: Any) -> str:
        told = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{type(self).__qualname__}({told})"

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    def refuse_to_set(self: Any, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def refuse_to_delete(self: Any, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    return {
        "__init__": init,
        "__repr__": text,
        "__eq__": equal,
        "__hash__": hashed,
        "__setattr__": refuse_to_set,
        "__delattr__": refuse_to_delete,
    }


def _compiled_init(cls: Any) -> Any:
    """What the standard library makes for a frozen class with these fields."""
    fields = dataclasses.fields(cls)
    contents: dict[str, Any] = {field.name: field for field in fields}
    contents["__annotations__"] = {field.name: field.type for field in fields}
    contents["__qualname__"] = cls.__qualname__
    contents["__doc__"] = cls.__doc__ or "Described by its fields."
    if hasattr(cls, "__post_init__"):
        contents["__post_init__"] = cls.__post_init__
    twin: Any = dataclasses.dataclass(frozen=True, repr=False, eq=False)(
        type(cls.__name__, (), contents)
    )
    return twin.__init__
