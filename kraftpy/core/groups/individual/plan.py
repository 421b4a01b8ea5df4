"""What some commits make of the claims of a place, and what is to be written for that.

Rules: `commits` has them. Nothing in here changes what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kraftpy.batching import bounded
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.ranges import Growth
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState
from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset, OffsetRecord
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode

# A batch must stay below max.message.bytes.
_RECORDS_PER_BATCH = 2_000
TOMBSTONES_TOGETHER = 500
"""So many are written at a time where there are very many."""
_BATCH_BYTES = 500_000
_RECORD_BYTES = 100  # and the names
FEW_RECORDS = 8
"""So many fit into a batch whatever their names."""

Key = tuple[str, str, int]
"""Group, topic, partition."""

Answer = Callable[[ErrorCode, int], None]
"""Hears how it went, and the stable offset, -1 if there is none."""


class Entry:
    """What one commit claims of one partition."""

    __slots__ = ("answer", "claims", "discard_from", "key", "leader_epoch", "topic_id")

    def __init__(
        self,
        key: Key,
        topic_id: bytes,
        claims: Sequence[Claim],
        leader_epoch: int,
        discard_from: int | None,
        answer: Answer,
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.claims = claims
        self.leader_epoch = leader_epoch
        self.discard_from = discard_from
        self.answer = answer


class Plan:
    """What some commits make of the claims of a place."""

    def __init__(
        self,
        coverage: Coverage,
        stale: Mapping[ClaimKey, None],
        topic_id: bytes,
        stable: int,
        ranges_max: int,
        room_bytes: int,
        hole_room_bytes: int,
    ) -> None:
        self.stable = stable
        self.stable_epoch = -1
        self.duplicates = 0
        self._old = coverage
        self._stale = stale
        self._topic_id = topic_id
        self._new = coverage.draft()
        self._begin = stable
        self._ranges_max = ranges_max
        self._max_bytes = coverage.size_bytes + room_bytes
        self._holes_max_bytes = coverage.size_bytes + hole_room_bytes
        # Of the claims whose records may have to change.
        self._touched: dict[ClaimKey, None] = dict.fromkeys(islice(stale, TOMBSTONES_TOGETHER))
        # Slices and first offsets of what is in other claims now.
        self._needless_max = TOMBSTONES_TOGETHER
        self._merged: list[tuple[int, int, tuple[int, ...]]] = []

    def take(self, claims: Iterable[tuple[Claim, int]]) -> None:
        """Takes in what counts already, each with its leader epoch, whatever room there is."""
        for claim, leader_epoch in claims:
            if claim.last >= self._begin:
                clipped = claim._replace(first=max(claim.first, self._begin))
                growth = self._new.growth(clipped)
                if growth is not None:
                    self._put(clipped, growth, leader_epoch)

    def judge(self, entry: Entry) -> tuple[ErrorCode, list[Claim]]:
        """What to answer so far, and the claims for which there is no room."""
        if entry.topic_id != self._topic_id:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        if self._begin < 0:
            return ErrorCode.INVALID_REQUEST, []
        if entry.discard_from is not None:
            # What was in another claim may be in none any more, and the log still has it.
            self._needless_max = len(self._stale) + self._old.count
            self._touched.update(dict.fromkeys(self._stale))
            self._touch_merged(None)
            gone, shorter = self._new.discard_from(max(entry.discard_from, 0))
            self._touched.update(dict.fromkeys(each[:3] for each in (*gone, *shorter)))
        left = []
        for claim in entry.claims:
            if claim.last >= self._begin:
                first = max(claim.first, self._begin)
                left.append(claim._replace(first=first))
        if entry.claims and not left:
            return ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD, []
        return ErrorCode.NONE, [each for each in left if not self._add(each, entry.leader_epoch)]

    def second(self, skipped: Sequence[Claim], leader_epoch: int, error: ErrorCode) -> ErrorCode:
        """What to answer, when those behind have filled holes."""
        if not skipped:
            return error
        self._advance()
        full = [each for each in skipped if not self._add(each, leader_epoch)]
        return ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED if full else error

    def _add(self, claim: Claim, leader_epoch: int) -> bool:
        growth = self._new.growth(claim)
        if growth is None:
            self.duplicates += 1
            return True
        more = not growth.merged and (growth.first, growth.last) == (claim.first, claim.last)
        if more and not self._has_room(claim):
            return False
        self._put(claim, growth, leader_epoch)
        return True

    def _put(self, claim: Claim, growth: Growth, leader_epoch: int) -> None:
        self._new.add(claim, leader_epoch)
        low, high = claim.low, claim.high
        self._touched[low, high, growth.first] = None
        if growth.merged:
            self._merged.append((low, high, growth.merged))

    def _touch_merged(self, count: int | None) -> None:
        """So many at most; None: all."""
        keys = ((low, high, first) for low, high, firsts in self._merged for first in firsts)
        self._touched.update(dict.fromkeys(islice(keys, count)))
        self._merged.clear()

    def _has_room(self, claim: Claim) -> bool:
        """Whether there may be one more range: this one."""
        size_bytes = self._new.size_bytes + self._new.more_bytes(claim.low, claim.high)
        if claim.first <= self.stable <= claim.last:
            return size_bytes <= self._holes_max_bytes
        return self._new.count < self._ranges_max and size_bytes <= self._max_bytes

    @property
    def more_bytes(self) -> int:
        """What claims take more in memory then, if they do."""
        return max(0, self._new.size_bytes - self._old.size_bytes)

    def _advance(self) -> None:
        if self.stable < 0:
            return
        stable = self._new.stable_from(self.stable)
        if stable > self.stable:
            self.stable_epoch = self._new.epoch_at(stable - 1)
            self.stable = stable
            self._touched.update(dict.fromkeys(self._new.discard_below(stable)))

    def finish(self) -> bool:
        """Whether the stable offset moves."""
        self._advance()
        return self.stable > self._begin

    def records(self, key: Key, now_ms: int) -> list[ClaimRecord]:
        """Those of claims above the stable offset, and tombstones of what is in these.

        Tombstones of what has been passed aren't among them: they come when that is committed. Nor
        are very many of what is in other claims: these say the same.
        """
        values: list[ClaimRecord] = []
        tombstones: list[ClaimRecord] = []
        needless: list[ClaimRecord] = []
        self._touch_merged(self._needless_max)
        for claim_key in self._touched:
            first = claim_key[2]
            before = self._old.having(claim_key)
            was = before if before is not None and before[0] == first else None
            now = self._new.having(claim_key)
            if now is not None and now[0] == first:
                if now != was:
                    _, last, epoch = now
                    state = ClaimState(self._topic_id, last, epoch, now_ms)
                    values.append(ClaimRecord(*key, *claim_key, state))
            elif claim_key in self._stale or (was is not None and self._is_void(was, now)):
                kind = tombstones if now is None and claim_key not in self._stale else needless
                if kind is tombstones or len(needless) < self._needless_max:
                    kind.append(ClaimRecord(*key, *claim_key, None))
        # What is void goes first: else a claim that ends beside it would have it.
        return tombstones + values + needless

    def _is_void(self, was: tuple[int, int, int], now: tuple[int, int, int] | None) -> bool:
        """Whether a claim goes for another reason than that the stable offset passes it."""
        return now is not None or was[1] >= self.stable


class Short(NamedTuple):
    """What one claim makes: the stable offset then and its epoch, how much more memory it takes at
    most, and the claim's record, if it still has one.
    """

    stable: int
    stable_epoch: int
    more_bytes: int
    records: list[ClaimRecord]


def short_plan(
    coverage: Coverage,
    entry: Entry,
    stable: int,
    ranges_max: int,
    memory: ClaimMemory,
    new_bytes: int,
    now_ms: int,
) -> Short | None:
    """What a plan makes of one claim that is a new range, or has one go on at its end.

    None if other claims have more to do with it than that the stable offset may move as far as all
    slices have come, or if there is no room. `new_bytes` come with its place.
    """
    if len(entry.claims) != 1 or entry.discard_from is not None:
        return None
    (claim,) = entry.claims
    low, high, first, _ = claim
    growth = coverage.growth(claim) if first >= stable else None  # Else it is cut off.
    if growth is None or growth.merged:
        return None
    first, last, _ = growth
    epoch = entry.leader_epoch
    passed = stable, -1
    fills = first <= stable
    if fills and coverage.may_pass(stable, low, high):
        moved = coverage.passed_with(low, high, last, epoch, stable)
        if moved is None:
            return None
        passed = moved
    more_bytes = new_bytes
    if first == claim.first:
        more_bytes += coverage.more_bytes(low, high)
        if more_bytes > (memory.hole_room_bytes if fills else memory.room_bytes):
            return None
        if coverage.count >= ranges_max and not fills:
            return None
    if last < passed[0]:
        return Short(*passed, more_bytes, [])
    state = ClaimState(entry.topic_id, last, epoch, now_ms)
    return Short(*passed, more_bytes, [ClaimRecord(*entry.key, low, high, first, state)])


class ShortWait:
    """One commit that is answered when the only record has landed that was written for it.

    Until then `size_bytes` count.
    """

    __slots__ = ("_entry", "_memory", "_size_bytes", "_stable")

    def __init__(self, entry: Entry, stable: int, memory: ClaimMemory, size_bytes: int) -> None:
        self._entry = entry
        self._stable = stable
        self._memory = memory
        self._size_bytes = size_bytes
        memory.used_bytes += size_bytes

    def committed(self, now_ms: int) -> None:
        self._memory.used_bytes -= self._size_bytes
        self._entry.answer(ErrorCode.NONE, self._stable)

    def failed(self, error: ErrorCode, now_ms: int) -> None:
        self._memory.used_bytes -= self._size_bytes
        self._entry.answer(error, self._stable)


class Waits:
    """Commits that are answered when all that was written for them has landed."""

    def __init__(
        self,
        answers: Sequence[tuple[Entry, ErrorCode]],
        before: int,
        stable: int,
        landed: Callable[[], None],
    ) -> None:
        self._answers = answers
        self._before = before
        self._stable = stable
        self._landed = landed
        self._left = 1
        self._error = ErrorCode.NONE

    def write(self, out: Outbox, records: Sequence[Any], group_id: str, log: int = 0) -> None:
        self._left += 1
        out.write(records, (group_id,), self.begin, self._failed, log)

    def _failed(self, error: ErrorCode, now_ms: int) -> None:
        self._error = self._error or error
        self.begin(now_ms)

    def begin(self, now_ms: int) -> None:
        """One of those that are waited for is done."""
        self._left -= 1
        if self._left:
            return
        self._landed()
        stable = self._before if self._error else self._stable
        for entry, error in self._answers:
            entry.answer(self._error or error, stable)


def moved_offset(
    key: Key, committed: CommittedOffset | None, stable: int, epoch: int, now_ms: int
) -> Sequence[OffsetRecord]:
    """The record of the group's offset when the stable one has moved."""
    metadata = "" if committed is None else committed.metadata
    expires_ms = NO_TIMESTAMP if committed is None else committed.expire_timestamp_ms
    if metadata or expires_ms != NO_TIMESTAMP:
        offset = CommittedOffset(stable, epoch, metadata, now_ms, expires_ms)
        return [OffsetRecord(*key, offset)]
    group_id, topic, partition = key
    run = OffsetRun(group_id, topic, (partition,), (stable,), (epoch,), (now_ms,))
    return OffsetRuns([run])


def records_together(key: Key) -> int:
    """How many tombstones of this place are written at a time."""
    return min(TOMBSTONES_TOGETHER, _BATCH_BYTES // _record_bytes(key[0], key[1]))


def batches(records: Sequence[ClaimRecord]) -> Iterator[list[ClaimRecord]]:
    """The records as several writes, if they are too many for one."""
    weighed = ((each, _record_bytes(each.group_id, each.topic)) for each in records)
    return bounded(weighed, _BATCH_BYTES, _RECORDS_PER_BATCH)


def _record_bytes(group_id: str, topic: str) -> int:
    return _RECORD_BYTES + len(group_id.encode()) + len(topic)
