"""The newest batches that a leader made itself, for its followers: they fetch them right away.

A coordinator's batch is small, and reading it back from its file costs more than the rest of what
is done to send it.

Rules: these are the bytes that were appended, stamped, in the leader epoch that is asked for. They
reach without a gap to the end of the log, and hold at most KEPT_BYTES.
"""

from __future__ import annotations

from typing import Final

KEPT_BYTES: Final = 16 * 1024


class RecentBatches:
    """Batches of one log, oldest first, each beginning where the one before ends."""

    __slots__ = ("_batches", "_end_offset", "_leader_epoch", "_size_bytes")

    def __init__(self) -> None:
        # Most partitions never have any, and an empty deque is ten times as large.
        self._batches: list[tuple[int, memoryview]] = []
        self._size_bytes = 0
        self._end_offset = self._leader_epoch = -1

    def add(
        self, leader_epoch: int, base_offset: int, end_offset: int, records: memoryview
    ) -> None:
        """Keeps a batch that was appended in this epoch; `records` must not change any more."""
        batches = self._batches
        if base_offset != self._end_offset or leader_epoch != self._leader_epoch:
            batches.clear()
            self._size_bytes = 0
        batches.append((base_offset, records))
        self._end_offset, self._leader_epoch = end_offset, leader_epoch
        self._size_bytes += len(records)
        while self._size_bytes > KEPT_BYTES:
            self._size_bytes -= len(batches.pop(0)[1])

    def since(self, leader_epoch: int, offset: int, end_offset: int) -> list[memoryview] | None:
        """The batches from `offset` to the log's end, None if they aren't all here."""
        if end_offset != self._end_offset or leader_epoch != self._leader_epoch:
            return None
        batches = self._batches
        if batches and batches[-1][0] == offset:
            return [batches[-1][1]]
        found = [records for base_offset, records in batches if base_offset >= offset]
        begins = any(base_offset == offset for base_offset, _ in batches)
        return found if begins else None
