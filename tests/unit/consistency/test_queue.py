"""The checkers of the queue: silent on logs that work, and never on what was planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from kraftpy.testing.consistency.checkers.queue import QueueChecker
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict

from .queue_histories import PLANTS, Operations, random_queue


def judge(operations: Iterable[Operation], *, idempotence: bool = True) -> dict[str, Verdict]:
    checker = QueueChecker(idempotence=idempotence)
    for operation in operations:
        checker.observe(operation)
    return {verdict.checker: verdict for verdict in checker.verdicts()}


def names_of(verdicts: dict[str, Verdict], valid: bool | None) -> set[str]:
    return {name for name, verdict in verdicts.items() if verdict.valid is valid}


@pytest.mark.parametrize("seed", range(40))
def test_silence_on_logs_that_work(seed: int) -> None:
    verdicts = judge(random_queue(random.Random(seed)))
    assert set(verdicts) == {name for name, _ in PLANTS}
    assert names_of(verdicts, True) == set(verdicts), [
        verdict.explanation for verdict in verdicts.values() if not verdict.valid
    ]
    assert verdicts["lost-write"].counts["acknowledged"] > 50
    assert verdicts["poll-skip"].counts["polls"] > 50


@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=lambda part: getattr(part, "__name__", ""))
def test_what_is_planted_is_found(
    name: str, plant: Callable[[random.Random, Operations], Operations | None]
) -> None:
    planted = 0
    for seed in range(30):
        rng = random.Random(seed)
        operations = plant(rng, random_queue(rng, 150))
        if operations is None:
            continue
        planted += 1
        verdict = judge(operations)[name]
        assert verdict.valid is False, seed
        (first, *_) = verdict.findings
        assert first.lines
        assert set(first.lines) <= {operation.line for operation in operations}
    assert planted > 5
