"""A short form of `make simulate`, and what makes its verdict worth something."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import replay
from tests.simulation.guards import GUARDS, marked_in_code, without
from tests.simulation.world import simulate

SEEDS = range(1, 41)
# Where to look first; a change of the rules or of the simulation moves these.
KNOWN_SEEDS = {
    "maximal-isr": 1,
    "min-isr": 1,
    "join": 9,
    "uncertain": 39,
    "divergence": 1,
    "unclean-exclusion": 2,
}
SEARCH_MAX = 2000


@pytest.mark.parametrize("block", range(4))
def test_no_seed_breaks_an_invariant(block: int) -> None:
    for seed in SEEDS[block::4]:
        outcome = simulate(seed)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed)}"
        assert outcome.events > 1000


def test_a_seed_is_one_run() -> None:
    assert simulate(7) == simulate(7)
    assert simulate(7) != simulate(8)


@pytest.mark.parametrize("name", list(GUARDS))
def test_without_a_guard_some_seed_fails(name: str) -> None:
    known = KNOWN_SEEDS[name]
    with without(name):
        for seed in (known, *range(1, SEARCH_MAX)):
            if simulate(seed).violation is not None:
                break
        else:
            pytest.fail(f"the rules without {name} survive {SEARCH_MAX} seeds")
    assert simulate(seed).violation is None


def test_every_guard_that_the_code_marks_is_proven() -> None:
    marked = marked_in_code()
    differ = (marked ^ set(GUARDS)) | (marked ^ set(KNOWN_SEEDS))
    assert not differ, (
        "a guard is marked in kraftpy/core, is taken out in GUARDS (guards.py), and has a seed in "
        f"KNOWN_SEEDS that shows what it is for: {sorted(differ)} lacks one of them"
    )
