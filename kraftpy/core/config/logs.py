"""The settings of the logs: segments, flushing, retention, compaction, timestamps."""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import LONG_MAX, boolean, int32, int64, one_of
from kraftpy.core.config.settings import setting
from kraftpy.core.config.tokens import TokenSettings
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(TokenSettings):
    """What `BrokerConfig` has for the logs, which most topics inherit (see `topic`)."""

    # Segments.
    log_segment_bytes: int = setting(
        int32(14),
        "1073741824",
        "Size at which a segment is closed.",
        dynamic=True,
        proposed=int32(1 << 20),
    )
    internal_segment_bytes: int | None = setting(
        int32(0),
        None,
        "In place of segment.bytes of every topic, for tests: it may be smaller.",
        dynamic=True,
        internal=True,
    )
    log_roll_ms: int | None = setting(
        int64(1), None, "Age at which a segment is closed. Unset, log.roll.hours.", dynamic=True
    )
    log_roll_hours: int = setting(int32(1), "168", "Age at which a segment is closed, in hours.")
    log_roll_jitter_ms: int | None = setting(
        int64(0),
        None,
        "Up to so much earlier a segment is closed, at random. Unset, log.roll.jitter.hours.",
        dynamic=True,
    )
    log_roll_jitter_hours: int = setting(
        int32(0), "0", "Up to so much earlier a segment is closed, at random, in hours."
    )
    log_index_interval_bytes: int = setting(
        int32(0), "4096", "Log bytes between two entries of the offset index.", dynamic=True
    )
    log_index_size_max_bytes: int = setting(
        int32(4), "10485760", "Size of an index at which its segment is closed.", dynamic=True
    )
    log_preallocate: bool = setting(
        boolean(), "false", "Reserve a new segment's disk space at once.", dynamic=True
    )
    log_segment_delete_delay_ms: int = setting(
        int64(0), "60000", "Time between a file's removal from the log and from disk.", dynamic=True
    )

    # Flushing.
    log_flush_interval_messages: int = setting(
        int64(1),
        str(LONG_MAX),
        "Records in a partition after which it's flushed to disk; 1 flushes before each answer.",
        dynamic=True,
    )
    log_flush_interval_ms: int | None = setting(
        int64(0),
        None,
        "Age of unflushed records at which they're flushed. Unset, "
        "log.flush.scheduler.interval.ms.",
        dynamic=True,
    )
    log_flush_scheduler_interval_ms: int = setting(
        int64(1), str(LONG_MAX), "How often to look for logs that are due to be flushed."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        int32(0), "60000", "How often recovery points are written to their checkpoint file."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        int32(0), "60000", "How often log start offsets are written to their checkpoint file."
    )

    # Retention and compaction.
    log_retention_ms: int | None = setting(
        int64(-1),
        None,
        "Age at which records are deleted, -1 for never. Unset, log.retention.minutes.",
        dynamic=True,
    )
    log_retention_minutes: int | None = setting(
        int32(-1), None, "The same in minutes. Unset, log.retention.hours."
    )
    log_retention_hours: int = setting(int32(-1), "168", "The same in hours.")
    log_retention_bytes: int = setting(
        int64(-1),
        "-1",
        "Size of a partition above which its oldest segments are deleted, -1 for no limit.",
        dynamic=True,
    )
    log_retention_check_interval_ms: int = setting(
        int64(1), "300000", "How often to look for segments that are due to be deleted."
    )
    kraftpy_delete_policy_class: str | None = setting(
        kinds.class_path(),
        None,
        "A delete policy of one's own: a subclass of kraftpy.storage.deleting.DeletePolicy that "
        "Python's path leads to, as my_package.my_module.MyPolicy. It's asked which segments may "
        "go beside those that age, size and log start let go, in topics whose cleanup.policy has "
        "delete.",
    )
    log_cleanup_policy: frozenset[str] = setting(
        kinds.word_set("delete", "compact", empty=True),
        "delete",
        "What happens to old records: delete, compact (keep the newest of each key), or both. "
        "Empty, they stay.",
        dynamic=True,
    )
    log_cleaner_enable: bool = setting(
        boolean(), "true", "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        int64(1 << 20),
        "134217728",
        "Memory that a compaction may use to remember keys; it takes 37 bytes a key.",
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        kinds.positive(),
        "1.7976931348623157E308",
        "Bytes a second that compaction reads and writes at most.",
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        int64(0),
        "15000",
        "How often to look for logs to compact when none was found.",
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = setting(
        int64(0), "86400000", "How long a compacted log keeps a delete marker.", dynamic=True
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        int64(0), "0", "Time for which a record is not compacted.", dynamic=True
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        int64(1),
        str(LONG_MAX),
        "Time after which a record is compacted whatever the share of dirty bytes.",
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        kinds.ratio(), "0.5", "Share of dirty bytes at which a log is compacted.", dynamic=True
    )

    # Timestamps.
    log_message_timestamp_type: str = setting(
        one_of("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whether a record's timestamp is its producer's or the broker's.",
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = setting(
        int64(0),
        str(LONG_MAX),
        "How far a CreateTime timestamp may lie before the broker's clock.",
        dynamic=True,
    )
    log_message_timestamp_after_max_ms: int = setting(
        int64(0),
        "3600000",
        "How far a CreateTime timestamp may lie after the broker's clock.",
        dynamic=True,
    )
