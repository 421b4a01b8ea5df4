"""Tombstones of claims, some at a time: there may be tens of thousands of them in each place.

Rules:

* Few are written at once. More are written so many at a time, each batch behind the one before, and
  when it's committed: whoever has more to write waits for a turn, which a timer of the machine
  gives, and others are served in between.
* What is to be written is looked up when its turn comes; nothing is kept of it.
* What goes, goes from its end: taking it away takes least there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from kraftpy.core.groups.individual.places import Drop, Place
from kraftpy.core.groups.individual.plan import Key, records_together
from kraftpy.core.groups.individual.records import ClaimRecord
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue

_WAIT_MS = 1


class Turns:
    """Who has very much to write: drops, and places to mend. First come, first served."""

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._timer = Timer(TimerKind.TOMBSTONES, "")
        self._waiting: dict[Drop | Key, None] = {}

    def __contains__(self, who: Drop | Key) -> bool:
        return who in self._waiting

    def wait(self, who: Drop | Key, now_ms: int) -> None:
        """Gives it a turn behind those who wait already."""
        self._waiting[who] = None
        if self._timer.deadline_ms is None:
            self._timers.set(self._timer, now_ms + _WAIT_MS)

    def next(self, now_ms: int) -> Drop | Key | None:
        """Whose turn it is; the timer comes again if there is another one."""
        if not self._waiting:
            return None
        who = next(iter(self._waiting))
        del self._waiting[who]
        if self._waiting:
            self._timers.set(self._timer, now_ms + _WAIT_MS)
        return who

    def clear(self) -> list[Drop]:
        """Nobody has a turn any more; these were to have one."""
        drops = [each for each in self._waiting if isinstance(each, Drop)]
        self._waiting.clear()
        self._timers.cancel(self._timer)
        return drops


def next_of(drop: Drop, places: Mapping[str, Mapping[Key, Place]]) -> list[ClaimRecord]:
    """The next ones of a drop whose places are all held; `drop.left` is empty behind the last."""
    records: list[ClaimRecord] = []
    count = 0
    while drop.left:
        key = drop.left[0]
        room = records_together(key) - len(records)
        if room <= 0:
            break
        place = places[key[0]][key]
        records += islice(_of_place(drop, key, place), room)
        if len(records) - count == room:
            break
        count = len(records)
        drop.left.popleft()
        drop.pending = None
    return records


def _of_place(drop: Drop, key: Key, place: Place) -> Iterator[ClaimRecord]:
    if drop.pending is None:  # What is claimed from here on in transactions is no more dropped.
        drop.pending = deque(place.pending.log_keys())
    claimed = place.coverage.keys()
    for claim_key in claimed:
        yield ClaimRecord(*key, *claim_key, None)
    for claim_key in reversed(place.stale):
        yield ClaimRecord(*key, *claim_key, None)
    while drop.pending:
        claim_key, transaction = drop.pending.popleft()
        yield ClaimRecord(*key, *claim_key, None, transaction)
