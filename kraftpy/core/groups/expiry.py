"""When committed offsets expire (KIP-211).

The clock (`offsets.retention.minutes`) starts when the group becomes empty; for groups that only
keep offsets, and for topics that a live group no longer reads, with the commit. What was claimed
above an offset counts as a commit of it.
"""

from __future__ import annotations

from kraftpy.core.groups.config import GroupConfig
from kraftpy.core.groups.consumer.service import ConsumerGroups
from kraftpy.core.groups.group import Group, GroupState
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.records import NO_TIMESTAMP, CommittedOffset
from kraftpy.frozen import NamedTuple


class Usage(NamedTuple):
    """What keeps a group's offsets: `read` are the topics that members read, None for all.

    `is_empty` says that it is a group without members, `empty_since_ms` since when (-1: the commit
    counts).
    """

    is_empty: bool
    read: set[str] | None
    empty_since_ms: int


class Expiry:
    """Tells which offsets of the groups of one partition of the offsets topic have expired."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, Group],
        consumers: ConsumerGroups,
        offsets: OffsetMap,
    ) -> None:
        self._config = config
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets

    def usage(self, group_id: str) -> Usage:
        consumer = self._consumers.groups.get(group_id)
        if consumer is not None:
            if consumer.members:
                return Usage(False, consumer.subscribed_topics(), NO_TIMESTAMP)
            return Usage(True, set(), consumer.empty_since_ms)
        group = self._groups.get(group_id)
        if group is None:
            return Usage(False, set(), NO_TIMESTAMP)
        is_empty = group.state is GroupState.EMPTY
        if group.protocol_type is None:
            return Usage(is_empty, set(), NO_TIMESTAMP)
        if is_empty:
            return Usage(True, set(), group.state_timestamp_ms)
        read = group.subscribed_topics() if group.state is GroupState.STABLE else None
        return Usage(False, read, NO_TIMESTAMP)

    def all_are_young(self, group_id: str, now_ms: int) -> bool:
        """Whether no offset can have expired, told without a look at each."""
        oldest_ms = self._offsets.oldest_ms(group_id)
        return oldest_ms is not None and now_ms - oldest_ms < self._config.offsets_retention_ms

    def is_expired(
        self,
        usage: Usage,
        topic: str,
        committed: CommittedOffset,
        claimed_ms: int,
        now_ms: int,
    ) -> bool:
        if usage.read is None or topic in usage.read:
            return False
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            return now_ms >= committed.expire_timestamp_ms
        since_ms = max(committed.commit_timestamp_ms, claimed_ms)
        if usage.empty_since_ms != NO_TIMESTAMP:
            # Somebody may have set an offset of the empty group since.
            since_ms = max(since_ms, usage.empty_since_ms)
        return now_ms - since_ms >= self._config.offsets_retention_ms
