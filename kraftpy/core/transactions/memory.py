"""What the transactional ids of a broker take in memory, counted and bounded.

An id is kept for a week after its last use, and any client may open another. No id comes in when
half of `transaction.coordinator.max.memory.bytes` is used up, and no partition joins a transaction
when all of it is (COORDINATOR_NOT_AVAILABLE: clients try again). So those that are in stay in, and
can write though somebody opens ids without end. Sizes are what text takes, and a guess for the
objects around it.
"""

from __future__ import annotations

from kraftpy.core.transactions.states import Transaction

ID_BYTES = 512
OPEN_BYTES = 384  # more, while it has partitions
PARTITION_BYTES = 224


def size_bytes(transactional_id: str, transaction: Transaction | None) -> int:
    """What an id takes."""
    if transaction is None:
        return 0
    text = len(transactional_id) * (1 if transactional_id.isascii() else 4)
    return ID_BYTES + text + _open_bytes(transaction)


def _open_bytes(transaction: Transaction) -> int:
    partitions = len(transaction.partitions)
    return OPEN_BYTES + PARTITION_BYTES * partitions if partitions else 0


def growth_bytes(
    transactional_id: str, before: Transaction | None, after: Transaction | None
) -> int:
    """By how much an id takes more than before."""
    if before is not None and after is not None:
        if before.partitions is after.partitions:
            return 0
        return _open_bytes(after) - _open_bytes(before)
    return size_bytes(transactional_id, after) - size_bytes(transactional_id, before)


class TransactionMemory:
    """Shared by all machines of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, more_bytes: int, *, is_new: bool) -> bool:
        """Whether an id may take so much more. What takes no more always may."""
        limit_bytes = self._limit_bytes // 2 if is_new else self._limit_bytes
        return more_bytes <= 0 or self.used_bytes + more_bytes <= limit_bytes
