"""What a checker says: whether a promise was kept, and if it wasn't, the least that shows it.

Rules: unknown is an answer of its own and never passes for true. A finding names the operations
that contradict the promise, as few as the checker can make it, and says what is wrong in a
sentence. However much is wrong, a bounded number of findings is kept, the smallest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kraftpy.testing.consistency.operations import Operation

NOTHING_TO_JUDGE = "nothing to judge"
FINDINGS_KEPT = 10
_PRUNE_AT = 200
_WORDS = {True: "kept", False: "broken", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Finding:
    """`lines` are those of the operations' invocations, in the order in which to read them."""

    summary: str
    lines: tuple[int, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`valid` is None for unknown; `promise` is what was checked, `explanation` how that went.

    `counts` are for people: how much was looked at, how many findings there were in all. The first
    is what a finding could have come of; where that is 0 there was nothing to judge.
    """

    checker: str
    valid: bool | None
    promise: str
    explanation: str
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def word(valid: bool | None, counts: Mapping[str, int]) -> str:
    """What became of a promise, in a word or three."""
    if valid and counts and not next(iter(counts.values())):
        return NOTHING_TO_JUDGE
    return _WORDS[valid]


class Checker(Protocol):
    """Gets every operation of a history in turn, then gives one or several verdicts."""

    def observe(self, operation: Operation) -> None: ...

    def verdicts(self) -> Iterable[Verdict]: ...


class Findings:
    """Counts findings and keeps the smallest; among equals those that came first."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[Finding] = []

    def add(self, summary: str, lines: Iterable[int], key: str = "") -> None:
        self.count += 1
        # What a checker has no operation for (nobody sent it) it names with a negative line.
        self._kept.append(Finding(summary, tuple(n for n in dict.fromkeys(lines) if n >= 0), key))
        if len(self._kept) >= _PRUNE_AT:
            self._kept = list(self.smallest())

    def smallest(self) -> tuple[Finding, ...]:
        return tuple(sorted(self._kept, key=lambda each: len(each.lines))[:FINDINGS_KEPT])

    def verdict(self, checker: str, promise: str, good: str, counts: Mapping[str, int]) -> Verdict:
        """True with the sentence `good` if nothing was found, else False."""
        if not self.count:
            return Verdict(checker, True, promise, good, counts)
        more = f"; the smallest of {self.count} findings" if self.count > 1 else ""
        first, *_ = smallest = self.smallest()
        counts = {**counts, "found": self.count}
        return Verdict(checker, False, promise, f"{first.summary}{more}", counts, smallest)
