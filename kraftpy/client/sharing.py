"""Assignors that can give several members parts of one partition.

Rules:
* A topic is dealt out in reverse, members to partitions, when its sharing subscribers outnumber its
  partitions, the topic may be shared, and so may the group's offsets. Then its other subscribers
  get nothing of it. All other topics are dealt out as ever, whole.
* Members that say nothing of sharing, as those of other clients, don't share. A leader that knows
  no shares deals whole partitions out, after everything was given up.

Source: seed 001, "Abstract Assignor".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from kraftpy.client.assignor import (
    Assignment,
    Assignor,
    SharedAssignment,
    Subscription,
    Topics,
    in_runs,
    ordered,
    subscribers,
)
from kraftpy.client.offsets import Partition
from kraftpy.client.shares import equal_slices, off_line
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    Shares,
    ShareSubscription,
    decode_share_subscription,
    encode_share_subscription,
)

_log = logging.getLogger(__name__)

_NOT_SHARING = ShareSubscription(False)


@lru_cache(1024)
def _decode(user_data: bytes) -> ShareSubscription:
    try:
        return decode_share_subscription(user_data) or _NOT_SHARING
    except DecodeError as error:
        _log.warning("what a member says of its shares can't be read: %s", error)
        return _NOT_SHARING


def sharing_of(subscription: Subscription) -> ShareSubscription:
    """What a member said of sharing; a partition that it has and names no slices of, is whole."""
    said = _decode(subscription.user_data)
    owned = {name: said.owned.get(name, ALL_SLOTS) for name in subscription.owned}
    return said._replace(owned=owned)


class SharingAssignor(Assignor):
    """An assignor that deals out in reverse the topics that have more sharers than partitions."""

    def user_data(
        self,
        owned: Sequence[Partition],
        generation: int,
        sharing: ShareSubscription | None = None,
    ) -> bytes:
        return b"" if sharing is None else encode_share_subscription(sharing)

    def share(
        self, topics: Topics, members: Mapping[str, Subscription], shareable: Collection[str]
    ) -> SharedAssignment:
        crowded = crowded_topics(topics, members, shareable)
        others = {topic: topics[topic] for topic in topics if topic not in crowded}
        shares = super().share(others, members, ())
        for topic, sharers in crowded.items():
            for member, share in self.deal(topic, sorted(topics[topic]), sharers).items():
                shares[member] |= share
        return shares

    def deal(
        self, topic: str, numbers: Sequence[int], sharers: Mapping[str, ShareSubscription]
    ) -> SharedAssignment:
        """Shares of a topic's partitions for members in order, of which there are more."""
        raise NotImplementedError


def keeps_what_is_cut(assignors: Sequence[Assignor]) -> bool:
    """Whether a member reads on what it keeps of a partition, when others are given parts."""
    return all(each.cooperative and isinstance(each, SharingAssignor) for each in assignors)


def crowded_topics(
    topics: Topics, members: Mapping[str, Subscription], shareable: Collection[str]
) -> dict[str, dict[str, ShareSubscription]]:
    """The topics that are dealt out in reverse, each with its sharers in order."""
    sharing = {member: sharing_of(subscription) for member, subscription in members.items()}
    crowded = {}
    for topic, group in subscribers(topics, members):
        sharers = {member: sharing[member] for member in group if sharing[member].allow_key_share}
        if topic in shareable and len(sharers) > len(topics[topic]):
            crowded[topic] = sharers
    return crowded


def _in_slices(topic: str, readers: Mapping[int, Sequence[str]]) -> SharedAssignment:
    """Each partition in equal slices, one for each of its members."""
    return {
        member: {(topic, number): slots}
        for number, group in readers.items()
        for member, slots in zip(group, equal_slices(len(group)), strict=True)
    }


class RangeAssignor(SharingAssignor):
    """Kafka's RangeAssignor, for members without racks; in reverse, members in contiguous runs."""

    name = "range"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, group in subscribers(topics, members):
            runs = in_runs(sorted(topics[topic]), len(group))
            for member, numbers in zip(group, runs, strict=True):
                assignment[member] += [(topic, number) for number in numbers]
        return assignment

    def deal(
        self, topic: str, numbers: Sequence[int], sharers: Mapping[str, ShareSubscription]
    ) -> SharedAssignment:
        runs = in_runs(list(sharers), len(numbers))
        return _in_slices(topic, dict(zip(numbers, runs, strict=True)))


class RoundRobinAssignor(SharingAssignor):
    """Kafka's RoundRobinAssignor; members that don't subscribe to a topic are passed over."""

    name = "roundrobin"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        order = ordered(members)
        turn = 0
        for topic, _ in subscribers(topics, members):
            for number in sorted(topics[topic]):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                assignment[order[turn % len(order)]].append((topic, number))
                turn += 1
        return assignment

    def deal(
        self, topic: str, numbers: Sequence[int], sharers: Mapping[str, ShareSubscription]
    ) -> SharedAssignment:
        order = list(sharers)
        return _in_slices(topic, {n: order[i :: len(numbers)] for i, n in enumerate(numbers)})


class ColocateAssignor(SharingAssignor):
    """Members of one host stand side by side, and so do their parts of a topic.

    In reverse, the topic's partitions lie on a line that is cut into equal pieces: so few hosts
    have parts of one partition, and each needs few of the stores that belong to partitions. Topics
    with equally many partitions are cut at the same places.
    """

    name = "kraftpy-colocate"

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, group in subscribers(topics, members):
            side_by_side = sorted(group, key=lambda member: sharing_of(members[member]).share_host)
            runs = in_runs(sorted(topics[topic]), len(group))
            for member, numbers in zip(side_by_side, runs, strict=True):
                assignment[member] += [(topic, number) for number in numbers]
        return assignment

    def deal(
        self, topic: str, numbers: Sequence[int], sharers: Mapping[str, ShareSubscription]
    ) -> SharedAssignment:
        side_by_side = sorted(sharers, key=lambda member: sharers[member].share_host)
        return cut(topic, numbers, side_by_side)


def cut(topic: str, numbers: Sequence[int], members: Sequence[str]) -> dict[str, Shares]:
    """Equal pieces of a topic's line, for members in this order."""
    total = len(numbers) * SLOTS
    bounds = [total * i // len(members) for i in range(len(members) + 1)]
    return {
        member: off_line([(bounds[i], bounds[i + 1])], topic, numbers)
        for i, member in enumerate(members)
    }
