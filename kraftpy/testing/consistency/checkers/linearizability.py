"""Linearizability of registers: is there one order that explains every answer?

Keys are judged by themselves, since linearizability is local (Herlihy & Wing). The search is in
`search`. It can take forever on a hostile history, so it has a budget, and a key that used its up
is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kraftpy.testing.consistency.checkers.registers import (
    DIFFERENT,
    EQUAL,
    Call,
    Registers,
    step_text,
)
from kraftpy.testing.consistency.checkers.search import (
    UNSEEN,
    Budget,
    BudgetSpentError,
    Stuck,
    find_stuck,
)
from kraftpy.testing.consistency.operations import NEVER
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_KEY_CONFIGURATIONS = 5_000_000
_SHRINK_CONFIGURATIONS = 100_000
_SHRINK_SECONDS = 5.0
_SHRUNK_KEYS_MAX = 20


def linearizability(registers: Registers, time_limit_s: float) -> Verdict:
    """Whether all registers are linearizable; the limit is for all of them together, in seconds."""
    deadline = time.monotonic() + time_limit_s
    findings = Findings()
    unknown = []
    # The small ones first: what they find is cheap, and they aren't left over.
    for key, calls in sorted(registers.items(), key=lambda item: len(item[1])):
        budget = Budget(_KEY_CONFIGURATIONS, deadline - time.monotonic())
        try:
            stuck = find_stuck(calls, None, budget)
        except BudgetSpentError as reason:
            unknown.append(f"{key} ({len(calls)} operations): {reason}")
            continue
        if stuck is not None:
            _add_finding(findings, key, calls, stuck)
    counts = {
        "registers": len(registers),
        "operations": sum(len({call.line for call in calls}) for calls in registers.values()),
    }
    promise = "every register behaves like one copy that changes at one moment"
    if unknown and not findings.count:
        explanation = (
            f"{len(unknown)} of {len(registers)} registers were too hard to decide: "
            + "; ".join(unknown[:5])
        )
        return Verdict("linearizable", None, promise, explanation, counts)
    good = "for every register there is one order that explains all answers"
    return findings.verdict("linearizable", promise, good, counts)


def _add_finding(findings: Findings, key: str, calls: Sequence[Call], stuck: Stuck) -> None:
    last = calls[stuck.at]
    held = [repr(state) for state in stuck.before if state != UNSEEN]
    known = f"; it held {' or '.join(held[:5])}" if len(held) == len(stuck.before) else ""
    enough = [*stuck.after]
    if findings.count < _SHRUNK_KEYS_MAX:
        enough = _shrink(calls, stuck)
    lines = [calls[index].line for index in enough]
    lines += _context(calls, stuck, set(enough))
    # A call and its repetition are of one line.
    lines = list(dict.fromkeys(lines))
    lines.sort(key={call.line: call.invoked_ns for call in calls}.__getitem__)
    findings.add(
        f"{key}: the operation of line {last.line} {step_text(last.step)}, which no order of the"
        f" operations explains{known}",
        lines,
        key,
    )


def _shrink(calls: Sequence[Call], stuck: Stuck) -> list[int]:
    """Fewer calls since all was known that contradict one another all the same.

    Leaving out a call that only looks never makes a contradiction, nor does leaving out one that
    sets what no other call asks for: so what is left is wrong if it is wrong by itself.
    """
    returned = set(stuck.after)
    moment = calls[stuck.at].ended_ns
    since = min(calls[index].invoked_ns for index in stuck.after)
    under_way = [
        index
        for index, call in enumerate(calls)
        if call.certain
        and index not in returned
        and since <= call.ended_ns
        and call.invoked_ns <= moment <= call.ended_ns
        and call.step.sets
    ]
    candidates = sorted({*stuck.after, *under_way, *stuck.uncertain})
    cut = {
        index: calls[index]
        if index in returned
        else calls[index]._replace(ended_ns=NEVER, certain=False)
        for index in candidates
    }
    deadline = time.monotonic() + _SHRINK_SECONDS

    def contradicts(kept: list[int]) -> bool:
        try:
            budget = Budget(_SHRINK_CONFIGURATIONS, deadline - time.monotonic())
            return find_stuck([cut[index] for index in kept], stuck.known, budget) is not None
        except BudgetSpentError:
            return False

    kept = candidates
    size = max(1, len(kept) // 2)
    while time.monotonic() < deadline:
        place = 0
        while place < len(kept):
            rest = kept[:place] + kept[place + size :]
            gone = kept[place : place + size]
            if _may_leave_out(cut, gone, rest) and contradicts(rest):
                kept = rest
            else:
                place += size
        if size == 1:
            break
        size //= 2
    return kept


def _may_leave_out(cut: dict[int, Call], gone: list[int], rest: list[int]) -> bool:
    results = {cut[index].step.result for index in gone if cut[index].step.sets}
    if not results:
        return True
    for index in rest:
        step = cut[index].step
        if step.needs == EQUAL and step.operand in results:
            return False
        if step.needs == DIFFERENT and results != {step.operand}:
            return False
    return True


def _context(calls: Sequence[Call], stuck: Stuck, kept: set[int]) -> list[int]:
    """Who wrote what the register held, and what was seen instead, if that isn't shown yet."""
    last = calls[stuck.at]
    since = min(calls[index].invoked_ns for index in stuck.after)
    setters = [call for call in calls if call.step.sets and call is not last]
    shown = [calls[index].step for index in kept if index != stuck.at]
    lines = []
    replaced_by = [call for call in setters if call.ended_ns <= since]
    if replaced_by and not any(step.sets for step in shown):
        lines.append(max(replaced_by, key=lambda call: call.ended_ns).line)
    if last.step.needs == EQUAL and last.step.operand not in [step.result for step in shown]:
        wrote_it = [
            call
            for call in setters
            if call.step.result == last.step.operand and call.invoked_ns <= last.ended_ns
        ]
        if wrote_it:
            lines.append(max(wrote_it, key=lambda call: call.invoked_ns).line)
    return lines
