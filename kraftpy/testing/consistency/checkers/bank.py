"""Transfers between accounts, each a partition: what one account lost another one has got.

The values are amounts with a sign, then what makes them unique: `-5 7001`. In the end the sum over
all accounts is what it was when all were empty: 0. A transfer of which a half is missing is named
by `whole`; here the sum shows it, whoever wrote what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kraftpy.testing.consistency.checkers.drained import Drained, Value
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_AMOUNT = re.compile(r"([+-][0-9]{1,9}) ")


def amount_of(value: Value) -> int:
    """0 of what isn't of a transfer: that is `whole`'s to name."""
    found = _AMOUNT.match(str(value))
    return int(found[1]) if found else 0


class SumChecker:
    """The sum over all that was drained."""

    def __init__(self) -> None:
        self._drained = Drained()

    def observe(self, operation: Operation) -> None:
        self._drained.observe(operation)

    def verdicts(self) -> Iterator[Verdict]:
        findings = Findings()
        for drain in self._drained.found:
            sums = {key: sum(map(amount_of, values)) for key, values in drain.values.items()}
            if sum(sums.values()):
                told = ", ".join(f"{key} {amount:+}" for key, amount in sorted(sums.items()))
                findings.add(
                    f"the accounts sum up to {sum(sums.values()):+}: {told}", (drain.line,)
                )
        yield findings.verdict(
            "sum",
            "what leaves an account arrives at another one",
            "all sums are 0",
            {"drains": len(self._drained.found)},
        )
