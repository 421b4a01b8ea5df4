"""The leases of one group on one partition, at the partition's leader (KIP-932).

Between the start offset (SPSO, the lowest that isn't finished) and the end offset (SPEO, the next
that was never leased) each record is Available, Acquired, Acknowledged or Archived. Rules:

* A record has one lease at a time. Acquiring counts a delivery. What was released, not answered in
  time, or left behind by a session that ended is dealt again, and archived when it has been
  delivered so often as it may be: a record that kills its readers, too, has had its turns then
  (KAFKA-19972).
* What is to outlive this leader takes effect when its change is written: until then it is in
  transition, and neither dealt nor timed out. If its write fails, it is Acquired again, or
  Available if its time is over. Leases are not written: the next leader deals them again, as it
  deals whatever lies between the runs that were written.
* A change's start offset passes only what has been written, and what this change says itself. So
  of two on their way neither knows of the other: when none is left, the start, and how much is
  finished above it, are said once more, unless that was said last.
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

from collections.abc import Iterable, Iterator, Sequence

from kraftpy.core.leases.dealing import Dealer, cut
from kraftpy.core.leases.judging import Said, judge
from kraftpy.core.leases.numbers import (
    DELIVERY_LIMIT,
    GAP,
    NOT_IN_LOG,
    NOT_SENT,
    REJECTED,
    RELEASED,
    SESSION_ENDED,
    TIMED_OUT,
    LeaseNumbers,
)
from kraftpy.core.leases.runs import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    IN_TRANSITION,
    Piece,
    Run,
    Runs,
)
from kraftpy.core.leases.terms import (
    Acknowledgement,
    Acquired,
    Change,
    Demand,
    LeaseLimits,
    ReadBatch,
    StateBatch,
)
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode

_TARGETS = {
    int(AcknowledgeType.GAP): ARCHIVED,
    int(AcknowledgeType.ACCEPT): ACKNOWLEDGED,
    int(AcknowledgeType.RELEASE): AVAILABLE,
    int(AcknowledgeType.REJECT): ARCHIVED,
    int(AcknowledgeType.RENEW): ACQUIRED,
}
"""What a record is to be of which that is said."""

FINISHED = {state: (state, 0, "", 0, 0) for state in (ACKNOWLEDGED, ARCHIVED)}
"""What is put where nobody gets anything any more."""


class LeaseTable:
    """See the module. `is_new`: nothing is written yet, and the start offset is to be kept.

    `numbers` are those of all tables of a broker.
    """

    def __init__(
        self,
        limits: LeaseLimits,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        *,
        is_new: bool = False,
        numbers: LeaseNumbers | None = None,
    ) -> None:
        self.limits = limits
        self.numbers = LeaseNumbers() if numbers is None else numbers
        self._runs = Runs(start_offset)
        self._finished_count = 0
        self._keeps_start = is_new
        self._said: tuple[int, int] | None = None
        self._number = 1
        self._open: list[tuple[int, int, int, int]] = []
        """What becomes the next change's batches."""
        self._in_flight: dict[int, tuple[int, int]] = {}  # from where to where they are
        self._deadline_ms: int | None = None
        for first, last, state, deliveries in sorted(batches):
            self._load(first, last, state, deliveries)
        self._pass_finished()

    def _load(self, first: int, last: int, state: int, deliveries: int) -> None:
        runs = self._runs
        if last < runs.end:
            return
        if first > runs.end:  # nobody has written of those: whose they were, isn't known
            runs.append(first - 1, AVAILABLE)
        if state >= ACKNOWLEDGED:
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

    @property
    def runs_count(self) -> int:
        """In how many runs all between start and end is."""
        return len(self._runs)

    def runs(self) -> list[Run]:
        """All between start and end."""
        return list(self._runs)

    def records_by_state(self) -> dict[int, int]:
        """How many records between start and end are in each state, or wait to be in it."""
        return self._runs.counts()

    @property
    def is_full(self) -> bool:
        """Whether nothing new is dealt until what is there is done."""
        return self._runs.end - self._runs.start >= self.limits.max_record_locks

    def next_available(self, end_offset: int) -> int | None:
        """From where the log is to be read for a member, if below its end there may be anything."""
        index = self._runs.states.find(AVAILABLE)
        if index >= 0:
            offset = self._runs.firsts[index]
        elif not self.is_full:
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
        dealer = Dealer(self, self._runs, member, demand, now_ms + self.limits.lock_ms)
        read_to = asked
        for batch in batches:
            if batch.last >= end_offset:
                break
            if batch.first > read_to:
                dealer.settle()
                self.archive(read_to, batch.first - 1)
            if batch.is_dead:
                dealer.settle()
                self.archive(batch.first, batch.last)
            elif not dealer.deal(batch):
                break
            read_to = batch.last + 1
        dealer.settle()
        if dealer.acquired:
            self._expect(dealer.deadline_ms)
            self.numbers.acquired += sum([last - first + 1 for first, last, _ in dealer.acquired])
        self._pass_finished()
        return cut(dealer.acquired, demand.batch_size)

    def take_back(self, member: str, acquired: Iterable[Acquired]) -> None:
        """The member isn't told of what `acquire` gave it just now: it wasn't delivered."""
        runs = self._runs
        pieces: list[Piece] = []
        for first, last, index, of in runs.parts(acquired):
            if runs.states[index] == ACQUIRED and runs.members[index] == member:
                pieces.append((first, last, (AVAILABLE, of.deliveries - 1, "", 0, 0)))
        self.numbers.released[NOT_SENT] += self._put(pieces)

    def archive(self, first: int, last: int) -> None:
        """The log has none of these offsets for consumers; they are not above the end offset."""
        runs = self._runs
        pieces: list[Piece] = [
            (part_first, part_last, FINISHED[ARCHIVED])
            for part_first, part_last, index, _ in runs.parts([(first, last)])
            if runs.states[index] == AVAILABLE
        ]
        count = sum([part_last - part_first + 1 for part_first, part_last, _ in pieces])
        runs.put_all(pieces)
        if last >= runs.end:
            count += last - runs.end + 1
            runs.append(last, ARCHIVED)
        self._finished_count += count
        self.numbers.archived[NOT_IN_LOG] += count
        self._pass_finished()

    # -- acknowledging

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int
    ) -> ErrorCode:
        """Judges them all, then does what they say, or nothing."""
        said: list[Said] = []
        error = judge(self._runs, member, acknowledgements, said)
        if not error:
            self._carry_out(said, now_ms)
        return error

    def _carry_out(self, said: Sequence[Said], now_ms: int) -> None:
        """All of these are Acquired."""
        runs, number, most = self._runs, self._number, self.limits.max_deliveries
        deadline_ms = now_ms + self.limits.lock_ms
        counts = [0] * len(AcknowledgeType)
        pieces: list[Piece] = []
        for first, last, index, kind in said:
            counts[kind] += last - first + 1
            deliveries, member = runs.deliveries[index], runs.members[index]
            target = _TARGETS[kind]
            if target == ACQUIRED:
                pieces.append((first, last, (ACQUIRED, deliveries, member, deadline_ms, 0)))
                continue
            if target == AVAILABLE and deliveries >= most:
                target = ARCHIVED
                self.numbers.archived[DELIVERY_LIMIT] += last - first + 1
            self._open.append((first, last, target, deliveries))
            row = IN_TRANSITION | target, deliveries, member, runs.deadlines[index], number
            pieces.append((first, last, row))
        runs.put_all(pieces)
        if counts[AcknowledgeType.RENEW]:
            self._expect(deadline_ms)
        self.numbers.released[RELEASED] += counts[AcknowledgeType.RELEASE]
        self.numbers.archived[REJECTED] += counts[AcknowledgeType.REJECT]
        self.numbers.archived[GAP] += counts[AcknowledgeType.GAP]

    def _unanswered(self, index: int, reason: str) -> Piece:
        """A run is to be Available again, or Archived after its last delivery."""
        first, last = self._runs.firsts[index], self._runs.last_of(index)
        count = last - first + 1
        self.numbers.released[reason] += count
        if self._runs.deliveries[index] < self.limits.max_deliveries:
            return self.waiting(index, first, last, AVAILABLE)
        self.numbers.archived[DELIVERY_LIMIT] += count
        return self.waiting(index, first, last, ARCHIVED)

    def waiting(self, index: int, first: int, last: int, target: int) -> Piece:
        """Part of a run that is to have this state once that is written."""
        runs = self._runs
        deliveries = runs.deliveries[index]
        self._open.append((first, last, target, deliveries))
        held = deliveries, runs.members[index], runs.deadlines[index]
        return first, last, (IN_TRANSITION | target, *held, self._number)

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
        batches.sort()
        self._in_flight[number] = (batches[0][0], batches[-1][1]) if batches else (0, -1)
        self._keeps_start = False
        start = self._start_after(number)
        passed = self._runs.start
        more = sum(
            max(last + 1 - max(first, passed), 0)
            for first, last, state, _ in batches
            if state >= ACKNOWLEDGED
        )
        finished = self._finished_count + more - (start - passed)
        self._said = start, finished
        return Change(
            number,
            start,
            finished,
            tuple(StateBatch._make(each) for each in batches if each[1] >= start),
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
        for first, last, index in self._of_change(number):
            target = runs.states[index] - IN_TRANSITION
            if target == AVAILABLE:
                pieces.append((first, last, (AVAILABLE, runs.deliveries[index], "", 0, 0)))
            else:
                pieces.append((first, last, FINISHED[target]))
                self._finished_count += last - first + 1
        runs.put_all(pieces)
        self._pass_finished()
        if not (self._in_flight or self._open):
            self._keeps_start = self._said != (runs.start, self._finished_count)

    def failed(self, number: int, now_ms: int) -> None:
        """The change is not written and won't be."""
        runs = self._runs
        pieces: list[Piece] = []
        for first, last, index in self._of_change(number):
            deliveries, deadline_ms = runs.deliveries[index], runs.deadlines[index]
            if deadline_ms > now_ms:
                row = (ACQUIRED, deliveries, runs.members[index], deadline_ms, 0)
                self._expect(deadline_ms)
            else:
                row = (AVAILABLE, deliveries, "", 0, 0)
            pieces.append((first, last, row))
        runs.put_all(pieces)

    def _of_change(self, number: int) -> Iterator[tuple[int, int, int]]:
        """The runs that wait for this change, which is over."""
        runs = self._runs
        changes = runs.changes
        first, last = self._in_flight.pop(number)
        if first <= last:
            for index in runs.between(first, last):
                if changes[index] == number:
                    yield runs.firsts[index], runs.last_of(index), index

    # -- time, sessions, the log's start

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, at the earliest."""
        return self._deadline_ms

    def expire(self, now_ms: int) -> int:
        """Takes back what wasn't answered in time; says how many records."""
        if self._deadline_ms is None or self._deadline_ms > now_ms:
            return 0
        runs = self._runs
        pieces: list[Piece] = []
        self._deadline_ms = None
        for index in runs.having(ACQUIRED):
            deadline_ms = runs.deadlines[index]
            if deadline_ms <= now_ms:
                pieces.append(self._unanswered(index, TIMED_OUT))
            else:
                self._expect(deadline_ms)
        return self._put(pieces)

    def _expect(self, deadline_ms: int) -> None:
        if self._deadline_ms is None or deadline_ms < self._deadline_ms:
            self._deadline_ms = deadline_ms

    def close_session(self, member: str) -> int:
        """The member is gone, and says nothing of what it has any more; how many records."""
        runs = self._runs
        return self._put(
            [
                self._unanswered(index, SESSION_ENDED)
                for index in runs.having(ACQUIRED)
                if runs.members[index] == member
            ]
        )

    def _put(self, pieces: Sequence[Piece]) -> int:
        """Says how many records they are."""
        self._runs.put_all(pieces)
        return sum([last - first + 1 for first, last, _ in pieces])

    def advance_log_start(self, log_start_offset: int) -> None:
        """The log begins here: what is below is finished, whoever has it."""
        runs = self._runs
        if log_start_offset <= runs.start:
            return
        for index in runs.between(runs.start, log_start_offset - 1):
            count = min(runs.last_of(index), log_start_offset - 1) - runs.firsts[index] + 1
            if ACKNOWLEDGED <= runs.states[index] < IN_TRANSITION:
                self._finished_count -= count
            else:
                self.numbers.archived[NOT_IN_LOG] += count
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
