"""Leases as brokers serve them, under seeds, and that each invariant can fail there, too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kraftpy.core.leases import Acknowledgement
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.coordination.led_table import LedTable
from tests.simulation.__main__ import replay
from tests.simulation.guards import assert_caught
from tests.simulation.served_world import simulate_served
from tests.simulation.test_leases import REMOVALS, Removal

SEEDS = range(1, 5)
# Where to look first; a change of the rules or of the simulation moves these.
KNOWN_SEEDS = {
    "lease_twice": 1,
    "a deadline while an accept is written": 8,
    "ack_unpersisted": 1,
    "gap_skipped": 1,
    "count_forgotten": 1,
    "what a session leaves behind is not counted": 1,
    "stale_leader_writes": 1,
    "answered before it is kept": 1,
}
SEARCH_MAX = 40


def test_no_seed_breaks_an_invariant_of_leases_as_they_are_served() -> None:
    for seed in SEEDS:
        outcome = simulate_served(seed)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, served=True)}"
        assert outcome.accepted > 100
        assert outcome.killed > 3
        assert outcome.moved > 10


def test_a_served_seed_is_one_run() -> None:
    assert simulate_served(3) == simulate_served(3)


_acknowledge = LedTable.acknowledge


def _answer_at_once(
    self: LedTable, member: str, acknowledgements: Sequence[Acknowledgement]
) -> ErrorCode:
    said = _acknowledge(self, member, acknowledgements)
    return said if isinstance(said, ErrorCode) else ErrorCode.NONE


SERVED: dict[str, tuple[Removal, str]] = {
    **REMOVALS,
    "answered before it is kept": (
        (LedTable, "acknowledge", _answer_at_once),
        "it isn't written",
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_without_a_rule_some_served_seed_fails(name: str) -> None:
    seeds = KNOWN_SEEDS[name], *range(1, SEARCH_MAX)
    assert_caught(SERVED[name], simulate_served, seeds)
