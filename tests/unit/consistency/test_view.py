from __future__ import annotations

import pytest

from kraftpy.testing.view import PartitionView


@pytest.mark.parametrize(
    ("leader", "isr", "in_sync"),
    [(3, {1, 2, 3}, True), (3, {2, 3}, False), (-1, {1, 2, 3}, False), (-1, set(), False)],
)
def test_a_partition_is_in_sync_when_all_follow_a_leader(
    leader: int, isr: set[int], in_sync: bool
) -> None:
    view = PartitionView(leader, 0, (3, 1, 2), frozenset(isr), error=0)
    assert view.in_sync is in_sync
