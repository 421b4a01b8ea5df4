"""Streams don't give up: what they sent is acknowledged, unless a fault has ended their process."""

from __future__ import annotations

from typing import Any

from kraftpy.testing.consistency.checkers.answers import AnswerChecker
from kraftpy.testing.consistency.operations import NEVER, Operation


def of(process: int, f: str, outcome: str, value: Any) -> Operation:
    ended = NEVER if outcome == "info" else 2
    return Operation(1, process, f, outcome, 1, ended, value, value, "", "", "")


def verdict(*operations: Operation) -> bool | None:
    checker = AnswerChecker()
    for operation in operations:
        checker.observe(operation)
    (found,) = checker.verdicts()
    return found.valid


ACKNOWLEDGED = of(1, "send", "ok", [["t-0", "a", 0]])
OPEN = of(1, "send", "info", [["t-0", "b"]])


def test_what_is_not_acknowledged_is_found() -> None:
    assert verdict(ACKNOWLEDGED) is True
    assert verdict(ACKNOWLEDGED, OPEN) is False
    assert verdict(OPEN) is True  # it never got going


def test_who_was_killed_got_no_answers() -> None:
    assert verdict(ACKNOWLEDGED, OPEN, of(1, "crashed", "ok", {"by": "SIGKILL"})) is True
    assert verdict(ACKNOWLEDGED, OPEN, of(2, "crashed", "ok", {"by": "SIGKILL"})) is False
