"""Records are read out of plain values as their types say, and what doesn't fit is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from kraftpy.core.fields import AtMost, FieldError, Length, Range, Uuid, reader


class Pair(NamedTuple):
    key: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Inner:
    id: Uuid
    pairs: Annotated[tuple[Pair, ...], AtMost(2)] = ()


@dataclass(frozen=True, slots=True)
class Outer:
    name: Annotated[str, Length(3)]
    count: Annotated[int, Range(-1, 9)]
    inner: tuple[Inner, ...] | None = None
    kind: Literal["a", "b"] = "a"
    texts: Annotated[Mapping[str, str | None], AtMost(2)] = field(default_factory=dict)
    sure: bool = False
    rank: int = 7
    rate: float | None = None


ID = bytes(16)
READ = reader(Outer, "it")
SOUND: dict[str, Any] = {"name": "n", "count": 0}


def test_what_fits_is_read() -> None:
    given = SOUND | {
        "inner": [{"id": ID, "pairs": [["k", None], ("l", 2)]}, {"id": ID}],
        "kind": "b",
        "texts": {"x": None, "y": "z"},
        "sure": True,
        "rank": -(10**30),
    }
    assert READ(given, []) == Outer(
        "n",
        0,
        (Inner(ID, (Pair("k", None), Pair("l", 2))), Inner(ID)),
        "b",
        {"x": None, "y": "z"},
        True,
        -(10**30),
    )


@pytest.mark.parametrize("rate", [0.5, 1, -1.0])
def test_a_number_is_read_whole_or_not(rate: float) -> None:
    found = READ(SOUND | {"rate": rate}, []).rate
    assert type(found) is float
    assert found == rate


def test_what_is_null_or_not_there_has_its_default() -> None:
    nulls = dict.fromkeys(("inner", "kind", "texts", "sure", "rank"))
    assert READ(SOUND | nulls, []) == READ(SOUND, []) == Outer("n", 0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": None}, "it.name must be text of at most 3 characters"),
        ({"name": "long"}, "it.name must be text of at most 3 characters"),
        ({"name": b"n"}, "it.name must be text of at most 3 characters"),
        ({"name": "\ud800"}, "it.name must be text that has a UTF-8 form"),
        ({"count": -2}, "it.count must be a whole number from -1 to 9"),
        ({"count": 10}, "it.count must be a whole number from -1 to 9"),
        ({"count": True}, "it.count must be a whole number from -1 to 9"),
        ({"count": 1.0}, "it.count must be a whole number from -1 to 9"),
        ({"rank": "1"}, "it.rank must be a whole number"),
        ({"inner": {}}, "it.inner must be an array"),
        ({"inner": [[]]}, "it.inner must be a map"),
        ({"inner": [{}]}, "it.inner.id must be 16 bytes"),
        ({"inner": [{"id": bytes(15)}]}, "it.inner.id must be 16 bytes"),
        ({"inner": [{"id": ID, "pairs": [["k"]]}]}, "it.inner.pairs must be [key, value]"),
        ({"inner": [{"id": ID, "pairs": [["k", ""]]}]}, "it.inner.pairs must be a whole number"),
        (
            {"inner": [{"id": ID, "pairs": [["k", 1]] * 3}]},
            "it.inner.pairs must be an array of at most 2 elements",
        ),
        ({"kind": "c"}, "it.kind must be one of a, b"),
        ({"kind": ["a"]}, "it.kind must be one of a, b"),
        ({"texts": {"a": "", "b": "", "c": ""}}, "it.texts must be a map of at most 2 entries"),
        ({"texts": []}, "it.texts must be a map of at most 2 entries"),
        ({"texts": {1: ""}}, "it.texts must be text"),
        ({"texts": {"a": 1}}, "it.texts must be text"),
        ({"sure": 1}, "it.sure must be true or false"),
        ({"rate": "1"}, "it.rate must be a number"),
        ({"rate": True}, "it.rate must be a number"),
        ({"rate": 10**400}, "it.rate must be a number"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FieldError) as error:
        READ(SOUND | change, [])
    assert str(error.value) == sentence


@pytest.mark.parametrize("value", [None, [], 1, "text"])
def test_a_record_is_a_map(value: Any) -> None:
    with pytest.raises(FieldError, match="it must be a map"):
        READ(value, [])


def test_fields_that_are_not_known_are_noted_by_their_places() -> None:
    unknown: list[str] = []
    found = READ(SOUND | {"new": 1, "inner": [{"id": ID, "newer": None}]}, unknown)
    assert found == Outer("n", 0, (Inner(ID),))
    assert unknown == ["it.inner.newer", "it.new"]
