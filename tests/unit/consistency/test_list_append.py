"""Transactions on lists: serial runs are clean, and each anomaly is called by its name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from kraftpy.testing.consistency.checkers.graphs import components
from kraftpy.testing.consistency.checkers.list_append import ListAppendChecker
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict


def txn(line: int, *steps: Sequence[Any], outcome: str = "ok") -> Operation:
    value = [list(step) for step in steps]
    return Operation(line, line, "txn", outcome, line, line + 1, value, value, "", "", "")


def a(key: str, value: int) -> tuple[str, str, int]:
    return "append", key, value


def r(key: str, *values: int) -> tuple[str, str, list[int]]:
    return "r", key, list(values)


def judge(operations: list[Operation], allowed: Sequence[str] = ()) -> dict[str, Verdict]:
    checker = ListAppendChecker(allowed)
    for operation in operations:
        checker.observe(operation)
    return {verdict.checker: verdict for verdict in checker.verdicts()}


def wrong(operations: list[Operation], allowed: Sequence[str] = ()) -> set[str]:
    verdicts = judge(operations, allowed)
    return {name for name, verdict in verdicts.items() if verdict.valid is not True}


def random_transactions(rng: random.Random, count: int = 200) -> list[Operation]:
    """One after the other; some aborted, some whose end nobody knows.

    What they read is what was committed: nobody sees its own appends, as nobody does in Kafka.
    """
    lists: dict[str, list[int]] = {key: [] for key in "xyz"}
    operations = []
    value = 0
    for line in range(2, count):
        steps: list[Any] = []
        outcome = rng.choice(("ok", "ok", "ok", "ok", "fail", "info"))
        takes_effect = outcome == "ok" or (outcome == "info" and rng.random() < 0.5)
        after = {key: list(values) for key, values in lists.items()}
        for _ in range(rng.randrange(1, 5)):
            key = rng.choice("xyz")
            if rng.random() < 0.5:
                value += 1
                after[key].append(value)
                steps.append(a(key, value))
            else:
                steps.append(r(key, *lists[key]) if outcome == "ok" else ("r", key, None))
        operations.append(txn(line, *steps, outcome=outcome))
        if takes_effect:
            lists = after
    rng.shuffle(operations)  # in whatever order their ends are noted
    return operations


@pytest.mark.parametrize("seed", range(30))
def test_silence_on_serial_transactions(seed: int) -> None:
    assert wrong(random_transactions(random.Random(seed))) == set()


ANOMALIES = {
    "G0": [
        txn(2, a("x", 1), a("y", 1)),
        txn(3, a("x", 2), a("y", 2)),
        txn(4, r("x", 1, 2), r("y", 2, 1)),
    ],
    "G1a": [txn(2, a("x", 1), outcome="fail"), txn(3, r("x", 1))],
    "G1b": [txn(2, a("x", 1), a("x", 2)), txn(3, r("x", 1))],
    "G1c": [
        txn(2, a("x", 1), a("y", 1)),
        txn(3, a("x", 2), r("y", 1, 2)),
        txn(4, a("y", 2), r("x", 1, 2)),
    ],
    "G1c-wr": [txn(2, a("x", 1), r("y", 1)), txn(3, a("y", 1), r("x", 1))],
    "internal": [txn(2, a("x", 1), r("x", 1))],
    "G-single": [
        txn(2, a("x", 1), a("y", 1)),
        txn(3, r("x", 1), r("y")),
        txn(4, r("y", 1)),
    ],
    "G2": [txn(2, r("x"), a("y", 1)), txn(3, r("y"), a("x", 1)), txn(4, r("x", 1), r("y", 1))],
    "incompatible-order": [
        txn(2, a("x", 1)),
        txn(3, a("x", 2)),
        txn(4, r("x", 1, 2)),
        txn(5, r("x", 2)),
    ],
    "duplicate-elements": [txn(2, a("x", 1)), txn(3, r("x", 1, 1))],
}


@pytest.mark.parametrize("name", ANOMALIES)
@pytest.mark.parametrize("seed", range(5))
def test_an_anomaly_among_many_transactions(name: str, seed: int) -> None:
    rng = random.Random(seed)
    planted = ANOMALIES[name]
    assert name in wrong(planted)
    others = [each._replace(line=each.line + 100) for each in random_transactions(rng)]
    renamed = [
        each._replace(value=[[f, f"planted {key}", part] for f, key, part in each.value])
        for each in planted
    ]
    everything = [*others, *renamed]
    rng.shuffle(everything)
    verdict = judge(everything)[name]
    assert verdict.valid is False
    assert set(verdict.findings[0].lines) <= {each.line for each in planted}


@pytest.mark.parametrize("name", ["G0", "G1c", "G-single", "G2"])
def test_a_cycle_has_one_name(name: str) -> None:
    cycles = {"G0", "G1c", "G-single", "G2"}
    assert wrong(ANOMALIES[name]) & cycles == {name}


def test_what_is_allowed_is_counted() -> None:
    verdict = judge(ANOMALIES["G0"], ["G0"])["G0"]
    assert verdict.valid is True
    assert verdict.counts["found"] == 1


def test_an_aborted_half_read_is_told_once_each() -> None:
    half = [txn(2, a("x", 1), a("x", 2), outcome="fail"), txn(3, r("x", 1))]
    assert {"G1a", "G1b"} <= wrong(half)


@pytest.mark.parametrize("seed", range(20))
def test_components_against_reachability(seed: int) -> None:
    rng = random.Random(seed)
    nodes = range(12)
    graph = {n: [rng.choice(nodes) for _ in range(rng.randrange(3))] for n in nodes}
    reach = {n: {n} for n in nodes}
    for _ in nodes:
        for n in nodes:
            for other in list(reach[n]):
                reach[n] |= set(graph[other])
    expected = {frozenset(m for m in nodes if m in reach[n] and n in reach[m]) for n in nodes}
    found = {frozenset(component) for component in components(graph)}
    assert found == {component for component in expected if len(component) > 1}
