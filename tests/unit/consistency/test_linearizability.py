"""The search for linearizations against one that tries every order, and what its verdict tells."""

from __future__ import annotations

import random

import pytest

from kraftpy.testing.consistency.checkers.register_checker import RegisterChecker
from kraftpy.testing.consistency.checkers.search import Budget, BudgetSpentError, find_stuck
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Verdict

from .register_histories import is_linearizable, random_calls, spoil


def plenty() -> Budget:
    return Budget(1_000_000, 60)


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_trying_every_order(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = []
    for _ in range(100):
        calls = random_calls(
            rng,
            rng.randrange(3, 13),
            processes=rng.randrange(2, 7),
            values=rng.randrange(1, 4),
            uncertain=rng.choice((0, 0.1, 0.4)),
            repeated=rng.choice((0, 0.3)),
        )
        assert find_stuck(calls, None, plenty()) is None
        for _ in range(rng.randrange(1, 4)):
            calls = spoil(rng, calls, values=3)
        verdicts.append(find_stuck(calls, None, plenty()) is None)
        assert verdicts[-1] == is_linearizable(calls), calls
    assert len(set(verdicts)) == 2  # both kinds were there


def commits(*offsets: int | str) -> list[Operation]:
    """One client at a time: a number commits it, a text like "?5" reads 5, "?-1" reads nothing."""
    return [operation_at(10 * (n + 1), 10 * (n + 1) + 5, each) for n, each in enumerate(offsets)]


def operation_at(
    invoked_ns: int, ended_ns: int, what: int | str, *, outcome: str = "ok", **value: int
) -> Operation:
    where = {"group": "g", "key": "t-0"}
    if isinstance(what, str):
        answer = {**where, "offset": int(what[1:])}
        return Operation(
            invoked_ns, 1, "fetch", outcome, invoked_ns, ended_ns, where, answer, "", "", ""
        )
    asked = {**where, "offset": what, **value}
    return Operation(
        invoked_ns, 1, "commit", outcome, invoked_ns, ended_ns, asked, asked, "", "", ""
    )


def judge(operations: list[Operation]) -> Verdict:
    checker = RegisterChecker(offsets=True)
    for operation in operations:
        checker.observe(operation)
    verdict, *_ = checker.verdicts()
    return verdict


def test_a_register_that_works() -> None:
    verdict = judge(commits("?-1", 5, "?5", 3, 7, "?7"))
    assert verdict.valid is True
    assert verdict.counts == {"registers": 1, "operations": 6}


@pytest.mark.parametrize(
    ("operations", "lines"),
    [
        # A read of what was replaced: who wrote it, who replaced it, the read.
        (commits(*range(500), "?499", 600, 601, "?600"), [5020, 5030, 5040]),
        (commits(*range(500), "?-1"), [5000, 5010]),
        # Compare-and-set that found something else and was let through.
        ([*commits(1, 2), operation_at(100, 101, 9, expected=1)], [10, 20, 100]),
        # Two of them let through at once; the rest doesn't matter.
        (
            [
                *commits(1, 2, "?2"),
                operation_at(100, 110, 8, expected=2),
                operation_at(101, 111, 9, expected=2),
                operation_at(102, 103, "?2"),
            ],
            [20, 100, 101],
        ),
        # An uncertain commit explains one of these reads, not both.
        (
            [
                *commits(1),
                operation_at(20, NEVER, 7, outcome="info"),
                operation_at(30, 31, "?7"),
                operation_at(40, 41, 2),
                operation_at(50, 51, "?7"),
            ],
            [20, 40, 50],
        ),
    ],
)
def test_the_least_that_shows_what_is_wrong(operations: list[Operation], lines: list[int]) -> None:
    verdict = judge(operations)
    assert verdict.valid is False
    (finding,) = verdict.findings
    assert list(finding.lines) == lines, finding
    assert finding.key == "g/t-0"


def test_an_uncertain_commit_may_show_late_or_never() -> None:
    uncertain = operation_at(5, NEVER, 7, outcome="info")
    assert judge([uncertain, *commits(1, "?1", "?7", 2, "?2")]).valid is True
    assert judge([uncertain, *commits(1, "?1", 2, "?2")]).valid is True
    failed = uncertain._replace(outcome="fail", ended_ns=6)
    assert judge([failed, *commits(1, "?1", "?7")]).valid is False


def test_a_commit_may_take_effect_again_until_it_is_answered() -> None:
    """Its client sends it again when the coordinator that did it died before it could say so."""
    before = [
        operation_at(10, 100, 5),
        operation_at(20, 30, 6, expected=5),
        operation_at(40, 50, "?6"),
        operation_at(60, 70, "?5"),
    ]
    before.sort(key=lambda each: each.ended_ns)
    assert judge(before).valid is True
    assert judge([*before, operation_at(110, 120, "?5")]).valid is True
    for late in ("?6", "?-1"):
        assert judge([*before, operation_at(110, 120, late)]).valid is False
    # The same twice would need a third time; and what has a condition is sent once.
    again = [operation_at(72, 75, 6, expected=5), operation_at(80, 90, "?5")]
    assert judge(sorted([*before, *again], key=lambda each: each.ended_ns)).valid is False
    once = [operation_at(1, 5, 5), operation_at(20, 100, 6, expected=5)]
    assert judge([*once, operation_at(110, 115, 5), operation_at(120, 125, "?6")]).valid is False


def test_what_a_failure_saw_counts() -> None:
    refused = operation_at(100, 101, 9, outcome="fail", expected=1)
    for value, valid in (({"saw": 2}, True), ({"saw": 1}, False), ({"saw_not": 2}, False)):
        assert judge([*commits(1, 2), refused._replace(value=value)]).valid is valid, value


def test_a_history_that_is_too_hard_is_unknown() -> None:
    """Creations that may have happened or not, all at once, and reads that can't be told apart."""
    calls = random_calls(random.Random(1), 400, processes=60, values=3, uncertain=0.3)
    with pytest.raises(BudgetSpentError):
        find_stuck(calls, None, Budget(1000, 60))
    with pytest.raises(BudgetSpentError):
        find_stuck(calls, None, Budget(10**9, 0))
    checker = RegisterChecker(offsets=True, time_limit_s=0.0)
    for number in range(6000):
        checker.observe(operation_at(number, number + 9, f"?{-1}"))
    verdict, *_ = checker.verdicts()
    assert verdict.valid is None
    assert "out of time" in verdict.explanation
