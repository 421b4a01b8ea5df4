"""Random histories: the table is what a table with an object for each offset is."""

from __future__ import annotations

import random

import pytest

from kraftpy.core.leases import (
    Acknowledgement,
    Acquired,
    Demand,
    LeaseLimits,
    LeaseTable,
    ReadBatch,
)
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.test_leases.naive import NaiveTable, assert_same, persisted

MEMBERS = ("ann", "ben", "cid")


class _History:
    """One table, one naive one, and a log whose batches begin and end anywhere."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        limits = LeaseLimits(self.rng.choice((7, 20, 60)), self.rng.choice((2, 3, 5)), 100)
        self.table = LeaseTable(limits, 0)
        self.naive = NaiveTable(limits, 0)
        self.now_ms = 0
        self.batches: list[ReadBatch] = []
        self.end = 0
        self.log_start = 0
        self.written: dict[int, tuple[int, int]] = {}
        self.written_start = 0
        self.in_flight: list[tuple[int, int, dict[int, tuple[int, int]]]] = []
        self.counts = dict.fromkeys(("dealt", "accepted", "refused", "rolled back"), 0)

    def step(self) -> None:
        kinds = (self.append, self.acquire, self.acquire, self.acknowledge, self.acknowledge)
        rare = (self.wait, self.close, self.compact, self.move_log_start, self.settle, self.settle)
        self.rng.choice(kinds + rare)()
        assert_same(self.table, self.naive)
        expected = self.naive.take_change()
        change = self.table.take_change()
        assert (change is None) == (expected is None)
        if change is not None and expected is not None:
            written = {
                offset: (batch.state, batch.deliveries)
                for batch in change.batches
                for offset in range(max(batch.first, change.start_offset), batch.last + 1)
            }
            assert (*change[:3], written) == expected
            self.in_flight.append((change.number, change.start_offset, written))

    def append(self) -> None:
        first = self.end + (self.rng.random() < 0.2) * self.rng.randint(1, 5)
        last = first + self.rng.randint(0, 9)
        self.batches.append(ReadBatch(first, last, self.rng.random() < 0.15))
        self.end = last + 1

    def acquire(self) -> None:
        table, naive, rng = self.table, self.naive, self.rng
        member = rng.choice(MEMBERS)
        visible = self.end - rng.choice((0, 0, rng.randint(0, 12)))
        asked = table.next_available(visible)
        free = [offset for offset, cell in naive.cells.items() if cell.is_free]
        room = naive.end - naive.start < naive.limits.max_record_locks
        least = min(free, default=naive.end if room else None)
        assert asked == (None if least is None or least >= visible else least)
        if asked is None:
            return
        demand = Demand(rng.randint(1, 12), rng.choice((0, 1, 4)), rng.random() < 0.5)
        read = [each for each in self.batches if each.last >= asked][: rng.randint(1, 4)]
        acquired = table.acquire(member, asked, read, visible, demand, self.now_ms)
        dealt = naive.acquire(member, asked, read, visible, demand, self.now_ms)
        assert dealt == [
            (offset, deliveries)
            for first, last, deliveries in acquired
            for offset in range(first, last + 1)
        ]
        self.check_dealt(acquired, demand, read, visible)

    def check_dealt(
        self, acquired: list[Acquired], demand: Demand, read: list[ReadBatch], visible: int
    ) -> None:
        if not acquired:
            return
        self.counts["dealt"] += 1
        alive = [each for each in read if not each.is_dead and each.last < visible]
        count = sum(last - first + 1 for first, last, _ in acquired)
        if demand.is_strict:
            assert count <= demand.max_records
        else:
            longest = max(last - first + 1 for first, last, _ in alive)
            assert count < demand.max_records + longest
        for first, last, deliveries in acquired:
            assert demand.batch_size == 0 or last - first < demand.batch_size
            assert all(
                any(batch.first <= offset <= batch.last for batch in alive)
                for offset in range(first, last + 1)
            )
            if deliveries > self.naive.limits.careful_from:
                assert {each.deliveries for each in acquired} == {deliveries}
                if deliveries == self.naive.limits.max_deliveries:
                    assert count == 1

    def acknowledge(self) -> None:
        rng = self.rng
        held = [run for run in self.table.runs() if run.member and run.target is None]
        member = rng.choice(MEMBERS)
        said: list[Acknowledgement] = []
        if held and rng.random() < 0.85:
            run = rng.choice(held)
            member = run.member if rng.random() < 0.9 else member
            said.append(self.some(run.first, run.last))
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            first = rng.randint(max(self.naive.start - 5, 0), self.naive.end + 2)
            said.append(self.some(first, first + rng.randint(-1, 5)))
        if rng.random() < 0.8:
            said.sort()
        error = self.table.acknowledge(member, said, self.now_ms)
        assert error == self.naive.acknowledge(member, said, self.now_ms)
        self.counts["refused" if error is not ErrorCode.NONE else "accepted"] += 1

    def some(self, first: int, last: int) -> Acknowledgement:
        if last > first:
            first, last = sorted(self.rng.choices(range(first, last + 1), k=2))
        kinds = (1, 1, 2, 2, 3, 0, 4)
        if self.rng.random() < 0.5 or last < first:
            return Acknowledgement(first, last, [self.rng.choice(kinds)])
        return Acknowledgement(first, last, self.rng.choices(kinds, k=last - first + 1))

    def wait(self) -> None:
        self.now_ms += self.rng.choice((1, 20, 60, 150))
        due = self.table.next_deadline()
        expected = self.naive.expire(self.now_ms)
        assert not expected or (due is not None and due <= self.now_ms)
        assert self.table.expire(self.now_ms) == expected

    def close(self) -> None:
        member = self.rng.choice(MEMBERS)
        self.table.close_session(member)
        self.naive.close_session(member)

    def compact(self) -> None:
        if len(self.batches) > 1:
            del self.batches[self.rng.randrange(len(self.batches) - 1)]

    def move_log_start(self) -> None:
        if self.rng.random() < 0.3:
            self.log_start = self.rng.randint(self.log_start, self.end)
            self.batches = [each for each in self.batches if each.last >= self.log_start]
            self.table.advance_log_start(self.log_start)
            self.naive.advance_log_start(self.log_start)

    def settle(self) -> None:
        if not self.in_flight:
            return
        number, start, written = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        if self.rng.random() < 0.7:
            self.table.committed(number)
            self.naive.committed(number)
            self.written.update(written)
            self.written_start = max(self.written_start, start)
        else:
            self.table.failed(number, self.now_ms)
            self.naive.failed(number, self.now_ms)
            self.counts["rolled back"] += 1

    def fail_over(self) -> None:
        """The next leader's table: what was written, and Available what lies between."""
        state = {key: each for key, each in self.written.items() if key >= self.written_start}
        successor = LeaseTable(self.table.limits, self.written_start, persisted(state))
        finished = [offset for offset, each in state.items() if each[0] >= 2]
        for run in successor.runs():
            for offset in range(run.first, run.last + 1):
                assert run.state == state.get(offset, (0, 0))[0]
        assert all(offset >= successor.start_offset for offset in set(state) - set(finished))
        passed = set(range(self.written_start, successor.start_offset))
        assert passed <= set(finished)


@pytest.mark.parametrize("block", range(4))
def test_a_table_is_what_a_naive_one_is(block: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(block * 40, block * 40 + 40):
        history = _History(seed)
        for _ in range(120):
            history.step()
        history.fail_over()
        counts = {key: counts.get(key, 0) + each for key, each in history.counts.items()}
    assert min(counts.values()) > 50, counts
