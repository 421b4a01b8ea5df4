"""Deadlines without a clock: a heap in which putting a deadline off costs nothing.

Heartbeats put a deadline off thousands of times for once that it passes, so `set` with a later time
only notes the new deadline; the heap's entry is corrected when it comes up. Entries that are not
needed any more, of timers that were stopped for instance, are thrown out before they can outnumber
the others: clients choose how far in the future they are, and how many.
"""

from __future__ import annotations

import heapq
from enum import Enum, auto


class TimerKind(Enum):
    SESSION = auto()  # a member, or a pending member, has not been heard from
    JOIN = auto()  # the time to (re)join a rebalance is over
    SYNC = auto()  # the time to fetch the new assignment is over
    CONSUMER_SESSION = auto()  # a member of a consumer group has not been heard from
    CONSUMER_REVOCATION = auto()  # the time to give partitions up is over
    CLASSIC_REJOIN = auto()  # a classic member of a consumer group was told to rejoin
    WAIT_FOR_STABLE = auto()  # a transaction's commit has waited for others' long enough
    TOMBSTONES = auto()  # some of very many tombstones of claims are to be written
    SHARE_SESSION = auto()  # a member of a share group has not been heard from
    SHARE_STATES = auto()  # share coordinators haven't said whether they have done what they should
    CLASSIC_SYNC = auto()  # a classic member of a consumer group has joined, and has to sync


# So few entries are not worth a look.
_TIDY_ABOVE_MIN = 1_000


class Timer:
    """One deadline of a group or a member; None while it isn't running."""

    __slots__ = ("deadline_ms", "group_id", "kind", "member_id", "queued_ms")

    def __init__(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self.kind = kind
        self.group_id = group_id
        self.member_id = member_id
        self.deadline_ms: int | None = None
        self.queued_ms: int | None = None


class TimerQueue:
    """All timers of one machine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._tidy_above = _TIDY_ABOVE_MIN

    def set(self, timer: Timer, deadline_ms: int) -> None:
        """Starts the timer, or moves its deadline."""
        timer.deadline_ms = deadline_ms
        if timer.queued_ms is None or deadline_ms < timer.queued_ms:
            self._push(timer, deadline_ms)

    def cancel(self, timer: Timer) -> None:
        timer.deadline_ms = None

    def next_deadline(self) -> int | None:
        """The earliest deadline, None if no timer runs."""
        while self._heap:
            queued_ms, _, timer = self._heap[0]
            superseded = timer.queued_ms != queued_ms
            if not superseded and timer.deadline_ms == queued_ms:
                return queued_ms
            heapq.heappop(self._heap)
            if superseded:
                continue
            timer.queued_ms = None
            if timer.deadline_ms is not None:
                self._push(timer, timer.deadline_ms)
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Stops and returns a timer whose deadline has come, the earliest first."""
        deadline_ms = self.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        timer = heapq.heappop(self._heap)[2]
        timer.deadline_ms = timer.queued_ms = None
        return timer

    def shift(self, delta_ms: int) -> None:
        """Moves every deadline: the clock was set, and waits are to last as long as before."""
        timers = {id(timer): timer for _, _, timer in self._heap}
        self._heap.clear()
        for timer in timers.values():
            timer.queued_ms = None
            if timer.deadline_ms is not None:
                self.set(timer, timer.deadline_ms + delta_ms)

    def _push(self, timer: Timer, deadline_ms: int) -> None:
        self._sequence += 1
        timer.queued_ms = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, self._sequence, timer))
        if len(self._heap) > self._tidy_above:
            self._tidy()

    def _tidy(self) -> None:
        """Throws out the entries that are not needed."""
        needed = []
        for entry in self._heap:
            queued_ms, _, timer = entry
            if timer.queued_ms != queued_ms:
                continue
            if timer.deadline_ms is None:
                timer.queued_ms = None
            else:
                needed.append(entry)
        heapq.heapify(needed)
        self._heap = needed
        self._tidy_above = max(_TIDY_ABOVE_MIN, 2 * len(needed))
