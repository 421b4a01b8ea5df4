"""The assignor `simple` of share groups: several members may read a partition.

Rules, as Kafka 4.3's:

* Every partition has members and every member has partitions. With P partitions and M members a
  partition has ⌈M / P⌉ of them, and how much members have differs by one at most.
* Whoever has something keeps it as far as that allows.
* While all members ask for the same topics, all their partitions are dealt out together; else those
  of each topic by themselves.
* Only partitions that have a state at their share coordinator are dealt out.

To find what is fairest and moves least isn't tried: a partition may end up with a member too few,
if all who could take more have it already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import Partitions

NAME = "simple"

Place = tuple[Uuid, int]


def assign(
    asked: Mapping[str, frozenset[Uuid]],
    targets: Mapping[str, Partitions],
    ready: Mapping[Uuid, Iterable[int]],
) -> dict[str, Partitions]:
    """What each member is to read: `asked` has its topics, `targets` what it was to read before.

    `ready` has the partitions that may be dealt out.
    """
    dealt: dict[str, set[Place]] = {member_id: set() for member_id in asked}
    for topics in _together(asked):
        places = sorted((topic, index) for topic in topics for index in ready.get(topic, ()))
        members = sorted(member_id for member_id in asked if topics <= asked[member_id])
        for member_id, given in _spread(members, places, targets).items():
            dealt[member_id] |= given
    result: dict[str, Partitions] = {}
    for member_id, given in dealt.items():
        by_topic: dict[Uuid, set[int]] = {}
        for topic_id, index in given:
            by_topic.setdefault(topic_id, set()).add(index)
        result[member_id] = {topic: frozenset(indexes) for topic, indexes in by_topic.items()}
    return result


def _together(asked: Mapping[str, frozenset[Uuid]]) -> list[frozenset[Uuid]]:
    """The topics whose partitions are dealt out together."""
    wishes = set(asked.values())
    if len(wishes) == 1:
        return [each for each in wishes if each]
    return [frozenset((topic,)) for topic in sorted(frozenset[Uuid]().union(*wishes))]


def _spread(
    members: Sequence[str], places: Sequence[Place], targets: Mapping[str, Partitions]
) -> dict[str, set[Place]]:
    """Deals the places out to members that all may have any of them."""
    if not members or not places:
        return {}
    sharing = -(-len(members) // len(places))
    known = set(places)
    held = {
        member_id: {
            (topic, index)
            for topic, indexes in targets.get(member_id, {}).items()
            for index in indexes
        }
        & known
        for member_id in members
    }
    quotas = _quotas(members, held, sharing * len(places))
    holders: dict[Place, list[str]] = {place: [] for place in places}
    for member_id in members:
        for place in held[member_id]:
            holders[place].append(member_id)
    for place, having in holders.items():
        # Who has too much gives up first.
        having.sort(key=lambda each: (len(held[each]) - quotas[each], each))
        while len(having) > sharing:
            held[having.pop()].discard(place)
    for member_id in members:
        # What many have is given up first.
        surplus = sorted(held[member_id], key=lambda place: (-len(holders[place]), place))
        for place in surplus[: max(0, len(surplus) - quotas[member_id])]:
            held[member_id].discard(place)
            holders[place].remove(member_id)
    _fill(members, holders, held, quotas, sharing)
    return held


def _quotas(members: Sequence[str], held: Mapping[str, set[Place]], total: int) -> dict[str, int]:
    """How many places each member is to have; those with most get what can't be divided."""
    each, rest = divmod(total, len(members))
    ranked = sorted(members, key=lambda member_id: (-len(held[member_id]), member_id))
    return {member_id: each + (rank < rest) for rank, member_id in enumerate(ranked)}


def _fill(
    members: Sequence[str],
    holders: Mapping[Place, list[str]],
    held: Mapping[str, set[Place]],
    quotas: Mapping[str, int],
    sharing: int,
) -> None:
    """Gives places that have too few members to those who have too few places, in turn."""
    waiting = [member_id for member_id in members if len(held[member_id]) < quotas[member_id]]
    for place, having in sorted(holders.items(), key=lambda each: (len(each[1]), each[0])):
        passed: list[str] = []
        while waiting and len(having) < sharing:
            member_id = waiting.pop(0)
            if place not in held[member_id]:
                held[member_id].add(place)
                having.append(member_id)
            else:
                passed.append(member_id)
                continue
            if len(held[member_id]) < quotas[member_id]:
                passed.append(member_id)
        waiting += passed
