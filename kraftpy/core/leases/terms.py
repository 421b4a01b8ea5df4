"""What a table of leases is told, and what it tells (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.frozen import NamedTuple


class LeaseLimits(NamedTuple):
    """What the group's configuration says; a table may get others while it is in use."""

    max_record_locks: int
    max_deliveries: int
    lock_ms: int

    @property
    def careful_from(self) -> int:
        """So often delivered, a run may have a record that nobody survives."""
        return max(2, (self.max_deliveries + 1) // 2)


class Demand(NamedTuple):
    """How much a member wants: `is_strict` is the acquire mode 1, record_limit.

    Else a batch is dealt whole, if it begins within `max_records`. The leases that it is told of
    are `batch_size` records long at most.
    """

    max_records: int
    batch_size: int
    is_strict: bool


class ReadBatch(NamedTuple):
    """A batch of the log; `is_dead`: it has nothing for consumers (a marker, an aborted one)."""

    first: int
    last: int
    is_dead: bool = False


class Acquired(NamedTuple):
    """Records that are the member's now."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """`types`: one for all offsets, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """What is written of a run."""

    first: int
    last: int
    state: int
    deliveries: int


class Change(NamedTuple):
    """What is to be written; the table hears of its fate by its number.

    `finished_count`: how many records above the start offset are finished (KIP-1226).
    """

    number: int
    start_offset: int
    finished_count: int
    batches: tuple[StateBatch, ...]
