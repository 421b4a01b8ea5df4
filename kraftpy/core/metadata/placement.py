"""Chooses brokers for the replicas of new partitions.

Deterministic: the same brokers and the same seed give the same places on every node. Rules:

* Leaders (first replicas) go round all active brokers, so their numbers differ by at most one.
* The replicas of a partition lie on different brokers and on as many racks as there are; brokers
  without a rack count as one rack.
* Followers are shifted each time round, so that the load of a broker that fails spreads over all
  others instead of its neighbour.
* Brokers that are not active get replicas only if the others are too few, and stand last, as in
  Kafka: so a topic can be created while a broker is down.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.core.metadata.records import Broker


def place(
    brokers: Iterable[Broker], partitions: int, replication_factor: int, seed: int
) -> list[tuple[int, ...]]:
    """The replicas of each partition.

    `replication_factor` may not exceed the number of brokers, of which one at least is active.
    """
    known = list(brokers)
    ring = _ring(each for each in known if each.active)
    spare = _ring(each for each in known if not each.active)
    count = len(ring)
    assert count
    assert 1 <= replication_factor <= len(known), (replication_factor, known)
    placed: list[tuple[int, ...]] = []
    made: dict[tuple[int, int], tuple[int, ...]] = {}
    for index in range(partitions):
        position = (seed + index) % count
        shift = ((seed + index) // count) % max(count - 1, 1)
        replicas = made.get((position, shift))
        if replicas is None:
            others = [
                ring[(position + 1 + (shift + n) % (count - 1)) % count] for n in range(count - 1)
            ]
            rotated = spare[shift % len(spare) :] + spare[: shift % len(spare)] if spare else []
            replicas = made[position, shift] = _chosen(
                ring[position], others, rotated, replication_factor
            )
        placed.append(replicas)
    return placed


def _ring(brokers: Iterable[Broker]) -> list[Broker]:
    """The brokers so that neighbours are in different racks, as far as possible."""
    racks: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda each: each.id):
        racks.setdefault(broker.rack or "", []).append(broker)
    queues = [racks[name] for name in sorted(racks)]
    return [
        queue[depth]
        for depth in range(max(map(len, queues), default=0))
        for queue in queues
        if depth < len(queue)
    ]


def _chosen(
    leader: Broker, others: list[Broker], spare: list[Broker], replication_factor: int
) -> tuple[int, ...]:
    """The leader and the first of the others, then of the spare ones, that lie in fresh racks."""
    chosen = [leader]
    for candidates in (others, spare):
        left = list(candidates)
        racks = {each.rack or "" for each in chosen}
        while left and len(chosen) < replication_factor:
            fresh = next((each for each in left if (each.rack or "") not in racks), None)
            if fresh is None:
                racks.clear()
                continue
            left.remove(fresh)
            chosen.append(fresh)
            racks.add(fresh.rack or "")
    return tuple(broker.id for broker in chosen)
