"""The map of committed offsets: group, topic, partition -> what was committed.

Everything that reads or changes committed offsets goes through `OffsetMap`, so that the structure
behind it can change without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kraftpy.core.groups.records import CommittedOffset

_NOTHING: dict[int, CommittedOffset] = {}


class OffsetMap:
    """The committed offsets of the groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many offsets are kept."""
        return self._count

    def __contains__(self, group_id: object) -> bool:
        """Whether the group has any committed offset."""
        return group_id in self._groups

    def group_ids(self) -> Iterable[str]:
        return self._groups

    def put(self, group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        partitions = self._groups.setdefault(group_id, {}).setdefault(topic, {})
        self._count += partition not in partitions
        partitions[partition] = committed

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._groups.get(group_id, {}).get(topic, _NOTHING).get(partition)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Forgets an offset; nothing happens if there is none."""
        topics = self._groups.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self._count -= 1
        if not partitions:
            del topics[topic]
            if not topics:
                del self._groups[group_id]

    def of_topic(self, group_id: str, topic: str) -> Iterable[int]:
        """The topic's partitions that the group has committed offsets for."""
        return self._groups.get(group_id, {}).get(topic, _NOTHING)

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        """All of a group's offsets, topic by topic."""
        for topic, partitions in self._groups.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed
