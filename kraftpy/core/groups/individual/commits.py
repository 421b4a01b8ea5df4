"""What requests do to claims: one partition's of `__individual_commit_offsets`, beside its offsets.

Rules:

* Claims and the stable offset are committed records only; they change in `replay` and where the
  offsets have changed (`moved`). The stable offset is the group's committed offset.
* What makes more done goes to the offsets first, what makes less done to the claims first. A commit
  writes the stable offset that follows from it and the claims above that at once, as each is true
  alone, and is answered when both are committed; the tombstones of what has been passed come then.
  Who resets has the tombstones of the claims committed before the offset is written (`drop`). A
  crash between leaves too little done, never too much.
* Whatever is done with a group's claims of a partition waits until nothing of that place is in
  flight, and all commits that wait are then one. So a record is written by who knows all others.
* A key that is in the log and in no claim any more is stale: its tombstone is written with the next
  records, or by themselves.
* Nothing is claimed before somebody has committed where the group begins: INVALID_REQUEST.
* Claims are judged each by itself. What lies below the stable offset is cut off; if that is all,
  INDIVIDUAL_COMMIT_TOO_OLD. What there is already is no error. Beyond so many ranges, or so many
  bytes of all groups, a claim is only taken if it makes no more of them.
* A topic that was made anew has another id: claims of the old one are dropped.
* Where the log of the claims can't be read (yet), claims are COORDINATOR_LOAD_IN_PROGRESS, and so
  is what might need them dropped.

Source: seed 001, "Individual Commit".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset, OffsetRecord
from kraftpy.protocol.errors import ErrorCode

TWIN = 1
"""The number of the claims' log among those of the coordinator."""

RANGE_BYTES = 20

# A batch must stay below max.message.bytes.
_RECORDS_PER_BATCH = 2_000
_BATCH_BYTES = 500_000
_RECORD_BYTES = 100  # and the names

Key = tuple[str, str, int]
"""Group, topic, partition."""

Answer = Callable[[ErrorCode, int], None]
"""Hears how it went, and the stable offset, -1 if there is none."""


class ClaimsLog(Enum):
    """Whether the log of the claims has been read."""

    ABSENT = "there is none, so there are no claims"
    CLOSED = "it isn't led here, or is being read"
    OPEN = "it has been read"


class ClaimsWanted:
    """A message: somebody wants to claim something, and there is no log for it yet."""


class ClaimMemory:
    """What the claims of a broker take, and what they may take; shared by all its machines."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


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


class _Place:
    """What a group has claimed of a partition, and who waits to claim more."""

    __slots__ = ("commit_timestamp_ms", "coverage", "held", "jobs", "stale", "topic_id")

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.topic_id = b""
        self.commit_timestamp_ms = NO_TIMESTAMP
        self.stale: dict[ClaimKey, None] = {}
        self.jobs: deque[Entry | Drop] = deque()
        self.held: Drop | None = None

    def __bool__(self) -> bool:
        return bool(self.coverage.count or self.stale or self.jobs or self.held)


class Claims:
    """The claims of the groups of one partition of the offsets topic."""

    def __init__(
        self, offsets: OffsetMap, outbox: Outbox, memory: ClaimMemory, ranges_max: int
    ) -> None:
        self._offsets = offsets
        self._out = outbox
        self._memory = memory
        self._ranges_max = ranges_max
        self._groups: dict[str, dict[Key, _Place]] = {}
        self.state = ClaimsLog.ABSENT
        self.is_offered: Callable[[], bool] = lambda: True
        """Whether clients may claim, as the cluster's features say."""
        self.ranges_count = 0
        self.duplicates = 0

    # -- asking

    @property
    def unknown(self) -> ErrorCode:
        """Why nobody can say what is claimed; NONE if it's known."""
        closed = self.state is ClaimsLog.CLOSED
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if closed else ErrorCode.NONE

    def concerns(self, group_id: str) -> bool:
        """Whether a commit of the group may have to do with claims."""
        return group_id in self._groups or self.state is ClaimsLog.CLOSED

    def __contains__(self, key: Key) -> bool:
        return key in self._groups.get(key[0], ())

    def keys_of(self, group_id: str) -> list[Key]:
        """Where the group has claims, or is about to."""
        return list(self._groups.get(group_id, ()))

    def keys_of_topic(self, topic: str) -> list[Key]:
        return [key for places in self._groups.values() for key in places if key[1] == topic]

    def coverage(self, key: Key) -> Coverage | None:
        """What is claimed above the stable offset; None if nothing is."""
        place = self._groups.get(key[0], {}).get(key)
        return None if place is None or not place.coverage.count else place.coverage

    def commit_timestamp_ms(self, key: Key) -> int:
        """When something was claimed here last; -1 if nothing is."""
        place = self._groups.get(key[0], {}).get(key)
        return NO_TIMESTAMP if place is None else place.commit_timestamp_ms

    def stable_offset(self, key: Key) -> int:
        """The offset from which on not all is done; -1 if nobody has said where to begin."""
        committed = self._offsets.get(*key)
        return -1 if committed is None else max(committed.offset, -1)

    def latest_offset(self, key: Key) -> int:
        """The same, with what is in flight."""
        for write in reversed(self._out.in_flight(key[0])):
            if isinstance(write.records, TransactionalOffsets):
                continue
            for record in reversed(write.records):
                if isinstance(record, OffsetRecord) and record[:3] == key:
                    return -1 if record.committed is None else max(record.committed.offset, -1)
        return self.stable_offset(key)

    # -- committing

    def submit(self, entry: Entry, now_ms: int) -> None:
        """A commit's claims on one partition; answered once what is new of it is committed."""
        if self.state is not ClaimsLog.OPEN:
            if self.state is ClaimsLog.ABSENT:
                self._out.send(ClaimsWanted())
            entry.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, self.stable_offset(entry.key))
            return
        self._place(entry.key).jobs.append(entry)
        self._pump(entry.key, now_ms)

    def drop(
        self, keys: Iterable[Key], then: Callable[[Drop, ErrorCode, int], None], now_ms: int
    ) -> None:
        """Drops all claims here; see `Drop`."""
        wanted = [key for key in keys if key in self]
        drop = Drop(wanted, then)
        for key in wanted:
            self._place(key).jobs.append(drop)
        if not wanted:
            then(drop, ErrorCode.NONE, now_ms)
        for key in wanted:
            self._pump(key, now_ms)

    def release(self, drop: Drop, now_ms: int) -> None:
        """What had to follow a drop has been done, or can't be."""
        for key in drop.keys:
            place = self._groups.get(key[0], {}).get(key)
            if place is not None and place.held is drop:
                place.held = None
                self._pump(key, now_ms)

    def concerned(self, records: Iterable[object], group_ids: Iterable[str]) -> list[Key]:
        """Places with claims that a write of these groups has to do with."""
        if not self._groups or not any(group_id in self._groups for group_id in group_ids):
            return []
        keys = {each[:3]: None for each in records if isinstance(each, OffsetRecord | ClaimRecord)}
        return [key for key in keys if key in self]

    def landed(self, keys: Iterable[Key], now_ms: int, *, failed: bool = False) -> None:
        """A write to these places is no longer in flight."""
        for key in keys:
            # What failed just now would fail again; who comes next tries.
            self._pump(key, now_ms, mends=not failed)

    def _place(self, key: Key) -> _Place:
        return self._groups.setdefault(key[0], {}).setdefault(key, _Place())

    def _pump(self, key: Key, now_ms: int, *, mends: bool = True) -> None:
        """Goes on with what waits here, if nothing is in flight."""
        place = self._groups.get(key[0], {}).get(key)
        if place is None or place.held is not None or self.state is not ClaimsLog.OPEN:
            return
        while not self._is_busy(key):
            if place.jobs and isinstance(place.jobs[0], Drop):
                self._hold(place.jobs.popleft(), place, key, now_ms)  # type: ignore[arg-type]
                return
            entries: list[Entry] = []
            while place.jobs and isinstance(place.jobs[0], Entry):
                entries.append(place.jobs.popleft())  # type: ignore[arg-type]
            if not entries and not (mends and self._has_to_mend(key, place)):
                break
            self._write(key, place, entries, now_ms)
        if not place:
            self._forget(key, place)

    def _is_busy(self, key: Key) -> bool:
        for write in self._out.in_flight(key[0]):
            if isinstance(write.records, TransactionalOffsets):
                continue
            for record in write.records:
                if isinstance(record, OffsetRecord | ClaimRecord) and record[:3] == key:
                    return True
        return False

    def _has_to_mend(self, key: Key, place: _Place) -> bool:
        if place.stale:
            return True
        stable = self.stable_offset(key)
        return stable >= 0 and place.coverage.stable_from(stable) > stable

    def _write(self, key: Key, place: _Place, entries: Sequence[Entry], now_ms: int) -> None:
        """Takes claims in: decides, and writes what follows."""
        if entries and entries[-1].topic_id != place.topic_id:
            self._void(place, entries[-1].topic_id)
        plan = _Plan(place, self.stable_offset(key), self._ranges_max, self._room())
        answers = [(entry, *plan.judge(entry)) for entry in entries]
        judged = [
            (entry, plan.second(skipped, entry.leader_epoch, error))
            for entry, error, skipped in answers
        ]
        self.duplicates += plan.duplicates
        moved = plan.finish()
        committed = self._offsets.get(*key)
        waits = _Waits(judged, self.stable_offset(key), plan.stable)
        if moved:
            metadata = "" if committed is None else committed.metadata
            expires_ms = NO_TIMESTAMP if committed is None else committed.expire_timestamp_ms
            new = CommittedOffset(plan.stable, plan.stable_epoch, metadata, now_ms, expires_ms)
            waits.write(self._out, [OffsetRecord(*key, new)], key[0])
        for batch in _batches(plan.records(key, now_ms)):
            waits.write(self._out, batch, key[0], TWIN)
        waits.begin(now_ms)

    def _room(self) -> int:
        return (self._memory.limit_bytes - self._memory.used_bytes) // RANGE_BYTES

    # -- dropping

    def _hold(self, drop: Drop, place: _Place, key: Key, now_ms: int) -> None:
        place.held = drop
        drop.waits_for.discard(key)
        if drop.waits_for:
            return
        records = []
        for each in drop.keys:
            its = self._groups[each[0]][each]
            claims = [*its.coverage.keys(), *its.stale]
            records += [ClaimRecord(*each, *claim, None) for claim in claims]
        if not records:
            drop.then(drop, ErrorCode.NONE, now_ms)
            return

        def committed(now_ms: int) -> None:
            drop.left -= 1
            if not drop.left:
                drop.then(drop, drop.error, now_ms)

        def failed(error: ErrorCode, now_ms: int) -> None:
            drop.error = drop.error or error
            committed(now_ms)

        batches = list(_batches(records))
        drop.left = len(batches)
        for batch in batches:
            group_ids = tuple(dict.fromkeys(record.group_id for record in batch))
            self._out.write(batch, group_ids, committed, failed, TWIN)  # type: ignore[arg-type]

    # -- what is committed

    def replay(self, records: Iterable[ClaimRecord]) -> None:
        """Takes in records of the log, in its order."""
        for record in records:
            key = record[:3]
            claim_key = record.low, record.high, record.first
            place = self._place(key)
            if record.state is None:
                place.stale.pop(claim_key, None)
                self._count(-int(place.coverage.remove(claim_key)))
            else:
                self._put(place, Claim(*claim_key, record.state.last), record.state)
            if not place:
                self._forget(key, place)

    def _put(self, place: _Place, claim: Claim, state: ClaimState) -> None:
        claim_key = claim[:3]
        if state.topic_id != place.topic_id:
            self._void(place, state.topic_id)
        place.stale.pop(claim_key, None)
        growth = place.coverage.growth(claim)
        before = place.coverage.count
        place.coverage.put(claim, state.leader_epoch)
        self._count(place.coverage.count - before)
        place.commit_timestamp_ms = max(place.commit_timestamp_ms, state.commit_timestamp_ms)
        # Tombstones follow, unless a crash came between; until then the log has these keys.
        for first in growth.merged if growth is not None else ():
            place.stale[claim.low, claim.high, first] = None
        holding = place.coverage.having(claim_key)
        if holding is not None and holding[0] != claim.first:
            place.stale[claim_key] = None

    def _void(self, place: _Place, topic_id: bytes) -> None:
        """The topic was made anew: nothing that was claimed of the one before counts."""
        place.stale.update(dict.fromkeys(place.coverage.keys()))
        self._count(-place.coverage.count)
        place.coverage.clear()
        place.topic_id = topic_id

    def moved(self, keys: Iterable[Key]) -> None:
        """The committed offsets here have changed: claims below are passed."""
        for key in keys:
            place = self._groups.get(key[0], {}).get(key)
            if place is not None:
                gone = place.coverage.discard_below(self.stable_offset(key))
                place.stale.update(dict.fromkeys(each[:3] for each in gone))
                self._count(-len(gone))

    def lost(self, records: Iterable[ClaimRecord]) -> None:
        """These aren't in the log and never will be."""
        for record in records:
            key = record.low, record.high, record.first
            place = self._groups.get(record.group_id, {}).get(record[:3])
            if record.state is None and place is not None:
                holding = place.coverage.having(key)
                if holding is None or holding[0] != record.first:
                    place.stale[key] = None

    def _count(self, more: int) -> None:
        self.ranges_count += more
        self._memory.used_bytes += more * RANGE_BYTES

    def _forget(self, key: Key, place: _Place) -> None:
        places = self._groups.get(key[0])
        if places is not None and places.get(key) is place and not self._is_busy(key):
            del places[key]
            if not places:
                del self._groups[key[0]]

    # -- the log

    def opened(self, topic_id_of: Callable[[str], bytes | None], now_ms: int) -> None:
        """The log has been read: what isn't wanted any more goes, what is true takes effect."""
        self.state = ClaimsLog.OPEN
        for places in list(self._groups.values()):
            for key, place in list(places.items()):
                topic_id = topic_id_of(key[1])
                if topic_id != place.topic_id:
                    self._void(place, topic_id or b"")
                self.moved([key])
                self._pump(key, now_ms)

    def closed(self, state: ClaimsLog, error: ErrorCode, now_ms: int) -> None:
        """The log isn't led here any more, or is about to be read again: nothing is known of it."""
        groups, self._groups = self._groups, {}
        self._count(-self.ranges_count)
        self.state = state
        drops: dict[int, Drop] = {}
        for places in groups.values():
            for key, place in places.items():
                for job in place.jobs:
                    if isinstance(job, Drop):
                        drops[id(job)] = job
                    else:
                        job.answer(error, self.stable_offset(key))
                if place.held is not None and place.held.waits_for:
                    drops[id(place.held)] = place.held
        for drop in drops.values():
            drop.then(drop, error, now_ms)


class _Plan:
    """What some commits make of the claims of a place."""

    def __init__(self, place: _Place, stable: int, ranges_max: int, room: int) -> None:
        self.stable = stable
        self.stable_epoch = -1
        self.duplicates = 0
        self._old = place.coverage
        self._stale = place.stale
        self._topic_id = place.topic_id
        self._new = place.coverage.copy()
        self._begin = stable
        self._max = min(ranges_max, place.coverage.count + max(0, room))
        # Of the claims whose records may have to change.
        self._touched: dict[ClaimKey, None] = dict.fromkeys(place.stale)

    def judge(self, entry: Entry) -> tuple[ErrorCode, list[Claim]]:
        """What to answer so far, and the claims for which there is no room."""
        if entry.topic_id != self._topic_id:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        if self._begin < 0:
            return ErrorCode.INVALID_REQUEST, []
        if entry.discard_from is not None:
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
        # What fills a hole always may.
        more = not growth.merged and (growth.first, growth.last) == (claim.first, claim.last)
        if more and self._new.count >= self._max and not self._reaches_stable(claim):
            return False
        self._new.add(claim, leader_epoch)
        low, high = claim.low, claim.high
        self._touched[low, high, growth.first] = None
        for first in growth.merged:
            self._touched[low, high, first] = None
        return True

    def _reaches_stable(self, claim: Claim) -> bool:
        """Whether it has the first offset that isn't done."""
        return claim.first <= self.stable <= claim.last

    def _advance(self) -> None:
        if self.stable < 0:
            return
        stable = self._new.stable_from(self.stable)
        if stable > self.stable:
            self.stable_epoch = self._new.epoch_at(stable - 1)
            self.stable = stable
            gone = self._new.discard_below(stable)
            self._touched.update(dict.fromkeys(each[:3] for each in gone))

    def finish(self) -> bool:
        """Whether the stable offset moves."""
        self._advance()
        return self.stable > self._begin

    def records(self, key: Key, now_ms: int) -> list[ClaimRecord]:
        """Those of claims above the stable offset, and tombstones of what is in these.

        Tombstones of what has been passed aren't among them: they come when that is committed.
        """
        values, tombstones = [], []
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
                tombstones.append(ClaimRecord(*key, *claim_key, None))
        return values + tombstones

    def _is_void(self, was: tuple[int, int, int], now: tuple[int, int, int] | None) -> bool:
        """Whether a claim goes for another reason than that the stable offset passes it."""
        return now is not None or was[1] >= self.stable


class _Waits:
    """Commits that are answered when all that was written for them has landed."""

    def __init__(
        self, answers: Sequence[tuple[Entry, ErrorCode]], before: int, stable: int
    ) -> None:
        self._answers = answers
        self._before = before
        self._stable = stable
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
        stable = self._before if self._error else self._stable
        for entry, error in self._answers:
            entry.answer(self._error or error, stable)


def _batches(records: Sequence[ClaimRecord]) -> Iterator[list[ClaimRecord]]:
    batch: list[ClaimRecord] = []
    size_bytes = 0
    for record in records:
        record_bytes = _RECORD_BYTES + len(record.group_id.encode()) + len(record.topic)
        if batch and (len(batch) == _RECORDS_PER_BATCH or size_bytes + record_bytes > _BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record_bytes
    if batch:
        yield batch
