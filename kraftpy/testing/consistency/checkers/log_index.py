"""What a history says about the logs of a queue: which value is where, and who knew it when.

Rules: a key is one log, its values are unique. Positions come from acknowledgements and from
reads alike. Memory is a few numbers per value: columns, not objects. A moment that isn't known
is NEVER, an offset or a line that isn't known is UNKNOWN.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Findings

UNKNOWN = -1
Value = int | str

NOT_SENT, ACKNOWLEDGED, FAILED, INDETERMINATE = range(4)


class Log:
    """One key: a row for each value, and the value at each offset.

    Columns, by row: `value`, `state`, `process`, `invoked_ns` and `ended_ns` of its send, the
    operation's `send_line` and the value's `place_in_send`, the offset in its acknowledgement
    `acked`, the offset where it was first `read`, in which operation (`read_line`) that ended at
    `read_ns`.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.rows: dict[Value, int] = {}
        self.at: dict[int, Value] = {}
        self.value: list[Value] = []
        self.state = bytearray()
        self.process = array("q")
        self.place_in_send = array("l")
        self.invoked_ns = array("q")
        self.ended_ns = array("q")
        self.send_line = array("q")
        self.acked = array("q")
        self.read = array("q")
        self.read_line = array("q")
        self.read_ns = array("q")
        self.elsewhere: dict[int, list[tuple[int, int]]] = {}
        """Row -> (offset, line) where it was read besides its first place."""
        self.conflicts = Findings()
        self.covered = Intervals()
        """Offsets that one reader went through from end to end."""
        self.drained: list[tuple[int, int, int, int]] = []
        """(invoked_ns, start, end, line) of reads of the whole log."""

    def row(self, value: Value) -> int:
        row = self.rows.get(value)
        if row is None:
            row = self.rows[value] = len(self.value)
            self.value.append(value)
            self.state.append(NOT_SENT)
            self.place_in_send.append(0)
            for column in (self.process, self.send_line, self.acked, self.read, self.read_line):
                column.append(UNKNOWN)
            for column in (self.invoked_ns, self.ended_ns, self.read_ns):
                column.append(NEVER)
        return row

    def place(self, offset: int, value: Value, line: int) -> None:
        """This value is at this offset, says the operation of this line."""
        known = self.at.setdefault(offset, value)
        if known != value:
            row = self.rows[known]
            source = self.send_line[row] if self.acked[row] == offset else self.read_line[row]
            self.conflicts.add(
                f"offset {offset} of {self.key} holds {known!r} and {value!r}",
                (self.send_line[row], source, self.send_line[self.row(value)], line),
                self.key,
            )

    def offset_of(self, row: int) -> int:
        """Where a value is: the smallest offset that anyone was told, or UNKNOWN."""
        acked, read = self.acked[row], self.read[row]
        if acked < 0 or read < 0:
            return max(acked, read)
        return min(acked, read)

    def sent(self) -> Iterator[int]:
        """The rows of values that somebody sent."""
        return (row for row, state in enumerate(self.state) if state != NOT_SENT)


class Intervals:
    """A set of offsets, as ranges; cheap when they are added more or less in order."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._merged = True

    def add(self, first: int, last: int) -> None:
        if self._ranges:
            begin, end = self._ranges[-1]
            if begin <= first <= end + 1:
                self._ranges[-1] = (begin, max(end, last))
                return
        self._ranges.append((first, last))
        self._merged = False

    def merged(self) -> list[tuple[int, int]]:
        """Ranges (first, last) that neither touch nor overlap, in order."""
        if not self._merged:
            ranges: list[tuple[int, int]] = []
            for first, last in sorted(self._ranges):
                if ranges and first <= ranges[-1][1] + 1:
                    ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
                else:
                    ranges.append((first, last))
            self._ranges, self._merged = ranges, True
        return self._ranges

    def missing(self, offsets: Iterable[int]) -> Iterator[int]:
        """Those of these offsets, which rise, that are not in it."""
        ranges = iter(self.merged())
        first, last = next(ranges, (NEVER, NEVER))
        for offset in offsets:
            while last < offset:
                first, last = next(ranges, (NEVER, NEVER))
            if offset < first:
                yield offset


class LogIndex:
    """All logs of a history; feed it every operation."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.sends = 0
        self.reads = 0

    def log(self, key: str) -> Log:
        log = self.logs.get(key)
        if log is None:
            log = self.logs[key] = Log(key)
        return log

    def observe(self, operation: Operation) -> None:
        match operation.f:
            case "send":
                self._observe_send(operation)
            case "poll" if operation.outcome == "ok":
                self._observe_poll(operation)
            case "drain" if operation.outcome == "ok":
                for key, (start, end) in operation.value.items():
                    drain = (operation.invoked_ns, start, end, operation.line)
                    self.log(key).drained.append(drain)

    def _observe_send(self, operation: Operation) -> None:
        line, outcome = operation.line, operation.outcome
        for place, record in enumerate(operation.value):
            key, value = record[0], record[1]
            offset = record[2] if len(record) == 3 and record[2] is not None else UNKNOWN
            log = self.log(key)
            row = log.row(value)
            if log.state[row] != NOT_SENT:
                log.conflicts.add(
                    f"{value!r} was sent to {key} twice: a workload's values are unique",
                    (log.send_line[row], line),
                    key,
                )
                continue
            self.sends += 1
            log.process[row] = operation.process
            log.place_in_send[row] = place
            log.invoked_ns[row] = operation.invoked_ns
            log.ended_ns[row] = operation.ended_ns
            log.send_line[row] = line
            if outcome == "ok" or offset >= 0:
                log.state[row] = ACKNOWLEDGED
            else:
                log.state[row] = FAILED if outcome == "fail" else INDETERMINATE
            if offset >= 0:
                log.acked[row] = offset
                log.place(offset, value, line)

    def _observe_poll(self, operation: Operation) -> None:
        line, ended_ns = operation.line, operation.ended_ns
        polled: dict[str, list[Any]] = operation.value
        for key, records in polled.items():
            log = self.log(key)
            rows, at, read = log.rows, log.at, log.read
            self.reads += len(records)
            for offset, value in records:
                row = rows.get(value)
                if row is None:
                    row = log.row(value)
                if read[row] < 0:
                    read[row] = offset
                    log.read_line[row] = line
                    log.read_ns[row] = ended_ns
                elif read[row] != offset:
                    log.elsewhere.setdefault(row, []).append((offset, line))
                elif ended_ns < log.read_ns[row]:
                    log.read_ns[row] = ended_ns
                    log.read_line[row] = line
                if at.get(offset) != value:
                    log.place(offset, value, line)
