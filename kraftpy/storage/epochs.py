"""Leader epochs of one log: which epoch wrote from which offset on (KIP-101, KIP-279).

The cache is what replicas truncate by. Rules (consistency.md §3.5 rules 1-6):

* Epochs and start offsets both rise strictly. An epoch without records is the last entry until a
  newer one starts at the same offset and takes its place.
* It is cut with the log, at both ends.
* It changes in memory; `leader-epoch-checkpoint` is written before a recovery point that covers
  the change. Recovery reads epochs newer than that out of the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """Entries (epoch, start offset); `changed` says that the checkpoint file is older than they."""

    __slots__ = ("_epochs", "_starts", "changed")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]
        self.changed = False

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
        epochs[keep:] = [epoch]
        starts[keep:] = [start_offset]
        self.changed = True

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
        after = bisect_right(epochs, epoch)
        end_offset = starts[after] if after < len(starts) else log_end_offset
        return (epochs[after - 1] if after else epoch), end_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets epochs that start at or after `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets epochs that end at or before `start_offset`; the one around it starts there."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:index], self._starts[:index]
        self._starts[0] = start_offset
        self.changed = True

    def clear(self) -> None:
        self.changed = self.changed or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
