"""When a group changes its protocol, and what becomes of who was in it (KIP-848, "Migration").

Rules:

* `group.consumer.migration.policy` says which way is open. A group without members may go either
  way whatever the policy.
* A conversion is one write of the consumer group's line (`service`), so whatever else concerns the
  group waits until it has landed. Until then the old group is what there is, and it stays if the
  write fails; its deadlines are put off meanwhile, since what they do could not be undone.
* Once an upgrade is committed, those who were parked in the classic group are told to rejoin
  (REBALANCE_IN_PROGRESS). Once a downgrade is, the classic group rebalances.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from kraftpy.core.coordination import Committed
from kraftpy.core.groups.config import GroupConfig, GroupTimes
from kraftpy.core.groups.consumer.conversion import (
    downgrade,
    leaves_classic_members_only,
    upgrade,
)
from kraftpy.core.groups.consumer.heartbeat import fence
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.group import Group
from kraftpy.core.groups.rebalance import Rebalance
from kraftpy.core.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord
from kraftpy.core.groups.share.records import SHARE_RECORDS
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)


class Departure(NamedTuple):
    """The records that take members out, and what to do once they are committed."""

    records: Sequence[CoordinatorRecord]
    committed: Committed


class Migration:
    """Decides on conversions; `classic` are the classic groups."""

    def __init__(
        self,
        config: GroupConfig,
        times: GroupTimes,
        classic: dict[str, Group],
        rebalance: Rebalance,
        topics: Topics,
    ) -> None:
        self._config = config
        self._times = times
        self._classic = classic
        self._rebalance = rebalance
        self._topics = topics

    # -- upgrade

    def make_way(self, group_id: str) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """Somebody wants to join a consumer group that is not there: what it is after the records.

        Raises KafkaError: GROUP_ID_NOT_FOUND, if a classic group is in the way.
        """
        group = ConsumerGroup(group_id)
        classic = self._classic.get(group_id)
        if classic is None:
            return group, []
        if not classic.members:
            return group, [GroupRecord(group_id, None)]
        obstacle = self._obstacle(classic)
        if obstacle:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group, and can't become one: {obstacle}.",
            )
        records = upgrade(classic, self._topics)
        for record in records:
            if not isinstance(record, (GroupRecord, OffsetRecord, *SHARE_RECORDS)):
                group.replay(record)
        return group, records

    def _obstacle(self, classic: Group) -> str:
        """Why a classic group with members can't become a consumer group; "" if it can."""
        policy = self._config.consumer_migration_policy
        if not policy.upgrades:
            return f"group.consumer.migration.policy is {policy.value}"
        if not classic.uses_consumer_protocol:
            return f"its members are not consumers but of type {classic.protocol_type!r}"
        if len(classic.members) > self._config.consumer_max_size:
            return "it has more members than group.consumer.max.size"
        return ""

    # -- downgrade

    def departure(
        self,
        group: ConsumerGroup,
        member_ids: Collection[str],
        now_ms: int,
        *,
        may_downgrade: bool = True,
    ) -> Departure:
        """Takes members out; if the last of the consumer protocol goes the group downgrades."""
        if not may_downgrade or not self.is_due(group, member_ids):
            return Departure(fence(group, member_ids, now_ms), lambda now_ms: None)
        session_timeout_ms = self._times.of(group.group_id).session_timeout_ms
        records = downgrade(group, member_ids, session_timeout_ms, self._topics, now_ms)
        protocols = {
            known: dict(metadata.classic.protocols)
            for known, metadata in group.members.items()
            if metadata.classic is not None
        }

        def committed(now_ms: int) -> None:
            classic = self._classic.get(group.group_id)
            if classic is not None:
                self._rebalance.downgraded(classic, protocols, member_ids, now_ms)

        return Departure(records, committed)

    def is_due(self, group: ConsumerGroup, member_ids: Collection[str]) -> bool:
        """Whether the group is to become a classic one when these members go."""
        if not leaves_classic_members_only(group, member_ids):
            return False
        policy = self._config.consumer_migration_policy
        obstacle = ""
        if not policy.downgrades:
            obstacle = f"group.consumer.migration.policy is {policy.value}"
        elif len(group.members) - len(member_ids) > self._config.group_max_size:
            obstacle = "it has more members than group.max.size"
        if obstacle:
            log.info(
                "group %r stays a consumer group, with classic members only: %s",
                group.group_id,
                obstacle,
            )
        return not obstacle
