"""A snapshot on its way here: in chunks, of which the next one is asked for when one has come.

Rule: a leader may start over, or another one may send another snapshot; nothing is put together of
what doesn't belong together, and nothing grows beyond what was announced.
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.quorum.raft.messages import MessageError

MAX_SNAPSHOT_SIZE_BYTES = 1 << 30


@dataclass
class IncomingSnapshot:
    """What has come so far of a snapshot of `size` bytes; also one chunk of it."""

    leader: int
    index: int
    term: int
    size: int
    data: bytearray

    def goes_on_with(self, chunk: IncomingSnapshot, position: int) -> bool:
        """Whether the chunk, which begins at `position`, is the next one."""
        return position == len(self.data) and self.index == chunk.index

    def is_whole(self) -> bool:
        """Raises MessageError if it is more than was announced, or than may be."""
        if self.size > MAX_SNAPSHOT_SIZE_BYTES or len(self.data) > self.size:
            raise MessageError("its snapshot is larger than announced or than allowed")
        return len(self.data) == self.size
