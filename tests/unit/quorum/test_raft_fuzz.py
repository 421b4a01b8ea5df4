"""A short form of `raft_fuzz.py`."""

from __future__ import annotations

import pytest

from . import raft_fuzz


@pytest.mark.parametrize("seed", range(6))
def test_three_voters_survive_a_random_schedule(seed: int) -> None:
    fuzz = raft_fuzz.run(seed, 5000)
    assert len(fuzz.world.acknowledged) > 20, "the schedule was too hard to prove anything"


def test_five_voters_survive_a_random_schedule() -> None:
    fuzz = raft_fuzz.run(2, 5000, count=5)
    assert len(fuzz.world.acknowledged) > 20
