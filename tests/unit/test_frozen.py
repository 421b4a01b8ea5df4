"""kraftpy.frozen against the standard library's frozen dataclasses."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

import pytest

from kraftpy import frozen


def _classes(decorator: Callable[..., Any], slots: bool) -> tuple[Any, Any, Any]:
    """A class, one that inherits from it, and one that checks what it's made of."""

    @decorator(frozen=True, slots=slots)
    class Base:
        name: str
        numbers: tuple[int, ...] = ()

    @decorator(frozen=True, slots=slots)
    class Derived(Base):
        """Of more."""

        extra: dict[str, int] = dataclasses.field(default_factory=dict)
        hidden: int = dataclasses.field(default=0, repr=False)

        def shout(self) -> str:
            return self.name.upper()

    @decorator(frozen=True, slots=slots, kw_only=True)
    class Checked:
        low: int
        high: int = 9

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low > high")

    return Base, Derived, Checked


@pytest.fixture(params=[True, False], ids=["slots", "no slots"])
def both(request: pytest.FixtureRequest) -> list[tuple[Any, Any, Any]]:
    return [_classes(each, request.param) for each in (frozen.dataclass, dataclasses.dataclass)]


def _result(make: Callable[[], Any]) -> Any:
    """What a call gives or raises, comparable between the two."""
    try:
        found = make()
    except Exception as error:
        return type(error), str(error)
    return repr(found)


CALLS: list[Callable[[Any, Any, Any], Any]] = [
    lambda base, derived, checked: base("a"),
    lambda base, derived, checked: base("a", numbers=(1, 2)),
    lambda base, derived, checked: base(),
    lambda base, derived, checked: base("a", (), 3),
    lambda base, derived, checked: base("a", other=1),
    lambda base, derived, checked: derived("a", (1,), {"b": 2}, 5),
    lambda base, derived, checked: derived("a").shout(),
    lambda base, derived, checked: derived("a").extra is derived("a").extra,
    lambda base, derived, checked: checked(low=1),
    lambda base, derived, checked: checked(1),
    lambda base, derived, checked: checked(low=10),
    lambda base, derived, checked: dataclasses.replace(checked(low=1), low=2),
    lambda base, derived, checked: dataclasses.replace(checked(low=1), low=10),
    lambda base, derived, checked: dataclasses.asdict(derived("a", (1,))),
    lambda base, derived, checked: base("a") == base("a"),
    lambda base, derived, checked: base("a") == base("b"),
    lambda base, derived, checked: base("a") == derived("a"),
    lambda base, derived, checked: derived("a") == derived("a", hidden=1),
    lambda base, derived, checked: hash(base("a", (1,))),
    lambda base, derived, checked: hash(derived("a")),
    lambda base, derived, checked: len({base("a"), base("a"), base("b")}),
    lambda base, derived, checked: setattr(base("a"), "name", "b"),
    lambda base, derived, checked: delattr(base("a"), "name"),
    lambda base, derived, checked: derived.__match_args__,
    lambda base, derived, checked: checked.__match_args__,
    lambda base, derived, checked: derived.__doc__,
    lambda base, derived, checked: hasattr(base("a"), "__dict__"),
    lambda base, derived, checked: [(each.name, each.type) for each in dataclasses.fields(derived)],
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_does_what_the_standard_library_does(both: list[Any], call: Callable[..., Any]) -> None:
    ours, theirs = (_result(lambda classes=classes: call(*classes)) for classes in both)
    assert ours == theirs
    assert _result(lambda: call(*both[0])) == ours  # once the constructor is compiled, too


def test_a_method_of_the_class_stays() -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Own:
        number: int

        def __repr__(self) -> str:
            return f"no. {self.number}"

    assert repr(Own(1)) == "no. 1"


def test_instances_without_fields_are_equal() -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Empty:
        pass

    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert repr(Empty()).endswith("Empty()")


def _tuples(base: Any) -> Any:
    class Point(base):
        """Where it is."""

        x: int
        y: "tuple[int, ...]" = ()
        name: str = "p"

        FAR = 9

        def shout(self) -> str:
            return self.name.upper()

        @property
        def sum(self) -> int:
            return self.x + sum(self.y)

        @classmethod
        def origin(cls) -> Any:
            return cls(0)

    return Point


TUPLE_CALLS: list[Callable[[Any], Any]] = [
    lambda point: point(1),
    lambda point: point(1, (2,), name="q"),
    lambda point: point(),
    lambda point: point(1, 2, 3, 4),
    lambda point: point(1, z=2),
    lambda point: point(1, (2,)).sum,
    lambda point: point(1).shout(),
    lambda point: point.origin(),
    lambda point: point(1)._replace(x=5),
    lambda point: point(1)._replace(z=5),
    lambda point: point(1)._asdict(),
    lambda point: point._make((1, (2,), "a")),
    lambda point: point(1, (2,)) == (1, (2,), "p"),
    lambda point: point._fields,
    lambda point: point._field_defaults,
    lambda point: point.__match_args__,
    lambda point: (point.__doc__, point.__name__, point.__qualname__, point.__module__),
    lambda point: point.FAR,
    get_type_hints,
    lambda point: issubclass(point, tuple) and not hasattr(point(1), "__dict__"),
    lambda point: setattr(point(1), "x", 2),
    lambda point: list(point(1)),
]


@pytest.mark.parametrize("call", TUPLE_CALLS, ids=range(len(TUPLE_CALLS)))
def test_a_named_tuple_is_what_the_standard_library_makes(call: Callable[[Any], Any]) -> None:
    ours, theirs = (
        _result(lambda base=base: call(_tuples(base))) for base in (frozen.NamedTuple, NamedTuple)
    )
    assert ours == theirs


def test_a_named_tuple_with_another_base_is_refused() -> None:
    with pytest.raises(AssertionError):

        class Point(frozen.NamedTuple, dict):  # type: ignore[misc, type-arg]
            x: int


def test_only_classes_that_are_frozen() -> None:
    with pytest.raises(AssertionError):
        frozen.dataclass(frozen=False)  # type: ignore[call-overload]
