"""Transactions, judged by what readers of committed records find in the end: all of one or nothing.

While transactions are open, a reader may see one of them half: its log is readable up to the first
record of a transaction that is open still, and that may lie between two records of one that is
committed. In the end nothing is open, and every transaction is whole, everywhere. What was
committed for certain is there, what was aborted isn't; of one whose end nobody knows it is one or
the other. All values that a workload writes are unique, those of repeated attempts too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kraftpy.testing.consistency.checkers.drained import Drain, Drained, Value, list_of
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_PROMISES = {
    "torn": "of a transaction all is there in the end, or nothing",
    "lost-transaction": "what was committed is there in the end",
    "aborted": "what was aborted is not there in the end",
    "written-twice": "in the end everything is there once",
    "invented": "in the end nothing is there that nobody wrote",
    "stuck": "in the end no transaction is open, and everything can be read",
}
_NAMED_MAX = 4
_NOBODY = -1

_Write = tuple[str, Value]


class WholeChecker:
    """Of every workload that writes in transactions."""

    def __init__(self) -> None:
        self._drained = Drained()
        self._transactions: dict[int, tuple[str, list[_Write]]] = {}
        self._unread: list[tuple[int, dict[str, list[int]]]] = []
        self._found = {name: Findings() for name in _PROMISES}
        self._logs = 0

    def observe(self, operation: Operation) -> None:
        if operation.f == "txn":
            writes = [(key, value) for f, key, value in operation.value if f == "append"]
            if writes:
                self._transactions[operation.line] = operation.outcome, writes
        elif operation.f == "stable" and operation.outcome == "ok":
            self._logs += len(operation.value)
            behind = {key: each for key, each in operation.value.items() if each[0] < each[1]}
            for key, (stable, end) in behind.items():
                summary = (
                    f"committed records of {key} can be read up to {stable}, and it ends at {end}"
                )
                self._found["stuck"].add(summary, (operation.line,), key)
        else:
            self._drained.observe(operation)

    def verdicts(self) -> Iterator[Verdict]:
        for drain in self._drained.found:
            self._judge(drain)
        counts = {"transactions": len(self._transactions), "drains": len(self._drained.found)}
        for name, promise in _PROMISES.items():
            counted = {"logs": self._logs} if name == "stuck" else counts
            yield self._found[name].verdict(name, promise, "none was found", counted)

    def _judge(self, drain: Drain) -> None:
        there = Counter(
            (list_of(key, value), value) for key, values in drain.values.items() for value in values
        )
        writers = {}
        for line, (outcome, writes) in self._transactions.items():
            read = [each for each in writes if each[0].partition("/")[0] in drain.values]
            writers.update(dict.fromkeys(read, line))
            found = [each for each in read if each in there]
            lines = line, drain.line
            if found and outcome == "fail":
                self._add("aborted", f"{_words(found)}: its transaction was aborted", lines)
            if found and len(found) < len(read):
                lacking = [each for each in read if each not in there]
                told = f"{_words(found)} is there, and not {_words(lacking)} of one transaction"
                self._add("torn", told, lines)
            if read and not found and outcome == "ok":
                told = f"{_words(read)} is not there, and was committed"
                self._add("lost-transaction", told, lines)
        for each, count in there.items():
            writer = writers.get(each, _NOBODY)
            if count > 1:
                self._add("written-twice", f"{_words([each])} {count} times", (writer, drain.line))
            if writer == _NOBODY:
                self._add("invented", f"{_words([each])}, which nobody wrote", (drain.line,))

    def _add(self, name: str, summary: str, lines: tuple[int, ...]) -> None:
        self._found[name].add(summary, lines)


def _words(writes: list[_Write]) -> str:
    more = ", ..." if len(writes) > _NAMED_MAX else ""
    return ", ".join(f"{value!r} of {key}" for key, value in writes[:_NAMED_MAX]) + more
