"""The short form of `make torture`: one round of a minute, most of it faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.faults import KINDS, schedule
from tests.torture.rounds import Round, keep_story

FAULTS_S = 40.0


@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    report = Round(seed=4).play(FAULTS_S)
    assert not report.anomalies, f"{keep_story(report, tmp_path)}\n{report.full()}"
    assert report.faults >= 3
    assert report.acknowledged > 1000  # there was load, and it was answered


def test_a_schedule_follows_from_its_seed() -> None:
    def first(seed: int, count: int) -> list[str]:
        return [str(fault) for fault, _ in zip(schedule(seed), range(count), strict=False)]

    assert first(7, 50) == first(7, 50) != first(8, 50)
    kinds = {fault.kind for fault, _ in zip(schedule(7), range(500), strict=False)}
    assert kinds == set(KINDS)
