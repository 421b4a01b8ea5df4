"""Members that are leased batches, under seeds, and that each invariant of theirs can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.leases import ClaimedTable
from kraftpy.core.leases.runs import ACQUIRED
from tests.simulation.__main__ import replay
from tests.simulation.guards import assert_caught
from tests.simulation.leased import LeasedWorld, simulate_leased
from tests.simulation.world import play

SEEDS = range(1, 5)
SEARCH_MAX = 40

Removal = tuple[object, str, Callable[..., Any]]


@pytest.mark.parametrize("block", range(2))
def test_no_seed_breaks_an_invariant_of_leased_batches(block: int) -> None:
    dealt = claimed = 0
    for seed in SEEDS[block::2]:
        world = LeasedWorld(seed)
        outcome = play(world)
        again = replay(seed, cooperative=True, leases=True)
        assert outcome.violation is None, f"{outcome.violation}\n{again}"
        dealt += world.leased.count
        claimed += world.cooperative.claimed
    assert dealt > 100
    assert claimed > 50


def _held_by_anybody(table: ClaimedTable, member: str, offset: int) -> list[tuple[int, int]]:
    return [
        (run.first, run.last)
        for run in table.runs()
        if run.state == ACQUIRED and run.first >= offset
    ]


def _without_claims(table: ClaimedTable, stable: int, claims: Any) -> None:
    learn(table, table.start_offset, [])


learn = ClaimedTable.learn


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ((ClaimedTable, "held", _held_by_anybody), "deals"),
        ((ClaimedTable, "learn", _without_claims), "it's done"),
    ],
    ids=["lease_twice", "claims_not_read"],
)
def test_a_rule_that_is_taken_out_is_missed(removed: Removal, said: str) -> None:
    assert_caught((removed, said), simulate_leased, range(1, SEARCH_MAX))
