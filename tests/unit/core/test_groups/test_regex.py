from __future__ import annotations

import pytest

from kraftpy.core.groups.consumer.regex import PATTERN_MAX_BYTES, compile_pattern
from kraftpy.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("orders", "orders", True),
        ("orders", "old-orders", False),
        ("orders", "orders-eu", False),
        ("orders.*", "orders-eu", True),
        ("o[.]r.*", "o.rders", True),
        ("(?i)ORDERS", "orders", True),
        ("a|orders", "orders", True),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, name: str, is_match: bool) -> None:
    assert (compile_pattern(pattern).fullmatch(name) is not None) == is_match


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
