"""What is kept of a group's claims on one partition, and who waits to change that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from kraftpy.core.groups.individual.claim_runs import ClaimRun
from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.memory import PLACE_BYTES, STALE_BYTES
from kraftpy.core.groups.individual.pending import LogKey, PendingClaims
from kraftpy.core.groups.individual.plan import FEW_RECORDS, Entry, Key
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState
from kraftpy.core.groups.records import NO_TIMESTAMP
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode

TWIN = 1
"""The number of the claims' log among those of the coordinator."""


class ClaimsLog(Enum):
    """Whether the log of the claims has been read."""

    ABSENT = "there is none, so there are no claims"
    CLOSED = "it isn't led here, or is being read"
    OPEN = "it has been read"


class ClaimsWanted:
    """A message: somebody wants to claim something, and there is no log for it yet."""


class Standing(NamedTuple):
    """A partition of a topic with ranges above its offset, and since when that is what it is.

    `stalled`: there are as many as may be, so claims are refused that fill no holes.
    """

    topic: str
    since_ms: int
    stalled: bool


class Drop:
    """Claims that are to go before their offsets are set back; nothing is claimed meanwhile.

    `then` hears when their tombstones are committed, and has to call `Claims.release` at last.
    """

    __slots__ = ("keys", "left", "pending", "then", "waits_for")

    def __init__(self, keys: Sequence[Key], then: Callable[[Drop, ErrorCode, int], None]) -> None:
        self.keys = keys
        self.then = then
        self.waits_for = set(keys)
        self.left = deque(keys)
        """Places whose tombstones have yet to be written, all or some."""
        self.pending: deque[LogKey] | None = None
        """Of the first of these, those of transactions."""


class Size(NamedTuple):
    """How many ranges and pending claims there are, and the memory of all that is kept."""

    ranges: int
    pending: int
    size_bytes: int


class Place:
    """What a group has claimed of a partition, and who waits to claim more."""

    __slots__ = (
        "commit_timestamp_ms",
        "counted",
        "coverage",
        "held",
        "is_settled",
        "jobs",
        "pending",
        "stable",
        "stale",
        "topic_id",
    )

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.pending = PendingClaims()
        self.topic_id = b""
        self.commit_timestamp_ms = NO_TIMESTAMP
        self.stale: dict[ClaimKey, None] = {}
        self.stable: int | None = None
        """The stable offset, as far as it has been asked for since it moved."""
        self.jobs: deque[Entry | Drop] = deque()
        self.held: Drop | None = None
        # Whether the stable offset is what follows from the claims, as far as is known.
        self.is_settled = True
        self.counted = Size(0, 0, 0)
        """What of it is counted."""

    def __bool__(self) -> bool:
        jobs = self.jobs or self.held
        return bool(self.coverage.count or jobs or self.stale or self.pending)

    @property
    def is_simple(self) -> bool:
        """Whether nothing waits, or is to be written, but what somebody claims now."""
        pending = self.pending
        if self.jobs or self.stale or pending.count or pending.spent:
            return False
        return self.is_settled and self.held is None

    @property
    def keys_count(self) -> int:
        """How many keys the log has of it."""
        pending = self.pending
        return self.coverage.count + len(self.stale) + pending.count + len(pending.spent)

    @property
    def mends_in_turns(self) -> bool:
        """Whether others are served between what is to be written for nobody."""
        return len(self.stale) > FEW_RECORDS or self.pending.has_many

    def needless_in(
        self, key: Key, ended: Mapping[LogKey, ClaimState], stable: int
    ) -> list[ClaimRecord]:
        """Tombstones of transactions' records which what is committed says, or that say nothing."""
        passed = [each for each in ended if self._is_passed(stable, each)]
        needless = [*self.pending.next_spent(), *passed]
        return [ClaimRecord(*key, *each, None, transaction) for each, transaction in needless]

    def _is_passed(self, stable: int, key: LogKey) -> bool:
        last = self.pending.ended[key].last
        low, high, first = key[0]
        return last < stable or (
            self.coverage.growth(Claim(low, high, max(first, stable), last)) is None
        )

    def size(self, key: Key) -> Size:
        """What is kept under this key."""
        coverage, pending = self.coverage, self.pending
        size_bytes = coverage.size_bytes
        if self.stale:
            size_bytes += len(self.stale) * STALE_BYTES
        else:
            self.stale.clear()  # It may have been large.
        if pending:
            size_bytes += pending.size_bytes
        if size_bytes:
            size_bytes += _fixed_bytes(key)
        return Size(coverage.count, pending.count, size_bytes)

    def uncounted_bytes(self, key: Key) -> int:
        """What it takes besides what it has, unless that counts already."""
        return 0 if self.counted.size_bytes else _fixed_bytes(key)

    def known(self) -> Coverage:
        """What counts."""
        if not self.pending.ended:
            return self.coverage
        return self.coverage.joined(
            (Claim(*key, state.last), state.leader_epoch)
            for (key, _), state in self.pending.ended.items()
        )

    def extend(self, run: ClaimRun, stable: int) -> bool:
        """Takes in claims of one slice as they are in the log.

        False, and nothing is taken in, unless all count and lie apart, behind those before: nearly
        all do.
        """
        _, low, high, rows = run
        topic_id = rows[0][3]
        if (topic_id != self.topic_id and self) or min(row[1] for row in rows) < stable:
            return False
        is_taken = self.coverage.extend(low, high, rows)
        if is_taken:
            self.topic_id = topic_id
            latest_ms = max(row[4] for row in rows)
            self.commit_timestamp_ms = max(self.commit_timestamp_ms, latest_ms)
            for row in rows if self.stale else ():
                self.stale.pop((low, high, row[0]), None)
        return is_taken


def _fixed_bytes(key: Key) -> int:
    return PLACE_BYTES + len(key[0]) + len(key[1])
