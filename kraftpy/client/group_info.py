"""What coordinators say of groups and their members, of both protocols alike.

What a member wrote that can't be read hides nothing else: another kind of program wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kraftpy.client.cluster import BrokerInfo
from kraftpy.client.offsets import Partition
from kraftpy.protocol.codec import decode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    Shares,
    ShareSubscription,
    decode_share_subscription,
    decode_shares,
)

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
_CONSUMER_PROTOCOL_TYPE = "consumer"
# MemberType of ConsumerGroupDescribe 1; brokers before KIP-1099 say nothing.
_CLASSIC_MEMBER = 0


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as ListGroups has it.

    `type` is classic, consumer or share, `coordinator` a broker's id.
    """

    id: str
    type: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    `type` is classic, consumer or share; a group of the consumer protocol has the first two while
    its members are changed from one to the other. `epoch` and `target` (what it is going to have)
    are None in a classic group; `topics` are subscribed to by name, `regex` is the consumer
    protocol's pattern.
    `shares` are the slots of its partitions, `sharing` what it said of them when it joined: None
    if it said nothing, or of itself nothing is told while the group rebalances.
    """

    id: str
    type: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    regex: str | None
    partitions: tuple[Partition, ...]
    epoch: int | None = None
    target: tuple[Partition, ...] | None = None
    shares: Shares = field(default_factory=dict)
    sharing: ShareSubscription | None = None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as its coordinator describes it; epochs are None for a classic group."""

    id: str
    type: str
    state: str
    assignor: str
    coordinator: BrokerInfo
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None


def consumer_group(described: Any, broker: BrokerInfo) -> GroupInfo:
    """A group as ConsumerGroupDescribe has it."""
    return GroupInfo(
        described.group_id,
        CONSUMER,
        described.group_state,
        described.assignor_name,
        broker,
        _sorted(
            GroupMember(
                each.member_id,
                CLASSIC if each.member_type == _CLASSIC_MEMBER else CONSUMER,
                each.instance_id,
                each.client_id,
                _host(each.client_host),
                tuple(sorted(each.subscribed_topic_names)),
                each.subscribed_topic_regex or None,
                _assigned(each.assignment),
                each.member_epoch,
                _assigned(each.target_assignment),
                dict.fromkeys(_assigned(each.assignment), ALL_SLOTS),
            )
            for each in described.members
        ),
        described.group_epoch,
        described.assignment_epoch,
    )


def share_group(described: Any, broker: BrokerInfo) -> GroupInfo:
    """A group as ShareGroupDescribe has it."""
    return GroupInfo(
        described.group_id,
        SHARE,
        described.group_state,
        described.assignor_name,
        broker,
        _sorted(
            GroupMember(
                each.member_id,
                SHARE,
                None,
                each.client_id,
                _host(each.client_host),
                tuple(sorted(each.subscribed_topic_names)),
                None,
                _assigned(each.assignment),
                each.member_epoch,
            )
            for each in described.members
        ),
        described.group_epoch,
        described.assignment_epoch,
    )


def _assigned(assignment: Any) -> tuple[Partition, ...]:
    return tuple(
        sorted(
            (each.topic_name, number)
            for each in assignment.topic_partitions
            for number in each.partitions
        )
    )


def classic_group(described: Any, broker: BrokerInfo) -> GroupInfo:
    """A group as DescribeGroups has it."""
    consumers = described.protocol_type == _CONSUMER_PROTOCOL_TYPE
    return GroupInfo(
        described.group_id,
        CLASSIC,
        described.group_state,
        described.protocol_data,
        broker,
        _sorted(_classic_member(each, consumers) for each in described.members),
    )


def _classic_member(described: Any, is_consumer: bool) -> GroupMember:
    topics: tuple[str, ...] = ()
    shares: Shares = {}
    sharing: ShareSubscription | None = None
    if is_consumer:
        subscription = _decoded("ConsumerProtocolSubscription", described.member_metadata)
        assignment = _decoded("ConsumerProtocolAssignment", described.member_assignment)
        if subscription is not None:
            topics = tuple(sorted(subscription.topics))
            sharing = _sharing(subscription)
        if assignment is not None:
            shares = _shares(assignment)
    return GroupMember(
        described.member_id,
        CLASSIC,
        described.group_instance_id,
        described.client_id,
        _host(described.client_host),
        topics,
        None,
        tuple(shares),
        shares=shares,
        sharing=sharing,
    )


def _sharing(subscription: Any) -> ShareSubscription | None:
    try:
        said = decode_share_subscription(bytes(subscription.user_data or b""))
    except DecodeError:
        return None
    if said is None:
        return None
    owned = {(t.topic, n): ALL_SLOTS for t in subscription.owned_partitions for n in t.partitions}
    return said._replace(owned=owned | said.owned)


def _shares(assignment: Any) -> Shares:
    """The slots of each partition that is assigned, sorted: all of them if nothing else is said."""
    try:
        said = decode_shares(bytes(assignment.user_data or b"")) or {}
    except DecodeError:
        said = {}
    names = ((t.topic, number) for t in assignment.assigned_partitions for number in t.partitions)
    return {name: said.get(name, ALL_SLOTS) for name in sorted(names)}


def _decoded(name: str, data: bytes) -> Any:
    """What a member wrote; None for nothing, and for what only its own kind can read."""
    if not data:
        return None
    try:
        return decode_versioned(name, data)[1]
    except DecodeError:
        return None


def _host(text: str) -> str:
    """An address without the slash that Java puts before it."""
    return text.removeprefix("/")


def _sorted(members: Iterable[GroupMember]) -> tuple[GroupMember, ...]:
    return tuple(sorted(members, key=lambda each: (each.client_id, each.id)))
