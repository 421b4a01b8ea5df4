"""A share group: what the log says of it, and nothing else.

State changes in `replay` alone. It is a function of the last value of each key, whatever was
replayed before, so that a compacted log gives the same group. Deadlines and whatever else does not
survive a move of the coordinator are kept by `service`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from kraftpy.core.groups.consumer.records import GroupEpoch, Partitions, TargetEpoch
from kraftpy.core.groups.memory import GROUP_BYTES, ITEM_BYTES, MEMBER_BYTES, text_bytes
from kraftpy.core.groups.share.records import (
    ShareAssignment,
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareRecord,
    ShareStates,
    ShareTargetEpochRecord,
    ShareTargetRecord,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1

# What a member and a group have before the log says anything of it.
NOTHING_YET = ShareAssignment(JOIN_EPOCH, JOIN_EPOCH, {})
NO_STATES = ShareStates({}, {}, {})


class ShareGroupState(Enum):
    """The values are the names that ShareGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup:
    """One group; every attribute is for reading, `replay` writes."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch: GroupEpoch | None = None
        self.target_epoch: TargetEpoch | None = None
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.assignments: dict[str, ShareAssignment] = {}
        self.states = NO_STATES
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
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_vacant(self) -> bool:
        """Whether the log has nothing of the group: it is not there."""
        return not (
            self.group_epoch
            or self.target_epoch
            or self.members
            or self.targets
            or self.assignments
            or self.states is not NO_STATES
        )

    def assignment(self, member_id: str) -> ShareAssignment:
        """What the member has been told to read, and its epoch."""
        return self.assignments.get(member_id, NOTHING_YET)

    # -- replaying

    def replay(self, record: ShareRecord) -> None:
        """Takes in one committed record of this group."""
        if isinstance(record, ShareMemberRecord):
            self._members_bytes -= members_bytes(self.members.pop(record.member_id, None))
            self._members_bytes += members_bytes(record.value)
            if record.value is not None:
                self.members[record.member_id] = record.value
        elif isinstance(record, ShareAssignmentRecord):
            self.assignments.pop(record.member_id, None)
            if record.value is not None:
                self.assignments[record.member_id] = record.value
        elif isinstance(record, ShareTargetRecord):
            self.targets.pop(record.member_id, None)
            if record.value is not None:
                self.targets[record.member_id] = record.value
        elif isinstance(record, ShareEpochRecord):
            self.group_epoch = record.value
        elif isinstance(record, ShareTargetEpochRecord):
            self.target_epoch = record.value
        else:
            self.states = NO_STATES if record.value is None else record.value

    def drop_strays(self) -> None:
        """Forgets what members that are not there were to read: a record couldn't be read."""
        for member_id in {**self.assignments, **self.targets}:
            if member_id not in self.members:
                self.assignments.pop(member_id, None)
                self.targets.pop(member_id, None)


def members_bytes(member: ShareMember | None) -> int:
    """About what a member takes in memory."""
    if member is None:
        return 0
    names = member.topic_names
    return (
        MEMBER_BYTES
        + text_bytes(member.rack_id, member.client_id, member.client_host, *names)
        + len(names) * ITEM_BYTES
    )


def subscribed_names(members: Iterable[ShareMember]) -> set[str]:
    """The topics that any of these members asks for."""
    # Members mostly ask for the same, so each request is looked at once.
    names: set[str] = set()
    for asked in {member.topic_names for member in members}:
        names.update(asked)
    return names
