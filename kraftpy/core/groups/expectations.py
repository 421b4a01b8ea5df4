"""Offsets whose fate nobody knows yet, and commits that expect to replace a certain one."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.offsets import NO_OFFSET, OffsetMap
from kraftpy.core.groups.pending_offsets import PendingOffsets, Place
from kraftpy.core.groups.records import OffsetRecord
from kraftpy.protocol.errors import ErrorCode

_EXPECTED_OFFSET_BYTES = 8


def undecided(outbox: Outbox, pending: PendingOffsets, group_id: str) -> set[Place]:
    """Where the group has offsets that are in flight, or that an open transaction has committed."""
    in_flight = {
        (record.topic, record.partition)
        for write in outbox.in_flight(group_id)
        for record in write.records
        if isinstance(record, OffsetRecord) and record.group_id == group_id
    }
    return in_flight.union(pending.places_of(group_id))


class Expectations:
    """Checks which offsets one OffsetCommit expects; `records` are those that it writes so far."""

    def __init__(
        self,
        offsets: OffsetMap,
        pending: PendingOffsets,
        outbox: Outbox,
        group_id: str,
        records: Sequence[OffsetRecord],
    ) -> None:
        self._offsets = offsets
        self._pending = pending
        self._out = outbox
        self._group_id = group_id
        self._records = records
        self._seen = 0
        self._undecided: set[Place] | None = None
        self.named = False

    def check(self, topic: str, partition: int, expected: bytes) -> ErrorCode:
        """Whether this is the offset to replace."""
        self.named = True
        if len(expected) != _EXPECTED_OFFSET_BYTES:
            return ErrorCode.INVALID_REQUEST
        if self._undecided is None:
            self._undecided = undecided(self._out, self._pending, self._group_id)
        self._undecided.update((r.topic, r.partition) for r in self._records[self._seen :])
        self._seen = len(self._records)
        if (topic, partition) in self._undecided:
            return ErrorCode.UNEXPECTED_OFFSET
        committed = self._offsets.get(self._group_id, topic, partition)
        offset = NO_OFFSET if committed is None else committed.offset
        if offset != int.from_bytes(expected, "big", signed=True):
            return ErrorCode.UNEXPECTED_OFFSET
        return ErrorCode.NONE
