"""Stale reads and offsets that go back: what linearizability contains, found in one sweep.

A read is stale if what it returns had been replaced for certain before it began: all that ever
wrote that value had ended when something began that showed another value, and that had ended when
the read began. These are sufficient signs: a finding is an anomaly whatever else happened, but
there are violations of linearizability without them.

An offset regression is a stale read of a smaller offset than the one shown before: a committed
offset went back on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.checkers.registers import EQUAL, Call, Registers, State
from kraftpy.testing.consistency.verdicts import Findings, Verdict


def stale_reads(registers: Registers, *, offsets: bool) -> Iterator[Verdict]:
    """`offsets`: the registers hold committed offsets, so regressions are judged as well."""
    stale, back = Findings(), Findings()
    reads = 0
    for key, calls in registers.items():
        reads += sum(call.step.needs == EQUAL for call in calls)
        for old, shown, read in find_stale_reads(calls):
            lines = [call.line for call in (old, shown, read) if call is not None]
            seen, newer = read.step.operand, shown.step.after(shown.step.operand)
            findings = stale
            summary = (
                f"{key}: the operation of line {read.line} found {seen!r}, though {newer!r} was"
                " there before it began and after all that wrote the other"
            )
            if offsets and _order(seen) < _order(newer):
                back.add(f"{key}: the offset went back from {newer!r} to {seen!r}", lines, key)
            findings.add(summary, lines, key)
    counts = {"reads": reads, "registers": len(registers)}
    yield stale.verdict(
        "stale-read",
        "a read returns what was written last, not what was replaced before it began",
        "no read returned what had been replaced",
        counts,
    )
    if offsets:
        yield back.verdict(
            "offset-regression",
            "a committed offset doesn't go back on its own",
            "no read saw an offset go back",
            counts,
        )


def _order(state: State) -> int:
    return state if isinstance(state, int) else -1


class _Shown(NamedTuple):
    """What a call showed for certain: at some moment of it the register held `value`."""

    invoked_ns: int
    value: State
    call: Call


def find_stale_reads(calls: Sequence[Call]) -> Iterator[tuple[Call | None, Call, Call]]:
    """(the last that wrote the value, what showed another one since, the read) of stale reads."""
    last_writer: dict[State, Call] = {}
    for call in calls:
        if call.step.sets:
            last = last_writer.setdefault(call.step.result, call)
            if call.ended_ns > last.ended_ns:
                last_writer[call.step.result] = call
    certain = [call for call in calls if call.certain]
    shows = sorted(
        (call for call in certain if call.step.sets or call.step.needs == EQUAL),
        key=lambda call: call.ended_ns,
    )
    reads = sorted(
        (call for call in certain if call.step.needs == EQUAL), key=lambda call: call.invoked_ns
    )
    passed = 0
    # Of all that ended so far: what began last, and what began last with another value than that.
    newest: _Shown | None = None
    other: _Shown | None = None
    for read in reads:
        while passed < len(shows) and shows[passed].ended_ns < read.invoked_ns:
            call = shows[passed]
            passed += 1
            shown = _Shown(call.invoked_ns, call.step.after(call.step.operand), call)
            if newest is None or shown.invoked_ns >= newest.invoked_ns:
                if newest is not None and newest.value != shown.value:
                    other = newest
                newest = shown
            elif shown.value != newest.value and (
                other is None or shown.invoked_ns > other.invoked_ns
            ):
                other = shown
        value = read.step.operand
        witness = other if newest is not None and newest.value == value else newest
        if witness is None:
            continue
        writer = last_writer.get(value)
        written_until = writer.ended_ns if writer is not None else -1
        if witness.invoked_ns > written_until:
            yield writer, witness.call, read
