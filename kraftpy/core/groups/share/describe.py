"""ShareGroupDescribe 1 (KIP-932): a share group as its coordinator knows it."""

from __future__ import annotations

from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.share.assignor import NAME
from kraftpy.core.groups.share.state import ShareGroup
from kraftpy.protocol.messages import ShareGroupDescribeResponse

DescribedGroup = ShareGroupDescribeResponse.DescribedGroup


def describe(group: ShareGroup, topics: Topics) -> DescribedGroup:
    """The group with its members; topics that are gone are left out of assignments."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=NAME,
        members=[_member(group, member_id, topics) for member_id in group.members],
    )


def _member(group: ShareGroup, member_id: str, topics: Topics) -> ShareGroupDescribeResponse.Member:
    kinds = ShareGroupDescribeResponse
    member = group.members[member_id]
    current = group.assignment(member_id)
    rows = [
        kinds.TopicPartitions(topic_id, name, sorted(indexes))
        for topic_id, indexes in current.assigned.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    return kinds.Member(
        member_id=member_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=kinds.Assignment(rows),
    )
