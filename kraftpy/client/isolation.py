"""What a reader of committed records leaves out of fetched batches (KIP-98).

Rules:

* A batch of an aborted transaction is left out: one that is transactional, by a producer of the
  answer's list of aborted transactions, from where that began up to the marker that ended it.
* The list says nothing of what lies behind the last stable offset; the broker sends none of that.
* Control batches are for nobody. The position moves past everything that is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.records import BatchHeader, Buffer, read_end_txn_marker

ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""Kafka's isolation.level as requests have it."""


class Aborted(NamedTuple):
    """An aborted transaction of the fetched range: whose, and where it began."""

    producer_id: int
    first_offset: int


class Admission:
    """Which batches of an answer are for its reader; asked about each, in the log's order."""

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        self._begun = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def admits(self, header: BatchHeader, records: Buffer, position: int) -> bool:
        """Whether the batch at `position` has records for the reader. Raises `DecodeError`."""
        while self._begun and self._begun[-1].first_offset <= header.last_offset:
            self._aborting.add(self._begun.pop().producer_id)
        if header.is_control:
            if header.producer_id in self._aborting:
                marker = read_end_txn_marker(records, position)
                if marker is not None and not marker.committed:
                    self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)
