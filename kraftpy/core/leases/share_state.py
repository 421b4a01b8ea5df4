"""What the share coordinator keeps of a share-partition: the sum of its records.

Rules:

* The start offset and the leader epoch never fall while the state epoch is the same.
* A newer batch wins, but what is finished stays so, and a count of deliveries doesn't fall: a write
  that comes late, or twice, gives nothing back. Only a snapshot begins anew.
* Equal neighbours join. What nobody has written is Available, and isn't in an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kraftpy.core.leases.runs import ACKNOWLEDGED, AVAILABLE, Piece, Runs
from kraftpy.core.leases.state_records import NO_OFFSET, Snapshot, Update
from kraftpy.core.leases.terms import StateBatch
from kraftpy.frozen import NamedTuple


class Summary(NamedTuple):
    """What is told of a share-partition without its batches."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    finished_count: int


class ShareState:
    """A share-partition; `updates` counts what came since its snapshot."""

    __slots__ = (
        "_runs",
        "created_ms",
        "epoch",
        "finished_count",
        "leader_epoch",
        "start_offset",
        "state_epoch",
        "updates",
    )

    def __init__(self, snapshot: Snapshot) -> None:
        self.epoch = snapshot.epoch
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.start_offset = snapshot.start_offset
        self.finished_count = snapshot.finished_count
        self.created_ms = snapshot.created_ms
        self.updates = 0
        self._runs = Runs(max(snapshot.start_offset, 0))
        self._put(snapshot.batches)

    def __len__(self) -> int:
        """In how many runs its offsets are."""
        return len(self._runs.firsts)

    def apply(self, update: Update) -> None:
        """Takes in what has changed."""
        self.updates += 1
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        if update.start_offset == NO_OFFSET:
            self.finished_count = update.finished_count
        elif update.start_offset >= self.start_offset:
            self.start_offset = update.start_offset
            # Of a write that came late it would be that of another start.
            self.finished_count = update.finished_count
            self._runs.drop_below(update.start_offset)
        self._put(update.batches)

    def _put(self, batches: Iterable[StateBatch]) -> None:
        for section in _ascending(batches):
            last = section[-1].last
            if last >= self._runs.end:  # what lies between isn't written of
                self._runs.append(last, AVAILABLE)
            self._runs.put_all(list(self._winning(section)))

    def _winning(self, batches: Iterable[StateBatch]) -> Iterator[Piece]:
        """What of these, which ascend, takes the place of what there is."""
        runs = self._runs
        states, counts = runs.states, runs.deliveries
        for first, last, index, (_, _, state, deliveries) in runs.parts(batches):
            if state >= ACKNOWLEDGED or (
                states[index] < ACKNOWLEDGED and counts[index] <= deliveries
            ):
                yield first, last, (state, deliveries, "", 0, 0)

    def batches(self) -> tuple[StateBatch, ...]:
        """What was written of offsets from the start on, ascending."""
        runs = self._runs
        return tuple(
            StateBatch(first, runs.last_of(index), state, deliveries)
            for index, (first, state, deliveries) in enumerate(
                zip(runs.firsts, runs.states, runs.deliveries, strict=True)
            )
            if state or deliveries
        )

    def summary(self) -> Summary:
        """All but its batches."""
        return Summary(self.state_epoch, self.leader_epoch, self.start_offset, self.finished_count)

    def snapshot(self, now_ms: int, epoch: int, *, with_batches: bool = True) -> Snapshot:
        """All of it, as the snapshot of this epoch."""
        return Snapshot(
            epoch,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.finished_count,
            self.created_ms,
            now_ms,
            self.batches() if with_batches else (),
        )

    def copy(self) -> ShareState:
        """One that changes by itself."""
        other = ShareState(self.snapshot(0, self.epoch, with_batches=False))
        other.updates = self.updates
        other._runs = self._runs.copy()
        return other


def _ascending(batches: Iterable[StateBatch]) -> Iterator[list[StateBatch]]:
    """These in parts that ascend; a leader's write is one, several that became one are several."""
    part: list[StateBatch] = []
    before = -1
    for each in batches:
        first, last, _, _ = each
        if part and first <= before:
            yield part
            part = []
        part.append(each)
        before = last
    if part:
        yield part
