"""Chooses brokers for the replicas of new partitions.

Deterministic: the same brokers and the same seed give the same places on every node. Rules:

* Leaders (first replicas) go round all brokers, so their numbers differ by at most one.
* The replicas of a partition lie on different brokers and on as many racks as there are; brokers
  without a rack count as one rack.
* Followers are shifted each time round, so that the load of a broker that fails spreads over all
  others instead of its neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.core.metadata.records import Broker


def place(
    brokers: Iterable[Broker], partitions: int, replication_factor: int, seed: int
) -> list[tuple[int, ...]]:
    """The replicas of each partition; `replication_factor` may not exceed the number of brokers."""
    ring = _ring(brokers)
    count = len(ring)
    assert 1 <= replication_factor <= count, (replication_factor, count)
    return [
        _replicas(ring, seed % count + index, (seed + index) // count, replication_factor)
        for index in range(partitions)
    ]


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


def _replicas(
    ring: list[Broker], position: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    count = len(ring)
    leader = ring[position % count]
    # The other brokers, starting at a distance that grows by one each time round.
    others = [ring[(position + 1 + (shift + n) % (count - 1)) % count] for n in range(count - 1)]
    chosen = [leader]
    racks = {leader.rack}
    while len(chosen) < replication_factor:
        fresh = next((each for each in others if each.rack not in racks), None)
        if fresh is None:
            racks.clear()
            continue
        others.remove(fresh)
        chosen.append(fresh)
        racks.add(fresh.rack)
    return tuple(broker.id for broker in chosen)
