"""Who reads which partition: the assignors `uniform` and `range` of KIP-848.

An assignor sees what members subscribe to and what the target assignment gives them now, and makes
the next target. Its rules:

* Every partition of a topic that somebody subscribes to goes to exactly one of its subscribers.
* The result depends on the arguments alone, not on the order of their dicts: coordinators that
  take over from each other decide alike.
* Every member of the argument is in the result, with nothing if there is nothing for it.

`ASSIGNORS` is in the order of `group.consumer.assignors`: the first one is for groups whose members
have no wish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from kraftpy.frozen import NamedTuple

Uuid: TypeAlias = bytes
Assignment: TypeAlias = dict[Uuid, frozenset[int]]

_Partition: TypeAlias = tuple[Uuid, int]

# A pass over all topics makes any two subscribers of a topic differ by one partition at most, but
# may undo that for another topic. Passes end when one changes nothing; this bounds the time.
_BALANCING_PASSES_MAX = 16


class MemberSpec(NamedTuple):
    """A member as an assignor sees it; `owned` is its part of the present target assignment."""

    instance_id: str | None
    rack_id: str | None
    topic_ids: frozenset[Uuid]
    owned: Mapping[Uuid, frozenset[int]]


# Members by id, and the partition counts of (at least) all topics that they subscribe to.
Assignor: TypeAlias = Callable[
    [Mapping[str, MemberSpec], Mapping[Uuid, int]], dict[str, Assignment]
]


def assign_range(
    members: Mapping[str, MemberSpec], topics: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Gives each subscriber of a topic one run of its partitions, equal but for one partition.

    Topics with as many partitions and the same subscribers are cut alike, so that a member has the
    same indexes of each (co-partitioning). Runs follow the order of static members by instance id,
    then of the others by member id; a static member keeps its runs when it comes back under
    another member id.
    """
    ordered = sorted(
        members, key=lambda member_id: (_is_dynamic(members[member_id]), _rank(members, member_id))
    )
    result: dict[str, Assignment] = {member_id: {} for member_id in ordered}
    for topic_id, subscribers in _subscribers(members, ordered).items():
        quota, extras = divmod(topics[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < extras)
            if end == start:
                break
            result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return result


def _is_dynamic(member: MemberSpec) -> bool:
    return member.instance_id is None


def _rank(members: Mapping[str, MemberSpec], member_id: str) -> str:
    return members[member_id].instance_id or member_id


def assign_uniform(
    members: Mapping[str, MemberSpec], topics: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Gives members equally many partitions over all topics, and moves as few as that allows.

    If all members subscribe to the same topics, their shares differ by one partition at most.
    Otherwise that holds, as far as single moves lead there, for members that share a topic; a
    member that alone subscribes to much may have more.
    """
    ordered = sorted(members)
    subscribers = _subscribers(members, ordered)
    kept, free = _keep_owned(members, ordered, topics, subscribers)
    if all(len(each) == len(members) for each in subscribers.values()):
        _share_equally(kept, free)
    else:
        _hand_out(kept, free, topics, subscribers)
        _balance(kept, subscribers)
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _subscribers(
    members: Mapping[str, MemberSpec], ordered: Iterable[str]
) -> dict[Uuid, list[str]]:
    """The members that subscribe to each topic, in this order."""
    if len({member.topic_ids for member in members.values()}) == 1:
        everybody = list(ordered)
        return dict.fromkeys(sorted(members[everybody[0]].topic_ids), everybody)
    subscribers: dict[Uuid, list[str]] = {}
    for member_id in ordered:
        for topic_id in members[member_id].topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    return {topic_id: subscribers[topic_id] for topic_id in sorted(subscribers)}


def _keep_owned(
    members: Mapping[str, MemberSpec],
    ordered: Iterable[str],
    topics: Mapping[Uuid, int],
    subscribed: Iterable[Uuid],
) -> tuple[dict[str, list[_Partition]], list[_Partition]]:
    """What members own and may keep, in ascending order, and what is nobody's yet."""
    free = {(topic_id, index) for topic_id in subscribed for index in range(topics[topic_id])}
    kept = {}
    for member_id in ordered:
        member = members[member_id]
        kept[member_id] = owned = sorted(
            (topic_id, index)
            for topic_id, indexes in member.owned.items()
            if topic_id in member.topic_ids
            for index in indexes
            if (topic_id, index) in free
        )
        free.difference_update(owned)
    return kept, sorted(free)


def _share_equally(kept: dict[str, list[_Partition]], free: list[_Partition]) -> None:
    """Takes from members what is over their share and fills up the others with that."""
    if not kept:
        return
    total = len(free) + sum(len(owned) for owned in kept.values())
    quota, extras = divmod(total, len(kept))
    # One partition more than the quota: for those first that would lose it otherwise.
    richest_first = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    shares = {
        member_id: quota + (position < extras) for position, member_id in enumerate(richest_first)
    }
    for member_id, owned in kept.items():
        free.extend(owned[shares[member_id] :])
        del owned[shares[member_id] :]
    free.sort()
    start = 0
    for member_id, owned in kept.items():
        end = start + shares[member_id] - len(owned)
        owned.extend(free[start:end])
        start = end


def _hand_out(
    kept: dict[str, list[_Partition]],
    free: list[_Partition],
    topics: Mapping[Uuid, int],
    subscribers: Mapping[Uuid, list[str]],
) -> None:
    """Gives each free partition to that subscriber of its topic that has least."""
    by_topic: dict[Uuid, list[_Partition]] = {}
    for partition in free:
        by_topic.setdefault(partition[0], []).append(partition)
    # Topics with little choice first: what comes later can make up for them.
    for topic_id in sorted(by_topic, key=lambda each: (len(subscribers[each]), -topics[each])):
        poorest = [(len(kept[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapify(poorest)
        for partition in by_topic[topic_id]:
            count, member_id = poorest[0]
            kept[member_id].append(partition)
            heapreplace(poorest, (count + 1, member_id))


def _balance(kept: dict[str, list[_Partition]], subscribers: Mapping[Uuid, list[str]]) -> None:
    """Moves partitions from subscribers of a topic that have many to those that have few."""
    owned = {member_id: _indexes_by_topic(partitions) for member_id, partitions in kept.items()}
    counts = {member_id: len(partitions) for member_id, partitions in kept.items()}
    for _ in range(_BALANCING_PASSES_MAX):
        moves = [
            _balance_topic(topic_id, each, owned, counts)
            for topic_id, each in subscribers.items()
            if len(each) > 1
        ]
        if not any(moves):
            break
    for member_id, topics in owned.items():
        kept[member_id] = [
            (topic_id, index) for topic_id, indexes in topics.items() for index in indexes
        ]


def _balance_topic(
    topic_id: Uuid,
    subscribers: list[str],
    owned: dict[str, dict[Uuid, list[int]]],
    counts: dict[str, int],
) -> bool:
    """Makes the counts of these members as equal as moving this topic's partitions can."""
    poorest = [(counts[member_id], member_id) for member_id in subscribers]
    heapify(poorest)
    richest = [
        (-count, member_id) for count, member_id in poorest if owned[member_id].get(topic_id)
    ]
    heapify(richest)
    moved = False
    # The highest count only falls and the lowest only rises, so who gave never has to take, nor the
    # other way round: that the heaps don't hear of it does no harm.
    while richest:
        most, giver = richest[0]
        least, taker = poorest[0]
        if -most - least <= 1:
            break
        owned[taker].setdefault(topic_id, []).append(owned[giver][topic_id].pop())
        counts[giver] -= 1
        counts[taker] += 1
        heappop(richest)
        if owned[giver][topic_id]:
            heappush(richest, (most + 1, giver))
        heapreplace(poorest, (least + 1, taker))
        moved = True
    return moved


def _indexes_by_topic(partitions: Iterable[_Partition]) -> dict[Uuid, list[int]]:
    by_topic: dict[Uuid, list[int]] = {}
    for topic_id, index in partitions:
        by_topic.setdefault(topic_id, []).append(index)
    return by_topic


def _by_topic(partitions: Iterable[_Partition]) -> Assignment:
    return {
        topic_id: frozenset(indexes) for topic_id, indexes in _indexes_by_topic(partitions).items()
    }


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
