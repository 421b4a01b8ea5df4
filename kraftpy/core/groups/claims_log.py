"""What a `GroupMachine` does about the log of its claims, which is read beside the work.

`load_claims` and what follows, then `log_opened`; `log_closed` when it is led here no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.effects import Effects, Outbox, Write
from kraftpy.core.groups.individual.claim_runs import ClaimRun
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.places import TWIN, ClaimsLog
from kraftpy.core.groups.individual.records import ClaimRecord
from kraftpy.core.groups.individual.waiting import Waiting
from kraftpy.core.groups.timers import Timer, TimerKind
from kraftpy.protocol.errors import ErrorCode

CLAIM_TIMERS = frozenset({TimerKind.WAIT_FOR_STABLE, TimerKind.TOMBSTONES})


class ClaimsLogOperations:
    """The part of a machine that is concerned with that log.

    `settle` answers the requests of a write with an error, unless they have been.
    """

    def __init__(
        self,
        claims: Claims,
        waiting: Waiting,
        topics: Topics,
        outbox: Outbox,
        settle: Callable[[Write, ErrorCode, int], None],
    ) -> None:
        self.claims = claims
        self._waiting = waiting
        self._topics = topics
        self._out = outbox
        self._settle_write = settle

    def load_claims(self, records: Iterable[ClaimRecord]) -> None:
        """Takes in records of that log, oldest first."""
        self.claims.replay(records)

    def load_claim_runs(self, runs: Iterable[ClaimRun]) -> None:
        """The same of many claims, by slice."""
        for run in runs:
            self.claims.replay_run(run)

    def load_pending_claims(self, producer_id: int, records: Iterable[ClaimRecord]) -> None:
        """The same of a producer's transaction."""
        self.claims.replay_in(producer_id, records)

    def load_claims_marker(self, producer_id: int, *, committed: bool) -> None:
        """Takes in that the producer's transaction has ended."""
        self.claims.end(producer_id, committed=committed)

    def log_opened(self, number: int, now_ms: int) -> Effects:
        """That log has been read; its writes are taken from here on."""
        assert number == TWIN
        self.claims.opened(self._topic_id_of, now_ms)
        return self._out.take()

    def log_closed(self, number: int, now_ms: int, *, exists: bool) -> Effects:
        """That log isn't led here, or is about to be read anew: what was in flight is unknown."""
        assert number == TWIN
        state = ClaimsLog.CLOSED if exists else ClaimsLog.ABSENT
        self._waiting.close(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.claims.closed(state, ErrorCode.NOT_COORDINATOR, now_ms)
        for write in self._out.all_in_flight():
            if write.log == TWIN:
                self._out.landed(write)
                self._settle_write(write, ErrorCode.NOT_COORDINATOR, now_ms)
        return self._out.take()

    def _claims_timer_fired(self, timer: Timer, now_ms: int) -> None:
        """The deadline of one of `CLAIM_TIMERS` has come."""
        if timer.kind is TimerKind.TOMBSTONES:
            self.claims.go_on(now_ms)
        else:
            self._waiting.overdue(timer)

    def _topic_id_of(self, topic: str) -> bytes | None:
        known = self._topics.find(topic)
        return None if known is None else known.topic_id
