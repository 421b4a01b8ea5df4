"""Which groups there are, what ListGroups says of one, and DescribeGroups of a classic one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.groups.pending_offsets import PendingOffsets
from kraftpy.core.groups.share.state import ShareGroup
from kraftpy.protocol.messages import DescribeGroupsResponse, ListGroupsResponse

DescribedGroup = DescribeGroupsResponse.DescribedGroup
ListedGroup = ListGroupsResponse.ListedGroup

CLASSIC_GROUP_TYPE = "classic"
CONSUMER_GROUP_TYPE = "consumer"
SHARE_GROUP_TYPE = "share"


def listed(
    group_id: str, group: Group | None, consumer: ConsumerGroup | None, share: ShareGroup | None
) -> ListedGroup:
    """A group of any protocol, or one of which there are offsets alone."""
    if share is not None:
        return ListedGroup(group_id, SHARE_GROUP_TYPE, share.state.value, SHARE_GROUP_TYPE)
    if consumer is not None:
        state = consumer.state.value
        return ListedGroup(group_id, CONSUMER_PROTOCOL_TYPE, state, CONSUMER_GROUP_TYPE)
    if group is None:
        return ListedGroup(group_id, "", GroupState.EMPTY.value, CLASSIC_GROUP_TYPE)
    protocol_type = group.protocol_type or ""
    return ListedGroup(group_id, protocol_type, group.state.value, CLASSIC_GROUP_TYPE)


def described(group_id: str, group: Group | None, *, has_offsets: bool) -> DescribedGroup:
    """The group; `has_offsets` says that there are some, in case that it has nothing else."""
    if group is None or group.state is GroupState.DEAD:
        is_simple = group is None and has_offsets
        state = GroupState.EMPTY if is_simple else GroupState.DEAD
        return DescribedGroup(group_id=group_id, group_state=state.value)
    is_stable = group.state is GroupState.STABLE
    # While a rebalance runs, what the members had before it is shown: they may own it still.
    protocol_name = (group.protocol_name or "") if is_stable else ""
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.protocols[protocol_name] if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


class KnownGroups:
    """The groups of one partition of the offsets topic, looked at and not changed."""

    def __init__(
        self,
        classic: Mapping[str, Group],
        consumer: Mapping[str, ConsumerGroup],
        share: Mapping[str, ShareGroup],
        offsets: OffsetMap,
        pending: PendingOffsets,
    ) -> None:
        self.offsets = offsets
        self.pending = pending
        self._classic = classic
        self._consumer = consumer
        self._share = share

    def group_ids(self) -> Iterator[str]:
        """Every group that there is; one that comes or goes meanwhile may be missing or not."""
        yield from list(self._classic)
        yield from list(self._consumer)
        yield from list(self._share)
        for group_id in self.offsets.group_ids():
            if group_id not in self._classic and group_id not in self._consumer:
                yield group_id
        yield from self._only_pending()

    def generation_of(self, group_id: str) -> int:
        """The generation of a classic group that has members; -1 of any other."""
        group = self._classic.get(group_id)
        return -1 if group is None or not group.members else group.generation

    def _only_pending(self) -> list[str]:
        """The groups of which nothing is known but what open transactions have committed."""
        named = self._classic, self._consumer, self.offsets
        return [each for each in self.pending.group_ids() if not any(each in of for of in named)]

    def regexes(self) -> set[str]:
        """The regular expressions by which members of consumer groups subscribe."""
        return {
            metadata.topic_regex
            for group in self._consumer.values()
            for metadata in group.members.values()
            if metadata.topic_regex
        }

    def list_groups(
        self, states: Sequence[str], types: Sequence[str], group_ids: Iterable[str] | None = None
    ) -> list[ListedGroup]:
        """ListGroups 0-5: groups in any of these states and types, whatever their case.

        Of all groups, or of `group_ids`.
        """
        wanted_types = {name.lower() for name in types}
        wanted_states = {name.lower() for name in states}
        found = []
        for group_id in self.group_ids() if group_ids is None else group_ids:
            row = self._listed(group_id)
            if (not wanted_types or row.group_type in wanted_types) and (
                not wanted_states or row.group_state.lower() in wanted_states
            ):
                found.append(row)
        return found

    def _listed(self, group_id: str) -> ListedGroup:
        return listed(
            group_id,
            self._classic.get(group_id),
            self._consumer.get(group_id),
            self._share.get(group_id),
        )

    def summary(self, group_id: str) -> tuple[str, str, int]:
        """A group's type, state and number of members, for metrics."""
        row = self._listed(group_id)
        group = (
            self._classic.get(group_id) or self._consumer.get(group_id) or self._share.get(group_id)
        )
        return row.group_type, row.group_state, 0 if group is None else len(group.members)

    def describe(self, group_id: str) -> DescribedGroup:
        """DescribeGroups 0-5: a group that is not there is Dead, without an error."""
        has_offsets = group_id in self.offsets or group_id in self.pending
        # A consumer group has a request of its own (ConsumerGroupDescribe).
        is_simple = has_offsets and group_id not in self._consumer
        return described(group_id, self._classic.get(group_id), has_offsets=is_simple)

    @property
    def offsets_count(self) -> int:
        return len(self.offsets)

    @property
    def groups_count(self) -> int:
        named = (*self._classic, *self._consumer, *self._share)
        both = sum(group_id in self.offsets for group_id in named)
        return len(named) + self.offsets.groups_count - both + len(self._only_pending())
