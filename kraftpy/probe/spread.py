"""Where the heartbeat topic's partitions lie, so that every broker leads one; a pure function.

Rules:

* There are as many partitions as brokers, or more: partitions can't be taken away. Each broker is
  the preferred leader of at least one, and no replica lies at a broker that isn't counted.
* What is right already stays where it is, and so does everything while no broker is up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from kraftpy.frozen import NamedTuple

REPLICAS_MAX = 3


class Plan(NamedTuple):
    """How many partitions there have to be, and the new replicas of those that move."""

    partitions: int
    moves: dict[int, tuple[int, ...]]


def plan(brokers: Collection[int], partitions: Mapping[int, Sequence[int]]) -> Plan:
    """`partitions` are the replicas of each, the preferred leader first."""
    there = sorted(brokers)
    if not there:
        return Plan(len(partitions), {})
    replicas = min(REPLICAS_MAX, len(there))
    leads: dict[int, int] = {}
    spare: list[int] = []
    for index in sorted(partitions):
        first = next(iter(partitions[index]), -1)
        if first in there and first not in leads.values():
            leads[index] = first
        else:
            spare.append(index)
    for broker in there:
        if broker not in leads.values() and spare:
            leads[spare.pop(0)] = broker
    load = Counter(leads.values())
    for index in spare:
        first = next(iter(partitions[index]), -1)
        leads[index] = first if first in there else min(there, key=lambda id_: (load[id_], id_))
        load[leads[index]] += 1
    moves = {}
    for index, leader in sorted(leads.items()):
        target = _replicas(leader, partitions[index], there, replicas)
        if target != tuple(partitions[index]):
            moves[index] = target
    return Plan(max(len(there), len(partitions)), moves)


def _replicas(
    leader: int, now: Sequence[int], brokers: Sequence[int], count: int
) -> tuple[int, ...]:
    """The leader, then as many of today's replicas as may stay, then the brokers behind it."""
    place = brokers.index(leader)
    order = [leader, *now, *brokers[place + 1 :], *brokers[:place]]
    return tuple(dict.fromkeys(id_ for id_ in order if id_ in brokers))[:count]
