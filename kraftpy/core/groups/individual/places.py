"""What is kept of a group's claims on one partition, and who waits to change that."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from kraftpy.core.groups.individual.claim_runs import ClaimRun
from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.pending import PendingClaims
from kraftpy.core.groups.individual.plan import Entry, Key
from kraftpy.core.groups.records import NO_TIMESTAMP
from kraftpy.protocol.errors import ErrorCode

TWIN = 1
"""The number of the claims' log among those of the coordinator."""

RANGE_BYTES = 20
"""What a range takes in memory."""


class ClaimsLog(Enum):
    """Whether the log of the claims has been read."""

    ABSENT = "there is none, so there are no claims"
    CLOSED = "it isn't led here, or is being read"
    OPEN = "it has been read"


class ClaimsWanted:
    """A message: somebody wants to claim something, and there is no log for it yet."""


class ClaimMemory:
    """What the claims of a broker take, and what they may take; shared by all its machines.

    `answers` counts what became of claims, by partition of a request.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.answers: Counter[ErrorCode] = Counter()


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

    __slots__ = ("error", "keys", "left", "then", "waits_for")

    def __init__(self, keys: Sequence[Key], then: Callable[[Drop, ErrorCode, int], None]) -> None:
        self.keys = keys
        self.then = then
        self.waits_for = set(keys)
        self.left = 0
        self.error = ErrorCode.NONE


class Place:
    """What a group has claimed of a partition, and who waits to claim more."""

    __slots__ = (
        "commit_timestamp_ms",
        "coverage",
        "held",
        "is_settled",
        "jobs",
        "pending",
        "stale",
        "topic_id",
    )

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.pending = PendingClaims()
        self.topic_id = b""
        self.commit_timestamp_ms = NO_TIMESTAMP
        self.stale: dict[ClaimKey, None] = {}
        self.jobs: deque[Entry | Drop] = deque()
        self.held: Drop | None = None
        # Whether the stable offset is what follows from the claims, as far as is known.
        self.is_settled = False

    def __bool__(self) -> bool:
        jobs = self.jobs or self.held
        return bool(self.coverage.count or jobs or self.stale or self.pending)

    def known(self, *, pending: bool) -> Coverage:
        """What counts, and with `pending` what open transactions have claimed, too."""
        if not self.pending.count:
            return self.coverage
        more = [
            (Claim(*key, state.last), state.leader_epoch)
            for (key, _), state in self.pending.ended.items()
        ]
        if pending:
            more += [(claim, -1) for claim in self.pending]
        return self.coverage.joined(more)

    def extend(self, run: ClaimRun, stable: int) -> int | None:
        """Takes in claims of one slice as they are in the log; how many ranges there are more.

        None, and nothing is taken in, unless all count and lie apart, behind those before: nearly
        all do.
        """
        _, low, high, rows = run
        topic_id = rows[0][3]
        if (topic_id != self.topic_id and self) or min(row[1] for row in rows) < stable:
            return None
        more = self.coverage.extend(low, high, rows)
        if more is not None:
            self.topic_id = topic_id
            latest_ms = max(row[4] for row in rows)
            self.commit_timestamp_ms = max(self.commit_timestamp_ms, latest_ms)
            for row in rows if self.stale else ():
                self.stale.pop((low, high, row[0]), None)
        return more
