"""How a group's partitions are divided among its members: pure functions of what the members say.

The group's leader runs one of these; which one, the coordinator chooses among those that every
member offers, by name. So the names and what members write into their metadata are Kafka's, and
groups may mix these clients with others.

* `range`: each topic by itself, in contiguous runs; members in order take one more while there is a
  remainder.
* `roundrobin`: all partitions of all topics in order, one member after the other.
* `sticky` (KIP-54) and `cooperative-sticky` (KIP-429): even, and with few moves; see `sticky`.
  The latter lets members keep what they have: a partition that moves is first taken from its owner,
  and given to the next one in the rebalance that follows.
* `kraftpy-broker-range`: Kafka's first algorithm, as its design page describes it, for groups of
  this client only. Partitions lie sorted by the broker that leads them, so that a consumer talks
  to few brokers.

Members stand in Kafka's order: those with a group.instance.id first, by that, then by member id.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kraftpy.client.offsets import Partition, by_topic
from kraftpy.client.sticky import place

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "BrokerRangeAssignor",
    "CooperativeStickyAssignor",
    "Partition",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "Topics",
]

Topics = Mapping[str, Mapping[int, int]]
"""The topics that exist: partition numbers and the brokers that lead them (-1: none)."""

Assignment = dict[str, list[Partition]]
"""Sorted partitions by member id; every member has an entry."""

_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells the group when it joins.

    `owned` is what it had in `generation`, the last one that it was part of (-1: none).
    """

    topics: frozenset[str]
    owned: tuple[Partition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes = b""


class Assignor:
    """A way of dividing partitions; `name` is what members agree on, `cooperative` as in KIP-429.

    A cooperative member keeps its partitions during a rebalance, an eager one gives them all up.
    """

    name: ClassVar[str]
    cooperative: ClassVar[bool] = False

    def user_data(self, owned: Sequence[Partition], generation: int) -> bytes:
        """What a member adds to its metadata for the assignor of the leader."""
        return b""

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        """Divides the partitions of the members' topics among them.

        Each partition of a topic that exists goes to exactly one of the topic's subscribers (with
        cooperative assignors, to none while its owner has yet to give it up).
        """
        raise NotImplementedError


class RangeAssignor(Assignor):
    """Kafka's RangeAssignor, for members without racks."""

    name = "range"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, subscribers in _subscribers(topics, members):
            numbers = sorted(topics[topic])
            share, remainder = divmod(len(numbers), len(subscribers))
            start = 0
            for position, member in enumerate(subscribers):
                end = start + share + (position < remainder)
                assignment[member] += [(topic, number) for number in numbers[start:end]]
                start = end
        return assignment


class RoundRobinAssignor(Assignor):
    """Kafka's RoundRobinAssignor; members that don't subscribe to a topic are passed over."""

    name = "roundrobin"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        order = _ordered(members)
        turn = 0
        for topic, _ in _subscribers(topics, members):
            for number in sorted(topics[topic]):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                assignment[order[turn % len(order)]].append((topic, number))
                turn += 1
        return assignment


class BrokerRangeAssignor(Assignor):
    """The rebalancing algorithm of Kafka's design page.

    For each topic let PT be its partitions sorted by broker, CG its consumers sorted and
    N = size(PT) / size(CG); consumer i takes PT from i * N to (i + 1) * N - 1. N is kept as a
    fraction and the bounds are rounded down: a remainder is spread, and no partition left out.
    """

    name = "kraftpy-broker-range"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, group in _subscribers(topics, members):
            leaders = topics[topic]
            sorted_partitions = sorted(leaders, key=lambda number: (leaders[number], number))
            for i, member in enumerate(group):
                start = i * len(sorted_partitions) // len(group)
                end = (i + 1) * len(sorted_partitions) // len(group)
                assignment[member] += sorted((topic, p) for p in sorted_partitions[start:end])
        return assignment


class StickyAssignor(Assignor):
    """Even and sticky, for members that give everything up before they join (KIP-54).

    They say in their user data what they had: Kafka's format, version 1.
    """

    name = "sticky"

    def user_data(self, owned: Sequence[Partition], generation: int) -> bytes:
        return _encode_partitions(owned) + _INT32.pack(generation)

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        claims = {member: _claim(subscription) for member, subscription in members.items()}
        return _place(topics, members, _owners(claims))


class CooperativeStickyAssignor(Assignor):
    """Even and sticky, in two steps: what moves is first revoked, and assigned afterwards."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Sequence[Partition], generation: int) -> bytes:
        return _INT32.pack(generation)

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        claims: dict[str, tuple[Iterable[Partition], int]] = {}
        for member, subscription in members.items():
            generation = subscription.generation
            if generation < 0 and len(subscription.user_data) >= _INT32.size:
                (generation,) = _INT32.unpack_from(subscription.user_data)
            claims[member] = (subscription.owned, generation)
        target = _place(topics, members, _owners(claims))
        # Whoever says that it has a partition may still be reading it, out of date or not.
        holders: dict[Partition, set[str]] = {}
        for member, subscription in members.items():
            for partition in subscription.owned:
                holders.setdefault(partition, set()).add(member)
        return {
            member: [p for p in partitions if not holders.get(p, set()) - {member}]
            for member, partitions in target.items()
        }


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
        BrokerRangeAssignor(),
    )
}
"""The assignors by name."""


def _ordered(members: Mapping[str, Subscription]) -> list[str]:
    def order(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(members, key=order)


def _subscribers(
    topics: Topics, members: Mapping[str, Subscription]
) -> Iterable[tuple[str, list[str]]]:
    """Topics in order that exist and that somebody subscribes to, with these members in order."""
    subscribers: dict[str, list[str]] = {}
    for member in _ordered(members):
        for topic in members[member].topics:
            subscribers.setdefault(topic, []).append(member)
    return [(topic, subscribers[topic]) for topic in sorted(subscribers) if topics.get(topic)]


def _place(
    topics: Topics, members: Mapping[str, Subscription], owners: Mapping[Partition, str]
) -> Assignment:
    partitions = [(topic, n) for topic, _ in _subscribers(topics, members) for n in topics[topic]]
    subscriptions = {member: subscription.topics for member, subscription in members.items()}
    return place(partitions, subscriptions, owners)


def _owners(claims: Mapping[str, tuple[Iterable[Partition], int]]) -> dict[Partition, str]:
    """Who has each partition: the claim of the newest generation, none if there are two (KIP-341).

    A member that missed generations claims what somebody else was given since.
    """
    newest: dict[Partition, tuple[int, str | None]] = {}
    for member in sorted(claims):
        partitions, generation = claims[member]
        for partition in set(partitions):
            known = newest.get(partition)
            if known is None or generation > known[0]:
                newest[partition] = (generation, member)
            elif generation == known[0]:
                newest[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in newest.items() if owner is not None}


def _encode_partitions(partitions: Collection[Partition]) -> bytes:
    topics = by_topic(sorted(partitions))
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si", len(name), name, len(numbers)))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
    return b"".join(parts)


def _claim(subscription: Subscription) -> tuple[list[Partition], int]:
    """What a sticky member had, and when; nothing if its user data makes no sense."""
    data = subscription.user_data
    partitions: list[Partition] = []
    try:
        (topics,) = _INT32.unpack_from(data)
        position = _INT32.size
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            name, count = struct.unpack_from(f">{length}si", data, position + 2)
            position += 2 + length + _INT32.size
            numbers = struct.unpack_from(f">{count}i", data, position)
            position += _INT32.size * count
            partitions += [(name.decode(), number) for number in numbers]
        # Version 0 of the format ends here.
        generation = _INT32.unpack_from(data, position)[0] if position < len(data) else -1
    except (struct.error, UnicodeDecodeError):
        return [], -1
    return partitions, generation
