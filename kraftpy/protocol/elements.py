"""Elements of arrays that are made when they are encoded, and are garbage behind that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
E = TypeVar("E")


class Asked(Protocol):
    """What elements know of the request: whether there is still room in its answer."""

    answer_full: bool


class _Elements(Generic[T, E]):
    """The elements of an answer's array, made as they are gone through."""

    __slots__ = ("_asked", "_items", "_make", "_refuse")

    def __init__(
        self,
        items: Sequence[T] | Callable[[], Sequence[T]],
        make: Callable[[T], E],
        asked: Asked | None,
        refuse: Callable[[T], E] | None,
    ) -> None:
        self._items = items
        self._make = make
        self._asked = asked
        self._refuse = refuse

    def _known(self) -> Sequence[T]:
        if callable(self._items):
            self._items = self._items()
        return self._items

    def __len__(self) -> int:
        return len(self._known())

    def __iter__(self) -> Iterator[E]:
        make = self._make
        asked, refuse = self._asked, self._refuse
        if asked is None or refuse is None:
            yield from map(make, self._known())
            return
        for item in self._known():
            yield refuse(item) if asked.answer_full else make(item)

    def __getitem__(self, place: Any) -> Any:
        items = self._known()[place]
        return (
            [self._make(item) for item in items] if isinstance(place, slice) else self._make(items)
        )


def elements(
    items: Sequence[T] | Callable[[], Sequence[T]],
    make: Callable[[T], E],
    asked: Asked | None = None,
    refuse: Callable[[T], E] | None = None,
) -> list[E]:
    """What goes in the place of a list: `make(item)` of each item, when it is encoded.

    `items` are there already, or are found when they are first needed. With `asked` (the
    request's context), what doesn't fit into the answer any more is `refuse(item)` instead.
    """
    return cast("list[E]", _Elements(items, make, asked, refuse))
