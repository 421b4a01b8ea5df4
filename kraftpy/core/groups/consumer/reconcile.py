"""A member's next step towards its target assignment (KIP-848, "Member Assignment").

A member first gives up what it must (it stays in its epoch until it says that it has), then moves
to the epoch of the target and gets what is free, then waits for what others have not given up yet.
A partition is free once nobody may own it: so it never has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import (
    CurrentAssignment,
    EpochedPartitions,
    MemberState,
    Partitions,
)

Owner = Callable[[Uuid, int], str | None]


class TopicPartitions(Protocol):
    """An entry of the partitions that a heartbeat reports."""

    @property
    def topic_id(self) -> Uuid: ...
    @property
    def partitions(self) -> list[int]: ...


Owned = Sequence[TopicPartitions] | None


def next_assignment(
    member_id: str,
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    owner: Owner,
    owned: Owned,
) -> CurrentAssignment:
    """What the member may own from now on; `current` itself if it can't move.

    `owned` is what the member says it owns (None: it does not say), `owner` who may own a partition
    as far as the log goes.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.revoking):
        return current
    kept: dict[Uuid, Mapping[int, int]] = {}
    lost: dict[Uuid, Mapping[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        if wanted.issuperset(epochs):
            kept[topic_id] = epochs
            continue
        lost[topic_id] = {i: epoch for i, epoch in epochs.items() if i not in wanted}
        if len(lost[topic_id]) < len(epochs):
            kept[topic_id] = {i: epoch for i, epoch in epochs.items() if i in wanted}
    if lost and _owns_any(owned, lost):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, lost
        )
    state = MemberState.STABLE
    for topic_id, wanted in target.items():
        missing = wanted.difference(kept.get(topic_id, ()))
        # What this member was still revoking is its own: it has just said that it gave that up.
        free = [i for i in missing if owner(topic_id, i) in (None, member_id)]
        if len(free) < len(missing):
            state = MemberState.UNRELEASED_PARTITIONS
        if free:
            kept[topic_id] = {**kept.get(topic_id, {}), **dict.fromkeys(free, target_epoch)}
    moved = CurrentAssignment(target_epoch, current.epoch, state, kept, {})
    # Still waiting for the same partitions: that is nothing to write down.
    is_waiting = state is current.state is MemberState.UNRELEASED_PARTITIONS
    if is_waiting and current.epoch == target_epoch and kept == current.assigned:
        return current
    return moved


def owns_only(owned: Owned, assigned: EpochedPartitions) -> bool:
    """Whether the member reports what it owns, and nothing but these partitions."""
    if owned is None:
        return False
    for reported in owned:
        epochs = assigned.get(reported.topic_id)
        if epochs is None or not all(index in epochs for index in reported.partitions):
            return False
    return True


def _owns_any(owned: Owned, partitions: EpochedPartitions) -> bool:
    """Whether the member may own one of these partitions: it says so, or does not say."""
    if owned is None:
        return True
    for reported in owned:
        epochs = partitions.get(reported.topic_id)
        if epochs is not None and any(index in epochs for index in reported.partitions):
            return True
    return False
