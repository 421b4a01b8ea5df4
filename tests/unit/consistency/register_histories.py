"""Random histories of one register, right ones and spoiled ones, and the slow way to judge them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kraftpy.testing.consistency.checkers.registers import (
    Call,
    State,
    Step,
    change,
    change_unless,
    saw,
    saw_not,
    write,
)
from kraftpy.testing.consistency.operations import NEVER

KINDS = ("write", "read", "cas", "create", "delete", "alter")


def random_calls(
    rng: random.Random,
    count: int,
    *,
    processes: int = 4,
    values: int = 4,
    uncertain: float = 0.1,
    repeated: float = 0.0,
    kinds: Sequence[str] = KINDS,
) -> list[Call]:
    """Calls of a register that works, by concurrent clients of which some never hear the answer.

    Each client is in one call at a time, or in none; a call takes effect at a moment inside of it,
    a write with the probability `repeated` at one more.
    """
    state: State = None
    calls: list[Call] = []
    now = 0
    waiting: dict[
        int, list[object]
    ] = {}  # process -> [kind, value, invoked, step once it happened]
    while len(calls) < count or waiting:
        now += rng.choice((0, 1, 1, 2))
        process = rng.randrange(processes)
        under_way = waiting.get(process)
        if under_way is None:
            if len(calls) + len(waiting) < count:
                waiting[process] = [rng.choice(kinds), rng.randrange(values), now, None]
            continue
        kind, value, invoked, step = under_way
        if step is None and rng.random() < uncertain:
            effect = _uncertain_step(kind, value, rng.randrange(values))
            if effect is not None:
                if rng.random() < 0.5 and effect.allows(state):
                    state = effect.after(state)
                calls.append(Call(effect, invoked, NEVER, len(calls), False))
            del waiting[process]
        elif step is None:
            step = _step(rng, kind, value, state, values)
            state = step.after(state)
            under_way[3] = step
        elif step.is_write and rng.random() < repeated:
            state = step.after(state)
        else:
            line = len(calls)
            calls.append(Call(step, invoked, now, line, True))
            if step.is_write and repeated:
                calls.append(Call(step, invoked, now, line, False))
            del waiting[process]
    return calls


def _step(rng: random.Random, kind: str, value: int, state: State, values: int) -> Step:
    """What a call of this kind finds and does in this state."""
    match kind:
        case "read":
            return saw(state)
        case "write":
            return write(value)
        case "cas":
            expected = state if rng.random() < 0.7 else rng.randrange(values)
            return change(expected, value) if expected == state else saw_not(expected)
        case "create":
            return change(None, value) if state is None else saw_not(None)
        case "delete":
            return saw(None) if state is None else change_unless(None, None)
    return saw(None) if state is None else change_unless(None, value)


def _uncertain_step(kind: str, value: int, expected: int) -> Step | None:
    steps = {
        "write": write(value),
        "cas": change(expected, value),
        "create": change(None, value),
        "delete": change_unless(None, None),
        "alter": change_unless(None, value),
    }
    return steps.get(kind)


def spoil(rng: random.Random, calls: Sequence[Call], values: int = 4) -> list[Call]:
    """One call's condition is replaced: mostly wrong now, though not always."""
    spoiled = list(calls)
    conditional = [i for i, call in enumerate(calls) if call.certain and not call.step.is_write]
    if conditional:
        index = rng.choice(conditional)
        step = spoiled[index].step._replace(operand=rng.choice((None, *range(values))))
        spoiled[index] = spoiled[index]._replace(step=step)
    return spoiled


def is_linearizable(calls: Sequence[Call]) -> bool:
    """Every order is tried (Wing & Gong); what was tried is remembered."""
    certain = sum(1 << i for i, call in enumerate(calls) if call.certain)
    seen = set()
    work: list[tuple[int, State]] = [(0, None)]
    while work:
        done, state = work.pop()
        if done & certain == certain:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        left = [i for i in range(len(calls)) if not done >> i & 1]
        first_end = min(calls[i].ended_ns for i in left if calls[i].certain)
        last_begin = max(
            (call.invoked_ns for i, call in enumerate(calls) if done >> i & 1), default=0
        )
        for i in left:
            step = calls[i].step
            in_time = calls[i].invoked_ns <= first_end and last_begin <= calls[i].ended_ns
            if in_time and step.allows(state):
                work.append((done | 1 << i, step.after(state)))
    return False
