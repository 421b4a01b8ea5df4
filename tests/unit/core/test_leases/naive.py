"""A table of leases that keeps an object for each offset and looks at each: slow, easy to read."""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.core.leases import (
    Acknowledgement,
    Demand,
    LeaseLimits,
    LeaseTable,
    ReadBatch,
    RecordState,
    StateBatch,
)
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


@dataclass
class Cell:
    """One offset."""

    state: RecordState = AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    target: RecordState | None = None
    change: int = 0

    def settle(self, state: RecordState) -> None:
        self.state, self.member, self.deadline_ms = state, "", 0
        self.target, self.change = None, 0
        if state.is_finished:
            self.deliveries = 0

    @property
    def is_free(self) -> bool:
        return self.state is AVAILABLE and self.target is None


class NaiveTable:
    """Between `start` and `end` there is a cell for each offset."""

    def __init__(self, limits: LeaseLimits, start: int) -> None:
        self.limits = limits
        self.start = self.end = start
        self.cells: dict[int, Cell] = {}
        self.number = 1
        self.open: list[int] = []
        self.in_flight: dict[int, list[int]] = {}
        self.said = (start, 0)
        self.says_again = False

    def grow(self, end: int) -> None:
        for offset in range(self.end, end):
            self.cells[offset] = Cell()
        self.end = max(self.end, end)

    def pass_finished(self) -> None:
        while self.start < self.end and self.cells[self.start].state.is_finished:
            del self.cells[self.start]
            self.start += 1

    def archive(self, first: int, last: int) -> None:
        self.grow(last + 1)
        for offset in range(max(first, self.start), last + 1):
            if self.cells[offset].is_free:
                self.cells[offset].settle(ARCHIVED)
        self.pass_finished()

    def wait_for(self, offset: int, target: RecordState) -> None:
        cell = self.cells[offset]
        cell.target, cell.change = target, self.number
        self.open.append(offset)

    def give_back(self, offset: int) -> None:
        is_over = self.cells[offset].deliveries >= self.limits.max_deliveries
        self.wait_for(offset, ARCHIVED if is_over else AVAILABLE)

    def acquire(
        self,
        member: str,
        asked: int,
        batches: list[ReadBatch],
        end_offset: int,
        demand: Demand,
        now_ms: int,
    ) -> list[tuple[int, int]]:
        """Offset and deliveries of each record that is dealt."""
        got: list[tuple[int, int]] = []
        for first, last, is_dead in batches:
            if last >= end_offset:
                break
            self.archive(asked, first - 1)
            asked = last + 1
            if is_dead:
                self.archive(first, last)
            elif not self._deal(range(max(first, self.start), last + 1), demand, got):
                break
        for offset, deliveries in got:
            cell = self.cells[offset]
            assert cell.deliveries == deliveries - 1
            cell.state, cell.member, cell.deliveries = ACQUIRED, member, deliveries
            cell.deadline_ms = now_ms + self.limits.lock_ms
        self.pass_finished()
        return got

    def _deal(self, offsets: range, demand: Demand, got: list[tuple[int, int]]) -> bool:
        """Whether another batch may be looked at."""
        limit = self.limits.max_deliveries
        is_whole = not demand.is_strict and len(got) < demand.max_records
        for offset in offsets:
            if len(got) >= demand.max_records and not is_whole:
                return False
            if offset == self.end and self.end - self.start >= self.limits.max_record_locks:
                return False
            self.grow(offset + 1)
            cell = self.cells[offset]
            if not cell.is_free:
                continue
            if cell.deliveries >= limit:
                self.wait_for(offset, ARCHIVED)
            elif cell.deliveries < max(2, -(-limit // 2)):
                got.append((offset, cell.deliveries + 1))
            elif got:
                return False
            else:
                alike = 0
                while (each := self.cells.get(offset + alike)) is not None and each == cell:
                    alike += 1
                most = 1 if cell.deliveries == limit - 1 else -(-alike // 2)
                if not is_whole:
                    most = min(most, demand.max_records)
                for each_offset in range(offset, min(offset + most, offsets.stop)):
                    got.append((each_offset, cell.deliveries + 1))
                return False
        return len(got) < demand.max_records

    def acknowledge(
        self, member: str, acknowledgements: list[Acknowledgement], now_ms: int
    ) -> ErrorCode:
        said: list[tuple[int, int]] = []
        before = -1
        for first, last, types in acknowledgements:
            if first <= before or last < first or len(types) not in (1, last - first + 1):
                return ErrorCode.INVALID_REQUEST
            if any(kind not in range(5) for kind in types) or last >= self.end:
                return ErrorCode.INVALID_REQUEST
            for offset in range(max(first, self.start), last + 1):
                cell = self.cells[offset]
                if cell.state is not ACQUIRED or cell.target is not None or cell.member != member:
                    return ErrorCode.INVALID_RECORD_STATE
                said.append((offset, types[offset - first if len(types) > 1 else 0]))
            before = last
        for offset, kind in said:
            if kind == AcknowledgeType.RENEW:
                self.cells[offset].deadline_ms = now_ms + self.limits.lock_ms
            elif kind == AcknowledgeType.ACCEPT:
                self.wait_for(offset, ACKNOWLEDGED)
            elif kind == AcknowledgeType.RELEASE:
                self.give_back(offset)
            else:
                self.wait_for(offset, ARCHIVED)
        return ErrorCode.NONE

    def take_change(self) -> tuple[int, int, int, dict[int, tuple[int, int]]] | None:
        """Number, start offset, finished count, and state and deliveries of each offset."""
        if not self.open and not self.says_again:
            return None
        self.says_again = False
        number, self.number = self.number, self.number + 1
        offsets, self.open = self.open, []
        self.in_flight[number] = offsets

        def is_finished(cell: Cell) -> bool:
            state = cell.target if cell.change == number and cell.target is not None else cell.state
            return state.is_finished

        start = self.start
        while start < self.end and is_finished(self.cells[start]):
            start += 1
        finished = sum(is_finished(self.cells[offset]) for offset in range(start, self.end))
        self.said = start, finished
        written: dict[int, tuple[int, int]] = {}
        for offset in offsets:
            cell = self.cells.get(offset)
            if offset >= start and cell is not None and cell.target is not None:
                written[offset] = (cell.target, cell.deliveries)
        return number, start, finished, written

    def committed(self, number: int) -> None:
        for offset in self.in_flight.pop(number):
            cell = self.cells.get(offset)
            if cell is not None and cell.change == number and cell.target is not None:
                cell.settle(cell.target)
        self.pass_finished()
        if not self.open and not self.in_flight:
            finished = sum(each.state.is_finished for each in self.cells.values())
            self.says_again = self.said != (self.start, finished)

    def failed(self, number: int, now_ms: int) -> None:
        for offset in self.in_flight.pop(number):
            cell = self.cells.get(offset)
            if cell is None or cell.change != number:
                continue
            if cell.deadline_ms > now_ms:
                cell.target, cell.change = None, 0
            else:
                cell.settle(AVAILABLE)

    def expire(self, now_ms: int) -> int:
        due = [
            offset
            for offset, cell in self.cells.items()
            if cell.state is ACQUIRED and cell.target is None and cell.deadline_ms <= now_ms
        ]
        for offset in due:
            self.give_back(offset)
        return len(due)

    def close_session(self, member: str) -> None:
        for offset, cell in self.cells.items():
            if cell.member == member and cell.target is None:
                self.give_back(offset)

    def advance_log_start(self, offset: int) -> None:
        for below in range(self.start, min(offset, self.end)):
            del self.cells[below]
        self.start = max(self.start, offset)
        self.end = max(self.end, offset)
        self.pass_finished()


def assert_same(table: LeaseTable, naive: NaiveTable) -> None:
    """The table is what the naive one is, and its runs are as few as they can be."""
    assert (table.start_offset, table.end_offset) == (naive.start, naive.end)
    cells = {}
    before: tuple[object, ...] | None = None
    at = naive.start
    for run in table.runs():
        assert run.first == at <= run.last
        at = run.last + 1
        assert run[2:] != before
        before = run[2:]
        for offset in range(run.first, run.last + 1):
            cells[offset] = Cell(*run[2:])
    assert at == naive.end
    assert cells == naive.cells
    finished = sum(cell.state.is_finished for cell in naive.cells.values())
    assert table.finished_count == finished


def persisted(state: dict[int, tuple[int, int]]) -> list[StateBatch]:
    """Offsets that were written, each a run."""
    return [StateBatch(offset, offset, *state[offset]) for offset in sorted(state)]
