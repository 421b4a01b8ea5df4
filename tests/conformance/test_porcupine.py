"""The search for linearizations against porcupine, the checker in Go that others rely on."""

from __future__ import annotations

import json
import random

import pytest

from kraftpy.testing.consistency.checkers.registers import Call, State
from kraftpy.testing.consistency.checkers.search import Budget, find_stuck
from tests.conformance.foreign import said_by
from tests.unit.consistency.register_histories import random_calls, spoil

HISTORIES = 400


def as_numbers(call: Call) -> list[int]:
    def number(value: State) -> int:
        assert value is None or isinstance(value, int)
        return -1 if value is None else value

    step = call.step
    end = call.ended_ns if call.certain else -1
    operand, result = number(step.operand), number(step.result)
    return [step.needs, operand, int(step.sets), result, call.invoked_ns, end]


@pytest.mark.parametrize("seed", range(3))
def test_both_say_the_same(seed: int) -> None:
    rng = random.Random(seed)
    histories = []
    for number in range(HISTORIES):
        values = rng.choice((2, 4, 1000))
        calls = random_calls(
            rng,
            rng.randrange(5, 40),
            processes=rng.randrange(2, 8),
            values=values,
            uncertain=rng.choice((0, 0.05, 0.1)),
        )
        for _ in range(number % 3):
            calls = spoil(rng, calls, values=4)
        histories.append(calls)
    asked = json.dumps([[as_numbers(call) for call in calls] for calls in histories])
    expected = said_by("porcupine", timeout_s=60, text=asked)
    found = [find_stuck(calls, None, Budget(10**7, 60)) is None for calls in histories]
    assert found == expected
    assert 0.3 < sum(found) / len(found) < 0.9
