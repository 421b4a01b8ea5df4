"""Rules of leases, each taken out of a build: see `broken`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kraftpy.core.leases import Acknowledgement, Change, LeaseTable, StateBatch, table
from kraftpy.core.leases.dealing import Demand, Table
from kraftpy.core.leases.runs import ARCHIVED, Runs
from kraftpy.core.leases.state import ShareStateMachine
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.coordination.led_table import LedTable

_SHORTLY_MS = 10


def lease_twice() -> None:
    """A lease is over before its time, and the record somebody else's."""
    begin = table.Dealer.__init__

    def begin_shortly(
        self: table.Dealer, of: Table, runs: Runs, member: str, demand: Demand, deadline_ms: int
    ) -> None:
        begin(self, of, runs, member, demand, deadline_ms - of.limits.lock_ms + _SHORTLY_MS)

    table.Dealer.__init__ = begin_shortly  # type: ignore[method-assign]


def ack_unpersisted() -> None:
    """A leader answers what it has been told before that is kept."""
    acknowledge = LedTable.acknowledge

    def acknowledge_at_once(
        self: LedTable, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> ErrorCode:
        said = acknowledge(self, member, acknowledgements)
        return said if isinstance(said, ErrorCode) else ErrorCode.NONE

    LedTable.acknowledge = acknowledge_at_once  # type: ignore[method-assign]


def gap_skipped() -> None:
    """The next leader takes for done what lies between the runs that were written."""
    load = LeaseTable._load

    def load_without_gaps(self: LeaseTable, first: int, last: int, *rest: Any) -> None:
        if first > self._runs.end:
            self._runs.append(first - 1, ARCHIVED)
        load(self, first, last, *rest)

    LeaseTable._load = load_without_gaps  # type: ignore[method-assign]


def count_forgotten() -> None:
    """What is given back is written as if nobody had had it."""
    take_change = LeaseTable.take_change

    def take_without_counts(self: LeaseTable) -> Change | None:
        change = take_change(self)
        if change is None:
            return None
        batches = (StateBatch(*each[:3], 0) if not each.state else each for each in change.batches)
        return change._replace(batches=tuple(batches))

    LeaseTable.take_change = take_without_counts  # type: ignore[method-assign]


def stale_leader_writes() -> None:
    """A share coordinator takes writes of whoever led once."""
    write = ShareStateMachine.write

    def write_for_anybody(
        self: ShareStateMachine, token: object, key: Any, of: Any, now_ms: int
    ) -> Any:
        state = self._states.get(key)
        if state is not None:
            state.leader_epoch = min(state.leader_epoch, of.leader_epoch)
        return write(self, token, key, of, now_ms)

    ShareStateMachine.write = write_for_anybody  # type: ignore[method-assign]
