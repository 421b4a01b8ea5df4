"""What groups of either protocol tell of themselves (`kraftpy.events`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kraftpy.events import emit

log = logging.getLogger(__name__)

# The settings that `tell_refused` names.
MAX_METADATA = "group.max.metadata.bytes"
MAX_MEMORY = "group.coordinator.max.memory.bytes"
MAX_RANGES = "individual.commit.max.ranges"
MAX_RANGES_BYTES = "individual.commit.max.bytes"


def tell_rebalance(group_id: str, generation: int, members: int, reason: str) -> None:
    """A group needs another assignment; of a consumer group `generation` is the new epoch."""
    emit(
        log,
        logging.INFO,
        "group-rebalance",
        group=group_id,
        generation=generation,
        members=members,
        reason=reason,
    )


def tell_generation(group_id: str, generation: int, members: int, protocol: str | None) -> None:
    """A classic group has its next generation."""
    emit(
        log,
        logging.INFO,
        "group-generation",
        group=group_id,
        generation=generation,
        members=members,
        protocol=protocol,
    )


def tell_gone(group_id: str, member_id: str, reason: str) -> None:
    """A member is taken out of its group."""
    emit(log, logging.INFO, "group-member-gone", group=group_id, member=member_id, reason=reason)


def tell_refused(group_id: str, reason: str, setting: str) -> None:
    """A member isn't let in, or what it says isn't kept: `setting` allows no more."""
    emit(log, logging.WARNING, "group-limit", group=group_id, reason=reason, setting=setting)


def tell_back(group_id: str, member_id: str, previous: str) -> None:
    """A static member of a classic group has come back under another id."""
    emit(
        log, logging.INFO, "group-member-back", group=group_id, member=member_id, previous=previous
    )


def tell_unassigned(group_id: str, generation: int, member_ids: Sequence[str]) -> None:
    """The leader of a classic group has forgotten these members."""
    emit(
        log,
        logging.INFO,
        "group-unassigned",
        group=group_id,
        generation=generation,
        members=member_ids,
    )
