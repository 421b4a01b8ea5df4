"""Transactions under seeds, and that each invariant of theirs can fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.core.producers import ProducerStateManager
from kraftpy.core.transactions import TransactionMachine, rules
from kraftpy.core.transactions.admission import Admission
from kraftpy.core.transactions.markers import Debt, OwedMarkers
from tests.simulation.__main__ import replay
from tests.simulation.guards import assert_caught
from tests.simulation.transactional_world import TransactionalWorld, simulate_transactions
from tests.simulation.world import play

SEEDS = range(1, 11)
SEARCH_MAX = 60

Removal = tuple[object, str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nobody needs to be told of each transaction that times out."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(2))
def test_no_seed_breaks_an_invariant_of_transactions(block: int) -> None:
    held = committed = 0
    for seed in SEEDS[block::2]:
        world = TransactionalWorld(seed)
        outcome = play(world)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, transactions=True)}"
        held += world.transactions.hold
        committed += sum(sent.outcome is True for sent in world.transactions.sent)
    assert held > len(SEEDS) / 8  # of so many all was looked at
    assert committed > 50


def test_a_seed_with_transactions_is_one_run() -> None:
    assert simulate_transactions(7) == simulate_transactions(7)


def _settle_all(self: OwedMarkers, item: Any, finished: list[Debt]) -> None:
    """The first marker that is written counts for all."""
    item.debt.left.clear()
    self._forget(item.debt)
    finished.append(item.debt)


def _stable_at_the_watermark(self: ProducerStateManager, high_watermark: int) -> int:
    return high_watermark


def _send_markers_of_any(self: Any, transactional_id: str, transaction: Any, *rest: Any) -> None:
    """Decisions are taken for commits."""
    if transaction.state.is_preparing:
        state = rules.TransactionState.PREPARE_COMMIT
        _send_markers(self, transactional_id, transaction._replace(state=state), *rest)


_send_markers = TransactionMachine._send_markers

REMOVALS: dict[str, tuple[Removal, str]] = {
    "complete with its first marker": ((OwedMarkers, "_settle", _settle_all), "is complete, and"),
    "stable up to the high watermark": (
        (ProducerStateManager, "last_stable_offset", _stable_at_the_watermark),
        "the last stable offset of",
    ),
    "anybody is admitted": (
        (Admission, "check", lambda *_, **__: None),
        "no transaction is open",
    ),
    "aborted is committed": (
        (TransactionMachine, "_send_markers", _send_markers_of_any),
        "was not committed, and there is",
    ),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_without_a_rule_some_seed_fails(name: str) -> None:
    seeds = range(1, SEARCH_MAX)
    assert_caught(REMOVALS[name], simulate_transactions, seeds)
