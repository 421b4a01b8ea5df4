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
  bytes of all groups (`memory`), one is only taken if it makes no more of them, or fills a hole.
* A topic that was made anew has another id: claims of the old one are dropped.
* What a transaction claims (`pending`) is written at once, whatever else is under way: its records
  are its own. It counts when its marker is committed, and is written anew from then on.
* Where the log of the claims can't be read (yet), claims are COORDINATOR_LOAD_IN_PROGRESS, and so
  is what might need them dropped.

Source: seed 001, "Individual Commit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kraftpy.core.coordination import Write
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.claim_runs import ClaimRun
from kraftpy.core.groups.individual.coverage import Claim
from kraftpy.core.groups.individual.known import KnownClaims
from kraftpy.core.groups.individual.memory import PENDING_CLAIM_BYTES, ClaimMemory
from kraftpy.core.groups.individual.pending import TransactionalClaims, claimed_in
from kraftpy.core.groups.individual.places import (
    TWIN,
    ClaimsLog,
    ClaimsWanted,
    Drop,
    Place,
)
from kraftpy.core.groups.individual.plan import (
    FEW_RECORDS,
    TOMBSTONES_TOGETHER,
    Entry,
    Key,
    Plan,
    ShortWait,
    Waits,
    batches,
    moved_offset,
    records_together,
    short_plan,
)
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState, Transaction
from kraftpy.core.groups.individual.tombstones import next_of
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import TransactionEnds
from kraftpy.core.groups.records import OffsetRecord
from kraftpy.core.groups.timers import TimerQueue
from kraftpy.protocol.errors import ErrorCode

# Each commit asks for it, and looking a member up in its enumeration takes several times as long.
_OPEN = ClaimsLog.OPEN


class Claims(KnownClaims):
    """The claims of the groups of one partition of the offsets topic."""

    def __init__(
        self,
        offsets: OffsetMap,
        outbox: Outbox,
        memory: ClaimMemory,
        ranges_max: int,
        timers: TimerQueue,
    ) -> None:
        super().__init__(offsets, outbox, memory, ranges_max, timers)
        # Where each producer has claims pending.
        self._producers: dict[int, dict[Key, None]] = {}
        self._kept_bytes = 0
        self.is_offered: Callable[[], bool] = lambda: True
        """Whether clients may claim, as the cluster's features say."""
        self.at_once_max_bytes = 1 << 62
        """How many bytes of claims a commit may have; ManyClaims beyond."""

    # -- committing

    def submit(self, entry: Entry, now_ms: int) -> None:
        """A commit's claims on one partition; answered once what is new of it is committed."""
        if self.state is not _OPEN:
            if self.state is ClaimsLog.ABSENT:
                self._out.send(ClaimsWanted())
            entry.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, self.stable_offset(entry.key))
            return
        key = entry.key
        place = self._place(key)
        is_free = place.is_simple and not self._out.in_flight(key[0])
        if is_free and self._write_short(place, entry, now_ms):
            return
        place.jobs.append(entry)
        if sum(map(place.coverage.touched_count, entry.claims)) > TOMBSTONES_TOGETHER:
            self._turns.wait(key, now_ms)
        else:
            self._pump(key, now_ms)

    def submit_in(self, transaction: Transaction, entry: Entry, now_ms: int) -> None:
        """The same of a transaction, which this broker has let in; its claims will be pending."""
        if self.state is not _OPEN:
            self.submit(entry, now_ms)
            return
        key, place = entry.key, self._place(entry.key)
        if entry.topic_id != place.topic_id:
            self._void(key, place, entry.topic_id)
        stable = self.stable_offset(key)
        claims = [
            claim._replace(first=max(claim.first, stable))
            for claim in entry.claims
            if claim.last >= stable
        ]
        error = ErrorCode.NONE
        if stable < 0 or not entry.claims:
            error = ErrorCode.INVALID_REQUEST
        elif not claims:
            error = ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD
        elif not self._has_room(key, place, claims, stable):
            error = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        if error is not ErrorCode.NONE:
            entry.answer(error, stable)
            if not place:
                self._forget(key, place)
            return
        claimed = (write.records for write in self._out.in_flight(key[0]))
        under_way = claimed_in(transaction, key, claimed)
        records = []
        for claim in claims:
            claim_key = claim[:3]
            known = place.pending.get((claim_key, transaction))
            last = max(
                claim.last,
                -1 if known is None else known.last,
                under_way.get(claim_key, -1),
            )
            state = ClaimState(entry.topic_id, last, entry.leader_epoch, now_ms)
            records.append(ClaimRecord(*key, *claim_key, state, transaction))
        landed = self._taken(len(records) * PENDING_CLAIM_BYTES + place.uncounted_bytes(key))
        waits = Waits([(entry, ErrorCode.NONE)], stable, stable, landed)
        for batch in batches(records):
            waits.write(self._out, TransactionalClaims(transaction, batch), key[0], TWIN)
        waits.begin(now_ms)

    def _has_room(self, key: Key, place: Place, claims: Sequence[Claim], stable: int) -> bool:
        """Whether a transaction may claim so much. What fills holes always may, within reason."""
        count = place.coverage.count + place.pending.count + len(claims)
        more_bytes = len(claims) * PENDING_CLAIM_BYTES + place.uncounted_bytes(key)
        if count <= self._ranges_max and more_bytes <= self._memory.room_bytes:
            return True
        if more_bytes > self._memory.hole_room_bytes:
            return False
        for claim in claims:
            growth = place.coverage.growth(claim)
            is_new = growth is not None and growth[:2] == claim[2:] and not growth.merged
            if is_new and not claim.first <= stable <= claim.last:
                return False
        return True

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
            place = self._place(key)
            if failed:
                place.is_settled = False
            elif place.is_simple and place.coverage.count:
                continue  # Nothing waits.
            # What failed just now would fail again; who comes next tries.
            self._pump(key, now_ms, mends=not failed)

    def _stable(self, key: Key, place: Place) -> int:
        """`stable_offset` of a place, which knows it until that moves."""
        stable = place.stable
        if stable is None:
            stable = place.stable = self.stable_offset(key)
        return stable

    def _place(self, key: Key) -> Place:
        places = self.places.get(key[0])
        if places is None:
            places = self.places[key[0]] = {}
        place = places.get(key)
        if place is None:
            place = places[key] = Place()
        return place

    def _pump(self, key: Key, now_ms: int, *, mends: bool = True, has_turn: bool = False) -> None:
        """Goes on with what waits here, if nothing is in flight; `has_turn`: with all that may."""
        place = self.places.get(key[0], {}).get(key)
        if place is None or place.held is not None or self.state is not _OPEN:
            return
        jobs = place.jobs
        while not self._is_busy(key):
            if jobs and isinstance(jobs[0], Drop):
                self._hold(jobs.popleft(), place, key, now_ms)  # type: ignore[arg-type]
                return
            entries: list[Entry] = []
            while jobs and isinstance(jobs[0], Entry):
                entries.append(jobs.popleft())  # type: ignore[arg-type]
            if not entries and not (mends and self._has_to_mend(key, place)):
                break
            if not entries and not has_turn and place.mends_in_turns:
                self._turns.wait(key, now_ms)
                return
            if self._write(key, place, entries, now_ms):
                return
        if not place:
            self._forget(key, place)

    def _has_to_mend(self, key: Key, place: Place) -> bool:
        if place.stale or place.pending.spent or place.pending.ended:
            return True
        if place.is_settled or not place.coverage.count:
            return False
        stable = self.stable_offset(key)
        place.is_settled = stable < 0 or place.coverage.stable_from(stable) == stable
        return not place.is_settled

    def _write(self, key: Key, place: Place, entries: Sequence[Entry], now_ms: int) -> bool:
        """Takes claims in: decides, and writes what follows, if anything does."""
        if not entries:
            if self._write_tombstones(key, place):
                return True
        elif len(entries) == 1 and place.is_simple and self._write_short(place, entries[0], now_ms):
            return True
        if entries and entries[-1].topic_id != place.topic_id:
            self._void(key, place, entries[-1].topic_id)
        committed = self._offsets.get(*key)
        before = -1 if committed is None else max(committed.offset, -1)
        new_bytes = place.uncounted_bytes(key)
        plan = Plan(
            place.coverage,
            place.stale,
            place.topic_id,
            before,
            self._ranges_max,
            self._memory.room_bytes - new_bytes,
            self._memory.hole_room_bytes - new_bytes,
        )
        ended = place.pending.next_ended()
        if ended:
            plan.take(
                (Claim(*key, state.last), state.leader_epoch) for (key, _), state in ended.items()
            )
        answers = [(entry, *plan.judge(entry)) for entry in entries]
        judged = [
            (entry, plan.second(skipped, entry.leader_epoch, error) if skipped else error)
            for entry, error, skipped in answers
        ]
        self.duplicates += plan.duplicates
        moved = plan.finish()
        waits = Waits(judged, before, plan.stable, self._taken(plan.more_bytes + new_bytes))
        writes = 0
        if moved:
            offset = moved_offset(key, committed, plan.stable, plan.stable_epoch, now_ms)
            waits.write(self._out, offset, key[0])
            writes += 1
        records = plan.records(key, now_ms)
        if ended or place.pending.spent:
            records += place.needless_in(key, ended, before)
        for batch in (records,) if len(records) == 1 else batches(records):
            waits.write(self._out, batch, key[0], TWIN)
            writes += 1
        place.is_settled = True
        waits.begin(now_ms)
        return writes > 0

    def _write_short(self, place: Place, entry: Entry, now_ms: int) -> bool:
        """The same of what nearly all commits claim; False if it takes a plan."""
        key = entry.key
        stable = self._stable(key, place)
        if stable < 0:
            return False
        if entry.topic_id != place.topic_id:
            if place:
                return False
            place.topic_id = entry.topic_id
        memory = self._memory
        new_bytes = place.uncounted_bytes(key)
        plan = short_plan(
            place.coverage, entry, stable, self._ranges_max, memory, new_bytes, now_ms
        )
        if plan is None:
            return False
        if plan.stable == stable:
            short = ShortWait(entry, stable, memory, plan.more_bytes)
            self._out.write(plan.records, (key[0],), short.committed, short.failed, TWIN)  # type: ignore[arg-type]
            return True
        offset = moved_offset(key, self._offsets.get(*key), plan.stable, plan.stable_epoch, now_ms)
        waits = Waits([(entry, ErrorCode.NONE)], stable, plan.stable, self._taken(plan.more_bytes))
        waits.write(self._out, offset, key[0])
        if plan.records:
            waits.write(self._out, plan.records, key[0], TWIN)
        waits.begin(now_ms)
        return True

    def _write_tombstones(self, key: Key, place: Place) -> bool:
        """Writes those of stale keys if nothing else is to be written; False if something is."""
        coverage, stable = place.coverage, self._stable(key, place)
        some = list(islice(place.stale, records_together(key)))
        if not some or place.pending or stable < 0:
            return False
        if coverage.count and (
            coverage.stable_from(stable) != stable or any(map(coverage.begins_at, some))
        ):
            return False
        records = [ClaimRecord(*key, *each, None) for each in some]
        self._out.write(records, (key[0],), _nobody_waits, _nobody_waits, TWIN)  # type: ignore[arg-type]
        place.is_settled = True
        return True

    def reserve(self, size_bytes: int) -> bool:
        """Takes so much of the memory for what has to do with claims, if it's there."""
        if size_bytes > self._memory.room_bytes:
            return False
        self._memory.used_bytes += size_bytes
        return True

    def free(self, size_bytes: int) -> None:
        """Gives that back."""
        self._memory.used_bytes -= size_bytes

    def _taken(self, size_bytes: int) -> Callable[[], None]:
        """Counts what a write is going to keep; until it has landed, and that is called."""
        self._memory.used_bytes += size_bytes
        return partial(self.free, size_bytes)

    # -- dropping

    def _hold(self, drop: Drop, place: Place, key: Key, now_ms: int) -> None:
        place.held = drop
        drop.waits_for.discard(key)
        if drop.waits_for:
            return
        if sum(self.places[each[0]][each].keys_count for each in drop.keys) > FEW_RECORDS:
            self._turns.wait(drop, now_ms)
        else:
            self._drop_some(drop, now_ms)

    def _drop_some(self, drop: Drop, now_ms: int) -> None:
        """Writes the next tombstones of a drop that holds all its places."""
        records = next_of(drop, self.places)
        if not records:
            drop.then(drop, ErrorCode.NONE, now_ms)
            return

        def committed(now_ms: int) -> None:
            if drop.left:
                self._turns.wait(drop, now_ms)
            else:
                drop.then(drop, ErrorCode.NONE, now_ms)

        failed = partial(drop.then, drop)
        group_ids = tuple(dict.fromkeys(record.group_id for record in records))
        self._out.write(records, group_ids, committed, failed, TWIN)  # type: ignore[arg-type]

    def go_on(self, now_ms: int) -> None:
        """Who waits for a turn has it: some tombstones are written."""
        who = self._turns.next(now_ms)
        if isinstance(who, Drop):
            self._drop_some(who, now_ms)
        elif who is not None:
            self._pump(who, now_ms, has_turn=True)

    # -- what is committed

    def committed(self, write: Write[Any]) -> list[Key]:
        """Takes in a write that is committed; gives the places that it concerns."""
        records = write.records
        if isinstance(records, list):
            return [key for key in self.replay(records) if key in self]
        if isinstance(records, TransactionEnds):
            ends = [self.end(id_, committed=committed) for id_, committed in records.ends]
            return list(dict.fromkeys(key for keys in ends for key in keys if key in self))
        if isinstance(records, TransactionalClaims):
            self.replay_in(records.transaction[0], records)
            return self.concerned(write)
        return [key for key in self.replay(records) if key in self]

    def replay(self, records: Iterable[ClaimRecord]) -> Iterable[Key]:
        """Takes in records of the log, in its order; gives the places that they are of."""
        places: dict[Key, Place] = {}
        for record in records:
            group_id, topic, partition, low, high, first, state, transaction = record
            key = group_id, topic, partition
            place = places[key] = self._place(key)
            if transaction is not None:
                place.pending.remove(((low, high, first), transaction))
                if place.held is not None:
                    place.pending.forget_covered()
            elif state is not None:
                self._put(key, place, Claim(low, high, first, state.last), state)
                continue
            else:
                claim_key = low, high, first
                place.stale.pop(claim_key, None)
                if place.coverage.remove(claim_key):
                    place.pending.forget_covered()
            if not place:
                self._count(key, place)
        for key, place in places.items():
            self._count(key, place)
        return places

    def replay_run(self, run: ClaimRun) -> None:
        """Takes in claims of one slice, in the log's order."""
        place = self._place(run.key)
        if place.extend(run, self.stable_offset(run.key)):
            self._count(run.key, place)
        else:
            self.replay(run.records())

    def replay_in(self, producer_id: int, records: Iterable[ClaimRecord]) -> None:
        """Takes in what a producer has claimed in its transaction."""
        for record in records:
            if record.state is None or record.transaction is None:
                continue
            key = record[:3]
            place = self._place(key)
            if not place.topic_id:
                place.topic_id = record.state.topic_id
            place.pending.put((record[3:6], record.transaction), record.state)
            self._count(key, place)
            self._producers.setdefault(producer_id, {})[key] = None

    def end(self, producer_id: int, *, committed: bool) -> list[Key]:
        """The producer's transaction has ended; gives the places that it concerns."""
        keys = list(self._producers.pop(producer_id, ()))
        for key in keys:
            place = self.places.get(key[0], {}).get(key)
            if place is not None:
                place.pending.end(producer_id, place.topic_id, committed=committed)
                self._count(key, place)
        return keys

    def _put(self, key: Key, place: Place, claim: Claim, state: ClaimState) -> None:
        claim_key = claim[:3]
        if state.topic_id != place.topic_id:
            self._void(key, place, state.topic_id)
        if claim.last < self._stable(key, place):
            # With the next one it would be one range: the tombstone of this one would end both.
            if place.coverage.remove(claim_key):
                place.pending.forget_covered()
            place.stale[claim_key] = None
            return
        place.stale.pop(claim_key, None)
        growth = place.coverage.put(claim, state.leader_epoch)
        if growth is None:  # It may be less than was claimed before.
            place.pending.forget_covered()
        place.commit_timestamp_ms = max(place.commit_timestamp_ms, state.commit_timestamp_ms)
        # Tombstones follow, unless a crash came between; until then the log has these keys.
        for first in growth.merged if growth is not None else ():
            place.stale[claim.low, claim.high, first] = None
        holding = place.coverage.having(claim_key) if growth is None else growth
        if holding is not None and holding[0] != claim.first:
            place.stale[claim_key] = None

    def _void(self, key: Key, place: Place, topic_id: bytes) -> None:
        """The topic was made anew: nothing that was claimed of the one before counts."""
        place.stale.update(dict.fromkeys(place.coverage.keys()))
        place.coverage.clear()
        place.topic_id = topic_id
        place.pending.void(topic_id)
        self._count(key, place, forget=False)

    def moved(self, keys: Iterable[Key]) -> None:
        """The committed offsets here have changed: claims below are passed."""
        for key in keys:
            place = self.places.get(key[0], {}).get(key)
            if place is not None:
                before, place.stable = place.stable, None
                stable = self._stable(key, place)
                if before is None or stable < before:
                    place.pending.forget_covered()
                else:
                    place.pending.passed(stable)
                gone = place.coverage.discard_below(stable)
                place.is_settled = False
                place.stale.update(dict.fromkeys(gone))
                self._count(key, place, forget=False)

    def lost(self, write: Write[Any]) -> None:
        """Its records aren't in the log and never will be."""
        for record in write.records:
            key = record.low, record.high, record.first
            place = self.places.get(record.group_id, {}).get(record[:3])
            if record.state is None and record.transaction is None and place is not None:
                holding = place.coverage.having(key)
                if holding is None or holding[0] != record.first:
                    place.stale[key] = None
                    self._count(record[:3], place)

    def _count(self, key: Key, place: Place, *, forget: bool = True) -> None:
        """Counts what the place keeps now, and forgets one that keeps nothing."""
        before, now = place.counted, place.size(key)
        if now != before:
            place.counted = now
            self.ranges_count += now.ranges - before.ranges
            self.pending_count += now.pending - before.pending
            self._kept_bytes += now.size_bytes - before.size_bytes
            self._memory.used_bytes += now.size_bytes - before.size_bytes
        if forget and not now.ranges and not place:
            self._forget(key, place)

    def _forget(self, key: Key, place: Place) -> None:
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
                    self._void(key, place, topic_id or b"")
                self.moved([key])
                self._pump(key, now_ms)
        self._memory.loaded()

    def closed(self, state: ClaimsLog, error: ErrorCode, now_ms: int) -> None:
        """The log isn't led here any more, or is about to be read again: nothing is known of it."""
        groups, self.places = self.places, {}
        self.free(self._kept_bytes)
        self.ranges_count = self.pending_count = self._kept_bytes = 0
        self._producers.clear()
        self.state = state
        drops = {id(drop): drop for drop in self._turns.clear()}
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


def _nobody_waits(*_: object) -> None:
    """Hears what became of tombstones."""
