"""Which batches of a log have something for the members of a share group.

Markers and batches that compaction has emptied have nothing for anybody; what an aborted
transaction wrote has nothing for groups that read what is committed (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.core.leases.terms import ReadBatch
from kraftpy.core.producers import CompletedTransaction
from kraftpy.protocol.record_batch import TRANSACTIONAL_BIT, BatchHeader


class Aborted:
    """The aborted transactions that a read may meet."""

    __slots__ = ("_of_producer",)

    def __init__(self, transactions: Iterable[CompletedTransaction]) -> None:
        self._of_producer: dict[int, list[CompletedTransaction]] = {}
        for each in transactions:
            self._of_producer.setdefault(each.producer_id, []).append(each)

    def has(self, header: BatchHeader) -> bool:
        """Whether the batch is one of theirs."""
        if not self._of_producer or not header.attributes & TRANSACTIONAL_BIT:
            return False
        first = header.base_offset
        return any(
            each.first_offset <= first <= each.last_offset
            for each in self._of_producer.get(header.producer_id, ())
        )


NOTHING_ABORTED = Aborted(())


def read_batch(header: BatchHeader, aborted: Aborted = NOTHING_ABORTED) -> ReadBatch:
    """What a table is to know of a batch."""
    is_dead = header.is_control or not header.records_count or aborted.has(header)
    return ReadBatch(header.base_offset, header.last_offset, is_dead)
