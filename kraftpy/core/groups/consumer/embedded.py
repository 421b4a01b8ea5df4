"""What classic members put into JoinGroup and take out of SyncGroup: the ConsumerProtocol.

A consumer group that has classic members must read their subscriptions and write their assignments
itself, where the coordinator of a classic group passes bytes on (KIP-848, "Migration"). These name
topics; the group's records have ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import Partitions
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.records import too_long
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned

# The newest version; a member that speaks a newer one is answered in this one.
_VERSION_MAX = 3


class OwnedPartitions(NamedTuple):
    """Partitions of a topic that a member reports, as in a heartbeat of the consumer protocol."""

    topic_id: Uuid
    partitions: list[int]


class Subscription(NamedTuple):
    """What a classic member asks for.

    `owned` is empty for one that gave everything up before it joined (as eager members do).
    """

    topic_names: tuple[str, ...]
    rack_id: str | None
    owned: tuple[OwnedPartitions, ...]


_TopicPartitions: TypeAlias = (
    messages.ConsumerProtocolAssignment.TopicPartition
    | messages.ConsumerProtocolSubscription.TopicPartition
)


def read_subscription(metadata: bytes, topics: Topics) -> Subscription:
    """The subscription in a JoinGroup's protocol; `DecodeError` if there is none."""
    _, decoded = decode_versioned("ConsumerProtocolSubscription", metadata)
    assert isinstance(decoded, messages.ConsumerProtocolSubscription)
    owned = _by_id(decoded.owned_partitions, topics)
    return Subscription(
        tuple(sorted(set(decoded.topics))),
        decoded.rack_id or None,
        tuple(OwnedPartitions(topic_id, sorted(indexes)) for topic_id, indexes in owned.items()),
    )


def read_assignment(data: bytes, topics: Topics) -> Partitions:
    """The assignment of a member of a classic group; `DecodeError` if these bytes are none.

    Nothing for a member that has not been given anything yet. Topics that are gone are left out.
    """
    if not data:
        return {}
    _, decoded = decode_versioned("ConsumerProtocolAssignment", data)
    assert isinstance(decoded, messages.ConsumerProtocolAssignment)
    return _by_id(decoded.assigned_partitions, topics)


def write_assignment(
    partitions: Mapping[Uuid, Iterable[int]], topics: Topics, metadata: bytes
) -> bytes:
    """An assignment for a member whose subscription is `metadata`, in the version that it speaks.

    In the oldest one if the subscription is none: nobody looks at those of all the protocols that a
    member supports when it joins.
    """
    version = int.from_bytes(metadata[:2], "big", signed=True) if len(metadata) > 1 else 0
    assigned = [
        messages.ConsumerProtocolAssignment.TopicPartition(name, sorted(indexes))
        for topic_id, indexes in sorted(partitions.items())
        if (name := topics.name_of(topic_id)) is not None
    ]
    return encode_versioned(
        "ConsumerProtocolAssignment",
        max(0, min(version, _VERSION_MAX)),
        messages.ConsumerProtocolAssignment(assigned_partitions=assigned),
    )


def write_subscription(topic_names: Iterable[str]) -> bytes:
    """What a classic member would say that subscribes to these topics and owns nothing.

    A name that is too long for that is no topic's, though a member may ask for it.
    """
    names = sorted(name for name in topic_names if not too_long(name))
    subscription = messages.ConsumerProtocolSubscription(topics=names)
    return encode_versioned("ConsumerProtocolSubscription", _VERSION_MAX, subscription)


def _by_id(named: Iterable[_TopicPartitions], topics: Topics) -> Partitions:
    found: dict[Uuid, frozenset[int]] = {}
    for entry in named:
        topic = topics.find(entry.topic)
        if topic is not None and entry.partitions:
            indexes = found.get(topic.topic_id, frozenset())
            found[topic.topic_id] = indexes.union(i for i in entry.partitions if i >= 0)
    return found
