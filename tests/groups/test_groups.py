"""The short form of `make groups`: one run, with every client in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.faults import ALWAYS, BROKERS, FREEZE, MEMBERS, schedule
from tests.groups.run import Run

KINDS = ["mixed", "confluent-consumer"]
FAULTS = 6
SEED = 1579  # short, and all brokers are killed at once


@pytest.mark.timeout(400)
def test_groups_survive_their_members_and_their_coordinators(tmp_path: Path) -> None:
    report = Run(SEED, KINDS, 4, tmp_path / "run").play(FAULTS)
    assert not report.anomalies, "\n".join([*report.story, *report.anomalies])
    assert report.faults == FAULTS
    assert report.commits > 50  # there was load, and it was processed


def test_a_schedule_follows_from_its_seed() -> None:
    assert schedule(7, 50) == schedule(7, 50) != schedule(8, 50)
    kinds = {fault.kind for fault in schedule(7, 500)}
    assert kinds == MEMBERS.keys() | FREEZE.keys() | BROKERS.keys()
    assert {fault.meanwhile for fault in schedule(7, 500)} == {*MEMBERS, ""}
    for seed in range(20):
        assert {fault.kind for fault in schedule(seed, 6)} >= set(ALWAYS)
