"""The order of a queue: what a session sees and sends, and what real time demands.

Names as in Jepsen's Kafka workload: `int-` is inside of one operation, without it from one
operation of a process to its next.

* A reader that has its partitions by `assign` goes forward and leaves nothing out, from the
  position that it was assigned. With `subscribe` others may take over in between, so only the
  inside of its polls is judged. A gap in the offsets is a skip only if somebody knows of a value
  in there: markers of transactions and compacted records leave gaps.
* A process that has read a log to its end (`drain`) has seen all that anybody knows to be in there.
* A sender's values are in the log in the order in which it sent them, if it is idempotent.
  `int-send-skip` is counted and always allowed: others may write in between.
* Real time: what is sent after a value was acknowledged, or read, is behind it in the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from kraftpy.testing.consistency.checkers.log_index import UNKNOWN, Intervals, Log, LogIndex
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict


class _Position:
    """Where a session is in a log: the next offset to come, if known, and who brought it there."""

    __slots__ = ("line", "next")

    def __init__(self, next_offset: int, line: int) -> None:
        self.next = next_offset
        self.line = line


class SessionOrder:
    """Follows every session through its polls and sends."""

    def __init__(self, index: LogIndex, *, idempotence: bool) -> None:
        self._index = index
        self._idempotence = idempotence
        self._subscribed: set[int] = set()
        self._positions: dict[tuple[int, str], _Position] = {}
        self._assigned: dict[int, list[str]] = {}
        self._back = Findings()
        self._int_back = Findings()
        self._gaps: list[tuple[bool, str, int, int, int, int]] = []
        """(internal, key, first and last offset left out, line before, line behind)."""
        self._polls = 0
        self._seen: dict[tuple[int, str], Intervals] = {}
        self._drains: list[Operation] = []

    def observe(self, operation: Operation) -> None:
        match operation.f:
            case "poll":
                self._observe_poll(operation)
            case "drain" if operation.outcome == "ok":
                self._drains.append(operation)
            case "assign" if operation.outcome != "fail":
                self._forget(operation.process)
                self._subscribed.discard(operation.process)
                self._assigned[operation.process] = list(operation.value)
                for key, first in operation.value.items():
                    position = _Position(UNKNOWN if first is None else first, operation.line)
                    self._positions[operation.process, key] = position
            case "subscribe" if operation.outcome != "fail":
                self._forget(operation.process)
                self._subscribed.add(operation.process)

    def _forget(self, process: int) -> None:
        for key in self._assigned.pop(process, ()):
            self._positions.pop((process, key), None)

    def _observe_poll(self, operation: Operation) -> None:
        process = operation.process
        if operation.outcome != "ok":
            if operation.outcome == "info":  # what it fetched may be gone, its position with it
                for key in self._assigned.get(process, ()):
                    self._positions[process, key].next = UNKNOWN
            return
        self._polls += 1
        for key, records in operation.value.items():
            if records:
                self._observe_records(operation, key, records)

    def _observe_records(self, operation: Operation, key: str, records: list[Any]) -> None:
        line, process = operation.line, operation.process
        covered = self._index.log(key).covered
        seen = self._seen.setdefault((process, key), Intervals())
        for offset, _ in records:
            seen.add(offset, offset)
        position = self._positions.get((process, key))
        start = expected = records[0][0]
        if position is not None and position.next != UNKNOWN and process not in self._subscribed:
            if start < position.next:
                self._back.add(
                    f"process {process} was at offset {position.next} of {key} and read {start}",
                    (position.line, line),
                    key,
                )
            elif start > position.next:
                gap = (False, key, position.next, start - 1, position.line, line)
                self._gaps.append(gap)
                start = position.next
        for offset, _ in records:
            if offset != expected:
                if offset < expected:
                    self._int_back.add(
                        f"one poll of {key} brought offset {expected - 1} and then {offset}",
                        (line,),
                        key,
                    )
                    covered.add(start, expected - 1)
                    start = offset
                else:
                    self._gaps.append((True, key, expected, offset - 1, line, line))
            expected = offset + 1
        covered.add(start, expected - 1)
        if position is None:
            position = self._positions[process, key] = _Position(expected, line)
            self._assigned.setdefault(process, []).append(key)
        position.next = expected
        position.line = line

    def verdicts(self) -> Iterator[Verdict]:
        counts = {"polls": self._polls}
        skips, int_skips = self._skips()
        yield self._back.verdict(
            "nonmonotonic-poll",
            "a reader with assigned partitions doesn't go back",
            "no reader went back",
            counts,
        )
        yield self._int_back.verdict(
            "int-nonmonotonic-poll",
            "inside of one poll offsets rise",
            "they rise in every poll",
            counts,
        )
        yield skips.verdict(
            "poll-skip",
            "a reader with assigned partitions leaves nothing out between two polls",
            "none was left out",
            counts,
        )
        yield int_skips.verdict(
            "int-poll-skip",
            "one poll leaves nothing out between its records",
            "none was left out",
            counts,
        )
        yield self._drain_skips()
        yield from _send_order(self._index, self._idempotence)
        yield _real_time_order(self._index)

    def _skips(self) -> tuple[Findings, Findings]:
        found = Findings(), Findings()
        offsets: dict[str, list[int]] = {}
        for internal, key, first, last, before, behind in self._gaps:
            log = self._index.log(key)
            known = offsets.get(key)
            if known is None:
                known = offsets[key] = sorted(log.at)
            place = bisect_right(known, first - 1)
            if place < len(known) and known[place] <= last:
                row = log.rows[log.at[known[place]]]
                witness = log.read_line[row] if log.send_line[row] < 0 else log.send_line[row]
                found[internal].add(
                    f"offsets {first} to {last} of {key} were left out, and offset {known[place]}"
                    f" holds {log.value[row]!r}",
                    (witness, before, behind),
                    key,
                )
        return found

    def _drain_skips(self) -> Verdict:
        findings = Findings()
        judged = 0
        offsets: dict[str, list[int]] = {}
        for drain in self._drains:
            for key, (start, end) in drain.value.items():
                seen = self._seen.get((drain.process, key))
                if seen is None:
                    continue
                log = self._index.log(key)
                known = offsets.get(key)
                if known is None:
                    known = offsets[key] = sorted(log.at)
                wanted = known[bisect_left(known, start) : bisect_left(known, end)]
                judged += len(wanted)
                for offset in seen.missing(wanted):
                    row = log.rows[log.at[offset]]
                    findings.add(
                        f"process {drain.process} read {key} to its end, {end}, and never saw"
                        f" {log.value[row]!r} at offset {offset}",
                        (log.send_line[row], drain.line),
                        key,
                    )
        return findings.verdict(
            "drain-skip",
            "who reads a log to its end sees all that is in it",
            "everybody saw all of it",
            {"records": judged},
        )


def _send_order(index: LogIndex, idempotence: bool) -> Iterator[Verdict]:
    """Values of one process in one log, in the order of sending: do their offsets rise?"""
    back, int_back = Findings(), Findings()
    compared = skips = 0
    for log in index.logs.values():
        rows = [row for row in log.sent() if log.acked[row] >= 0]
        rows.sort(key=lambda row: (log.process[row], log.send_line[row], log.place_in_send[row]))
        earlier = furthest = UNKNOWN  # rows: the last in the log of earlier sends, of all so far
        for before, behind in pairwise([UNKNOWN, *rows]):
            if before == UNKNOWN or log.process[before] != log.process[behind]:
                earlier, furthest = UNKNOWN, behind
                continue
            compared += 1
            one_send = log.send_line[before] == log.send_line[behind]
            if not one_send:
                earlier = furthest
            if one_send and log.acked[behind] <= log.acked[before]:
                int_back.add(*_out_of_order(log, before, behind))
            elif one_send and log.acked[behind] > log.acked[before] + 1:
                skips += 1
            if earlier != UNKNOWN and log.acked[behind] <= log.acked[earlier]:
                back.add(*_out_of_order(log, earlier, behind))
            if log.acked[behind] > log.acked[furthest]:
                furthest = behind
    counts = {"pairs": compared}
    for name, found, extra in (
        ("nonmonotonic-send", back, {}),
        ("int-nonmonotonic-send", int_back, {"int-send-skip": skips}),
    ):
        promise = (
            "what an idempotent producer sends "
            + ("in one operation " if extra else "")
            + "is in the log in that order"
        )
        if idempotence:
            yield found.verdict(name, promise, "every pair is in order", {**counts, **extra})
        else:
            explanation = (
                f"{found.count} pairs are out of order, which retries of a producer that isn't"
                " idempotent may do"
            )
            yield Verdict(name, True, promise, explanation, {**counts, **extra})


def _out_of_order(log: Log, before: int, behind: int) -> tuple[str, tuple[int, int], str]:
    return (
        f"process {log.process[before]} sent {log.value[before]!r} to {log.key} before"
        f" {log.value[behind]!r}; they are at {log.acked[before]} and {log.acked[behind]}",
        (log.send_line[before], log.send_line[behind]),
        log.key,
    )


def _real_time_order(index: LogIndex) -> Verdict:
    findings = Findings()
    judged = 0
    for log in index.logs.values():
        sends = sorted(
            (row for row in log.sent() if log.offset_of(row) >= 0), key=log.invoked_ns.__getitem__
        )
        judged += len(sends)
        seen = _Horizon(log)
        for row in sends:
            furthest, offset, line = seen.before(log.invoked_ns[row])
            if offset >= log.offset_of(row):
                findings.add(
                    f"{log.value[row]!r} is at offset {log.offset_of(row)} of {log.key}, though it"
                    f" was sent when {log.value[furthest]!r} at offset {offset} was known already",
                    (log.send_line[furthest], line, log.send_line[row]),
                    log.key,
                )
    return findings.verdict(
        "real-time-order",
        "what is sent after a value was acknowledged or read gets a larger offset",
        "offsets follow real time",
        {"sends": judged},
    )


class _Horizon:
    """The furthest offset of a log that anybody knew of, as time goes on."""

    def __init__(self, log: Log) -> None:
        acked = (row for row, offset in enumerate(log.acked) if offset >= 0)
        read = (row for row, offset in enumerate(log.read) if offset >= 0)
        # (rows in the order in which they got known, when, where, by which operation)
        self._sources = [
            (sorted(rows, key=moments.__getitem__), moments, offsets, lines)
            for rows, moments, offsets, lines in (
                (acked, log.ended_ns, log.acked, log.send_line),
                (read, log.read_ns, log.read, log.read_line),
            )
        ]
        self._passed = [0, 0]
        self._furthest = UNKNOWN, UNKNOWN, UNKNOWN

    def before(self, moment_ns: int) -> tuple[int, int, int]:
        """(row, offset, line of the operation that told); moments may not go back."""
        for source, (rows, moments, offsets, lines) in enumerate(self._sources):
            passed = self._passed[source]
            while passed < len(rows) and moments[rows[passed]] < moment_ns:
                row = rows[passed]
                if offsets[row] > self._furthest[1]:
                    self._furthest = row, offsets[row], lines[row]
                passed += 1
            self._passed[source] = passed
        return self._furthest
