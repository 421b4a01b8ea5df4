"""The checker of registers: one search for an order, one sweep for what is plainly stale."""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.testing.consistency.checkers.linearizability import linearizability
from kraftpy.testing.consistency.checkers.registers import Call, register_calls
from kraftpy.testing.consistency.checkers.stale import stale_reads
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict


class RegisterChecker:
    """`offsets`: the registers hold committed offsets; `time_limit_s` bounds the search."""

    def __init__(self, *, offsets: bool, time_limit_s: float = 120.0) -> None:
        self._offsets = offsets
        self._time_limit_s = time_limit_s
        self._calls: dict[str, list[Call]] = {}

    def observe(self, operation: Operation) -> None:
        for key, call in register_calls(operation):
            self._calls.setdefault(key, []).append(call)

    def verdicts(self) -> Iterator[Verdict]:
        yield linearizability(self._calls, self._time_limit_s)
        yield from stale_reads(self._calls, offsets=self._offsets)
