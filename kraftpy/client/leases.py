"""Batches of a partition that its leader has leased to a member, and what is done of them.

Rules:
* A member is leased batches of partitions that others have, too. What it has done it claims at the
  group's coordinator, whatever lies between records among it; when that is answered it says so to
  the leader, with its next fetch.
* A lease lasts a session's time, counted from when it was asked for. What is over isn't handed out;
  what was handed out before is claimed nevertheless, though somebody else may do it once more.
* Of an answer that was lost nobody knows what it had. So the next fetch asks from where the group
  stands: the leader sends again what it has leased to the member, and what arrived isn't taken
  twice.
* A lease without any record for the user is claimed though the user commits nothing.

Source: seed 001, "Cooperative Fetch".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from kraftpy.client.assignor import Assignor
from kraftpy.client.coordinator import Generation
from kraftpy.client.ledger import WHOLE, Claim, Due, Dues, Lane, Ledger
from kraftpy.client.offsets import Partition
from kraftpy.client.spans import INFINITY, Spans, contains, intersect, join, subtract
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    ACQUIRED_TAG,
    COOPERATION_TAG,
    COOPERATIVE_FEATURE,
    DONE_MAX,
    DONE_TAG,
    Cooperation,
    decode_ranges,
    encode_cooperation,
    encode_ranges,
)

FEATURE_LEVEL = 2
"""The level of the feature that cooperative fetches take."""

LEASED_BYTES = 16 * 1024
"""So much of a partition is asked for at once, or a batch: the others want something, too."""

_RANGES_MAX = 1 << 20
# What the leader makes of what it was told is done. What is claimed is claimed, so it isn't told
# again: when a lease is over, the leader asks the coordinator.
_NOT_TAKEN = frozenset(
    {
        ErrorCode.INVALID_RECORD_STATE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED,
    }
)


class Leased(Lane):
    """Offsets that are the member's until a time; `position` is the first of them."""

    spans: Spans
    until_s: float
    over: bool
    handed_to: int

    @classmethod
    def of(cls, spans: Spans, until_s: float) -> Leased:
        """New leases."""
        self = cls(WHOLE, spans[0][0], None)
        self.spans, self.until_s = spans, until_s
        self.over, self.handed_to = False, -1
        return self

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class LeaseLedger(Ledger):
    """A partition of which the member is leased batches."""

    def __init__(self, *, explicit: bool = False, holes: bool = False) -> None:
        super().__init__(explicit=explicit, holes=holes)
        self._explicit = explicit
        self._era = 0
        self._base = 0
        self._asks_from = 0
        self._hand: list[Leased] = []
        self._handed: Spans = []
        """What was handed out, and lies between, and isn't claimed."""
        self._empty: Spans = []
        """What of that has no records."""
        self._open: dict[int, None] = {}
        self._answered: Spans = []
        """What this member has claimed above the base."""
        self._to_tell: Spans = []
        self._by_keys: list[Claim] = []
        """What was claimed of some keys alone, before."""
        self.homeless = False
        """Whether the leader has no use for where the group stands."""

    @property
    def in_part(self) -> bool:
        return True

    @property
    def slices(self) -> Spans:
        return WHOLE

    def add(
        self,
        slices: Spans,
        stable: int,
        claims: Iterable[Claim] = (),
        *,
        sought: int | None = None,
    ) -> None:
        self._base = self._asks_from = stable
        self._by_keys = [each for each in claims if (each.low, each.high + 1) != WHOLE[0]]

    def remove(self, slices: Spans) -> None:
        """Nothing is ever in slices here."""

    # -- fetching

    def turn(self) -> Lane:
        return Lane(WHOLE, self._asks_from, None)

    @property
    def to_tell(self) -> list[tuple[int, int]]:
        """What the leader is to hear of: it's claimed."""
        return [(begin, end - 1) for begin, end in self._to_tell[:DONE_MAX]]

    def told(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The leader has heard."""
        self._to_tell = subtract(self._to_tell, _spans(ranges))

    def acquired(self, ranges: Sequence[tuple[int, int]], until_s: float) -> Leased | None:
        """Takes in what the leader has leased: what of it is new here."""
        spans = join(_spans(ranges))
        if not spans:
            return None
        self._asks_from = max(self._asks_from, spans[-1][1])
        done = join([(0, self._base), *self._answered])
        self._to_tell = join([*self._to_tell, *intersect(spans, done)])
        new = subtract(subtract(spans, done), self._handed)
        for each in self._hand:
            if not each.over and intersect(each.spans, spans):
                each.until_s = max(each.until_s, until_s)
                new = subtract(new, each.spans)
        if not new:
            return None
        leased = Leased.of(new, until_s)
        self._hand.append(leased)
        return leased

    def rewind(self) -> None:
        """What was fetched ahead is gone; the leader knows whose it is."""
        self._hand.clear()
        self._asks_from = self._base

    def answer_lost(self) -> None:
        """What a fetch was answered isn't known: the leader is asked for all that it has leased."""
        self._asks_from = self._base

    # -- handing out

    @property
    def position(self) -> int:
        return self._asks_from

    def readers(self, lane: Lane) -> Any:
        return lane

    def hand_out(self, hash_: int, offset: int, readers: Any) -> bool:
        leased: Leased = readers
        if leased.over or leased not in self._hand:
            return False
        if time.monotonic() >= leased.until_s:
            leased.over = True
            return False
        for claim in self._by_keys:
            if claim.low <= hash_ <= claim.high and claim.first <= offset <= claim.last:
                return False
        leased.handed_to = offset + 1
        if self._explicit:
            self._open[offset] = None
        return True

    def take_back(self, offset: int, readers: Any) -> None:
        leased: Leased = readers
        leased.handed_to = offset
        self.done(offset)

    def advance(self, readers: Any, end: int) -> None:
        leased: Leased = readers
        if leased not in self._hand:
            return
        if leased.over or end >= leased.spans[-1][1]:
            self._hand.remove(leased)
        if leased.over:
            end = leased.handed_to
            self._asks_from = self._base  # it may be this member's again
        elif leased.handed_to < 0 and leased not in self._hand:
            self._empty = join([*self._empty, *leased.spans])
        self._handed = join([*self._handed, *intersect(leased.spans, [(0, max(end, 0))])])

    # -- claims

    def not_done_from(self, offset: int) -> None:
        """In order: what was handed out from here on isn't done; others may do it."""
        if not self._explicit:
            self._handed = subtract(self._handed, [(offset, INFINITY)])

    def done(self, offset: int) -> bool:
        return offset in self._open and self._open.pop(offset) is None

    def _dues(self, spans: Spans) -> Dues:
        ranges = [(begin, end - 1) for begin, end in spans]
        return Dues(self._era, [Due(WHOLE, ranges)] if ranges else [])

    def dues(self) -> Dues:
        return self._dues(subtract(self._handed, join((o, o + 1) for o in self._open)))

    def holes(self) -> Dues:
        return self._dues(self._empty)

    def dues_below(self, offset: int) -> Dues:
        return self._dues(intersect(self._handed, [(0, offset)]))

    def is_lowest(self, dues: Dues) -> bool:
        return min(due.ranges[0][0] for due in dues.accounts) <= self._base

    @property
    def done_below(self) -> int:
        return self._base

    def reached(self, stable: int) -> None:
        self.answered(self._dues([]), stable)

    def answered(self, dues: Dues, stable: int) -> None:
        spans = join(each for due in dues.accounts for each in _spans(due.ranges))
        self._handed = subtract(self._handed, spans)
        self._empty = subtract(self._empty, spans)
        for offset in [each for each in self._open if contains(spans, each)]:
            del self._open[offset]
        self._to_tell = join([*self._to_tell, *spans])
        self._base = max(self._base, stable)
        self._answered = subtract(join([*self._answered, *spans]), [(0, self._base)])


def _spans(ranges: Iterable[tuple[int, int]]) -> Spans:
    return [(first, last + 1) for first, last in ranges]


def is_leasing(assignors: Sequence[Assignor], group_id: str | None) -> bool:
    """Whether members of these assignors are leased batches. Raises ValueError."""
    leasing = [each.name for each in assignors if each.leasing]
    if leasing and (len(assignors) > 1 or group_id is None):
        raise ValueError(
            f"the assignor {leasing[0]} is for groups whose members have no other one: "
            f'assignors=["{leasing[0]}"], and a group_id'
        )
    return bool(leasing)


# -- the wire


def cooperation_of(group_id: str, generation: Generation, session_timeout_ms: int) -> Cooperation:
    """As whom a member fetches."""
    return Cooperation(group_id, generation.member_id, generation.id, session_timeout_ms)


def request_tags(cooperation: Cooperation) -> dict[int, bytes]:
    """The tagged field that says whose a fetch is."""
    return {COOPERATION_TAG: encode_cooperation(cooperation)}


def partition_tags(done: list[tuple[int, int]]) -> dict[int, bytes] | None:
    """The tagged field that says what of a partition is done."""
    return {DONE_TAG: encode_ranges(done)} if done else None


def check_level(level: int) -> None:
    """Raises KafkaError if the cluster doesn't serve cooperative fetches."""
    if level < FEATURE_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the cluster leases no batches: its feature {COOPERATIVE_FEATURE} is at {level}, and "
            f"that takes {FEATURE_LEVEL}. Upgrade all nodes of kraftpy and `kraftpy cluster "
            "raise-level`, or use another assignor (kraftpy-cooperative-sticky, range)",
        )


def acquired_in(
    name: Partition, data: Any, ledger: LeaseLedger, done: list[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """What a partition's answer leases, None if it says something else that passes.

    Raises KafkaError.
    """
    code = error_code(data.error_code)
    topic, number = name
    if code in _NOT_TAKEN and done:
        ledger.told(done)
        return None
    if code == ErrorCode.ILLEGAL_GENERATION:
        return None  # heartbeats say what to do about it
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        ledger.homeless = True
        return None
    if code == ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED:
        raise KafkaError(
            code,
            f"{topic}-{number}: {code.message} Allow it: "
            f"`kraftpy topic alter {topic} -c accept.range.fetch=true`",
        )
    if code:
        raise KafkaError(code, f"{topic}-{number}: {code.message}")
    content = (data._tags or {}).get(ACQUIRED_TAG)
    if content is None:  # the whole partition was sent, as to anybody
        check_level(0)
    ledger.told(done)
    try:
        return decode_ranges(content or b"", _RANGES_MAX)
    except DecodeError as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"what is leased of {topic}-{number} can't be read: {error}"
        ) from error
