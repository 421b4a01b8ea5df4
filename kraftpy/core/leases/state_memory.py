"""What the share coordinators of a broker take in memory, counted and bounded.

No share-partition comes in when half of `share.coordinator.max.memory.bytes` is used up, and
nothing is written of one that gives it more runs when all of it is (COORDINATOR_NOT_AVAILABLE:
leaders and groups try again). So those that are in stay in. Sizes are what text and columns take,
and a guess for the objects around them.
"""

from __future__ import annotations

from kraftpy.core.leases.share_state import ShareState
from kraftpy.core.leases.state_records import ShareKey

SHARE_BYTES = 1_200
RUN_BYTES = 40


def size_bytes(key: ShareKey, state: ShareState | None) -> int:
    """What a share-partition takes."""
    if state is None:
        return 0
    text = len(key.group_id) * (1 if key.group_id.isascii() else 4)
    return SHARE_BYTES + text + RUN_BYTES * len(state)


class ShareMemory:
    """Shared by all machines of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, *, is_new: bool) -> bool:
        """Whether a share-partition may come in, or one that there is take more."""
        return self.used_bytes < (self._limit_bytes // 2 if is_new else self._limit_bytes)
