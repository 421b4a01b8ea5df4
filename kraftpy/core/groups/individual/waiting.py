"""Commits in transactions that wait until what lies below them is done: for outputs in order.

Rules:

* A request waits until all below the first offset that it claims of each place is committed,
  pending in a transaction, or claimed by others that wait. So members whose keys lie between each
  other's never wait for one another in a ring: the one that has the lowest offset doesn't wait.
* It ends with its member's generation (as soon as the group rebalances: whoever is waited for may
  be gone, and the waiting one is to join), with its transaction (INVALID_TXN_STATE), and with its
  time (REQUEST_TIMED_OUT: whoever wants to go on waiting asks again).
* So many wait in a group, with so many claims; the memory is that of claims. Beyond that it's
  MAX_INDIVIDUAL_COMMIT_REACHED.

Source: seed 001, its purgatory; which waits for the stable offset, and for ever where two
transactions have each other's records between theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.coverage import Claim, Coverage
from kraftpy.core.groups.individual.plan import Key
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue
from kraftpy.protocol.errors import ErrorCode

WAITING_MAX = 500
CLAIMS_MAX = 5_000
_WAITER_BYTES = 1_000
_CLAIM_BYTES = 150


class Waiter:
    """One request, which waits in each place for what lies below an offset (`firsts`).

    `claims` are all that it's about to make, `check` says whether its member may go on waiting.
    """

    __slots__ = ("check", "claims", "firsts", "producer_id", "size_bytes", "timer", "token")

    def __init__(
        self,
        token: object,
        producer_id: int,
        firsts: Mapping[Key, int],
        claims: Mapping[Key, Sequence[Claim]],
        check: Callable[[], ErrorCode],
    ) -> None:
        self.token = token
        self.producer_id = producer_id
        self.firsts = firsts
        self.claims = claims
        self.check = check
        self.size_bytes = _WAITER_BYTES + _CLAIM_BYTES * self.claims_count
        self.timer: Timer

    @property
    def claims_count(self) -> int:
        return sum(map(len, self.claims.values()))


class Waiting:
    """Who waits, of the groups of one partition of the offsets topic."""

    def __init__(self, claims: Claims, outbox: Outbox, timers: TimerQueue) -> None:
        self._claims = claims
        self._out = outbox
        self._timers = timers
        self.groups: dict[str, dict[object, Waiter]] = {}
        """By group, those of each that has any."""
        # By group, what those who wait are about to claim.
        self._wanted: dict[str, dict[Key, Coverage]] = {}

    def wait(self, group_id: str, waiter: Waiter, deadline_ms: int) -> None:
        """Answers the waiter's token at once, or when it has waited."""
        others = self.groups.get(group_id, {})
        count = waiter.claims_count + sum(each.claims_count for each in others.values())
        if (
            len(others) >= WAITING_MAX
            or count > CLAIMS_MAX
            or not self._claims.reserve(waiter.size_bytes)
        ):
            self._out.reply(waiter.token, ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED)
            return
        self.groups.setdefault(group_id, {})[waiter.token] = waiter
        waiter.timer = Timer(TimerKind.WAIT_FOR_STABLE, group_id)
        self._timers.set(waiter.timer, deadline_ms)
        wanted = self._wanted.get(group_id, {})
        for key, claims in waiter.claims.items():
            if key in wanted:
                for claim in claims:
                    wanted[key].add(claim)
        self._release(group_id)
        self.check(group_id)

    def look(self, group_id: str) -> None:
        """What is done of the group's records may be more now."""
        if group_id in self.groups:
            self._release(group_id)

    def _release(self, group_id: str) -> None:
        waiters = self.groups[group_id]
        reached = {key: self._reached(key) for each in waiters.values() for key in each.firsts}
        for waiter in list(waiters.values()):
            if all(first <= reached[key] for key, first in waiter.firsts.items()):
                self._end(group_id, waiter, ErrorCode.NONE)

    def _reached(self, key: Key) -> int:
        """The first offset that isn't committed, pending or waited with."""
        places = self._wanted.setdefault(key[0], {})
        wanted = places.get(key)
        if wanted is None:
            wanted = places[key] = Coverage().joined(
                (claim, -1)
                for waiter in self.groups[key[0]].values()
                for claim in waiter.claims.get(key, ())
            )
        return self._claims.reached(key, wanted)

    def check(self, group_id: str) -> None:
        """The group's members may be others now."""
        for waiter in list(self.groups.get(group_id, {}).values()):
            error = waiter.check()
            if error is not ErrorCode.NONE:
                self._end(group_id, waiter, error)

    def transaction_ended(self, producer_id: int) -> None:
        """By a marker that somebody else has had written."""
        self._end_all(lambda each: each.producer_id == producer_id, ErrorCode.INVALID_TXN_STATE)

    def overdue(self, timer: Timer) -> None:
        """The time of one is over."""
        for waiter in list(self.groups.get(timer.group_id, {}).values()):
            if waiter.timer is timer:
                self._end(timer.group_id, waiter, ErrorCode.REQUEST_TIMED_OUT)

    def abandon(self, group_id: str, token: object) -> None:
        """Its client has gone."""
        waiter = self.groups.get(group_id, {}).get(token)
        if waiter is not None:
            self._end(group_id, waiter, None)

    def close(self, error: ErrorCode) -> None:
        """Nobody waits here any more."""
        self._end_all(lambda _: True, error)

    def _end_all(self, which: Callable[[Waiter], bool], error: ErrorCode) -> None:
        for group_id, waiters in list(self.groups.items()):
            for waiter in [each for each in waiters.values() if which(each)]:
                self._end(group_id, waiter, error)

    def _end(self, group_id: str, waiter: Waiter, error: ErrorCode | None) -> None:
        waiters = self.groups[group_id]
        del waiters[waiter.token]
        self._wanted.pop(group_id, None)
        if not waiters:
            del self.groups[group_id]
        self._timers.cancel(waiter.timer)
        self._claims.free(waiter.size_bytes)
        if error is not None:
            self._out.reply(waiter.token, error)
