"""Offsets that open transactions have committed: they count when the transaction does (KIP-98).

An offset is pending under its producer and its key (group, topic, partition) until the marker of
the transaction moves it to the map of committed offsets or drops it. Rules:

* Of two commits of a key that both count, the one counts that was written later, whenever its
  transaction ended: Kafka compares the offsets of their records. Here the pending ones of a key are
  kept in that order, and what takes effect drops those before it.
* A commit outside of transactions is later than all that is pending, and so is a tombstone.
* What one group has pending is counted, for the memory that groups may take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Never, overload

from kraftpy.core.groups.memory import text_bytes
from kraftpy.core.groups.records import CommittedOffset, OffsetRecord

# Beside the names and the metadata: measured, of one that has producer and group for itself.
PENDING_OFFSET_BYTES = 1_300

# Topic and partition.
Place = tuple[str, int]


class TransactionalOffsets(Sequence[OffsetRecord]):
    """The records of a write: offsets that a producer commits in its transaction, none of them
    tombstones.
    """

    __slots__ = ("producer_epoch", "producer_id", "records")

    def __init__(
        self, producer_id: int, producer_epoch: int, records: Sequence[OffsetRecord]
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> OffsetRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OffsetRecord]: ...
    def __getitem__(self, index: int | slice) -> OffsetRecord | Sequence[OffsetRecord]:
        return self.records[index]

    def __iter__(self) -> Iterator[OffsetRecord]:
        return iter(self.records)


class TransactionEnds(Sequence[Never]):
    """In the place of a write's records: markers, each with its producer and whether it commits."""

    __slots__ = ("ends",)

    def __init__(self, ends: Sequence[tuple[int, bool]]) -> None:
        self.ends = ends

    def __len__(self) -> int:
        return 0

    @overload
    def __getitem__(self, index: int) -> Never: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Never]: ...
    def __getitem__(self, index: int | slice) -> Sequence[Never]:
        return ()[index]


class PendingOffsets:
    """The pending offsets of the groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self._of_producers: dict[int, dict[tuple[str, Place], CommittedOffset]] = {}
        # The producers of each key, in the order of their records.
        self._of_groups: dict[str, dict[Place, dict[int, None]]] = {}
        self._sizes_bytes: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many offsets are pending."""
        return self._count

    def __contains__(self, group_id: str) -> bool:
        """Whether the group has any."""
        return group_id in self._of_groups

    def group_ids(self) -> Iterable[str]:
        """The groups that have any."""
        return self._of_groups.keys()

    def size_bytes(self, group_id: str) -> int:
        """What those of a group take in memory."""
        return self._sizes_bytes.get(group_id, 0)

    # -- reading

    def places_of(self, group_id: str) -> Iterable[Place]:
        """The topics and partitions for which the group has any."""
        return self._of_groups.get(group_id, {}).keys()

    def places_of_topic(self, topic: str) -> list[tuple[str, int]]:
        """The groups and partitions with any for this topic."""
        return [
            (group_id, place[1])
            for group_id, places in self._of_groups.items()
            for place in places
            if place[0] == topic
        ]

    def groups_of(self, producer_id: int) -> set[str]:
        """The groups for which the producer has any."""
        return {group_id for group_id, _ in self._of_producers.get(producer_id, ())}

    def topics(self) -> set[str]:
        """The topics for which there are any."""
        return {topic for places in self._of_groups.values() for topic, _ in places}

    # -- changing

    def put(self, producer_id: int, record: OffsetRecord) -> None:
        """A producer's transaction has committed this offset."""
        group_id, topic, partition, committed = record
        assert committed is not None
        place = topic, partition
        producers = self._of_groups.setdefault(group_id, {}).setdefault(place, {})
        if producer_id in producers:
            self._forget(producer_id, group_id, place)
            del producers[producer_id]  # it's the last one now
        producers[producer_id] = None
        self._of_producers.setdefault(producer_id, {})[group_id, place] = committed
        size_bytes = pending_bytes(topic, committed.metadata)
        self._sizes_bytes[group_id] = self._sizes_bytes.get(group_id, 0) + size_bytes
        self._count += 1

    def drop(self, group_id: str, topic: str, partition: int) -> None:
        """Something later has been written for this key."""
        places = self._of_groups.get(group_id)
        place = topic, partition
        if places is None or place not in places:
            return
        for producer_id in places[place]:
            self._forget(producer_id, group_id, place)
        self._remove(group_id, place)

    def end(self, producer_id: int, *, committed: bool) -> list[OffsetRecord]:
        """The producer's transaction has ended; what counts now."""
        counting = []
        for (group_id, place), offset in list(self._of_producers.get(producer_id, {}).items()):
            producers = self._of_groups[group_id][place]
            over = [producer_id]
            if committed:
                counting.append(OffsetRecord(group_id, *place, offset))
                over += self._before(producer_id, producers)
            for each in over:
                self._forget(each, group_id, place)
                del producers[each]
            if not producers:
                self._remove(group_id, place)
        return counting

    def _before(self, producer_id: int, producers: Iterable[int]) -> list[int]:
        earlier = []
        for each in producers:
            if each == producer_id:
                break
            earlier.append(each)
        return earlier

    def _forget(self, producer_id: int, group_id: str, place: Place) -> None:
        """Takes an offset away from its producer."""
        offsets = self._of_producers[producer_id]
        offset = offsets.pop((group_id, place))
        if not offsets:
            del self._of_producers[producer_id]
        self._sizes_bytes[group_id] -= pending_bytes(place[0], offset.metadata)
        self._count -= 1

    def _remove(self, group_id: str, place: Place) -> None:
        """No producer has an offset of this key any more."""
        places = self._of_groups[group_id]
        del places[place]
        if not places:
            del self._of_groups[group_id], self._sizes_bytes[group_id]


def pending_bytes(topic: str, metadata: str) -> int:
    """What a pending offset takes in memory."""
    return PENDING_OFFSET_BYTES + text_bytes(topic, metadata)
