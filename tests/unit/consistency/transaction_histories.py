"""Histories of transactions as runs leave them: sound ones, and ones with an anomaly planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kraftpy.testing.consistency.checkers.transformed import Source, output
from kraftpy.testing.consistency.operations import Operation

Operations = list[Operation]
Write = tuple[str, str]

READER, LINE = 900, 1_000_000


class Story:
    """Operations one after the other."""

    def __init__(self) -> None:
        self.operations: Operations = []

    def add(
        self, process: int, f: str, asked: Any, value: Any = None, outcome: str = "ok"
    ) -> Operation:
        at = LINE + 10 * len(self.operations)
        brought = asked if value is None else value
        made = Operation(at, process, f, outcome, at, at + 5, asked, brought, "", "", "")
        self.operations.append(made)
        return made

    def txn(self, *writes: Write, outcome: str = "ok") -> None:
        steps = [["append", key, value] for key, value in writes]
        self.add(len(self.operations), "txn", steps, outcome=outcome)

    def send(self, key: str, value: str, offset: int | None, outcome: str = "ok") -> None:
        answer = [[key, value, offset]] if offset is not None else None
        self.add(1, "send", [[key, value]], answer, outcome)

    def drain(self, found: dict[str, Sequence[str]], process: int = READER) -> None:
        """Reads it in two polls, and after another poll that doesn't count any more."""
        self.add(process, "assign", dict.fromkeys(found, 0))
        self.add(process, "poll", None, {key: [[0, "from before"]] for key in found})
        self.add(process, "assign", dict.fromkeys(found, 0))
        for half in (0, 1):
            part = {
                key: [[n, value] for n, value in enumerate(values) if (n < 1) == (half == 0)]
                for key, values in found.items()
            }
            self.add(process, "poll", None, part)
        ends = {key: [0, len(values)] for key, values in found.items()}
        self.add(process, "drain", None, ends)

    def stable(self, last_stable: int, end: int) -> None:
        self.add(READER, "stable", None, {"t-0": [last_stable, end], "t-1": [4, 4]})


Plant = Callable[[Story], None]

A, B, C = ("t-0", "+5 1"), ("t-1", "-5 2"), ("t-0", "+7 3")


def sound(story: Story) -> None:
    story.txn(A, B)
    story.txn(C, outcome="fail")
    story.txn(("t-0", "+1 4"), ("t-1", "-1 5"), outcome="info")
    story.txn(("t-0", "+2 6"), ("t-1", "-2 7"), outcome="info")
    story.stable(9, 9)
    for process in (READER, READER + 1):
        story.drain({"t-0": ["+5 1", "+1 4"], "t-1": ["-5 2", "-1 5"]}, process)


def torn(story: Story) -> None:
    story.txn(A, B)
    story.drain({"t-0": ["+5 1"], "t-1": []})


def torn_of_unknown_end(story: Story) -> None:
    story.txn(A, B, outcome="info")
    story.drain({"t-0": ["+5 1"], "t-1": []})


def lost(story: Story) -> None:
    story.txn(A, B)
    story.drain({"t-0": [], "t-1": []})


def aborted(story: Story) -> None:
    story.txn(A, B, outcome="fail")
    story.drain({"t-0": ["+5 1"], "t-1": ["-5 2"]})


def twice(story: Story) -> None:
    story.txn(A, B)
    story.drain({"t-0": ["+5 1", "+5 1"], "t-1": ["-5 2"]})


def invented(story: Story) -> None:
    story.txn(A, B)
    story.drain({"t-0": ["+5 1", "+9 9"], "t-1": ["-5 2"]})


def stuck(story: Story) -> None:
    story.txn(A, B)
    story.stable(7, 9)


WHOLE: dict[str, Plant] = {
    "torn": torn,
    "lost-transaction": lost,
    "aborted": aborted,
    "written-twice": twice,
    "invented": invented,
    "stuck": stuck,
}


FIRST, SECOND = Source("a", "in-0", 0, "x"), Source("a", "in-0", 1, "y")


def transformed_soundly(story: Story) -> None:
    story.send("in-0", "x", 0)
    story.send("in-0", "y", None, "info")
    story.send("in-0", "z", None, "info")
    one, two, failed = output(1, FIRST), output(2, SECOND), output(3, SECOND)
    story.txn(("out-0", one))
    story.txn(("out-1", failed), outcome="fail")
    story.txn(("out-1", two))
    story.drain({"out-0": [one], "out-1": [two]})


def transformed_twice(story: Story) -> None:
    story.send("in-0", "x", 0)
    outputs = output(1, FIRST), output(2, FIRST)
    story.txn(("out-0", outputs[0]))
    story.txn(("out-1", outputs[1]))
    story.drain({"out-0": [outputs[0]], "out-1": [outputs[1]]})


def untransformed(story: Story) -> None:
    story.send("in-0", "x", 0)
    story.drain({"out-0": [], "out-1": []})


def made_up(story: Story) -> None:
    story.send("in-0", "x", None, "fail")
    story.txn(("out-0", output(1, FIRST)))
    story.drain({"out-0": [output(1, FIRST)]})


TRANSFORMED: dict[str, Plant] = {
    "transformed-twice": transformed_twice,
    "untransformed": untransformed,
    "made-up": made_up,
}


def history(plant: Plant) -> Operations:
    story = Story()
    plant(story)
    return story.operations
