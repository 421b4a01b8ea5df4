"""The leases of one group on one partition, at the partition's leader (KIP-932).

Between the start offset (SPSO, the lowest that isn't finished) and the end offset (SPEO, the next
that was never leased) each record is Available, Acquired, Acknowledged or Archived. Rules:

* A record has one lease at a time. Acquiring counts a delivery. What was released, or not answered
  in time, is dealt again, and archived when it has been delivered so often as it may be; what a
  session that ends gives back doesn't count.
* What is to outlive this leader takes effect when its change is written: until then it is in
  transition, and neither dealt nor timed out. If its write fails, it is Acquired again, or
  Available if its time is over. Leases are not written: the next leader deals them again, as it
  deals whatever lies between the runs that were written.
* A change's start offset passes only what has been written, and what this change says itself.
* An acknowledgement is judged as a whole for the partition: one offset that isn't its member's
  refuses it all. Below the start offset all is well, whatever it says.
* What the log doesn't have any more is archived: compaction took it, or its start has passed it.
  So are control batches and, for who reads what is committed, aborted transactions. That isn't
  written, as the log says it again.
* Between start and end are `max_record_locks` offsets at most, but for those that the log doesn't
  have; then only what is Available is dealt.
* From half of its deliveries on a run is dealt in halves, for its last delivery record by record,
  with nothing else beside it: so a record that kills its reader doesn't take its batch along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from kraftpy.core.leases.runs import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    IN_TRANSITION,
    Piece,
    RecordState,
    Run,
    Runs,
)
from kraftpy.protocol.errors import ErrorCode

# Nobody holds so many runs; a request may name more of them.
ACKNOWLEDGEMENTS_MAX = 10_000


class LeaseLimits(NamedTuple):
    """What the group's configuration says; a table may get others while it is in use."""

    max_record_locks: int
    max_deliveries: int
    lock_ms: int

    @property
    def careful_from(self) -> int:
        """So often delivered, a run may have a record that nobody survives."""
        return max(2, (self.max_deliveries + 1) // 2)


class Demand(NamedTuple):
    """How much a member wants: `is_strict` is the acquire mode 1, record_limit.

    Else a batch is dealt whole, if it begins within `max_records`. The leases that it is told of
    are `batch_size` records long at most.
    """

    max_records: int
    batch_size: int
    is_strict: bool


class ReadBatch(NamedTuple):
    """A batch of the log; `is_dead`: it has nothing for consumers (a marker, an aborted one)."""

    first: int
    last: int
    is_dead: bool = False


class Acquired(NamedTuple):
    """Records that are the member's now."""

    first: int
    last: int
    deliveries: int


class AcknowledgeType(IntEnum):
    """What a member says of a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """`types`: one for all offsets, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """What is written of a run."""

    first: int
    last: int
    state: int
    deliveries: int


class Change(NamedTuple):
    """What is to be written; the table hears of its fate by its number.

    `finished_count`: how many records above the start offset are finished (KIP-1226).
    """

    number: int
    start_offset: int
    finished_count: int
    batches: tuple[StateBatch, ...]


class LeaseTable:
    """See the module. `is_new`: nothing is written yet, and the start offset is to be kept."""

    def __init__(
        self,
        limits: LeaseLimits,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        *,
        is_new: bool = False,
    ) -> None:
        self.limits = limits
        self._runs = Runs(start_offset)
        self._finished_count = 0
        self._keeps_start = is_new
        self._number = 1
        self._open: list[StateBatch] = []
        self._in_flight: dict[int, list[StateBatch]] = {}
        self._deadline_ms: int | None = None
        for first, last, state, deliveries in sorted(batches):
            self._load(first, last, RecordState(state), deliveries)
        self._pass_finished()

    def _load(self, first: int, last: int, state: RecordState, deliveries: int) -> None:
        runs = self._runs
        if last < runs.end:
            return
        if first > runs.end:  # nobody has written of those: whose they were, isn't known
            runs.append(first - 1, AVAILABLE)
        if state.is_finished:
            self._finished_count += last + 1 - max(first, runs.end)
            deliveries = 0
        runs.append(last, state, deliveries)

    # -- what there is

    @property
    def start_offset(self) -> int:
        """The lowest offset that isn't finished; never falls."""
        return self._runs.start

    @property
    def end_offset(self) -> int:
        """The next offset that was never leased; never falls."""
        return self._runs.end

    @property
    def finished_count(self) -> int:
        """How many records above the start offset are finished."""
        return self._finished_count

    def runs(self) -> list[Run]:
        """All between start and end."""
        return list(self._runs)

    def next_available(self, end_offset: int) -> int | None:
        """From where the log is to be read for a member, if below its end there may be anything."""
        index = self._runs.states.find(AVAILABLE)
        if index >= 0:
            offset = self._runs.firsts[index]
        elif self._runs.end - self._runs.start < self.limits.max_record_locks:
            offset = self._runs.end
        else:
            return None
        return offset if offset < end_offset else None

    # -- acquiring

    def acquire(
        self,
        member: str,
        asked: int,
        batches: Iterable[ReadBatch],
        end_offset: int,
        demand: Demand,
        now_ms: int,
    ) -> list[Acquired]:
        """Deals a member what it may have of these batches, which the log has from `asked` on.

        That is what `next_available` gave; no more of them are looked at than are dealt. No batch
        is dealt that ends beyond `end_offset`: the high watermark, or the last stable offset.
        """
        dealer = _Dealer(self, member, demand, now_ms + self.limits.lock_ms)
        read_to = asked
        for batch in batches:
            if batch.last >= end_offset:
                break
            if batch.first > read_to:
                self.archive(read_to, batch.first - 1)
            if batch.is_dead:
                self.archive(batch.first, batch.last)
            elif not dealer.deal(batch):
                break
            read_to = batch.last + 1
        if dealer.acquired:
            self._expect(dealer.deadline_ms)
        self._pass_finished()
        return _cut(dealer.acquired, demand.batch_size)

    def take_back(self, member: str, acquired: Iterable[Acquired]) -> None:
        """The member isn't told of what `acquire` gave it just now: it wasn't delivered."""
        runs = self._runs
        for first, last, deliveries in acquired:
            for part_first, part_last in self._having(first, last, ACQUIRED):
                if runs.members[runs.index_of(part_first)] == member:
                    runs.put(part_first, part_last, AVAILABLE, deliveries - 1)

    def archive(self, first: int, last: int) -> None:
        """The log has none of these offsets for consumers; they are not above the end offset."""
        runs = self._runs
        for index_first, index_last in self._having(first, last, AVAILABLE):
            runs.put(index_first, index_last, ARCHIVED)
            self._finished_count += index_last - index_first + 1
        if last >= runs.end:
            self._finished_count += last - runs.end + 1
            runs.append(last, ARCHIVED)
        self._pass_finished()

    def _having(self, first: int, last: int, state: int) -> list[tuple[int, int]]:
        """The parts of this range that are in this state."""
        runs = self._runs
        first = max(first, runs.start)
        if first > last or first >= runs.end:
            return []
        return [
            (max(runs.firsts[index], first), min(runs.last_of(index), last))
            for index in runs.between(first, last)
            if runs.states[index] == state
        ]

    # -- acknowledging

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int
    ) -> ErrorCode:
        """Judges them all, then does what they say, or nothing."""
        if len(acknowledgements) > ACKNOWLEDGEMENTS_MAX:
            return ErrorCode.INVALID_REQUEST
        before = -1
        for first, last, types in acknowledgements:
            count = last - first + 1
            if first <= before or count < 1 or len(types) not in (1, count):
                return ErrorCode.INVALID_REQUEST
            if min(types) < AcknowledgeType.GAP or max(types) > AcknowledgeType.RENEW:
                return ErrorCode.INVALID_REQUEST
            if error := self._judge(member, first, last):
                return error
            before = last
        pieces: list[Piece] = []
        for first, last, types in acknowledgements:
            self._carry_out(first, last, types, now_ms, pieces)
        self._runs.put_all(pieces)
        return ErrorCode.NONE

    def _judge(self, member: str, first: int, last: int) -> ErrorCode:
        runs = self._runs
        if last >= runs.end:
            return ErrorCode.INVALID_REQUEST
        if last < runs.start:
            return ErrorCode.NONE
        for index in runs.between(first, last):
            if runs.states[index] != ACQUIRED or runs.members[index] != member:
                return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def _carry_out(
        self, first: int, last: int, types: Sequence[int], now_ms: int, pieces: list[Piece]
    ) -> None:
        start = self._runs.start
        if len(types) == 1:
            self._say(max(first, start), last, types[0], now_ms, pieces)
            return
        at = max(first, start)
        for kind, those in groupby(types[at - first :]):
            count = sum(1 for _ in those)
            self._say(at, at + count - 1, kind, now_ms, pieces)
            at += count

    def _say(self, first: int, last: int, kind: int, now_ms: int, pieces: list[Piece]) -> None:
        """All of these are Acquired; what is to be put is added to the pieces."""
        runs = self._runs
        deadline_ms = now_ms + self.limits.lock_ms
        for part_first, part_last in self._having(first, last, ACQUIRED):
            index = runs.index_of(part_first)
            if kind == AcknowledgeType.RENEW:
                held = runs.deliveries[index], runs.members[index], deadline_ms
                pieces.append((part_first, part_last, ACQUIRED, *held, 0))
                self._expect(deadline_ms)
            elif kind == AcknowledgeType.ACCEPT:
                pieces.append(self._waiting(index, part_first, part_last, ACKNOWLEDGED))
            elif kind == AcknowledgeType.RELEASE:
                target = self._given_back(index)
                pieces.append(self._waiting(index, part_first, part_last, target))
            else:
                pieces.append(self._waiting(index, part_first, part_last, ARCHIVED))

    def _given_back(self, index: int) -> int:
        """What becomes of a run: Available, or Archived after its last delivery."""
        is_over = self._runs.deliveries[index] >= self.limits.max_deliveries
        return ARCHIVED if is_over else AVAILABLE

    def wait_for(self, first: int, last: int, target: int) -> None:
        """Part of a run is to have this state, once that is written."""
        runs = self._runs
        runs.put(*self._waiting(runs.index_of(first), first, last, target))

    def _waiting(self, index: int, first: int, last: int, target: int) -> Piece:
        runs = self._runs
        deliveries = runs.deliveries[index]
        self._open.append(StateBatch(first, last, target, deliveries))
        held = deliveries, runs.members[index], runs.deadlines[index]
        return (first, last, IN_TRANSITION | target, *held, self._number)

    # -- what is written

    @property
    def has_change(self) -> bool:
        """Whether there is something to write that `take_change` hasn't given yet."""
        return bool(self._open) or self._keeps_start

    @property
    def is_quiet(self) -> bool:
        """Whether nobody has a lease, and nothing is to be written or being written."""
        return not (self.has_change or self._in_flight or ACQUIRED in self._runs.states)

    def take_change(self) -> Change | None:
        """What there is to write since the last call, if anything."""
        if not self.has_change:
            return None
        number, batches = self._number, self._open
        self._number = number % 0x7FFFFFFF + 1
        self._open = []
        self._in_flight[number] = batches
        self._keeps_start = False
        start = self._start_after(number)
        passed = self._runs.start
        more = sum(
            max(last + 1 - max(first, passed), 0)
            for first, last, state, _ in batches
            if state >= ACKNOWLEDGED
        )
        finished = self._finished_count + more - (start - passed)
        return Change(
            number,
            start,
            finished,
            tuple(each for each in batches if each.last >= start),
        )

    def _start_after(self, number: int) -> int:
        """The lowest offset that isn't finished when this change is written, and no other one."""
        runs = self._runs
        for index, state in enumerate(runs.states):
            if state >= IN_TRANSITION and runs.changes[index] == number:
                is_finished = state >= IN_TRANSITION | ACKNOWLEDGED
            else:
                is_finished = ACKNOWLEDGED <= state < IN_TRANSITION
            if not is_finished:
                return runs.firsts[index]
        return runs.end

    def committed(self, number: int) -> None:
        """The change is written."""
        runs = self._runs
        pieces: list[Piece] = []
        for first, last, target, deliveries in sorted(self._in_flight.pop(number)):
            for part_first, part_last in self._having(first, last, IN_TRANSITION | target):
                if runs.changes[runs.index_of(part_first)] != number:
                    continue
                if target == AVAILABLE:
                    pieces.append((part_first, part_last, AVAILABLE, deliveries, "", 0, 0))
                else:
                    pieces.append((part_first, part_last, target, 0, "", 0, 0))
                    self._finished_count += part_last - part_first + 1
        runs.put_all(pieces)
        self._pass_finished()

    def failed(self, number: int, now_ms: int) -> None:
        """The change is not written and won't be."""
        runs = self._runs
        for first, last, target, deliveries in self._in_flight.pop(number):
            for part_first, part_last in self._having(first, last, IN_TRANSITION | target):
                index = runs.index_of(part_first)
                if runs.changes[index] != number:
                    continue
                member, deadline_ms = runs.members[index], runs.deadlines[index]
                if deadline_ms > now_ms:
                    held = deliveries, member, deadline_ms
                    runs.put(part_first, part_last, ACQUIRED, *held)
                    self._expect(deadline_ms)
                else:
                    runs.put(part_first, part_last, AVAILABLE, deliveries)

    # -- time, sessions, the log's start

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, at the earliest."""
        return self._deadline_ms

    def expire(self, now_ms: int) -> int:
        """Takes back what wasn't answered in time; says how many records."""
        if self._deadline_ms is None or self._deadline_ms > now_ms:
            return 0
        runs = self._runs
        due: list[tuple[int, int]] = []
        self._deadline_ms = None
        for index, state in enumerate(runs.states):
            if state != ACQUIRED:
                continue
            deadline_ms = runs.deadlines[index]
            if deadline_ms <= now_ms:
                due.append((runs.firsts[index], runs.last_of(index)))
            else:
                self._expect(deadline_ms)
        pieces: list[Piece] = []
        for first, last in due:
            index = runs.index_of(first)
            pieces.append(self._waiting(index, first, last, self._given_back(index)))
        runs.put_all(pieces)
        return sum(last - first + 1 for first, last in due)

    def _expect(self, deadline_ms: int) -> None:
        if self._deadline_ms is None or deadline_ms < self._deadline_ms:
            self._deadline_ms = deadline_ms

    def close_session(self, member: str) -> int:
        """The member is gone: what it has is dealt again, as if it hadn't been delivered.

        Says how many records. Nothing is to be written: that is what was written last.
        """
        runs = self._runs
        those = [
            (runs.firsts[index], runs.last_of(index), runs.deliveries[index])
            for index, state in enumerate(runs.states)
            if state == ACQUIRED and runs.members[index] == member
        ]
        for first, last, deliveries in those:
            runs.put(first, last, AVAILABLE, deliveries - 1)
        return sum(last - first + 1 for first, last, _ in those)

    def advance_log_start(self, log_start_offset: int) -> None:
        """The log begins here: what is below is finished, whoever has it."""
        runs = self._runs
        if log_start_offset <= runs.start:
            return
        for index in runs.between(runs.start, log_start_offset - 1):
            if ACKNOWLEDGED <= runs.states[index] < IN_TRANSITION:
                last = min(runs.last_of(index), log_start_offset - 1)
                self._finished_count -= last - runs.firsts[index] + 1
        runs.drop_below(log_start_offset)
        self._pass_finished()

    def _pass_finished(self) -> None:
        """A finished prefix leaves."""
        runs = self._runs
        count = 0
        for state in runs.states:
            if not ACKNOWLEDGED <= state < IN_TRANSITION:
                break
            count += 1
        if count:
            start = runs.firsts[count] if count < len(runs) else runs.end
            self._finished_count -= start - runs.start
            runs.drop_below(start)


class _Dealer:
    """What one member is dealt in one go."""

    __slots__ = ("_demand", "_left", "_member", "_table", "acquired", "deadline_ms")

    def __init__(self, table: LeaseTable, member: str, demand: Demand, deadline_ms: int) -> None:
        self._table = table
        self._member = member
        self._demand = demand
        self._left = demand.max_records
        self.deadline_ms = deadline_ms
        self.acquired: list[Acquired] = []

    def deal(self, batch: ReadBatch) -> bool:
        """Takes of this batch; False if nothing of the next one may be taken."""
        runs = self._table._runs
        limits = self._table.limits
        at = max(batch.first, runs.start)
        whole = 0 if self._demand.is_strict or self._left <= 0 else batch.last - at + 1
        while at <= batch.last:
            left = max(self._left, whole - (at - max(batch.first, runs.start)))
            if left <= 0:
                return False
            if at >= runs.end:
                return self._take_new(at, batch.last, left)
            index = runs.index_of(at)
            last = min(runs.last_of(index), batch.last)
            deliveries = runs.deliveries[index]
            if runs.states[index] != AVAILABLE:
                index = runs.states.find(AVAILABLE, index)
                at = runs.firsts[index] if index >= 0 else runs.end
            elif deliveries >= limits.max_deliveries:
                self._table.wait_for(at, last, ARCHIVED)
                at = last + 1
            elif deliveries >= limits.careful_from:
                return self._take_with_care(index, at, last, left)
            else:
                last = min(last, at + left - 1)
                runs.put(at, last, ACQUIRED, deliveries + 1, self._member, self.deadline_ms)
                self._took(at, last, deliveries + 1)
                at = last + 1
        return self._left > 0

    def _take_new(self, at: int, last: int, left: int) -> bool:
        """Takes what nobody had before; `at` is the end offset."""
        runs = self._table._runs
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
        runs = self._table._runs
        deliveries = runs.deliveries[index] + 1
        half = (runs.last_of(index) - at + 2) // 2
        count = 1 if deliveries >= self._table.limits.max_deliveries else half
        last = min(last, at + min(count, left) - 1)
        runs.put(at, last, ACQUIRED, deliveries, self._member, self.deadline_ms)
        self._took(at, last, deliveries)
        return False

    def _took(self, first: int, last: int, deliveries: int) -> None:
        self._left -= last - first + 1
        before = self.acquired[-1] if self.acquired else None
        if before is not None and before.last + 1 == first and before.deliveries == deliveries:
            self.acquired[-1] = before._replace(last=last)
        else:
            self.acquired.append(Acquired(first, last, deliveries))


def _cut(acquired: list[Acquired], batch_size: int) -> list[Acquired]:
    if batch_size <= 0 or all(last - first < batch_size for first, last, _ in acquired):
        return acquired
    return [
        Acquired(at, min(at + batch_size - 1, last), deliveries)
        for first, last, deliveries in acquired
        for at in range(first, last + 1, batch_size)
    ]
