"""What is known of groups' claims: for whoever wants to know, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.individual.coverage import Coverage
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.pending import TransactionalClaims
from kraftpy.core.groups.individual.places import ClaimsLog, Place, Standing
from kraftpy.core.groups.individual.plan import Key
from kraftpy.core.groups.individual.records import ClaimRecord
from kraftpy.core.groups.individual.tombstones import Turns
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.core.groups.records import NO_TIMESTAMP, OffsetRecord
from kraftpy.core.groups.timers import TimerQueue
from kraftpy.protocol.errors import ErrorCode

# Each commit asks for it, and looking a member up in its enumeration takes several times as long.
_CLOSED = ClaimsLog.CLOSED


class KnownClaims:
    """The claims of the groups of one partition of the offsets topic, as they are."""

    def __init__(
        self,
        offsets: OffsetMap,
        outbox: Outbox,
        memory: ClaimMemory,
        ranges_max: int,
        timers: TimerQueue,
    ) -> None:
        self._offsets = offsets
        self._out = outbox
        self._memory = memory
        self._ranges_max = ranges_max
        self._turns = Turns(timers)
        self.places: dict[str, dict[Key, Place]] = {}
        """By group; empty where nobody claims anything, so that others needn't look further."""
        self.pending_count = 0
        self.state = ClaimsLog.ABSENT
        self.ranges_count = 0
        self.duplicates = 0

    @property
    def unknown(self) -> ErrorCode:
        """Why nobody can say what is claimed; NONE if it's known."""
        closed = self.state is _CLOSED
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if closed else ErrorCode.NONE

    def concerns(self, group_id: str) -> bool:
        """Whether a commit of the group may have to do with claims."""
        return group_id in self.places or self.state is _CLOSED

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
        if place is None:
            return None
        found = place.known()
        if found is not place.coverage:
            found.discard_below(self.stable_offset(key))
        return found if found.count else None

    def ranges_at(self, key: Key) -> int:
        """How many ranges there are above the stable offset, those of transactions included."""
        place = self.places.get(key[0], {}).get(key)
        return 0 if place is None else place.coverage.count + place.pending.count

    def count_answer(self, error: ErrorCode) -> None:
        """Counts what became of what a request has claimed of a partition."""
        self._memory.answers[error] += 1

    def standing(self, group_id: str) -> Iterator[Standing]:
        """Where the group has ranges above its offset; anything may change meanwhile."""
        is_full = self._memory.room_bytes <= 0
        for key in self.keys_of(group_id):
            count = self.ranges_at(key)
            committed = self._offsets.get(*key) if count else None
            if committed is not None:
                stalled = is_full or count >= self._ranges_max
                yield Standing(key[1], committed.commit_timestamp_ms, stalled)

    def reached(self, key: Key, more: Coverage) -> int:
        """The first offset that isn't done, claimed in an open transaction, or here."""
        stable = self.stable_offset(key)
        place = self.places.get(key[0], {}).get(key)
        if place is None:
            return more.stable_from(stable)
        return place.coverage.stable_from(stable, place.pending.covered, more)

    def pending_slices(self, group_id: str) -> dict[Key, set[tuple[int, int]]]:
        """Of which hashes open transactions have claimed something, or are about to."""
        found: dict[Key, set[tuple[int, int]]] = {}
        for key, place in self.places.get(group_id, {}).items():
            if place.pending.slices:
                found[key] = set(place.pending.slices)
        for write in self._out.in_flight(group_id):
            if isinstance(write.records, TransactionalClaims):
                for record in write.records:
                    found.setdefault(record[:3], set()).add((record.low, record.high))
        return found

    def mending(self, group_id: str) -> list[Key]:
        """Where the stable offset may be about to follow what a transaction has claimed."""
        return [
            key
            for key, place in self.places.get(group_id, {}).items()
            if place.pending.ended and (key in self._turns or self._is_busy(key))
        ]

    def _is_busy(self, key: Key) -> bool:
        """Whether a record of this place is in flight, but for those of transactions."""
        for write in self._out.in_flight(key[0]):
            if isinstance(write.records, TransactionalOffsets):
                continue
            for record in write.records:
                if isinstance(record, OffsetRecord | ClaimRecord) and record[:3] == key:
                    return True
        return False

    def commit_timestamp_ms(self, key: Key) -> int:
        """When something was claimed here last; -1 if nothing is."""
        place = self.places.get(key[0], {}).get(key)
        return NO_TIMESTAMP if place is None else place.commit_timestamp_ms

    def stable_offset(self, key: Key) -> int:
        """The offset from which on not all is done; -1 if nobody has said where to begin."""
        offset = self._offsets.offset(*key)
        return -1 if offset is None or offset < -1 else offset

    def latest_offset(self, key: Key) -> int:
        """The same, with what is in flight."""
        for write in reversed(self._out.in_flight(key[0])):
            if isinstance(write.records, TransactionalOffsets):
                continue
            for record in reversed(write.records):
                if isinstance(record, OffsetRecord) and record[:3] == key:
                    return -1 if record.committed is None else max(record.committed.offset, -1)
        return self.stable_offset(key)
