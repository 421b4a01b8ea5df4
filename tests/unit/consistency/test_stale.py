"""Stale reads: every one found is a violation of linearizability, and the plain ones are found."""

from __future__ import annotations

import random

import pytest

from kraftpy.testing.consistency.checkers.register_checker import RegisterChecker
from kraftpy.testing.consistency.checkers.registers import saw
from kraftpy.testing.consistency.checkers.search import Budget, find_stuck
from kraftpy.testing.consistency.checkers.stale import find_stale_reads
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Verdict

from .register_histories import random_calls, spoil
from .test_linearizability import commits, operation_at


def judge(operations: list[Operation]) -> dict[str, Verdict]:
    checker = RegisterChecker(offsets=True)
    for operation in operations:
        checker.observe(operation)
    return {each.checker: each for each in checker.verdicts() if each.checker != "linearizable"}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_found_is_no_false_alarm(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng, 200, processes=5, values=50)
    assert not list(find_stale_reads(calls))
    for _ in range(40):
        spoiled = spoil(rng, calls, values=50)
        if list(find_stale_reads(spoiled)):
            assert find_stuck(spoiled, None, Budget(10**6, 60)) is not None


@pytest.mark.parametrize("seed", range(30))
def test_a_planted_stale_read_is_found(seed: int) -> None:
    """A read finds what was written before something that another read had seen already."""
    rng = random.Random(seed)
    calls = random_calls(rng, 300, values=10**6, kinds=("write", "read"))
    writes = {call.step.result: call for call in calls if call.step.is_write}
    reads = [call for call in calls if call.step in map(saw, writes)]
    newer = rng.choice(reads[len(reads) // 2 :])
    new = writes[newer.step.operand]
    old = rng.choice(
        [call for call in writes.values() if call.certain and call.ended_ns < new.invoked_ns]
    )
    late = newer.ended_ns + 1
    planted = newer._replace(
        step=saw(old.step.result), invoked_ns=late, ended_ns=late + 1, line=10**6
    )
    assert planted in [read for _, _, read in find_stale_reads([*calls, planted])]


def test_an_offset_that_goes_back() -> None:
    verdicts = judge(commits(1, 2, 5, "?5", "?2"))
    assert verdicts["stale-read"].valid is False
    assert verdicts["offset-regression"].valid is False
    assert verdicts["offset-regression"].findings[0].lines == (20, 40, 50)
    assert judge(commits(1, 2, "?-1"))["offset-regression"].valid is False


def test_an_offset_that_somebody_put_back() -> None:
    verdicts = judge(commits(1, 2, 5, "?5", 2, "?2"))
    assert {verdict.valid for verdict in verdicts.values()} == {True}
    uncertain = operation_at(15, NEVER, 2, outcome="info")
    verdicts = judge([uncertain, *commits(1, 5, "?5", "?2")])
    assert {verdict.valid for verdict in verdicts.values()} == {True}


def test_a_stale_read_that_does_not_go_back() -> None:
    verdicts = judge(commits(9, 2, "?2", "?9"))
    assert verdicts["stale-read"].valid is False
    assert verdicts["offset-regression"].valid is True


def test_reads_during_the_write_see_either() -> None:
    operations = [*commits(1), operation_at(30, 60, 2), operation_at(40, 50, "?2")]
    operations.append(operation_at(51, 59, "?1"))  # back again: only this one is wrong
    verdicts = judge(operations[:3])
    assert verdicts["stale-read"].valid is True
    assert judge([*operations[:2], operations[3]])["stale-read"].valid is True
