"""The settings of the group coordinator: offsets, and groups of either protocol."""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import INT_MAX, PARTITIONS_MAX, int32, int64, one_of
from kraftpy.core.config.logs import LogSettings
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(LogSettings):
    """What `BrokerConfig` has for groups.

    It's on top of the logs' because a class with slots can have one such parent only.
    """

    # Offsets.
    offsets_topic_num_partitions: int = setting(
        int32(1, PARTITIONS_MAX), "50", "Partitions of __consumer_offsets when it's created."
    )
    offsets_topic_replication_factor: int = setting(
        int32(1, 32767), "3", "Replicas of __consumer_offsets when it's created."
    )
    offsets_topic_segment_bytes: int = setting(
        int32(14), "104857600", "segment.bytes of __consumer_offsets when it's created."
    )
    offsets_topic_compression_codec: str = setting(
        kinds.codec_number(), "0", "No effect: __consumer_offsets is written without compression."
    )
    offsets_retention_minutes: int = setting(
        int32(1), "10080", "How long an empty group's committed offsets are kept."
    )
    offsets_retention_check_interval_ms: int = setting(
        int64(1), "600000", "How often to look for committed offsets that are due to expire."
    )
    offset_metadata_max_bytes: int = setting(
        int32(0), "4096", "The longest metadata text that may be committed with an offset."
    )
    offsets_commit_timeout_ms: int = setting(
        int32(1), "5000", "How long an offset commit may wait for its replicas."
    )
    offsets_warm_replicas: bool = setting(
        kinds.boolean(),
        "true",
        "Whether brokers keep the committed offsets and groups of partitions that they follow in "
        "memory, too, so as to take them over at once. kraftpy's own.",
    )
    # Claims on parts of a partition (seed 001).
    accept_individual_commit: bool = setting(
        kinds.boolean(),
        "true",
        "Whether members of a group may commit records out of order, for each range of keys.",
    )
    individual_commit_max_ranges: int = setting(
        int32(1),
        "20000",
        "Ranges of offsets that a group may have done out of order in one partition. kraftpy's "
        "own.",
    )
    individual_commit_max_bytes: int = setting(
        int64(0),
        "67108864",
        "Memory for such ranges, and for what they are kept in, of all groups together; what fills "
        "holes may take an eighth more. kraftpy's own.",
    )
    individual_commit_log_segment_bytes: int = setting(
        int32(14),
        "10485760",
        "segment.bytes of __individual_commit_offsets when it's created.",
    )
    # Groups of the classic protocol.
    group_initial_rebalance_delay_ms: int = setting(
        int32(0), "3000", "How long an empty group waits for more members after the first."
    )
    group_min_session_timeout_ms: int = setting(
        int32(1), "6000", "The shortest session timeout that a member may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        int32(1), "1800000", "The longest session timeout that a member may ask for."
    )
    group_max_size: int = setting(int32(1), str(INT_MAX), "Members of one group at most.")

    # Groups of either protocol.
    group_max_metadata_bytes: int = setting(
        int32(1),
        "1048576",
        "What one member may say of itself and be assigned: its metadata for all its protocols, "
        "its subscription. A larger one is refused (GROUP_MAX_SIZE_REACHED). kraftpy's own: no "
        "more fits into a record of __consumer_offsets.",
    )
    group_coordinator_max_memory_bytes: int = setting(
        int64(1),
        "268435456",
        "Memory for groups and their members, of all groups together. Nobody can join when it is "
        "used up (COORDINATOR_NOT_AVAILABLE). kraftpy's own.",
    )

    # Groups of the consumer protocol (KIP-848).
    group_consumer_session_timeout_ms: int = setting(
        int32(1), "45000", "Time without a heartbeat after which a member is taken out."
    )
    group_consumer_min_session_timeout_ms: int = setting(
        int32(1), "45000", "The smallest group.consumer.session.timeout.ms."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        int32(1), "60000", "The largest group.consumer.session.timeout.ms."
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        int32(1), "5000", "Time between two heartbeats of a member: members are told."
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        int32(1), "5000", "The smallest group.consumer.heartbeat.interval.ms."
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        int32(1), "15000", "The largest group.consumer.heartbeat.interval.ms."
    )
    group_consumer_max_size: int = setting(
        int32(1), str(INT_MAX), "Members of one consumer group at most."
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        kinds.text_list("uniform, range or both, comma-separated", "uniform", "range"),
        "uniform,range",
        "How partitions may be assigned; the first is for members that have no wish.",
    )
    group_consumer_migration_policy: str = setting(
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        "bidirectional",
        "Which way a group may change between the classic and the consumer protocol while in use.",
    )

    # Share groups: what the leader of a partition keeps for them (KIP-932).
    group_share_partition_max_record_locks: int = setting(
        int32(100, 10_000),
        "2000",
        "Records of a partition that a share group may have between the first that isn't done and "
        "the last that was delivered.",
    )
    group_share_min_partition_max_record_locks: int = setting(
        int32(100, 2000), "100", "The smallest share.partition.max.record.locks of a group."
    )
    group_share_max_partition_max_record_locks: int = setting(
        int32(2000, 10_000), "4000", "The largest share.partition.max.record.locks of a group."
    )
    group_share_delivery_count_limit: int = setting(
        int32(2, 10), "5", "How often a record is delivered to a share group at most."
    )
    group_share_min_delivery_count_limit: int = setting(
        int32(2, 5), "2", "The smallest share.delivery.count.limit of a group."
    )
    group_share_max_delivery_count_limit: int = setting(
        int32(5, 25), "10", "The largest share.delivery.count.limit of a group."
    )
    group_share_record_lock_duration_ms: int = setting(
        int32(1000, 3_600_000),
        "30000",
        "How long a record is a member's; then others get it.",
    )
    group_share_min_record_lock_duration_ms: int = setting(
        int32(1000, 30_000), "15000", "The smallest share.record.lock.duration.ms of a group."
    )
    group_share_max_record_lock_duration_ms: int = setting(
        int32(30_000, 3_600_000), "60000", "The largest share.record.lock.duration.ms of a group."
    )
    group_share_max_share_sessions: int = setting(
        int32(1), "2000", "Share sessions of one broker at most: members that fetch from it."
    )
