"""What the claims of a broker take of its memory, and what they may.

Rules:

* What Python keeps is counted: besides its ranges a slice has a fixed cost, and so has a place, a
  group's partition with claims. Where each of them has few ranges, that is nearly all. What a write
  in flight will keep counts from when it is decided on.
* What fills a hole may take some more than the others: without it no offset moves, and no memory
  becomes free. A broker that has taken over more than it may have begins with that.
"""

from __future__ import annotations

from collections import Counter

from kraftpy.protocol.errors import ErrorCode

# What tracemalloc finds, as test_claim_memory.py does.
RANGE_BYTES = 21
SLICE_BYTES = 510
PLACE_BYTES = 1_850
STALE_BYTES = 180
PENDING_CLAIM_BYTES = 600

# How much of the limit what fills holes may take besides.
_RESERVE = 8
_RESERVE_MIN_BYTES = 1 << 20


class ClaimMemory:
    """Shared by all machines of a broker.

    `answers` counts what became of claims, by partition of a request.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.reserve_bytes = max(limit_bytes // _RESERVE, _RESERVE_MIN_BYTES)
        self._loaded_bytes = 0
        self.answers: Counter[ErrorCode] = Counter()

    @property
    def room_bytes(self) -> int:
        """For what there is room; below 0 if there is more than there may be."""
        return self.limit_bytes - self.used_bytes

    @property
    def hole_room_bytes(self) -> int:
        """The same for what fills holes."""
        return max(self.limit_bytes, self._loaded_bytes) + self.reserve_bytes - self.used_bytes

    def loaded(self) -> None:
        """Claims of a partition have been taken over."""
        self._loaded_bytes = self.used_bytes
