"""Which partitions have a replica on a broker, so that fencing one doesn't look at all of them.

Derived from the topics and not part of a snapshot. Partitions come in the order of topic names and
indexes, on a node that has lived long as on one that has just read a snapshot: the changes of a
command are in the same order on both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator


class ReplicaIndex:
    """For each broker, the names of its topics with the sorted indexes of its partitions."""

    __slots__ = ("_brokers",)

    def __init__(self) -> None:
        self._brokers: dict[int, dict[str, list[int]]] = {}

    def partitions(self, broker_id: int) -> Iterator[tuple[str, list[int]]]:
        """Topic names in order, each with a copy of the partitions on this broker.

        Whoever goes through them may add and remove replicas of that topic meanwhile.
        """
        topics = self._brokers.get(broker_id, {})
        return ((name, list(topics[name])) for name in sorted(topics))

    def count(self, broker_id: int) -> int:
        """The number of replicas that the broker has."""
        return sum(map(len, self._brokers.get(broker_id, {}).values()))

    def add(self, topic: str, placed: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Notes replicas of the topic: indexes of partitions, each with brokers."""
        found: dict[int, list[int]] = {}
        for index, brokers in placed:
            for broker_id in brokers:
                found.setdefault(broker_id, []).append(index)
        for broker_id, indexes in found.items():
            known = self._brokers.setdefault(broker_id, {}).setdefault(topic, [])
            known += indexes
            known.sort()

    def remove(self, topic: str, index: int, brokers: Iterable[int]) -> None:
        for broker_id in brokers:
            indexes = self._brokers[broker_id][topic]
            del indexes[bisect_left(indexes, index)]
            if not indexes:
                self._forget(broker_id, topic)

    def remove_topic(self, topic: str, brokers: Iterable[int]) -> None:
        """Forgets the whole topic, given all brokers that have replicas of it."""
        for broker_id in brokers:
            self._forget(broker_id, topic)

    def _forget(self, broker_id: int, topic: str) -> None:
        topics = self._brokers[broker_id]
        del topics[topic]
        if not topics:
            del self._brokers[broker_id]
