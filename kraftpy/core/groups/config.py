"""The broker settings that govern groups, under Kafka's names, and this coordinator's bounds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple, dataclass

if TYPE_CHECKING:
    from kraftpy.core.config import BrokerConfig

# Bounds on what clients can make a coordinator hold; Kafka leaves these open.
GROUPS_PER_PARTITION_MAX = 1_000_000
PENDING_MEMBERS_MAX = 10_000
PROTOCOLS_MAX = 1_000  # of one member

# A new member may wait this long in its first JoinGroup before the group gives up on it: long
# enough for a slow rebalance, short enough that a client which vanished does not block the group
# for ever (Kafka's newMemberJoinTimeoutMs).
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

# What a deadline demands is tried again after this long at the least, whatever timeout a client
# asked for: with none the timer would be due again at once, for ever.
RETRY_MS_MIN = 1_000

# Requests of one consumer group that may wait for its write in flight.
WAITING_REQUESTS_MAX = 10_000


class MigrationPolicy(Enum):
    """Which way groups may change protocol while in use: `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ConsumerTimes(NamedTuple):
    """What the members of a consumer group, or of a share group, keep to."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


NO_OWN_TIMES: Mapping[str, ConsumerTimes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Defaults are Kafka's; `group_max_metadata_bytes` is our own."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_metadata_bytes: int = 1_048_576
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    share_max_size: int = 200
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_initialize_retry_ms: int = 30_000
    accept_individual_commit: bool = True
    individual_commit_max_ranges: int = 20_000
    individual_commit_max_bytes: int = 64 * 1024 * 1024

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> GroupConfig:
        """The group settings of a broker's configuration."""
        return cls(
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_max_metadata_bytes=config.group_max_metadata_bytes,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=config.group_consumer_assignors,
            consumer_migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
            share_max_size=config.group_share_max_size,
            share_session_timeout_ms=config.group_share_session_timeout_ms,
            share_heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
            # A write of the record may take so long itself.
            share_initialize_retry_ms=max(
                config.group_share_initialize_retry_interval_ms, config.offsets_commit_timeout_ms
            ),
            accept_individual_commit=config.accept_individual_commit,
            individual_commit_max_ranges=config.individual_commit_max_ranges,
            individual_commit_max_bytes=config.individual_commit_max_bytes,
        )


class GroupTimes:
    """The times of each consumer group: its own, or those of all groups.

    `own` has those of groups that are configured, by group id; it's read each time, so what changes
    there counts from the next heartbeat on.
    """

    __slots__ = ("_common", "_own")

    def __init__(self, config: GroupConfig, own: Mapping[str, ConsumerTimes]) -> None:
        self._common = ConsumerTimes(
            config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms
        )
        self._own = own

    def of(self, group_id: str) -> ConsumerTimes:
        return self._own.get(group_id, self._common)
