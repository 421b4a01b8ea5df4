"""What is counted of transactional ids."""

from __future__ import annotations

import pytest

from kraftpy.core.transactions import Transaction, TransactionState
from kraftpy.core.transactions.census import Census, is_late
from kraftpy.core.transactions.states import NO_PARTITIONS

NOW_MS = 1_000_000
TIMEOUT_MS = 60_000


def transaction(state: TransactionState, open_for_ms: int = 0, decided_ms: int = 0) -> Transaction:
    start_ms = NOW_MS - open_for_ms
    return Transaction(state, 1, 0, -1, -1, -1, TIMEOUT_MS, NO_PARTITIONS, start_ms, decided_ms, 0)


@pytest.mark.parametrize(
    ("state", "late"),
    [
        (TransactionState.EMPTY, False),
        (TransactionState.ONGOING, True),
        (TransactionState.PREPARE_COMMIT, True),
        (TransactionState.PREPARE_ABORT, True),
        (TransactionState.COMPLETE_COMMIT, False),
        (TransactionState.COMPLETE_ABORT, False),
    ],
)
def test_late_is_what_should_be_over(state: TransactionState, late: bool) -> None:
    assert is_late(transaction(state, TIMEOUT_MS + 1), NOW_MS) == late
    assert not is_late(transaction(state, TIMEOUT_MS), NOW_MS)


def test_parts_add_up() -> None:
    census = Census()
    assert set(census.states) == set(TransactionState) - {TransactionState.DEAD}
    assert not any(census.states.values())
    assert census.decided_ms is None
    census.count([transaction(TransactionState.ONGOING, each) for each in (5, 60_001)], NOW_MS)
    census.count([transaction(TransactionState.EMPTY, decided_ms=3)], NOW_MS)
    assert census.decided_ms is None
    for decided_ms in (70, 50, 60):
        census.count([transaction(TransactionState.PREPARE_COMMIT, 0, decided_ms)], NOW_MS)
    assert census.states[TransactionState.ONGOING] == 2
    assert census.states[TransactionState.PREPARE_COMMIT] == 3
    assert (census.late, census.decided_ms) == (1, 50)
