"""Leader epochs of one log: which epoch wrote from which offset on (KIP-101, KIP-279).

The cache is what replicas truncate by. Rules (docs/rules.md, rules 1-6):

* Epochs and start offsets both rise strictly. An epoch without records is the last entry until a
  newer one starts at the same offset and takes its place.
* It is cut with the log, at both ends.
* It changes in memory; `leader-epoch-checkpoint` is written before a recovery point that covers
  the change. Recovery reads epochs newer than that out of the batches.
* What of it is in the file is a state of its own, which changes when the file was written and not
  before. Snapshots have versions: an older one neither replaces a newer one in the file nor speaks
  for what changed since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from kraftpy.frozen import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

_NOWHERE: Final = 2**63 - 1


class EpochSnapshot(NamedTuple):
    """What `leader-epoch-checkpoint` is to say; later versions have replaced earlier ones."""

    version: int
    entries: list[tuple[int, int]]


class LeaderEpochs:
    """Entries (epoch, start offset), at first those of the checkpoint file.

    `saved_version` is that of the snapshot in the file. Whoever writes the file sets it, on any
    thread, one at a time; everything else belongs to the event loop.
    """

    __slots__ = ("_changed_from", "_epochs", "_starts", "_version", "saved_version")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]
        self._version = self.saved_version = 0
        self._changed_from = _NOWHERE

    @property
    def changed(self) -> bool:
        """Whether the file is older than the entries."""
        return self._version != self.saved_version

    def changed_below(self, offset: int) -> bool:
        """Whether an entry that starts below `offset` isn't in the file, or is wrong there.

        Entries for offsets that the log's start has left don't count: they do no harm.
        """
        return self.changed and self._changed_from < offset

    def snapshot(self) -> EpochSnapshot:
        return EpochSnapshot(self._version, self.entries())

    def note_file_removed(self) -> None:
        """The file says nothing any more; snapshots that were taken before are void."""
        self._note_change(self._starts[0] if self._starts else _NOWHERE)
        self.saved_version = self._version - 1

    def _note_change(self, from_offset: int) -> None:
        # A writer on another thread may finish right now: then this counts too much, never too
        # little.
        unsaved_from = self._changed_from if self.changed else _NOWHERE
        self._changed_from = min(unsaved_from, from_offset)
        self._version += 1

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when there is none."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` writes from `start_offset` on; entries that contradict this are dropped."""
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return
        keep = min(bisect_left(epochs, epoch), bisect_left(starts, start_offset))
        self._note_change(min([start_offset, *starts[keep:]]))
        epochs[keep:] = [epoch]
        starts[keep:] = [start_offset]

    def epoch_for(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when it isn't known."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch ≤ asked, its end offset): OffsetForLeaderEpoch's answer (KIP-279).

        (-1, -1) for an epoch newer than all of them or undefined; for one older than all of them
        itself and the first start offset.
        """
        epochs, starts = self._epochs, self._starts
        if epoch == UNDEFINED_EPOCH or not epochs or epoch > epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == epochs[-1]:  # as a follower's is, in every fetch but the first
            return epoch, log_end_offset
        after = bisect_right(epochs, epoch)
        return (epochs[after - 1] if after else epoch), starts[after]

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets epochs that start at or after `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            self._note_change(self._starts[keep])
            del self._epochs[keep:], self._starts[keep:]

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets epochs that end at or before `start_offset`; the one around it starts there."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:index], self._starts[:index]
        self._starts[0] = start_offset
        self._note_change(_NOWHERE)

    def clear(self) -> None:
        if self._starts:
            self._note_change(self._starts[0])
        self._epochs.clear()
        self._starts.clear()
