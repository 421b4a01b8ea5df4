"""ConsumerGroupDescribe 0-1 (KIP-848, KIP-1099): a group as its coordinator knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.heartbeat import preferred_assignor
from kraftpy.core.groups.consumer.records import CurrentAssignment
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.protocol.messages import ConsumerGroupDescribeResponse

DescribedGroup = ConsumerGroupDescribeResponse.DescribedGroup

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


def describe(group: ConsumerGroup, assignors: tuple[str, ...], topics: Topics) -> DescribedGroup:
    """The group with its members; topics that are gone are left out of assignments."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members, assignors),
        members=[_member(group, member_id, topics) for member_id in group.members],
    )


def _member(
    group: ConsumerGroup, member_id: str, topics: Topics
) -> ConsumerGroupDescribeResponse.Member:
    metadata = group.members[member_id]
    current = group.current(member_id)
    return ConsumerGroupDescribeResponse.Member(
        member_id=member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topic_names),
        subscribed_topic_regex=metadata.topic_regex or "",
        assignment=_assignment(_held(current), topics),
        target_assignment=_assignment(group.targets.get(member_id, {}), topics),
        member_type=_CONSUMER_MEMBER if metadata.classic is None else _CLASSIC_MEMBER,
    )


def _held(current: CurrentAssignment) -> dict[Uuid, set[int]]:
    """What the member may be reading: what it has to give up is its own until it says it did."""
    held: dict[Uuid, set[int]] = {}
    for partitions in (current.assigned, current.revoking):
        for topic_id, indexes in partitions.items():
            held.setdefault(topic_id, set()).update(indexes)
    return held


def _assignment(
    partitions: Mapping[Uuid, Iterable[int]], topics: Topics
) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        [
            ConsumerGroupDescribeResponse.TopicPartitions(topic_id, name, sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
