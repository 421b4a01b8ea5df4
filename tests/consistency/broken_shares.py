"""Rules of cooperative consumption, each taken out of a build: see `broken`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kraftpy.client import ledger, sticky_shares
from kraftpy.core.groups import claimed_commits, commits
from kraftpy.core.groups.individual.coverage import Coverage
from kraftpy.core.groups.individual.places import Drop
from kraftpy.core.groups.individual.plan import Plan
from kraftpy.core.groups.shares import MemberShares
from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.key_shares import ALL_SLOTS, Shares
from kraftpy.server.replication.fetch_sessions import FetchPartition, FetchSession, Key

from . import broken_transactions as transactions


def tombstones_first() -> None:
    """Claims that are passed go before the stable offset is committed that passes them."""
    Plan._is_void = lambda *_: True  # type: ignore[method-assign]
    Coverage.passed_with = lambda *_: None  # type: ignore[method-assign]


def reset_primary_first() -> None:
    """Who resets has the offset written first, and then the claims dropped."""
    claimed_commits._write_after = write_first


def write_first(
    claims: Any, outbox: Any, keys: Any, group_id: str, records: Any, committed: Any,
    failed: Any, now_ms: int,
) -> None:  # fmt: skip
    def written(now_ms: int) -> None:
        def dropped(drop: Drop, _: ErrorCode, now_ms: int) -> None:
            claims.release(drop, now_ms)
            committed(now_ms)

        claims.drop(keys, dropped, now_ms)

    outbox.write(records, (group_id,), written, failed)


def stable_is_max() -> None:
    """All counts as done below the last offset that somebody has claimed."""

    def stable_from(self: Coverage, offset: int) -> int:
        return max((claim.last + 1 for claim in self), default=offset)

    Coverage.stable_from = stable_from  # type: ignore[method-assign]
    Coverage.passed_with = lambda *_: None  # type: ignore[method-assign]


def claims_unreplicated() -> None:
    """A coordinator takes claims that it has appended for committed."""
    transactions.take_appended_for_committed(lambda topic: topic == INDIVIDUAL_OFFSETS_TOPIC)


def no_generation_check() -> None:
    """Nobody asks of which generation a commit is, nor whose a slice is."""
    commits._check_commit = lambda *_: ErrorCode.NONE
    MemberShares.of_others = lambda *_: []  # type: ignore[method-assign]


def slot_before_revoked() -> None:
    """A leader gives slots away that their owners still list."""

    def given(target: Shares, _: Any, __: Any, ___: str, shares: bool) -> Shares:
        return {name: slots for name, slots in target.items() if shares or slots == ALL_SLOTS}

    sticky_shares._free = given


def lane_skips() -> None:
    """A slice that is taken over is read from where the others are, not from where it was."""
    add = ledger.Ledger.add

    def add_ahead(
        self: ledger.Ledger, slices: Any, stable: int, claims: Any = (), *, sought: Any = None
    ) -> None:
        ahead = max((account.next for account in self._accounts), default=0)
        before = list(self._accounts)
        add(self, slices, stable, claims, sought=sought)
        for account in self._accounts:
            if account not in before and account.next < ahead:
                account.next = account.fetched = ahead

    ledger.Ledger.add = add_ahead  # type: ignore[method-assign]


def session_keeps_slice() -> None:
    """A fetch session goes on with the slices that a partition was named with first."""
    update = FetchSession.update

    def update_but_slices(
        self: FetchSession, wanted: Iterable[FetchPartition], forgotten: Iterable[Key]
    ) -> None:
        wanted = list(wanted)
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is not None:
                partition.key_ranges = known.key_ranges
        update(self, wanted, forgotten)

    FetchSession.update = update_but_slices  # type: ignore[method-assign]
