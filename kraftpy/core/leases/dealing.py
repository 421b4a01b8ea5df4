"""What of a table one member gets in one go (KIP-932).

From half of its deliveries on a run is dealt in halves, for its last delivery record by record,
with nothing else beside it. What is dealt of runs that there were is put into the table together:
there may be thousands.
"""

from __future__ import annotations

from typing import Protocol

from kraftpy.core.leases.numbers import DELIVERY_LIMIT, LeaseNumbers
from kraftpy.core.leases.runs import ACQUIRED, ARCHIVED, AVAILABLE, Piece, Runs
from kraftpy.core.leases.terms import Acquired, Demand, LeaseLimits, ReadBatch


class Table(Protocol):
    """What is needed of the table."""

    limits: LeaseLimits
    numbers: LeaseNumbers

    def waiting(self, index: int, first: int, last: int, target: int) -> Piece: ...


class Dealer:
    """Deals to one member; `settle` puts into the table what it was dealt."""

    __slots__ = (
        "_demand",
        "_left",
        "_member",
        "_pieces",
        "_runs",
        "_table",
        "acquired",
        "deadline_ms",
    )

    def __init__(
        self, table: Table, runs: Runs, member: str, demand: Demand, deadline_ms: int
    ) -> None:
        self._table = table
        self._runs = runs
        self._member = member
        self._demand = demand
        self._left = demand.max_records
        self._pieces: list[Piece] = []
        self.deadline_ms = deadline_ms
        self.acquired: list[Acquired] = []

    def settle(self) -> None:
        """The table has it from here on; before, it may not be changed by others."""
        if self._pieces:
            self._runs.put_all(self._pieces)
            self._pieces = []

    def deal(self, batch: ReadBatch) -> bool:
        """Takes of this batch; False if nothing of the next one may be taken."""
        runs = self._runs
        limits = self._table.limits
        careful_from = limits.careful_from
        at = max(batch.first, runs.start)
        whole_end = at if self._demand.is_strict or self._left <= 0 else batch.last + 1
        index = -1
        while at <= batch.last:
            left = self._left
            if left < whole_end - at:
                left = whole_end - at
            if left <= 0:
                return False
            if at >= runs.end:
                return self._take_new(at, batch.last, left)
            if index < 0:  # else it is that run's, or the next one's
                index = runs.index_of(at)
            if runs.states[index] != AVAILABLE:
                index = runs.states.find(AVAILABLE, index)
                at = runs.firsts[index] if index >= 0 else runs.end
                continue
            next_at = runs.last_of(index) + 1
            last = next_at - 1 if next_at <= batch.last else batch.last
            deliveries = runs.deliveries[index]
            if deliveries < careful_from:
                if last - at >= left:
                    last = at + left - 1
                row = (ACQUIRED, deliveries + 1, self._member, self.deadline_ms, 0)
                self._pieces.append((at, last, row))
                self._took(at, last, deliveries + 1)
            elif deliveries < limits.max_deliveries:
                return self._take_with_care(index, at, last, left)
            else:
                self._pieces.append(self._table.waiting(index, at, last, ARCHIVED))
                self._table.numbers.archived[DELIVERY_LIMIT] += last - at + 1
            at = last + 1
            if at == next_at:
                index += 1
        return self._left > 0

    def _take_new(self, at: int, last: int, left: int) -> bool:
        """Takes what nobody had before; `at` is the end offset."""
        self.settle()
        runs = self._runs
        room = runs.start + self._table.limits.max_record_locks - at
        until = min(last, at + min(left, room) - 1)
        if until >= at:
            runs.append(until, ACQUIRED, 1, self._member, self.deadline_ms)
            self._took(at, until, 1)
        return until == last and self._left > 0

    def _take_with_care(self, index: int, at: int, last: int, left: int) -> bool:
        """Takes half of a run, or a record, if there is nothing else beside it."""
        if self.acquired:
            return False
        runs = self._runs
        deliveries = runs.deliveries[index] + 1
        half = (runs.last_of(index) - at + 2) // 2
        count = 1 if deliveries >= self._table.limits.max_deliveries else half
        last = min(last, at + min(count, left) - 1)
        self._pieces.append((at, last, (ACQUIRED, deliveries, self._member, self.deadline_ms, 0)))
        self._took(at, last, deliveries)
        return False

    def _took(self, first: int, last: int, deliveries: int) -> None:
        self._left -= last - first + 1
        acquired = self.acquired
        if acquired and acquired[-1][1:] == (first - 1, deliveries):
            acquired[-1] = acquired[-1]._replace(last=last)
        else:
            acquired.append(Acquired(first, last, deliveries))


def cut(acquired: list[Acquired], batch_size: int) -> list[Acquired]:
    """The same in parts of so many records at most."""
    if batch_size <= 0 or all(last - first < batch_size for first, last, _ in acquired):
        return acquired
    return [
        Acquired(at, min(at + batch_size - 1, last), deliveries)
        for first, last, deliveries in acquired
        for at in range(first, last + 1, batch_size)
    ]
