"""What a broker whose session has lapsed takes for a cut, and what for the end of the quorum."""

from __future__ import annotations

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.server.cluster.cut_off import is_cut_off

CONFIG = BrokerConfig.from_properties(
    {
        "node.id": "1",
        "broker.heartbeat.interval.ms": "1000",
        "replica.fetch.wait.max.ms": "500",
    }
)
NOW_S = 100.0
LATELY_S, LONG_AGO_S = NOW_S - 1.9, NOW_S - 2.1


@pytest.mark.parametrize(
    ("quorum_has_leader", "follower_heard_s", "leader_heard_s", "cut_off"),
    [
        (True, LATELY_S, LATELY_S, True),  # a bridge: others hear a leader that this one doesn't
        (True, 0.0, 0.0, True),
        (False, LATELY_S, LONG_AGO_S, False),
        (False, LONG_AGO_S, LATELY_S, False),
        (False, LONG_AGO_S, LONG_AGO_S, True),
        (False, 0.0, 0.0, True),
    ],
)
def test_who_is_heard_tells_the_two_apart(
    quorum_has_leader: bool, follower_heard_s: float, leader_heard_s: float, cut_off: bool
) -> None:
    assert cut_off is is_cut_off(
        NOW_S,
        CONFIG,
        quorum_has_leader=quorum_has_leader,
        follower_heard_s=follower_heard_s,
        leader_heard_s=leader_heard_s,
    )


def test_followers_that_wait_for_long_are_not_missed() -> None:
    """A follower that finds nothing asks again after `replica.fetch.wait.max.ms`."""
    patient = BrokerConfig.from_properties({"node.id": "1", "replica.fetch.wait.max.ms": "5000"})
    assert not is_cut_off(
        NOW_S, patient, quorum_has_leader=False, follower_heard_s=NOW_S - 14, leader_heard_s=0.0
    )
