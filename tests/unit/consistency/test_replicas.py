"""What stopped nodes have: silence where it is the same, and what is planted is found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from kraftpy.testing.consistency.checkers.replicas import Batch, ReplicaChecker
from kraftpy.testing.consistency.operations import Operation

KEY = "t-0"
END = 7
BATCHES: list[Batch] = [(0, 2, 0, 100, 11), (3, 4, 1, 80, 12), (5, 6, 1, 80, 13)]
LED = [("metadata at 1", 0, 1), ("metadata at 2", 1, 2), ("metadata at 3", 2, 1)]
LED += [("broker 3", 1, 2)]
CHECKPOINT = [(0, 0), (1, 3)]

Epochs = Sequence[tuple[int, int]]


def operations(
    stored: dict[int, Sequence[Batch]],
    led: Sequence[tuple[str, int, int]] = LED,
    epochs: dict[int, Epochs] | None = None,
    end: int = END,
) -> list[Operation]:
    lines = itertools.count(2)

    def noted(f: str, value: dict[str, Any]) -> Operation:
        line = next(lines)
        return Operation(line, 9, f, "ok", line, line, value, value, "", "", "")

    made = [noted("drain", {KEY: [0, end]})]
    for source, epoch, leader in led:
        value = {"key": KEY, "epoch": epoch, "leader": leader, "source": source}
        made.append(noted("led", value))
    for node, batches in stored.items():
        replica = {"node": node, "key": KEY}
        half = len(batches) // 2
        for part in (batches[:half], batches[half:]):
            made.append(noted("stored", {**replica, "batches": [list(each) for each in part]}))
        noted_epochs = CHECKPOINT if epochs is None else epochs[node]
        made.append(noted("epochs", {**replica, "epochs": [list(each) for each in noted_epochs]}))
    return made


def broken(found: list[Operation]) -> set[str]:
    checker = ReplicaChecker(expected=True)
    for operation in found:
        checker.observe(operation)
    verdicts = list(checker.verdicts())
    for verdict in verdicts:
        for finding in verdict.findings:
            assert finding.lines, finding
    return {verdict.checker for verdict in verdicts if verdict.valid is not True}


def test_good_replicas() -> None:
    assert broken(operations({1: BATCHES, 2: BATCHES, 3: BATCHES})) == set()
    epochs = {1: [*CHECKPOINT, (2, 7)], 2: CHECKPOINT, 3: CHECKPOINT}
    assert broken(operations({1: BATCHES, 2: BATCHES, 3: BATCHES}, epochs=epochs)) == set()


@pytest.mark.parametrize("node", [1, 3])
@pytest.mark.parametrize(
    "damaged",
    [
        [*BATCHES[:2], (5, 6, 1, 80, 14)],
        [BATCHES[0], (3, 4, 2, 80, 12), BATCHES[2]],
        BATCHES[:2],
        [BATCHES[0], (3, 6, 1, 150, 15)],
        [BATCHES[0], BATCHES[2]],
        [*BATCHES, (7, 7, 1, 70, 16)],
    ],
    ids=["a byte", "an epoch", "none at the end", "other batches", "a gap", "one too many"],
)
def test_a_replica_that_diverged(damaged: list[Batch], node: int) -> None:
    stored: dict[int, Sequence[Batch]] = {1: BATCHES, 2: BATCHES, 3: BATCHES}
    assert "replica-divergence" in broken(operations(stored | {node: damaged}))


def test_a_gap_that_all_replicas_have() -> None:
    gap = [BATCHES[0], BATCHES[2]]
    assert "replica-divergence" in broken(operations({1: gap, 2: gap, 3: gap}))


@pytest.mark.parametrize(
    ("led", "checkpoint", "batches", "checker"),
    [
        ([*LED, ("broker 1", 1, 1)], CHECKPOINT, BATCHES, "two-leaders"),
        (LED, [(0, 0), (1, 4)], BATCHES, "epochs"),
        (LED, [(0, 0)], BATCHES, "epochs"),
        (LED, [*CHECKPOINT, (3, 7)], BATCHES, "epochs"),
        (LED, CHECKPOINT, [*BATCHES, (7, 7, 0, 70, 16)], "epochs"),
        (LED, [*CHECKPOINT, (3, 7)], [*BATCHES, (7, 7, 3, 70, 16)], "epochs"),
    ],
    ids=["two", "another start", "missing", "unknown", "falling", "records of nobody"],
)
def test_a_planted_fault_in_epochs(
    led: list[tuple[str, int, int]], checkpoint: Epochs, batches: list[Batch], checker: str
) -> None:
    end = batches[-1][1] + 1
    assert broken(operations({1: batches}, led, {1: checkpoint}, end)) == {checker}


def test_epochs_before_a_snapshot_of_the_metadata_may_be_anybodys() -> None:
    later = [("metadata at 9", 1, 2), ("metadata at 12", 2, 1)]
    assert broken(operations({1: BATCHES, 2: BATCHES}, later)) == set()
    unknown = [("metadata at 9", 0, 1), ("metadata at 12", 2, 1)]
    assert broken(operations({1: BATCHES, 2: BATCHES}, unknown)) == {"epochs"}


def test_journals_that_contradict() -> None:
    said = Operation(
        50, 9, "journals", "fail", 50, 51, {"nodes": [1, 2]}, {"nodes": [1, 2]}, "at 3", "", ""
    )
    assert broken([*operations({1: BATCHES}), said]) == {"metadata-divergence"}


def test_a_log_that_cannot_be_read() -> None:
    value = {"node": 2, "key": KEY}
    said = Operation(50, 9, "stored", "fail", 50, 51, value, value, "a CRC is wrong", "", "")
    assert broken([*operations({1: BATCHES}), said]) == {"replica-damage"}
