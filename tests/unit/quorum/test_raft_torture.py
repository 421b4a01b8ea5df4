"""A short form of `raft_torture.py`, and voters whose disk is full, fails, or holds damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from .raft_torture import torture


@pytest.mark.parametrize(("only_leader", "rounds"), [(False, 2), (True, 3)])
def test_killed_voters_lose_nothing(tmp_path: Path, only_leader: bool, rounds: int) -> None:
    done = torture(tmp_path, rounds=rounds, only_leader=only_leader, seed=1)
    assert len(done.acknowledged) > 100
    snapshots = [p for voter in done.quorum.ports for p in done.quorum.snapshots(voter)]
    assert snapshots, "the load was too small for snapshots"
