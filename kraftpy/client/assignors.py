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
* `kraftpy-cooperative-sticky`: the same, and for groups of this client only; members may have parts
  of partitions (`sticky_shares`). So they may with `range` and `roundrobin` (`sharing`).
* `kraftpy-colocate`: as `range`, with the members of one host side by side.
* `kraftpy-cooperative-fetch`: all partitions to all members of this client, whom their leaders
  lease batches (seed 001, "Cooperative Fetch").
* `kraftpy-broker-range`: Kafka's first algorithm, as its design page describes it, for groups of
  this client only. Partitions lie sorted by the broker that leads them, so that a consumer talks
  to few brokers; when brokers come and go and leaders move, the group divides them anew.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

from kraftpy.client.assignor import Assignment, Assignor, Subscription, Topics, subscribers
from kraftpy.client.offsets import Partition, by_topic
from kraftpy.client.sharing import ColocateAssignor, RangeAssignor, RoundRobinAssignor
from kraftpy.client.sticky import place
from kraftpy.client.sticky_shares import StickySharesAssignor
from kraftpy.protocol.key_shares import ShareSubscription

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "BrokerRangeAssignor",
    "ColocateAssignor",
    "CooperativeFetchAssignor",
    "CooperativeStickyAssignor",
    "Partition",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "StickySharesAssignor",
    "Subscription",
    "Topics",
]

_INT32 = struct.Struct(">i")


class BrokerRangeAssignor(Assignor):
    """The rebalancing algorithm of Kafka's design page.

    For each topic let PT be its partitions sorted by broker, CG its consumers sorted and
    N = size(PT) / size(CG); consumer i takes PT from i * N to (i + 1) * N - 1. N is kept as a
    fraction and the bounds are rounded down: a remainder is spread, and no partition left out.
    """

    name = "kraftpy-broker-range"
    by_leader = True

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, group in subscribers(topics, members):
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

    def user_data(
        self,
        owned: Sequence[Partition],
        generation: int,
        sharing: ShareSubscription | None = None,
    ) -> bytes:
        return _encode_partitions(owned) + _INT32.pack(generation)

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        claims = {member: _claim(subscription) for member, subscription in members.items()}
        return _place(topics, members, _owners(claims))


class CooperativeStickyAssignor(Assignor):
    """Even and sticky, in two steps: what moves is first revoked, and assigned afterwards."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(
        self,
        owned: Sequence[Partition],
        generation: int,
        sharing: ShareSubscription | None = None,
    ) -> bytes:
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


class CooperativeFetchAssignor(Assignor):
    """Each subscriber has all partitions: who comes or goes moves nothing, and who is free asks."""

    name = "kraftpy-cooperative-fetch"
    cooperative = True
    leasing = True

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, group in subscribers(topics, members):
            for member in group:
                assignment[member] += [(topic, number) for number in sorted(topics[topic])]
        return assignment


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
        StickySharesAssignor(),
        ColocateAssignor(),
        BrokerRangeAssignor(),
        CooperativeFetchAssignor(),
    )
}
"""The assignors by name."""


def _place(
    topics: Topics, members: Mapping[str, Subscription], owners: Mapping[Partition, str]
) -> Assignment:
    partitions = [(topic, n) for topic, _ in subscribers(topics, members) for n in topics[topic]]
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


def assignors_of(given: Sequence[str | Assignor]) -> list[Assignor]:
    """The assignors that are given by their names or themselves. Raises ValueError, TypeError."""
    if isinstance(given, str):
        raise TypeError(f"assignors takes a list, not one str: [{given!r}]")
    for each in given:
        if isinstance(each, str) and each not in ASSIGNORS:
            raise ValueError(
                f"there is no assignor {each!r}; those there are: {', '.join(sorted(ASSIGNORS))}"
            )
    return [ASSIGNORS[each] if isinstance(each, str) else each for each in given]


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
