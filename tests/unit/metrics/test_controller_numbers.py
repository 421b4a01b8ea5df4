"""What a voter says of itself under Strimzi's names, whose boards take series for rows."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kraftpy.metrics.frames import SAMPLES
from kraftpy.metrics.instruments import LAG_BUCKETS, Histogram
from kraftpy.quorum import numbers as module
from kraftpy.quorum.numbers import ControllerNumbers
from kraftpy.quorum.port import Role

RAFT = "kafka_server_raftmetrics_"


class Voter:
    """A quorum's own side, as far as its numbers go."""

    role = Role.FOLLOWER
    leader_id = 2
    term = 3
    voters = (1, 2, 3)
    committed_index = applied_index = last_index = 100
    voted_for = None
    commits = fsyncs = Histogram(LAG_BUCKETS)

    def voter_states(self) -> list[object]:
        return []


class Lag:
    lags = Histogram(LAG_BUCKETS)


def raft_samples(numbers: ControllerNumbers) -> list[tuple[str, list[str], float]]:
    frame = next(numbers.metrics())
    assert frame[0] == SAMPLES
    return [
        (name.removeprefix(RAFT), list(labels), value)
        for name, labels, value in frame[1]
        if name.startswith(RAFT)
    ]


@pytest.mark.parametrize("role", Role)
def test_a_voter_has_one_role(role: Role) -> None:
    """A series for each role that it doesn't have would be a row of Strimzi's table, too."""
    voter = Voter()
    voter.role = role
    found = raft_samples(ControllerNumbers(cast("Any", voter), cast("Any", Lag())))
    roles = [(labels, value) for name, labels, value in found if name == "current_state"]
    assert roles == [([role.value], 1)]


@pytest.mark.parametrize(
    ("role", "name", "other"),
    [
        (Role.LEADER, "append_records_rate", "fetch_records_rate"),
        (Role.FOLLOWER, "fetch_records_rate", "append_records_rate"),
    ],
)
def test_entries_a_second_are_those_since_the_last_scrape(
    role: Role, name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 50.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    voter = Voter()
    voter.role = role
    numbers = ControllerNumbers(cast("Any", voter), cast("Any", Lag()))
    seen = []
    for later_s, index in ((2.0, 120), (4.0, 121), (5.0, 90), (0.0, 100), (1.0, 110)):
        now_s += later_s
        voter.last_index = index
        rates = {found: value for found, _, value in raft_samples(numbers)}
        assert rates[other] == 0
        seen.append(rates[name])
    assert seen == [10, 0.25, 0, 0, 10]
