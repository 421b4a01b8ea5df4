"""What ListGroups says of a group, and DescribeGroups of a classic one."""

from __future__ import annotations

from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from kraftpy.protocol.messages import DescribeGroupsResponse, ListGroupsResponse

DescribedGroup = DescribeGroupsResponse.DescribedGroup
ListedGroup = ListGroupsResponse.ListedGroup

CLASSIC_GROUP_TYPE = "classic"
CONSUMER_GROUP_TYPE = "consumer"


def listed(group_id: str, group: Group | None, consumer: ConsumerGroup | None) -> ListedGroup:
    """A group of either protocol, or one of which there are offsets alone."""
    if consumer is not None:
        state = consumer.state.value
        return ListedGroup(group_id, CONSUMER_PROTOCOL_TYPE, state, CONSUMER_GROUP_TYPE)
    if group is None:
        return ListedGroup(group_id, "", GroupState.EMPTY.value, CLASSIC_GROUP_TYPE)
    protocol_type = group.protocol_type or ""
    return ListedGroup(group_id, protocol_type, group.state.value, CLASSIC_GROUP_TYPE)


def described(group_id: str, group: Group | None, *, has_offsets: bool) -> DescribedGroup:
    """The group; `has_offsets` says that there are some, in case that it has nothing else."""
    if group is None or group.state is GroupState.DEAD:
        is_simple = group is None and has_offsets
        state = GroupState.EMPTY if is_simple else GroupState.DEAD
        return DescribedGroup(group_id=group_id, group_state=state.value)
    is_stable = group.state is GroupState.STABLE
    # While a rebalance runs, what the members had before it is shown: they may own it still.
    protocol_name = (group.protocol_name or "") if is_stable else ""
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.protocols[protocol_name] if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
