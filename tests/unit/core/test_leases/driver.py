"""A table that tells in words what it has, and whose changes are written, or not, when a test says
so.
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.core.leases import (
    Acknowledgement,
    Acquired,
    Change,
    Demand,
    LeaseLimits,
    LeaseTable,
    ReadBatch,
    Run,
    StateBatch,
)
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode

LOCK_MS = 30_000
LIMITS = LeaseLimits(max_record_locks=2_000, max_deliveries=5, lock_ms=LOCK_MS)
NO_END = 1 << 40

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType


class Leases:
    """`batches` are the log's; every call is at `now_ms`."""

    def __init__(
        self,
        *batches: ReadBatch | tuple[int, int],
        limits: LeaseLimits = LIMITS,
        start: int = 0,
        written: Sequence[StateBatch] = (),
    ) -> None:
        self.log = [ReadBatch(*each) for each in batches]
        self.table = LeaseTable(limits, start, written)
        self.now_ms = 0
        self.change: Change | None = None

    def acquire(
        self,
        member: str = "ann",
        most: int = 500,
        *,
        batch_size: int = 0,
        is_strict: bool = False,
        end: int = NO_END,
    ) -> list[Acquired]:
        """What the member is dealt of all that there is to read."""
        asked = self.table.next_available(end)
        if asked is None:
            return []
        read = [each for each in self.log if each.last >= asked]
        demand = Demand(most, batch_size, is_strict)
        return self.table.acquire(member, asked, read, end, demand, self.now_ms)

    def say(self, first: int, last: int, *types: int, member: str = "ann") -> ErrorCode:
        return self.table.acknowledge(member, [Acknowledgement(first, last, types)], self.now_ms)

    def take(self) -> Change:
        """What there is to write."""
        change = self.table.take_change()
        assert change is not None
        return change

    def write(self) -> Change:
        """The same, written."""
        change = self.take()
        self.table.committed(change.number)
        return change

    def done(self, first: int, last: int, *types: int, member: str = "ann") -> Change:
        """Says so and writes that."""
        assert self.say(first, last, *types, member=member) is ErrorCode.NONE
        return self.write()

    def all(self) -> list[str]:
        return [_told(run) for run in self.table.runs()]


def _told(run: Run) -> str:
    offsets = str(run.first) if run.first == run.last else f"{run.first}-{run.last}"
    words = [offsets, run.state.name.capitalize()]
    words += [str(run.deliveries)] if run.deliveries else []
    words += [run.member] if run.member else []
    words += ["to be", run.target.name.capitalize()] if run.target is not None else []
    return " ".join(words)
