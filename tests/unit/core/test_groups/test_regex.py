from __future__ import annotations

import pytest

from kraftpy.core.groups.consumer.regex import PATTERN_MAX_BYTES, Resolution, compile_pattern
from kraftpy.protocol.errors import ErrorCode, KafkaError


def resolve(patterns: list[str], names: list[str], slice_size: int) -> dict[str, frozenset[str]]:
    resolution = Resolution("g", patterns, names, 7)
    while not resolution.done:
        resolution.advance(slice_size)
    assert resolution.metadata_offset == 7
    return resolution.matches


@pytest.mark.parametrize("slice_size", [1, 2, 3, 100])
def test_a_pattern_matches_whole_names(slice_size: int) -> None:
    names = ["orders", "orders-eu", "old-orders", "o.rders", "äöü"]
    assert resolve(["orders", "orders.*", ".*", "none", "o[.]r.*", "ä.ü"], names, slice_size) == {
        "orders": {"orders"},
        "orders.*": {"orders", "orders-eu"},
        ".*": set(names),
        "none": set(),
        "o[.]r.*": {"o.rders"},
        "ä.ü": {"äöü"},
    }


def test_nothing_to_do_is_done() -> None:
    assert resolve([], ["t"], 1) == {}
    assert resolve(["t", "t"], [], 1) == {"t": frozenset()}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing )"),
        ("*", "no argument for repetition operator"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a" * (PATTERN_MAX_BYTES + 1), "longer than 4096 bytes"),
        ("((a{100}){100}){10}", ""),
    ],
)
def test_what_is_no_pattern(pattern: str, reason: str) -> None:
    with pytest.raises(KafkaError) as caught:
        compile_pattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert reason in caught.value.message
    assert len(caught.value.message) < 200


def test_a_pattern_that_makes_backtracking_engines_hang() -> None:
    assert compile_pattern("(x+x+)+y").fullmatch("x" * 249) is None
