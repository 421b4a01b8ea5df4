"""Offsets in a row as runs of equal state, in columns: some thirty bytes a run.

Rules:

* From `start` to `end` every offset is in exactly one run. So a run ends where the next begins, and
  there is no column of its own for that.
* Runs that touch and are equal in everything are one.
* A run that waits for its write has the state that it is to have, marked `IN_TRANSITION`, and the
  number of its change. It keeps its member and deadline, for the case that the write fails.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from sys import maxsize
from typing import Any, TypeAlias, TypeVar

from kraftpy.frozen import NamedTuple


class RecordState(IntEnum):
    """Kafka's numbers, as they stand in its records; 3 is its ARCHIVING of KIP-1191."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_finished(self) -> bool:
        return self >= RecordState.ACKNOWLEDGED


IN_TRANSITION = 8
"""Added to the state that a run is to have."""

AVAILABLE = int(RecordState.AVAILABLE)
ACQUIRED = int(RecordState.ACQUIRED)
ACKNOWLEDGED = int(RecordState.ACKNOWLEDGED)
ARCHIVED = int(RecordState.ARCHIVED)


FEW_PIECES = 8
"""So few are put one by one."""

T = TypeVar("T", bound=tuple[Any, ...])

Row: TypeAlias = tuple[int, int, str, int, int]
"""What is said of a run: state, deliveries, member, deadline, change."""

Piece: TypeAlias = tuple[int, int, Row]
"""Offsets, first and last, and what is to be said of them."""


_NONE_LEFT: Piece = (maxsize, maxsize, (0, 0, "", 0, 0))


class Run(NamedTuple):
    """A run as others see it: `state` is what counts now, `target` what it waits to have."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    member: str
    deadline_ms: int
    target: RecordState | None
    change: int


class Runs:
    """The columns, with an offset's run found by bisection."""

    __slots__ = ("changes", "deadlines", "deliveries", "end", "firsts", "members", "states")

    def __init__(self, start: int) -> None:
        self.end = start
        self.firsts = array("q")
        self.states = bytearray()
        self.deliveries = array("h")
        self.members: list[str] = []
        self.deadlines = array("q")
        self.changes = array("i")

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Run]:
        for index, first in enumerate(self.firsts):
            state = self.states[index]
            is_waiting = state >= IN_TRANSITION
            held = ACQUIRED if self.members[index] else AVAILABLE
            yield Run(
                first,
                self.last_of(index),
                RecordState(held if is_waiting else state),
                self.deliveries[index],
                self.members[index],
                self.deadlines[index],
                RecordState(state - IN_TRANSITION) if is_waiting else None,
                self.changes[index],
            )

    @property
    def start(self) -> int:
        return self.firsts[0] if self.firsts else self.end

    def index_of(self, offset: int) -> int:
        """The run that has the offset, which is not below `start`."""
        return bisect_right(self.firsts, offset) - 1

    def last_of(self, index: int) -> int:
        """The last offset of a run."""
        index += 1
        return (self.firsts[index] if index < len(self.firsts) else self.end) - 1

    def between(self, first: int, last: int) -> range:
        """The runs that have any of these offsets."""
        start = max(bisect_right(self.firsts, first) - 1, 0)
        return range(
            start, bisect_left(self.firsts, last + 1, start) if last < self.end else len(self)
        )

    def having(self, state: int, index: int = 0) -> Iterator[int]:
        """The runs in this state, from this one on; they stay as they are meanwhile."""
        states = self.states
        while (index := states.find(state, index)) >= 0:
            yield index
            index += 1

    def parts(self, ranges: Iterable[T]) -> Iterator[tuple[int, int, int, T]]:
        """Where these lie, which ascend: offsets of a run, first and last, its index, and of which.

        What is below the start or beyond the end is in none.
        """
        firsts = self.firsts
        index, at, next_first = -1, self.start, self.start
        for each in ranges:
            first, end = each[0], each[1] + 1
            if first > at:
                at = first
            while at < end:
                if at >= next_first:
                    index = bisect_right(firsts, at, index + 1) - 1
                    next_first = firsts[index + 1] if index + 1 < len(firsts) else self.end
                    if at >= next_first:
                        return
                until = end if end < next_first else next_first
                yield at, until - 1, index, each
                at = until

    def append(
        self,
        last: int,
        state: int,
        deliveries: int = 0,
        member: str = "",
        deadline_ms: int = 0,
    ) -> None:
        """Lets the offsets from `end` to this one be a run."""
        index = len(self.firsts) - 1
        if index < 0 or not self._equals(index, state, deliveries, member, deadline_ms, 0):
            self.firsts.append(self.end)
            self.states.append(state)
            self.deliveries.append(deliveries)
            self.members.append(member)
            self.deadlines.append(deadline_ms)
            self.changes.append(0)
        self.end = last + 1

    def put(
        self,
        first: int,
        last: int,
        state: int,
        deliveries: int = 0,
        member: str = "",
        deadline_ms: int = 0,
        change: int = 0,
    ) -> None:
        """Lets these offsets, which are all there, be one run, or part of one beside them."""
        firsts = self.firsts
        start = bisect_right(firsts, first) - 1
        stop = bisect_left(firsts, last + 1, start)
        wanted = (state, deliveries, member, deadline_ms, change)
        # Whole runs are replaced; of those at the ends stays what isn't meant.
        begins, rows = [first], [wanted]
        if firsts[start] < first:
            if self._equals(start, *wanted):
                begins[0] = firsts[start]
            else:
                begins.insert(0, firsts[start])
                rows.insert(0, self._row(start))
        elif start and self._equals(start - 1, *wanted):
            start -= 1
            begins[0] = firsts[start]
        if self.last_of(stop - 1) > last:
            if not self._equals(stop - 1, *wanted):
                begins.append(last + 1)
                rows.append(self._row(stop - 1))
        elif stop < len(firsts) and self._equals(stop, *wanted):
            stop += 1
        self._replace(start, stop, begins, rows)

    def put_all(self, pieces: Sequence[Piece]) -> None:
        """As `put` for each of them, which ascend; for many, in a pass over what they touch."""
        if len(pieces) < FEW_PIECES:
            for first, last, row in pieces:
                self.put(first, last, *row)
            return
        touched = self.between(pieces[0][0] - 1, min(pieces[-1][1] + 1, self.end - 1))
        start, stop = touched.start, touched.stop
        bounds = self.firsts[start : stop + 1]
        if stop >= len(self.firsts):
            bounds.append(self.end)
        begins: list[int] = []
        rows: list[Row] = []
        said: Row | None = None
        waiting = iter(pieces)
        first, last, row = next(waiting)
        at = bounds[0]
        for end, own in zip(bounds[1:], self._rows(start, stop), strict=True):
            while first < end:
                if first > at and own != said:
                    begins.append(at)
                    rows.append(own)
                    said = own
                if row != said:
                    begins.append(first if first > at else at)
                    rows.append(row)
                    said = row
                if last >= end:
                    at = end
                    break  # it goes on in the next run
                at = last + 1
                first, last, row = next(waiting, _NONE_LEFT)
            if at < end:
                if own != said:
                    begins.append(at)
                    rows.append(own)
                    said = own
                at = end
        self._replace(start, stop, begins, rows)

    def _rows(self, start: int, stop: int) -> Iterator[Row]:
        return zip(
            self.states[start:stop],
            self.deliveries[start:stop],
            self.members[start:stop],
            self.deadlines[start:stop],
            self.changes[start:stop],
            strict=True,
        )

    def _replace(self, start: int, stop: int, begins: Sequence[int], rows: Sequence[Row]) -> None:
        states, deliveries, members, deadlines, changes = zip(*rows, strict=True)
        self.firsts[start:stop] = array("q", begins)
        self.states[start:stop] = bytes(states)
        self.deliveries[start:stop] = array("h", deliveries)
        self.members[start:stop] = members
        self.deadlines[start:stop] = array("q", deadlines)
        self.changes[start:stop] = array("i", changes)

    def counts(self) -> dict[int, int]:
        """How many offsets have each state, with `IN_TRANSITION` where they wait for it."""
        found: dict[int, int] = {}
        end = self.end
        for first, state in zip(reversed(self.firsts), reversed(self.states), strict=True):
            found[state] = found.get(state, 0) + end - first
            end = first
        return found

    def copy(self) -> Runs:
        """These as they are now."""
        other = Runs(self.end)
        for name in self.__slots__:
            if name != "end":
                setattr(other, name, getattr(self, name)[:])
        return other

    def extend_down(self, offset: int, row: Row) -> None:
        """Lets the offsets from this one to `start` be one run, or part of the first one."""
        if offset >= self.start:
            return
        if self.firsts and self._equals(0, *row):
            self.firsts[0] = offset
        else:
            self._replace(0, 0, [offset], [row])

    def drop_below(self, offset: int) -> None:
        """Forgets all offsets below this one; `end` is not below it then."""
        count = bisect_right(self.firsts, offset) - 1 if offset < self.end else len(self)
        if count > 0:
            for column in (
                self.firsts,
                self.states,
                self.deliveries,
                self.members,
                self.deadlines,
                self.changes,
            ):
                del column[:count]
        if self.firsts and self.firsts[0] < offset:
            self.firsts[0] = offset
        self.end = max(self.end, offset)

    def _equals(
        self, index: int, state: int, deliveries: int, member: str, deadline_ms: int, change: int
    ) -> bool:
        return (
            self.states[index] == state
            and self.deliveries[index] == deliveries
            and self.deadlines[index] == deadline_ms
            and self.changes[index] == change
            and self.members[index] == member
        )

    def _row(self, index: int) -> Row:
        return (
            self.states[index],
            self.deliveries[index],
            self.members[index],
            self.deadlines[index],
            self.changes[index],
        )
