"""What counts as an unclean election, by the broker that leads afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftpy.core.metadata import NO_LEADER, PartitionState
from kraftpy.server.replication.leader_changes import LeaderChanges

ME = 2
LOST = PartitionState(
    leader=NO_LEADER,
    leader_epoch=7,
    partition_epoch=9,
    replicas=(1, ME),
    isr=(),
    directories=(b"a" * 16, b"b" * 16),
)
LED = replace(LOST, leader=ME, leader_epoch=8, partition_epoch=10, isr=(ME,))


@pytest.mark.parametrize(
    ("old", "unclean"),
    [
        pytest.param(LOST, 1, id="out of sync"),
        pytest.param(replace(LOST, last_known_elr=(ME,)), 1, id="led last, and crashed"),
        pytest.param(replace(LOST, elr=(ME,)), 0, id="has all that was acknowledged"),
        pytest.param(replace(LOST, leader=1, isr=(1, ME)), 0, id="in sync"),
        pytest.param(
            replace(LOST, replicas=(ME,), directories=(b"b" * 16,)), 0, id="the only replica"
        ),
        pytest.param(
            replace(LOST, replicas=(1,), directories=(b"a" * 16,)), 1, id="in place of the only one"
        ),
    ],
)
def test_an_election_is_unclean_if_others_may_have_had_more(
    old: PartitionState, unclean: int
) -> None:
    changes = LeaderChanges()
    changes.note(ME, "orders", 0, old, LED)
    assert changes.unclean_elections == unclean
    changes.note(1, "orders", 0, old, LED)
    assert changes.unclean_elections == unclean, "the other broker counts it too"
