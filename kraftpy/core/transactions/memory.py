"""What the transactional ids of a broker take in memory, counted and bounded.

An id is kept for a week after its last use, and any client may open another: beyond
`transaction.coordinator.max.memory.bytes` no id comes in, and no partition joins a transaction
(COORDINATOR_NOT_AVAILABLE: clients try again). Those that are in stay in. Sizes are what text
takes, and a guess for the objects around it.
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
    partitions = len(transaction.partitions)
    return ID_BYTES + text + (OPEN_BYTES + PARTITION_BYTES * partitions if partitions else 0)


class TransactionMemory:
    """Shared by all machines of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, more_bytes: int) -> bool:
        """Whether ids may take so much more. What takes no more always may."""
        return more_bytes <= 0 or self.used_bytes + more_bytes <= self._limit_bytes
