"""The settings of the transaction coordinator."""

from __future__ import annotations

from kraftpy.core.config.kinds import PARTITIONS_MAX, boolean, int32, int64, one_of
from kraftpy.core.config.settings import setting
from kraftpy.core.config.share_groups import ShareGroupSettings
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(ShareGroupSettings):
    """What `BrokerConfig` has for transactions.

    It's on top of the share groups' because a class with slots can have one such parent only.
    """

    transaction_state_log_num_partitions: int = setting(
        int32(1, PARTITIONS_MAX), "50", "Partitions of __transaction_state when it's created."
    )
    transaction_state_log_replication_factor: int = setting(
        int32(1, 32767), "3", "Replicas of __transaction_state when it's created."
    )
    transaction_state_log_min_isr: int = setting(
        int32(1), "2", "min.insync.replicas of __transaction_state when it's created."
    )
    transaction_state_log_segment_bytes: int = setting(
        int32(14), "104857600", "segment.bytes of __transaction_state when it's created."
    )
    transaction_max_timeout_ms: int = setting(
        int32(1),
        "900000",
        "The longest transaction.timeout.ms that a producer may ask for. It holds back readers "
        "with read_committed for as long.",
    )
    transactional_id_expiration_ms: int = setting(
        int32(1), "604800000", "How long a transactional id is kept that nobody uses."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        int32(1), "3600000", "How often to look for transactional ids that are due to expire."
    )
    transaction_partition_verification_enable: bool = setting(
        boolean(),
        "true",
        "Whether the leader of a partition asks the coordinator before it takes the first batch of "
        "a transaction. Without it a late batch may hold back readers with read_committed for "
        "ever.",
        dynamic=True,
    )
    transaction_two_phase_commit_enable: str = setting(
        one_of("false"),
        "false",
        "No effect: transactions without a timeout (KIP-939) aren't here, so it can't be true.",
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        int32(1),
        "20",
        "The longest pause before a leader asks the coordinator again while the markers of the "
        "transaction before are being written.",
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        int32(0),
        "100",
        "How long a request waits for the markers of the transaction before, until it's answered "
        "with CONCURRENT_TRANSACTIONS.",
    )
    transaction_coordinator_max_memory_bytes: int = setting(
        int64(1),
        "268435456",
        "Memory for transactional ids and the partitions of their transactions. No id comes in "
        "when half of it is used up, no partition when all of it is (COORDINATOR_NOT_AVAILABLE). "
        "kraftpy's own.",
    )
