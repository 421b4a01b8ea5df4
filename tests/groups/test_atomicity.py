"""The short form of `python -m tests.groups.atomicity`."""

from __future__ import annotations

from tests.groups.atomicity import Torture

ROUNDS = 4


def test_commits_are_whole_whenever_their_coordinator_is_killed() -> None:
    report = Torture(seed=5).play(ROUNDS)
    assert not report.violations, f"{report.violations[:20]}\n{report.log}"
    assert report.rounds == ROUNDS
    assert report.acknowledged > 20 * ROUNDS
    assert report.reads > 20 * ROUNDS
