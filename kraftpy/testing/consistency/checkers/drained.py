"""What readers of committed records found when they read everything, in the end of a run.

Rule: a drain is all polls of its process since that began to read, and is complete when the drain
was answered. A log that was read by several clients is there several times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kraftpy.testing.consistency.operations import Operation

Value = int | str


@dataclass(slots=True)
class Drain:
    """All values of each partition, in their order; `line` is the drain's."""

    line: int = -1
    values: dict[str, list[Value]] = field(default_factory=dict)

    def lists(self) -> dict[str, list[Value]]:
        """The values of each list: a partition's part that has one name before the slash."""
        found: dict[str, list[Value]] = {}
        for key, values in self.values.items():
            for value in values:
                found.setdefault(list_of(key, value), []).append(value)
        return found


def list_of(key: str, value: Value) -> str:
    """The name of the list that a value of a partition belongs to."""
    name, slash, _ = str(value).partition("/")
    return f"{key}/{name}" if slash else key


class Drained:
    """Takes in polls and drains; `found` are the complete ones."""

    def __init__(self) -> None:
        self.found: list[Drain] = []
        self._reading: dict[int, Drain] = {}

    def observe(self, operation: Operation) -> None:
        match operation.f:
            case "assign":
                self._reading[operation.process] = Drain()
            case "poll" if operation.outcome == "ok" and operation.process in self._reading:
                values = self._reading[operation.process].values
                for key, records in operation.value.items():
                    values.setdefault(key, []).extend(value for _, value in records)
            case "drain" if operation.outcome == "ok" and operation.process in self._reading:
                drain = self._reading.pop(operation.process)
                drain.line = operation.line
                for key in operation.value:
                    drain.values.setdefault(key, [])
                self.found.append(drain)
