"""What every way of dividing a group's partitions is made of.

Members stand in Kafka's order: those with a group.instance.id first, by that, then by member id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from kraftpy.client.offsets import Partition
from kraftpy.protocol.key_shares import ALL_SLOTS, Shares, ShareSubscription

_Item = TypeVar("_Item")

Topics = Mapping[str, Mapping[int, int]]
"""The topics that exist: partition numbers and the brokers that lead them (-1: none)."""

Assignment = dict[str, list[Partition]]
"""Sorted partitions by member id; every member has an entry."""

SharedAssignment = dict[str, Shares]
"""Shares by member id; every member has an entry."""


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
    `by_leader`: it matters which broker leads which partition, and the group divides them anew when
    that changes what each gets. `leasing`: members have partitions together, and leaders lease them
    batches (`leases`).
    """

    name: ClassVar[str]
    cooperative: ClassVar[bool] = False
    by_leader: ClassVar[bool] = False
    leasing: ClassVar[bool] = False

    def user_data(
        self,
        owned: Sequence[Partition],
        generation: int,
        sharing: ShareSubscription | None = None,
    ) -> bytes:
        """What a member adds to its metadata for the assignor of the leader."""
        return b""

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        """Divides the partitions of the members' topics among them.

        Each partition of a topic that exists goes to exactly one of the topic's subscribers (with
        cooperative assignors, to none while its owner has yet to give it up; with those that lease,
        to as many as they like).
        """
        raise NotImplementedError

    def share(
        self, topics: Topics, members: Mapping[str, Subscription], shareable: Collection[str]
    ) -> SharedAssignment:
        """The same, and partitions of `shareable` topics may be cut into slices."""
        return {
            member: dict.fromkeys(partitions, ALL_SLOTS)
            for member, partitions in self.assign(topics, members).items()
        }


def ordered(members: Mapping[str, Subscription]) -> list[str]:
    """The members in Kafka's order."""

    def order(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(members, key=order)


def subscribers(
    topics: Topics, members: Mapping[str, Subscription]
) -> Iterable[tuple[str, list[str]]]:
    """Topics in order that exist and that somebody subscribes to, with these members in order."""
    found: dict[str, list[str]] = {}
    for member in ordered(members):
        for topic in members[member].topics:
            found.setdefault(topic, []).append(member)
    return [(topic, found[topic]) for topic in sorted(found) if topics.get(topic)]


def in_runs(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    """So many contiguous runs; while there is a remainder, each has one more."""
    share, remainder = divmod(len(items), count)
    bounds = [i * share + min(i, remainder) for i in range(count + 1)]
    return [items[bounds[i] : bounds[i + 1]] for i in range(count)]
