"""The map of committed offsets: group, topic, partition -> what was committed.

Everything that reads or changes committed offsets goes through `OffsetMap`. An entry is to take at
most 64 bytes whatever the shape (seed 000: a million groups with one partition, a thousand with a
thousand), so there is no object per entry or per group: groups and topics have numbers
(`NameTable`), and the numbers of a few hundred groups share a `Page` of sorted columns, whose keys
are group, topic, partition. All of a group is one range of keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat

from kraftpy.core.groups.names import NameTable
from kraftpy.core.groups.offset_pages import Leaf, Page
from kraftpy.core.groups.offset_runs import OffsetRun
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset, OffsetRecord
from kraftpy.protocol.errors import ErrorCode

# A key: 9 bits of the group's number (the others choose the page), 24 of the topic's number, 31 of
# the partition.
_PAGE_BITS = 9
_GROUP_MASK = (1 << _PAGE_BITS) - 1
_GROUP_SHIFT = 55
_TOPIC_SHIFT = 31
_TOPIC_MASK = (1 << 24) - 1
_PARTITION_MASK = (1 << 31) - 1

# Reading this many times as many entries as are wanted costs less than looking each one up.
_WORTH_SCANNING = 4

# Finding a group's entries of a topic costs as much as a look at so many keys.
_WORTH_SEARCHING = 10

NO_OFFSET = -1

# Partition, offset, leader epoch, metadata and maybe an error, as OffsetFetch has them: -1, -1, ""
# for no offset.
OffsetRow = tuple[int, int, int, str] | tuple[int, int, int, str, ErrorCode]


def no_offset(partition: int) -> OffsetRow:
    """The row of a partition without a committed offset."""
    return partition, NO_OFFSET, -1, ""


def refused_offset(partition: int, error: ErrorCode) -> OffsetRow:
    """The row of a partition whose offset isn't told."""
    return partition, NO_OFFSET, -1, "", error


class OffsetMap:
    """The committed offsets of the groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self._groups = NameTable()
        self._topics = NameTable()
        # By the topic's number: how many entries, and a bit for each page that may have some.
        self._topic_counts = array("Q")
        self._topic_pages: list[int] = []
        self._pages: list[Page] = []
        self._count = 0

    def __len__(self) -> int:
        """How many offsets are kept."""
        return self._count

    def __contains__(self, group_id: str) -> bool:
        """Whether the group has any committed offset."""
        return self._groups.number_of(group_id) is not None

    @property
    def groups_count(self) -> int:
        """How many groups have committed offsets."""
        return len(self._groups)

    def group_ids(self) -> Iterator[str]:
        """The groups that have committed offsets."""
        return iter(self._groups)

    # -- changing

    def put(self, group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Sets what a group committed for a partition (0 to 2^31 - 1)."""
        group = self._groups.number_of(group_id)
        if group is None:
            group = self._add_group(group_id, committed.commit_timestamp_ms)
        number = self._topics.number_of(topic)
        if number is None:
            number = self._add_topic(topic)
        key = (group & _GROUP_MASK) << _GROUP_SHIFT | number << _TOPIC_SHIFT | partition
        page = group >> _PAGE_BITS
        if self._pages[page].put(key, committed):
            self._grown(number, page, 1)

    def put_run(self, run: OffsetRun) -> None:
        """Puts one after the other; faster where partitions ascend."""
        group_id, topic, partitions, offsets, epochs, times_ms = run
        if len(partitions) == 1:
            committed = CommittedOffset(offsets[0], epochs[0], "", times_ms[0], NO_TIMESTAMP)
            self.put(group_id, topic, partitions[0], committed)
            return
        group = self._groups.number_of(group_id)
        if group is None:
            group = self._add_group(group_id, times_ms[0])
        number = self._topics.number_of(topic)
        if number is None:
            number = self._add_topic(topic)
        base = (group & _GROUP_MASK) << _GROUP_SHIFT | number << _TOPIC_SHIFT
        keys = array("Q", map(base.__or__, partitions))
        page = group >> _PAGE_BITS
        added = self._pages[page].put_run(keys, offsets, epochs, times_ms)
        if added:
            self._grown(number, page, added)

    def _grown(self, topic: int, page: int, count: int) -> None:
        self._count += count
        self._topic_counts[topic] += count
        self._topic_pages[topic] |= 1 << page

    def replay(self, records: Sequence[OffsetRecord]) -> None:
        """Puts or removes one after the other.

        Faster than `put` where entries of one group and topic follow each other and exist already.
        """
        group_id = topic = None
        page: Page | None = None
        base = at = 0
        keys = array("Q")
        for record in records:
            next_group_id, next_topic, partition, committed = record
            if committed is None:
                self.remove(next_group_id, next_topic, partition)
                page = None
                continue
            if page is None or next_topic is not topic or next_group_id is not group_id:
                group_id, topic = next_group_id, next_topic
                found = self._place(group_id, topic)
                if found is None:
                    self.put(group_id, topic, partition, committed)
                    page = None
                    continue
                page, base = found
                at = len(keys)
            key = base | partition
            at += 1
            if at >= len(keys) or keys[at] != key:
                leaf = page.leaf_of(key)
                keys = leaf.keys
                at = bisect_left(keys, key)
            if at == len(keys) or keys[at] != key:
                self.put(next_group_id, next_topic, partition, committed)
                at = len(keys)  # its leaf may have been split
            else:
                page.set(leaf, at, committed)

    def _place(self, group_id: str, topic: str) -> tuple[Page, int] | None:
        """The group's page and its key of the topic's partition 0, None if either is unknown."""
        group = self._groups.number_of(group_id)
        number = self._topics.number_of(topic)
        if group is None or number is None:
            return None
        base = (group & _GROUP_MASK) << _GROUP_SHIFT | number << _TOPIC_SHIFT
        return self._pages[group >> _PAGE_BITS], base

    def _add_group(self, group_id: str, time_ms: int) -> int:
        group = self._groups.add(group_id)
        if group >> _PAGE_BITS == len(self._pages):
            self._pages.append(Page(time_ms))
        return group

    def _add_topic(self, topic: str) -> int:
        number = self._topics.add(topic)
        assert number <= _TOPIC_MASK, "a cluster has far fewer topics"
        if number == len(self._topic_counts):
            self._topic_counts.append(0)
            self._topic_pages.append(0)
        return number

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Forgets an offset; nothing happens if there is none."""
        group = self._groups.number_of(group_id)
        number = self._topics.number_of(topic)
        if group is None or number is None:
            return
        page = self._pages[group >> _PAGE_BITS]
        low = (group & _GROUP_MASK) << _GROUP_SHIFT
        if not page.remove(low | number << _TOPIC_SHIFT | partition):
            return
        self._count -= 1
        self._topic_counts[number] -= 1
        if not self._topic_counts[number]:
            self._topics.remove(number)
            self._topic_pages[number] = 0
        if not page.spans(low, low + (1 << _GROUP_SHIFT)):
            self._groups.remove(group)

    # -- reading

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        place = self._place(group_id, topic)
        return None if place is None else place[0].get(place[1] | partition)

    def offset(self, group_id: str, topic: str, partition: int) -> int | None:
        """The same without the rest."""
        place = self._place(group_id, topic)
        return None if place is None else place[0].offset(place[1] | partition)

    def rows(self, group_id: str, topic: str, partitions: Sequence[int]) -> list[OffsetRow]:
        """One row for each of these partitions."""
        place = self._place(group_id, topic)
        if place is None:
            return [no_offset(partition) for partition in partitions]
        page, base = place
        if len(partitions) > 1:
            first = max(min(partitions), 0)  # clients may ask for negative ones
            spans = page.spans(base + first, base + max(partitions) + 1)
            if sum(end - start for _, start, end in spans) <= _WORTH_SCANNING * len(partitions):
                found = {row[0]: row for span in spans for row in _rows(page, *span)}
                return [found.get(partition) or no_offset(partition) for partition in partitions]
        rows = []
        for partition in partitions:
            leaf = page.leaf_of(base | partition)
            keys = leaf.keys
            at = bisect_left(keys, base | partition)
            if at == len(keys) or keys[at] != base | partition:
                rows.append(no_offset(partition))
            elif page.extras is None:
                rows.append((partition, leaf.offsets[at], leaf.epochs[at], ""))
            else:
                rows += _rows(page, leaf, at, at + 1)
        return rows

    def rows_of_group(self, group_id: str) -> list[tuple[str, list[OffsetRow]]]:
        """All of a group's offsets by topic."""
        found: dict[int, list[OffsetRow]] = {}
        for number, page, leaf, start, end in self._pieces(group_id):
            found.setdefault(number, []).extend(_rows(page, leaf, start, end))
        return [(self._topics.name_of(number), rows) for number, rows in found.items()]

    def pieces_of_group(
        self, group_id: str, rows_max: int
    ) -> Iterator[tuple[str, list[OffsetRow]]]:
        """A group's offsets, so many of a topic at a time, the topics one after the other.

        Between two pieces offsets, topics and the group itself may come and go.
        """
        after = -1
        while (group := self._groups.number_of(group_id)) is not None:
            page = self._pages[group >> _PAGE_BITS]
            low = (group & _GROUP_MASK) << _GROUP_SHIFT
            spans = page.spans(max(low, after + 1), low + (1 << _GROUP_SHIFT))
            if not spans:
                return
            leaf, start, end = spans[0]
            prefix = leaf.keys[start] >> _TOPIC_SHIFT
            end = min(end, start + rows_max)
            end = bisect_left(leaf.keys, prefix + 1 << _TOPIC_SHIFT, start, end)
            after = leaf.keys[end - 1]
            yield self._topics.name_of(prefix & _TOPIC_MASK), _rows(page, leaf, start, end)

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        """All of a group's offsets, topic by topic."""
        for number, page, leaf, start, end in self._pieces(group_id):
            topic = self._topics.name_of(number)
            for key in leaf.keys[start:end]:
                committed = page.get(key)
                assert committed is not None
                yield topic, key & _PARTITION_MASK, committed

    def partitions_of(self, group_id: str) -> list[tuple[str, int]]:
        """The (topic, partition)s that the group has offsets for, topic by topic."""
        return [
            (topic, key & _PARTITION_MASK)
            for number, _, leaf, start, end in self._pieces(group_id)
            for topic in (self._topics.name_of(number),)
            for key in leaf.keys[start:end]
        ]

    def partitions_of_topic(self, group_id: str, topic: str) -> list[int]:
        """The topic's partitions that the group has offsets for."""
        place = self._place(group_id, topic)
        if place is None:
            return []
        page, base = place
        return [
            key & _PARTITION_MASK
            for leaf, start, end in page.spans(base, base + (1 << _TOPIC_SHIFT))
            for key in leaf.keys[start:end]
        ]

    def topics(self) -> Iterator[str]:
        """The topics that there are committed offsets for."""
        return iter(self._topics)

    def groups_reading(self, topic: str) -> list[str]:
        """The groups that have committed offsets for the topic."""
        number = self._topics.number_of(topic)
        if number is None:
            return []
        left = self._topic_counts[number]
        groups: dict[int, None] = {}
        pages = self._topic_pages[number]
        while left:
            page = (pages & -pages).bit_length() - 1
            pages &= pages - 1
            for leaf in self._pages[page].leaves:
                for group, count in _groups_of_topic(leaf, number):
                    groups[page << _PAGE_BITS | group] = None
                    left -= count
        return [self._groups.name_of(group) for group in groups]

    def oldest_ms(self, group_id: str) -> int | None:
        """When the oldest of the group's offsets was committed.

        None if the group has none, or if some may have expiry times of their own.
        """
        times_ms = [
            leaf.base_ms + min(leaf.times[start:end])
            for _, page, leaf, start, end in self._pieces(group_id)
            if page.extras is None
        ]
        return min(times_ms, default=None)

    def _pieces(self, group_id: str) -> Iterator[tuple[int, Page, Leaf, int, int]]:
        """Where the group's entries are, in order: topic number, page, leaf, start and end."""
        group = self._groups.number_of(group_id)
        if group is None:
            return
        page = self._pages[group >> _PAGE_BITS]
        low = (group & _GROUP_MASK) << _GROUP_SHIFT
        for leaf, first, end in page.spans(low, low + (1 << _GROUP_SHIFT)):
            keys = leaf.keys
            start = first
            while start < end:
                prefix = keys[start] >> _TOPIC_SHIFT
                middle = bisect_left(keys, prefix + 1 << _TOPIC_SHIFT, start, end)
                yield prefix & _TOPIC_MASK, page, leaf, start, middle
                start = middle


def _groups_of_topic(leaf: Leaf, topic: int) -> Iterator[tuple[int, int]]:
    """Groups (their numbers within the page) that read the topic, and how many entries each has."""
    keys = leaf.keys
    if not keys:
        return
    if (keys[-1] >> _GROUP_SHIFT) - (keys[0] >> _GROUP_SHIFT) > len(keys) // _WORTH_SEARCHING:
        for key in keys:
            if key >> _TOPIC_SHIFT & _TOPIC_MASK == topic:
                yield key >> _GROUP_SHIFT, 1
        return
    at = 0
    while at < len(keys):
        group = keys[at] >> _GROUP_SHIFT
        low = group << _GROUP_SHIFT | topic << _TOPIC_SHIFT
        start = bisect_left(keys, low, at)
        end = bisect_left(keys, low + (1 << _TOPIC_SHIFT), start)
        if start < end:
            yield group, end - start
        at = bisect_left(keys, group + 1 << _GROUP_SHIFT, end)


def _rows(page: Page, leaf: Leaf, start: int, end: int) -> list[OffsetRow]:
    """The rows of a span of one topic."""
    keys = leaf.keys[start:end]
    partitions = [key & _PARTITION_MASK for key in keys]
    offsets, epochs = leaf.offsets[start:end], leaf.epochs[start:end]
    extras = page.extras
    if extras is None:
        return list(zip(partitions, offsets, epochs, repeat(""), strict=False))
    nothing = ("", 0)
    metadata = [extras.get(key, nothing)[0] for key in keys]
    return list(zip(partitions, offsets, epochs, metadata, strict=True))
