"""What a leader knows of one follower during its term, and what it may send next.

Rules:

* While it is unknown where the follower's log agrees (`probing`), one message is under way.
* Afterwards messages follow each other without waiting, up to `WINDOW_BYTES` of commands: what a
  slow follower has not acknowledged stays in the journal instead of in buffers.
* An answer to a message sent before the last mismatch says nothing new about where to go on, and
  must not move it (several batches are under way: the last refusal of a series would win, and
  followers with a long tail of their own would never catch up).
* A snapshot goes out chunk by chunk, the next one once the last one was acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BATCH_BYTES = 512 << 10
WINDOW_BYTES = 4 << 20
CHUNK_BYTES = 256 << 10


@dataclass
class SnapshotTransfer:
    """A snapshot file on its way to a follower."""

    index: int
    term: int
    data: bytes
    position: int = 0


class Progress:
    """One follower; `next_index` is the first entry that it isn't known or expected to hold."""

    def __init__(self, next_index: int) -> None:
        self.next_index = next_index
        self.match_index = 0
        self.probing = True
        self.transfer: SnapshotTransfer | None = None
        self.answered_at: float | None = None
        self.caught_up_at: float | None = None
        self._end_when_answered = 0
        self._under_way: deque[tuple[int, int]] = deque()
        self._bytes_under_way = 0
        self._heeded_from = 0
        self._refused_at_match = False

    def interrupted(self) -> None:
        """The connection ended: what is under way is lost, or its answers are."""
        self._under_way.clear()
        self._bytes_under_way = 0
        self.probing = True
        self.transfer = None
        self.next_index = self.match_index + 1 if self.match_index else self.next_index

    def may_send(self) -> bool:
        """Whether entries may be sent now."""
        if self.probing:
            return not self._under_way
        return self._bytes_under_way < WINDOW_BYTES

    def sent(self, number: int, size_bytes: int) -> None:
        """The message `number` with so many bytes of commands was sent."""
        self._under_way.append((number, size_bytes))
        self._bytes_under_way += size_bytes

    def answered(self, number: int, now: float, last_index: int) -> None:
        """The follower answered the message `number`; answers come in order. For KIP-836 two
        times are kept: of the answer, and when it last held all that there was at the time."""
        while self._under_way and self._under_way[0][0] <= number:
            self._bytes_under_way -= self._under_way.popleft()[1]
        if self.match_index >= last_index:
            self.caught_up_at = now
        elif self.match_index >= self._end_when_answered > 0:
            self.caught_up_at = self.answered_at
        self.answered_at = now
        self._end_when_answered = last_index

    def matched(self, number: int, next_index: int) -> None:
        """The follower durably holds the leader's entries below `next_index`."""
        self.match_index = max(self.match_index, next_index - 1)
        self.next_index = max(self.next_index, next_index)
        self._refused_at_match = False
        if number >= self._heeded_from:
            self.probing = False

    def mismatched(self, number: int, next_index: int, last_number: int) -> bool:
        """The follower refused the message `number`; `last_number` is the last one sent to any.

        Returns whether it lacks what it had acknowledged: its disk was lost.
        """
        lost = False
        if number >= self._heeded_from:
            if next_index <= self.match_index and self._refused_at_match:
                lost = True
                self.match_index = 0
            self._refused_at_match = next_index <= self.match_index
            self.next_index = max(self.match_index + 1, min(next_index, self.next_index))
            self.probing = True
            self._heeded_from = last_number + 1
            self._under_way.clear()
            self._bytes_under_way = 0
        return lost
