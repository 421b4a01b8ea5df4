"""The leases of a cooperative group on one partition, at the partition's leader (seed 001).

The table of `table`, over another state: the claims that members commit at their group's
coordinator. Rules:

* Nothing is written here: a member commits what it has done, and then says so. What nobody has said
  done of in time is in doubt, for it may be committed. It's dealt again, as often as need be, when
  claims have been read that were asked for since.
* Another generation has the claims read, and is dealt nothing before: whoever has set the group's
  offset back wants records again. Leases stay.
* Whole batches are dealt, and with them what lies before them and isn't there: markers, what
  compaction took, what the log doesn't begin with any more. Who claims a lease claims that, too;
  else the group's offset would stand there.
* A member's lease at or above the offset that it asks for comes again, for as long as a new one,
  and nothing else does: its answer was lost.
* With RUNS_MAX runs between start and end only what is Available is dealt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from kraftpy.core.leases.runs import ACKNOWLEDGED, ACQUIRED, AVAILABLE, IN_TRANSITION, Piece, Row
from kraftpy.core.leases.table import FINISHED, LeaseTable
from kraftpy.core.leases.terms import Acknowledgement, Acquired, Demand, LeaseLimits, ReadBatch
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode

RUNS_MAX = 20_000
"""As many ranges as a coordinator keeps of a partition by default; a run takes some forty bytes."""

_FREE: Row = (AVAILABLE, 0, "", 0, 0)
_NO_LIMIT = 1 << 62
_EVERYTHING = Demand(_NO_LIMIT, 0, False)

Range: TypeAlias = tuple[int, int]
"""First and last offset."""


class ClaimedTable(LeaseTable):
    """See the module; `stable` and `claims` are what the group has done, in any order."""

    def __init__(self, stable: int, claims: Iterable[Range] = (), generation: int = -1) -> None:
        super().__init__(_limits(0), stable)
        self.generation = generation
        """The group's, as far as it's known here."""
        self._anew = False
        self._is_asking = False
        self._doubtful: set[int] = set()
        self._asked: frozenset[int] = frozenset()
        self._asked_anew = False
        self._done_since: list[Range] = []
        self.learn(stable, claims)

    # -- members

    def begin(self, generation: int) -> None:
        """The group is in this generation now."""
        self.generation = generation
        self._anew = True

    def held(self, member: str, offset: int) -> list[Range]:
        """What the member has a lease on, from this offset on."""
        runs = self._runs
        found: list[Range] = []
        for index in runs.having(ACQUIRED, max(runs.index_of(offset), 0)):
            first, last = max(runs.firsts[index], offset), runs.last_of(index)
            if runs.members[index] == member and last >= first:
                if found and found[-1][1] + 1 == first:
                    first = found.pop()[0]
                found.append((first, last))
        return found

    def renew(self, member: str, ranges: Iterable[Range], lock_ms: int, now_ms: int) -> None:
        """The member has these, which are its own, for longer."""
        self.limits = _limits(lock_ms)
        said = [Acknowledgement(*each, (AcknowledgeType.RENEW,)) for each in ranges]
        self.acknowledge(member, said, now_ms)

    def next_available(self, end_offset: int) -> int | None:
        if self._anew:
            return None
        self.limits = _limits(0, is_full=len(self._runs) >= RUNS_MAX)
        return super().next_available(end_offset)

    def lease(
        self,
        member: str,
        asked: int,
        batches: Iterable[ReadBatch],
        end_offset: int,
        lock_ms: int,
        now_ms: int,
    ) -> list[Acquired]:
        """Deals a member these batches, which the log has from `asked` on, as `acquire` does."""
        self.limits = _limits(lock_ms, is_full=len(self._runs) >= RUNS_MAX)
        whole = _without_gaps(asked, batches)
        return self.acquire(member, asked, whole, end_offset, _EVERYTHING, now_ms)

    def done(self, member: str, ranges: Sequence[Range], now_ms: int) -> ErrorCode:
        """The member has committed claims on these, which ascend."""
        if len(self._runs) + len(ranges) > 2 * RUNS_MAX:
            return ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        # Else all runs may be in each of them.
        if any(before[1] >= after[0] for before, after in pairwise(ranges)):
            return ErrorCode.INVALID_REQUEST
        accept = (AcknowledgeType.ACCEPT,)
        said = [Acknowledgement(*each, accept) for each in self._not_claimed(ranges)]
        error = self.acknowledge(member, said, now_ms)
        if not error:
            if self._is_asking:
                self._done_since += ranges
            change = self.take_change()
            if change is not None:
                self.committed(change.number)
        return error

    def _not_claimed(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these isn't known to be claimed: whatever is may be said done again."""
        runs = self._runs
        for first, last in ranges:
            if not 0 <= first <= last < runs.end or last < runs.start:
                yield first, last
                continue
            for index in runs.between(max(first, runs.start), last):
                if runs.states[index] != ACKNOWLEDGED:
                    yield max(first, runs.firsts[index]), min(last, runs.last_of(index))

    def expire(self, now_ms: int) -> int:
        """What nobody has said done of in time is in doubt; says how many records."""
        count = super().expire(now_ms)
        change = self.take_change()
        if change is not None:
            self._doubtful.add(change.number)
        return count

    @property
    def is_quiet(self) -> bool:
        """Whether nobody has a lease, and none is in doubt."""
        return not self._doubtful and ACQUIRED not in self._runs.states

    # -- claims

    @property
    def needs_claims(self) -> bool:
        """Whether something can't be dealt before claims are read."""
        return self._anew or bool(self._doubtful)

    def ask(self) -> None:
        """Claims are about to be asked for; `learn` has what the coordinator answers."""
        self._asked, self._asked_anew = frozenset(self._doubtful), self._anew
        self._is_asking, self._done_since = True, []

    def learn(self, stable: int, claims: Iterable[Range]) -> None:
        """The group has done these, all below `stable`, and what was said since it was asked."""
        runs, asked = self._runs, self._asked
        runs.drop_below(stable)
        runs.extend_down(stable, _FREE)
        undone: list[Piece] = [
            (runs.firsts[index], runs.last_of(index), _FREE)
            for index, state in enumerate(runs.states)
            if (state == ACKNOWLEDGED and self._asked_anew)
            or (state >= IN_TRANSITION and runs.changes[index] in asked)
        ]
        runs.put_all(undone)
        done = _joined([*claims, *self._done_since])
        if done and done[-1][1] >= runs.end:
            runs.append(done[-1][1], AVAILABLE)
        finished = FINISHED[ACKNOWLEDGED]
        runs.put_all(
            [(max(first, stable), last, finished) for first, last in done if last >= stable]
        )
        for number in self._asked:
            del self._in_flight[number]
        self._doubtful -= self._asked
        self._anew = self._anew and not self._asked_anew
        self._asked, self._asked_anew = frozenset(), False
        self._is_asking, self._done_since = False, []
        self._finished_count = runs.counts().get(ACKNOWLEDGED, 0)
        self._pass_finished()


def _limits(lock_ms: int, *, is_full: bool = False) -> LeaseLimits:
    return LeaseLimits(0 if is_full else _NO_LIMIT, _NO_LIMIT, lock_ms)


def _without_gaps(asked: int, batches: Iterable[ReadBatch]) -> Iterator[ReadBatch]:
    """The batches, each with what isn't there before it; none of them is dead."""
    at = asked
    for first, last, _ in batches:
        yield ReadBatch(min(at, first), last)
        at = last + 1


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in any order, as ranges that ascend and don't overlap."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
