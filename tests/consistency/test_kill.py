"""The short form of `make consistency`: a few rounds of kill -9 under load."""

from __future__ import annotations

from pathlib import Path

from tests.consistency.rounds import Rounds
from tests.processes import Kraftpy


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    broker = Kraftpy(tmp_path)
    try:
        rounds = Rounds(broker, seed=7)
        reports = [rounds.run() for _ in range(3)]
        assert [report.anomalies for report in reports] == [[], [], []]
        assert all(report.acknowledged for report in reports)  # there was load, and it was answered
        assert rounds.check_everything() == []
    finally:
        broker.stop()
