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
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from kraftpy.core.coordination import Write
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.plan import Entry, Key, Plan, Waits, batches
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset, OffsetRecord
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
    """What the claims of a broker take, and what they may take; shared by all its machines."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


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

    __slots__ = (
        "commit_timestamp_ms",
        "coverage",
        "held",
        "is_settled",
        "jobs",
        "stale",
        "topic_id",
    )

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.topic_id = b""
        self.commit_timestamp_ms = NO_TIMESTAMP
        self.stale: dict[ClaimKey, None] = {}
        self.jobs: deque[Entry | Drop] = deque()
        self.held: Drop | None = None
        # Whether the stable offset is what follows from the claims, as far as is known.
        self.is_settled = False

    def __bool__(self) -> bool:
        return bool(self.coverage.count or self.jobs or self.stale or self.held)


class Claims:
    """The claims of the groups of one partition of the offsets topic."""

    def __init__(
        self, offsets: OffsetMap, outbox: Outbox, memory: ClaimMemory, ranges_max: int
    ) -> None:
        self._offsets = offsets
        self._out = outbox
        self._memory = memory
        self._ranges_max = ranges_max
        self.places: dict[str, dict[Key, _Place]] = {}
        """By group; empty where nobody claims anything, so that others needn't look further."""
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
        return group_id in self.places or self.state is ClaimsLog.CLOSED

    def __contains__(self, key: Key) -> bool:
        return key in self.places.get(key[0], ())

    def keys_of(self, group_id: str) -> list[Key]:
        """Where the group has claims, or is about to."""
        return list(self.places.get(group_id, ()))

    def keys_of_topic(self, topic: str) -> list[Key]:
        return [key for places in self.places.values() for key in places if key[1] == topic]

    def coverage(self, key: Key) -> Coverage | None:
        """What is claimed above the stable offset; None if nothing is."""
        place = self.places.get(key[0], {}).get(key)
        return None if place is None or not place.coverage.count else place.coverage

    def commit_timestamp_ms(self, key: Key) -> int:
        """When something was claimed here last; -1 if nothing is."""
        place = self.places.get(key[0], {}).get(key)
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
            place = self.places.get(key[0], {}).get(key)
            if place is not None and place.held is drop:
                place.held = None
                self._pump(key, now_ms)

    def concerned(self, write: Write[Any]) -> list[Key]:
        """Places with claims that a write has to do with."""
        if not any(group_id in self.places for group_id in write.keys):
            return []
        kinds = OffsetRecord | ClaimRecord
        keys = {each[:3]: None for each in write.records if isinstance(each, kinds)}
        return [key for key in keys if key in self]

    def landed(self, keys: Iterable[Key], now_ms: int, *, failed: bool = False) -> None:
        """A write to these places is no longer in flight."""
        for key in keys:
            if failed:
                self._place(key).is_settled = False
            # What failed just now would fail again; who comes next tries.
            self._pump(key, now_ms, mends=not failed)

    def _place(self, key: Key) -> _Place:
        return self.places.setdefault(key[0], {}).setdefault(key, _Place())

    def _pump(self, key: Key, now_ms: int, *, mends: bool = True) -> None:
        """Goes on with what waits here, if nothing is in flight."""
        place = self.places.get(key[0], {}).get(key)
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
        if place.is_settled or not place.coverage.count:
            return False
        stable = self.stable_offset(key)
        place.is_settled = stable < 0 or place.coverage.stable_from(stable) == stable
        return not place.is_settled

    def _write(self, key: Key, place: _Place, entries: Sequence[Entry], now_ms: int) -> None:
        """Takes claims in: decides, and writes what follows."""
        if entries and entries[-1].topic_id != place.topic_id:
            self._void(place, entries[-1].topic_id)
        committed = self._offsets.get(*key)
        before = -1 if committed is None else max(committed.offset, -1)
        plan = Plan(
            place.coverage, place.stale, place.topic_id, before, self._ranges_max, self._room()
        )
        answers = [(entry, *plan.judge(entry)) for entry in entries]
        judged = [
            (entry, plan.second(skipped, entry.leader_epoch, error))
            for entry, error, skipped in answers
        ]
        self.duplicates += plan.duplicates
        moved = plan.finish()
        waits = Waits(judged, before, plan.stable)
        if moved:
            metadata = "" if committed is None else committed.metadata
            expires_ms = NO_TIMESTAMP if committed is None else committed.expire_timestamp_ms
            new = CommittedOffset(plan.stable, plan.stable_epoch, metadata, now_ms, expires_ms)
            waits.write(self._out, [OffsetRecord(*key, new)], key[0])
        records = plan.records(key, now_ms)
        for batch in [records] if len(records) == 1 else batches(records):
            waits.write(self._out, batch, key[0], TWIN)
        place.is_settled = True
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
            its = self.places[each[0]][each]
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

        parts = list(batches(records))
        drop.left = len(parts)
        for batch in parts:
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
            place = self.places.get(key[0], {}).get(key)
            if place is not None:
                gone = place.coverage.discard_below(self.stable_offset(key))
                place.is_settled = False
                place.stale.update(dict.fromkeys(each[:3] for each in gone))
                self._count(-len(gone))

    def lost(self, records: Iterable[ClaimRecord]) -> None:
        """These aren't in the log and never will be."""
        for record in records:
            key = record.low, record.high, record.first
            place = self.places.get(record.group_id, {}).get(record[:3])
            if record.state is None and place is not None:
                holding = place.coverage.having(key)
                if holding is None or holding[0] != record.first:
                    place.stale[key] = None

    def _count(self, more: int) -> None:
        self.ranges_count += more
        self._memory.used_bytes += more * RANGE_BYTES

    def _forget(self, key: Key, place: _Place) -> None:
        places = self.places.get(key[0])
        if places is not None and places.get(key) is place and not self._is_busy(key):
            del places[key]
            if not places:
                del self.places[key[0]]

    # -- the log

    def opened(self, topic_id_of: Callable[[str], bytes | None], now_ms: int) -> None:
        """The log has been read: what isn't wanted any more goes, what is true takes effect."""
        self.state = ClaimsLog.OPEN
        for places in list(self.places.values()):
            for key, place in list(places.items()):
                topic_id = topic_id_of(key[1])
                if topic_id != place.topic_id:
                    self._void(place, topic_id or b"")
                self.moved([key])
                self._pump(key, now_ms)

    def closed(self, state: ClaimsLog, error: ErrorCode, now_ms: int) -> None:
        """The log isn't led here any more, or is about to be read again: nothing is known of it."""
        groups, self.places = self.places, {}
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
