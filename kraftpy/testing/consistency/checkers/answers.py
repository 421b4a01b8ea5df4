"""Producers that don't give up: everything that they send is acknowledged, once faults are over."""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict


class AnswerChecker:
    """The checker of streams.

    A process of which nothing was ever acknowledged is not judged: there are libraries that need an
    answer to their first request and give up for good without. One that a fault has ended had no
    time to get its answers.
    """

    def __init__(self) -> None:
        self._going: dict[int, int] = {}
        self._open: list[Operation] = []
        self._crashed: set[int] = set()

    def observe(self, operation: Operation) -> None:
        if operation.f == "crashed":
            self._crashed.add(operation.process)
        if operation.f != "send":
            return
        if operation.outcome == "ok":
            self._going[operation.process] = self._going.get(operation.process, 0) + 1
        elif operation.outcome == "info":
            self._open.append(operation)

    def verdicts(self) -> Iterator[Verdict]:
        findings = Findings()
        for send in self._open:
            if send.process in self._going and send.process not in self._crashed:
                values = ", ".join(f"{record[1]!r:.40}" for record in send.value)
                findings.add(
                    f"{values} of process {send.process} was not acknowledged: {send.error}",
                    (send.line,),
                    send.value[0][0],
                )
        yield findings.verdict(
            "unacknowledged",
            "what a producer that doesn't give up sends is acknowledged in the end",
            "all of it was",
            {"acknowledged": sum(self._going.values())},
        )
