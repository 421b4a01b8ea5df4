"""The placement behind the sticky assignors: as even as subscriptions allow, with few moves.

Rules (KIP-54):

* Evenness comes first: the result minimises the sum of the squares of the members' loads. With
  equal subscriptions the loads differ by at most one.
* Then stickiness: a partition stays with its owner unless a move makes the loads more even, and the
  moves follow the shortest chain of members from one that has too much to one that has too little.
* The result is a function of its arguments: members and partitions are taken in sorted order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from kraftpy.client.offsets import Partition


def place(
    partitions: Sequence[Partition],
    subscriptions: Mapping[str, frozenset[str]],
    owners: Mapping[Partition, str],
) -> dict[str, list[Partition]]:
    """Gives every partition whose topic somebody subscribes to, to one of its subscribers.

    `subscriptions` are the topics by member; `owners` says who has what now (members that are gone,
    topics not subscribed any more and partitions that don't exist are ignored).
    """
    placement = _Placement(subscriptions)
    homeless = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner is not None and partition[0] in subscriptions.get(owner, ()):
            placement.add(owner, partition)
        elif placement.subscribers.get(partition[0]):
            homeless.append(partition)
    placement.house(homeless)
    while placement.improve(owners):
        pass
    return {member: placement.partitions_of(member) for member in subscriptions}


class _Placement:
    """Who has what while it is being decided."""

    def __init__(self, subscriptions: Mapping[str, frozenset[str]]) -> None:
        self.subscribers: dict[str, tuple[str, ...]] = {}
        for member in sorted(subscriptions):
            for topic in subscriptions[member]:
                self.subscribers[topic] = (*self.subscribers.get(topic, ()), member)
        self._load = dict.fromkeys(sorted(subscriptions), 0)
        self._has: dict[str, dict[str, set[int]]] = {member: {} for member in self._load}

    def add(self, member: str, partition: Partition) -> None:
        self._has[member].setdefault(partition[0], set()).add(partition[1])
        self._load[member] += 1

    def partitions_of(self, member: str) -> list[Partition]:
        return sorted((topic, n) for topic, ids in self._has[member].items() for n in ids)

    def house(self, partitions: Sequence[Partition]) -> None:
        """Places each partition with its least loaded subscriber, the hardest to place first."""
        # Loads only grow here, so an entry that is out of date is too low, and put right when met.
        queues: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        for partition in sorted(partitions, key=lambda p: (len(self.subscribers[p[0]]), p)):
            members = self.subscribers[partition[0]]
            queue = queues.get(members)
            if queue is None:
                queue = queues[members] = [(self._load[member], member) for member in members]
                heapq.heapify(queue)
            while queue[0][0] != self._load[queue[0][1]]:
                member = queue[0][1]
                heapq.heapreplace(queue, (self._load[member], member))
            member = queue[0][1]
            self.add(member, partition)
            heapq.heapreplace(queue, (self._load[member], member))

    def improve(self, owners: Mapping[Partition, str]) -> bool:
        """Moves partitions along one chain that makes the loads more even; False if there is none.

        No such chain from any member means that the loads are as even as they can be (Harvey,
        Ladner, Lovász, Tamir: Semi-matchings for bipartite graphs and load balancing).
        """
        lowest = min(self._load.values(), default=0)
        settled: set[str] = set()
        for giver in sorted(self._load, key=lambda member: -self._load[member]):
            if self._load[giver] < lowest + 2:
                return False
            if giver in settled:
                continue
            chain, seen = self._chain_from(giver)
            if chain:
                for source, topic, target in chain:
                    self._move(source, topic, target, owners)
                return True
            # What this giver reaches has nobody low enough for those with less to give either.
            settled |= seen
        return False

    def _chain_from(self, giver: str) -> tuple[list[tuple[str, str, str]], set[str]]:
        """The shortest chain of (from, topic, to) to a member with two fewer, and whom it saw."""
        came: dict[str, tuple[str, str]] = {}
        seen, tried = {giver}, set()
        queue = deque([giver])
        while queue:
            member = queue.popleft()
            for topic in sorted(t for t, ids in self._has[member].items() if ids):
                if topic in tried:
                    continue
                tried.add(topic)
                found = [other for other in self.subscribers[topic] if other not in seen]
                for other in sorted(found, key=self._load.__getitem__):
                    seen.add(other)
                    came[other] = (member, topic)
                    if self._load[other] <= self._load[giver] - 2:
                        return self._walk_back(came, giver, other), seen
                    queue.append(other)
        return [], seen

    @staticmethod
    def _walk_back(
        came: Mapping[str, tuple[str, str]], giver: str, last: str
    ) -> list[tuple[str, str, str]]:
        chain = []
        while last != giver:
            member, topic = came[last]
            chain.append((member, topic, last))
            last = member
        return chain

    def _move(self, source: str, topic: str, target: str, owners: Mapping[Partition, str]) -> None:
        """Moves a partition of a topic, rather one that the target had or the source had not."""

        def preference(number: int) -> tuple[bool, bool, int]:
            owner = owners.get((topic, number))
            return owner == target, owner != source, number

        number = max(self._has[source][topic], key=preference)
        self._has[source][topic].remove(number)
        self._load[source] -= 1
        self.add(target, (topic, number))
