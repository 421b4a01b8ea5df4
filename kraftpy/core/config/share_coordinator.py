"""The settings of the share coordinator (KIP-932)."""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import PARTITIONS_MAX, int32, int64
from kraftpy.core.config.settings import setting
from kraftpy.core.config.transactions import TransactionSettings
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorSettings(TransactionSettings):
    """What `BrokerConfig` has for the state of share groups.

    It's on top of the transactions' because a class with slots can have one such parent only.
    """

    share_coordinator_state_topic_num_partitions: int = setting(
        int32(1, PARTITIONS_MAX), "50", "Partitions of __share_group_state when it's created."
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        int32(1, 32767), "3", "Replicas of __share_group_state when it's created."
    )
    share_coordinator_state_topic_min_isr: int = setting(
        int32(1), "2", "min.insync.replicas of __share_group_state when it's created."
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        int32(14), "104857600", "segment.bytes of __share_group_state when it's created."
    )
    share_coordinator_state_topic_compression_codec: str = setting(
        kinds.codec_number(), "0", "No effect: __share_group_state is written without compression."
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        int32(0, 500),
        "500",
        "After so many updates of a share group's partition all that is known of it is written.",
    )
    share_coordinator_write_timeout_ms: int = setting(
        int32(1), "5000", "How long a write of a share group's state may wait for its replicas."
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        int32(1),
        "300000",
        "How often what isn't needed any more is cut off the heads of __share_group_state.",
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        int32(1),
        "300000",
        "When all that is known of a share group's partition is written that gets no more updates.",
    )
    share_coordinator_max_memory_bytes: int = setting(
        int64(1),
        "268435456",
        "Memory for the state of share groups. No partition of a group comes in when half of it is "
        "used up, and those that are in take no more when all of it is "
        "(COORDINATOR_NOT_AVAILABLE). kraftpy's own.",
    )
