"""What the driver asks brokers about groups: blocking requests, a connection for each.

librdkafka's admin client aborts the process when its broker is killed at a bad moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.testing import Cluster, Node
from tests.server.wire import Closed, Wire

_TIMEOUT_S = 3.0
_NO_CLASSIC_GROUP = "Dead"
# What a broker may do that is killed, paused or about to learn who coordinates.
UNANSWERED = (OSError, Closed, DecodeError)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its coordinator describes it: partitions by member id."""

    state: str
    owners: dict[str, list[int]]


def ask(node: Node, key: ApiKey, version: int, request: object) -> Any:
    """One answer. Raises OSError, Closed, DecodeError."""
    with Wire(node.host, node.port, timeout_s=_TIMEOUT_S) as wire:
        return wire.call(key, version, request)


def coordinator_of(cluster: Cluster, group: str) -> int | None:
    """The id of the node that coordinates a group, by the first that knows; None for none."""
    request = messages.FindCoordinatorRequest(coordinator_keys=[group])
    for node in cluster.nodes.values():
        if node.running and not node.paused:
            try:
                (found,) = ask(node, ApiKey.FIND_COORDINATOR, 4, request).coordinators
            except UNANSWERED:
                continue
            if not found.error_code and found.node_id in cluster.nodes:
                return int(found.node_id)
    return None


def ask_coordinator(cluster: Cluster, group: str, key: ApiKey, version: int, request: Any) -> Any:
    """The coordinator's answer; None while there is none. Raises as `ask`."""
    node = coordinator_of(cluster, group)
    if node is None or not cluster.nodes[node].running or cluster.nodes[node].paused:
        return None
    return ask(cluster.nodes[node], key, version, request)


def committed(cluster: Cluster, group: str) -> dict[int, int] | None:
    """The group's committed offsets by partition of its one topic; None without an answer."""
    request = messages.OffsetFetchRequest(group_id=group, topics=None)
    response = ask_coordinator(cluster, group, ApiKey.OFFSET_FETCH, 7, request)
    if response is None or response.error_code:
        return None
    return {
        place.partition_index: place.committed_offset
        for topic in response.topics
        for place in topic.partitions
        if not place.error_code
    }


def describe(cluster: Cluster, group: str) -> GroupView | None:
    """The group, whichever protocol it has now; None without an answer."""
    request = messages.DescribeGroupsRequest(groups=[group])
    response = ask_coordinator(cluster, group, ApiKey.DESCRIBE_GROUPS, 5, request)
    if response is None or response.groups[0].error_code:
        return None
    (found,) = response.groups
    if found.group_state == _NO_CLASSIC_GROUP:
        return _describe_consumer_group(cluster, group)
    owners = {}
    for member in found.members:
        owners[member.member_id] = []
        if member.member_assignment:
            assignment = bytes(member.member_assignment)
            _, given = decode_versioned("ConsumerProtocolAssignment", assignment)
            owners[member.member_id] = _indexes(given.assigned_partitions)
    return GroupView(found.group_state, owners)


def _describe_consumer_group(cluster: Cluster, group: str) -> GroupView | None:
    request = messages.ConsumerGroupDescribeRequest(group_ids=[group])
    key = ApiKey.CONSUMER_GROUP_DESCRIBE
    response = ask_coordinator(cluster, group, key, 1, request)
    if response is None or response.groups[0].error_code:
        return None
    (found,) = response.groups
    owners = {m.member_id: _indexes(m.assignment.topic_partitions) for m in found.members}
    return GroupView(found.group_state, owners)


def _indexes(topics: Iterable[Any]) -> list[int]:
    return sorted(index for topic in topics for index in topic.partitions)
