"""A KIP-848 consumer group: what the log says of it, and nothing else.

* State changes in `replay` alone. It is a function of the last value of each key, whatever was
  replayed before, so that a compacted log gives the same group.
* A member is there if the log has its metadata. What it may own is in `currents`, what it is to own
  in `targets`; `owners` follows from `currents`.

Deadlines and whatever else does not survive a move of the coordinator are kept by `service`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    EpochedPartitions,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Partitions,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.core.groups.memory import (
    GROUP_BYTES,
    ITEM_BYTES,
    MEMBER_BYTES,
    protocols_bytes,
    text_bytes,
)

T = TypeVar("T")

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

# What a member has before the log says anything of it.
NOTHING_YET = CurrentAssignment(JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, {}, {})


class ConsumerGroupState(Enum):
    """The values are the names that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    """One group; every attribute is for reading, `replay` writes."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch: GroupEpoch | None = None
        self.target_epoch: TargetEpoch | None = None
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static_members: dict[str, str] = {}
        self.owners: dict[Uuid, dict[int, str]] = {}
        self._members_bytes = 0

    # -- looking

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory, without what follows from the cluster's topics."""
        return GROUP_BYTES + text_bytes(self.group_id) + self._members_bytes

    @property
    def epoch(self) -> int:
        return 0 if self.group_epoch is None else self.group_epoch.epoch

    @property
    def assignment_epoch(self) -> int:
        """The epoch of the target assignment."""
        return 0 if self.target_epoch is None else self.target_epoch.epoch

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        target_epoch = self.assignment_epoch
        if self.epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        for member_id in self.members:
            current = self.current(member_id)
            if current.epoch != target_epoch or current.state is not MemberState.STABLE:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def empty_since_ms(self) -> int:
        """Of a group without members: when the last one left, 0 if the log does not say."""
        return 0 if self.target_epoch is None else self.target_epoch.timestamp_ms

    @property
    def is_vacant(self) -> bool:
        """Whether the log has nothing of the group: it is not there."""
        return not (
            self.group_epoch
            or self.target_epoch
            or self.members
            or self.targets
            or self.currents
            or self.regexes
        )

    def current(self, member_id: str) -> CurrentAssignment:
        """What the member may own, and its epoch."""
        return self.currents.get(member_id, NOTHING_YET)

    def owner(self, topic_id: Uuid, partition: int) -> str | None:
        """The member that may own the partition: nobody else must be given it."""
        of_topic = self.owners.get(topic_id)
        return None if of_topic is None else of_topic.get(partition)

    def subscribed_names(self, metadata: MemberMetadata) -> set[str]:
        """The topics that a member asks for, by name and by regex."""
        return subscribed_names(metadata, self.regexes)

    def subscribed_topics(self) -> set[str]:
        """The topics that any member asks for."""
        return all_subscribed_names(self.members.values(), self.regexes)

    # -- replaying

    def replay(self, record: ConsumerRecord) -> None:
        """Takes in one committed record of this group."""
        if isinstance(record, CurrentRecord):
            self._replay_current(record.member_id, record.value)
        elif isinstance(record, MemberRecord):
            self._replay_member(record.member_id, record.value)
        elif isinstance(record, TargetRecord):
            _put(self.targets, record.member_id, record.value)
        elif isinstance(record, GroupEpochRecord):
            self.group_epoch = record.value
        elif isinstance(record, TargetEpochRecord):
            self.target_epoch = record.value
        else:
            _put(self.regexes, record.regex, record.value)

    def drop_strays(self) -> list[str]:
        """Forgets assignments of members that are not there; who they were for.

        No coordinator leaves such behind, but a record that could not be read does, and partitions
        that nobody can give up would be stuck.
        """
        strays = [m for m in {**self.currents, **self.targets} if m not in self.members]
        for member_id in strays:
            self._replay_current(member_id, None)
            self.targets.pop(member_id, None)
        return strays

    def _replay_member(self, member_id: str, metadata: MemberMetadata | None) -> None:
        old = self.members.get(member_id)
        instance_id = None if old is None else old.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        self._members_bytes -= 0 if old is None else metadata_bytes(old)
        self._members_bytes += 0 if metadata is None else metadata_bytes(metadata)
        _put(self.members, member_id, metadata)
        if metadata is not None and metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _replay_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.currents.get(member_id)
        if old is not None:
            for topic_id, partition in _places(old):
                self._disown(topic_id, partition, member_id)
        _put(self.currents, member_id, current)
        if current is not None:
            for topic_id, partition in _places(current):
                self.owners.setdefault(topic_id, {})[partition] = member_id

    def _disown(self, topic_id: Uuid, partition: int, member_id: str) -> None:
        # In a compacted log the next owner may come before the record in which this one gave up.
        of_topic = self.owners.get(topic_id)
        if of_topic is not None and of_topic.get(partition) == member_id:
            del of_topic[partition]
            if not of_topic:
                del self.owners[topic_id]


def metadata_bytes(metadata: MemberMetadata) -> int:
    """About what a member takes in memory."""
    names = metadata.topic_names
    classic = metadata.classic
    return (
        MEMBER_BYTES
        + text_bytes(
            metadata.instance_id,
            metadata.rack_id,
            metadata.client_id,
            metadata.client_host,
            metadata.topic_regex,
        )
        + len(names) * ITEM_BYTES
        + text_bytes(*names)
        + (0 if classic is None else protocols_bytes(classic.protocols))
    )


def subscribed_names(metadata: MemberMetadata, regexes: Mapping[str, ResolvedRegex]) -> set[str]:
    """The topics that a member asks for; a regex that is not resolved matches nothing."""
    names = set(metadata.topic_names)
    if metadata.topic_regex:
        resolved = regexes.get(metadata.topic_regex)
        if resolved is not None:
            names.update(resolved.topic_names)
    return names


def all_subscribed_names(
    members: Collection[MemberMetadata], regexes: Mapping[str, ResolvedRegex]
) -> set[str]:
    """The topics that any of these members asks for."""
    # Members mostly ask for the same, so each request is looked at once.
    names: set[str] = set()
    for asked in {metadata.topic_names for metadata in members}:
        names.update(asked)
    for regex in {metadata.topic_regex for metadata in members}:
        if regex and regex in regexes:
            names.update(regexes[regex].topic_names)
    return names


def without_epochs(partitions: EpochedPartitions) -> dict[Uuid, frozenset[int]]:
    """The same partitions in the form of a target."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items()}


def _places(current: CurrentAssignment) -> Iterator[tuple[Uuid, int]]:
    for partitions in (current.assigned, current.revoking):
        for topic_id, indexes in partitions.items():
            for index in indexes:
                yield topic_id, index


def _put(values: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
