"""What `kraftpy topic list` says of a topic's health and size."""

from __future__ import annotations

from kraftpy.cli import topic as module
from kraftpy.client.cluster import PartitionInfo, TopicInfo
from kraftpy.client.cluster_admin import PartitionName

REPLICAS = (1, 2, 3)


def topic(*partitions: tuple[int, tuple[int, ...]]) -> TopicInfo:
    """With these leaders and replicas in sync."""
    return TopicInfo(
        "t",
        bytes(16),
        False,
        {
            index: PartitionInfo(index, leader, 0, REPLICAS, isr)
            for index, (leader, isr) in enumerate(partitions)
        },
        0.0,
    )


def test_a_partition_without_a_leader_counts_as_offline_alone() -> None:
    good, lacking, lost = (1, REPLICAS), (1, (1, 3)), (-1, (2,))
    assert module._listed_row(topic(good, good), None) == ("t", 2, 3, "ok")
    row = module._listed_row(topic(good, lacking, lacking, lost), None)
    assert row[3] == "1 offline, 2 under-replicated"


def test_the_size_is_the_leaders_and_the_total_that_of_every_copy_that_is_told() -> None:
    first, second = PartitionName("t", 0), PartitionName("t", 1)
    sizes = {1: {first: 10, second: 40}, 2: {first: 9, PartitionName("u", 0): 1000}}
    both = topic((1, REPLICAS), (3, REPLICAS))  # broker 3 doesn't answer
    assert module._sizes(both, sizes) == (50, 59)
