"""Every setting of a topic, in one table: the fields of `TopicConfig`.

Rules: the field `retention_ms` is the key `retention.ms`. A topic's own value wins; else the
broker's setting counts, named by `broker_keys` in Kafka's order of precedence with the factor that
turns its unit into the topic's (`log.retention.ms`, then `.minutes`, then `.hours`). The broker's
setting is taken with its dynamic configuration applied, so the precedence of KIP-226 holds as a
whole. What may be set, and to what it defaults, is said once, where its broker setting is. What
means something for one topic only has no broker setting. What tiered storage would need can only be
set to what is so without it, so that tools that copy all settings of a topic get on (MirrorMaker).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kraftpy.core.config.broker import BROKER_SETTINGS, BrokerConfig
from kraftpy.core.config.kinds import (
    ConfigError,
    Kind,
    boolean,
    int64,
    only,
    shorten,
)
from kraftpy.core.config.settings import Setting, judge_value, parse_value, setting, settings_of
from kraftpy.core.config.throttled import ThrottledReplicas, throttled_replicas
from kraftpy.frozen import dataclass

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_NOT_TIERED = "there is no tiered storage"


def _inherited(*broker_keys: str | tuple[str, int], doc: str | None = None) -> Any:
    """A topic setting with the broker settings that stand in for it, first set one first.

    Its kind is the first one's, and so is its documentation unless it has its own.
    """
    sources = tuple((key, 1) if isinstance(key, str) else key for key in broker_keys)
    first = BROKER_SETTINGS[sources[0][0]]
    last_key, factor = sources[-1]
    last = BROKER_SETTINGS[last_key]
    default = last.default
    if factor != 1:
        assert default is not None, f"{last_key} must have a default"
        default = str(int(default) * factor)
    return setting(
        first.kind,
        default,
        first.doc if doc is None else doc,
        dynamic=True,
        broker_keys=sources,
        proposed=last.proposed,
        internal=last.internal,
    )


def _without_effect(kind: Kind, value: str, doc: str, why: str) -> Any:
    """A topic setting that can only say what is so: `value`, because of `why`."""
    return setting(kind, value, doc, dynamic=True, proposed=only(kind, value, why))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic on one broker. Make one with `resolve`."""

    cleanup_policy: frozenset[str] = _inherited("log.cleanup.policy")
    compression_type: str = _inherited("compression.type")
    compression_gzip_level: int = _inherited("compression.gzip.level")
    compression_lz4_level: int = _inherited("compression.lz4.level")
    compression_zstd_level: int = _inherited("compression.zstd.level")
    retention_ms: int = _inherited(
        "log.retention.ms",
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
        doc="Age at which records are deleted, -1 for never.",
    )
    retention_bytes: int = _inherited("log.retention.bytes")
    segment_bytes: int = _inherited("log.segment.bytes")
    internal_segment_bytes: int | None = _inherited(
        "internal.segment.bytes", doc="In place of segment.bytes, for tests: it may be smaller."
    )
    segment_ms: int = _inherited(
        "log.roll.ms",
        ("log.roll.hours", _HOUR_MS),
        doc="Age at which a segment is closed, so that retention and compaction get at it.",
    )
    segment_jitter_ms: int = _inherited(
        "log.roll.jitter.ms",
        ("log.roll.jitter.hours", _HOUR_MS),
        doc="Up to so much earlier a segment is closed, at random, so that not all roll at once.",
    )
    segment_index_bytes: int = _inherited("log.index.size.max.bytes")
    index_interval_bytes: int = _inherited("log.index.interval.bytes")
    flush_messages: int = _inherited("log.flush.interval.messages")
    flush_ms: int = _inherited(
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        doc="Age of unflushed records at which they're flushed to disk.",
    )
    max_message_bytes: int = _inherited("message.max.bytes")
    max_decompressed_message_bytes: int = _inherited(
        "max.decompressed.message.bytes",
        doc=(
            "The most that a batch's records may take uncompressed; never more than 64 MiB, or "
            "max.message.bytes if that is more."
        ),
    )
    message_timestamp_type: str = _inherited("log.message.timestamp.type")
    message_timestamp_before_max_ms: int = _inherited("log.message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _inherited("log.message.timestamp.after.max.ms")
    min_insync_replicas: int = _inherited("min.insync.replicas")
    unclean_leader_election_enable: bool = _inherited("unclean.leader.election.enable")
    file_delete_delay_ms: int = _inherited("log.segment.delete.delay.ms")
    delete_retention_ms: int = _inherited("log.cleaner.delete.retention.ms")
    min_compaction_lag_ms: int = _inherited("log.cleaner.min.compaction.lag.ms")
    max_compaction_lag_ms: int = _inherited("log.cleaner.max.compaction.lag.ms")
    min_cleanable_dirty_ratio: float = _inherited("log.cleaner.min.cleanable.ratio")
    preallocate: bool = _inherited("log.preallocate")
    accept_range_fetch: bool = setting(
        boolean(),
        "false",
        "Whether a consumer may fetch the records of a range of keys alone, so that several share "
        "a partition. kraftpy's own.",
        dynamic=True,
    )
    reserve_message_value_range_fetch: bool = setting(
        boolean(),
        "false",
        "Whether the uncompressed records of a batch are kept in max.bytes.key.range.cache, too, "
        "until all ranges of keys have been fetched. kraftpy's own.",
        dynamic=True,
    )
    remote_storage_enable: bool = _without_effect(
        boolean(), "false", "Whether segments are kept in tiered storage too.", _NOT_TIERED
    )
    remote_log_copy_disable: bool = setting(
        boolean(), "false", f"No effect: {_NOT_TIERED} to copy to.", dynamic=True
    )
    remote_log_delete_on_disable: bool = setting(
        boolean(), "false", f"No effect: {_NOT_TIERED} to delete from.", dynamic=True
    )
    remote_copy_lag_ms: int = _without_effect(
        int64(-2), "0", "Age at which a segment is copied to tiered storage.", _NOT_TIERED
    )
    remote_copy_lag_bytes: int = _without_effect(
        int64(-2), "-1", "Size behind which segments are copied to tiered storage.", _NOT_TIERED
    )
    local_retention_ms: int = _without_effect(
        int64(-2),
        "-2",
        "Age at which records leave the broker's disk; -2 is retention.ms.",
        f"{_NOT_TIERED}, and retention.ms counts",
    )
    local_retention_bytes: int = _without_effect(
        int64(-2),
        "-2",
        "Size above which segments leave the broker's disk; -2 is retention.bytes.",
        f"{_NOT_TIERED}, and retention.bytes counts",
    )
    errors_deadletterqueue_group_enable: bool = _without_effect(
        boolean(),
        "false",
        "Whether the topic takes what share groups could not work on.",
        "there are no share groups",
    )
    leader_replication_throttled_replicas: ThrottledReplicas = setting(
        throttled_replicas(),
        "",
        "Replicas that leaders send to at leader.replication.throttled.rate: a list of "
        "PARTITION:BROKER, or * for all.",
        dynamic=True,
    )
    follower_replication_throttled_replicas: ThrottledReplicas = setting(
        throttled_replicas(),
        "",
        "Replicas that fetch at follower.replication.throttled.rate: a list of "
        "PARTITION:BROKER, or * for all.",
        dynamic=True,
    )

    @property
    def roll_size_bytes(self) -> int:
        """Size at which a segment is closed: internal.segment.bytes, else segment.bytes."""
        internal = self.internal_segment_bytes
        return self.segment_bytes if internal is None else internal

    @property
    def compression_level(self) -> int | None:
        """Level at which the broker compresses with compression.type; None where it has none."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """The settings of a topic with these overrides on a broker. Raises ConfigError."""
        values: dict[str, Any] = {}
        for key, definition in TOPIC_SETTINGS.items():
            value = overrides.get(key)
            values[definition.attribute] = (
                inherited_value(definition, broker)
                if value is None
                else parse_value(definition, value)
            )
        return cls(**values)


TOPIC_SETTINGS: Mapping[str, Setting] = MappingProxyType(settings_of(TopicConfig))
"""Every topic setting by its key."""

_DEFAULTS = TopicConfig()


def inherited_value(definition: Setting, broker: BrokerConfig) -> Any:
    """What a topic without a value of its own gets: the broker's, or the setting's default."""
    if not definition.broker_keys:
        return getattr(_DEFAULTS, definition.attribute)
    for key, factor in definition.broker_keys:
        value = getattr(broker, BROKER_SETTINGS[key].attribute)
        if value is None:
            continue
        if factor == 1 or value < 0:
            return value
        return value * factor
    return None


def judge_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Checks what somebody wants to set on a topic, each key by itself. Raises ConfigError."""
    for key in sorted(configs):
        value = configs[key]
        if value is not None:
            judge_value(_definition(key, value), value)


def _definition(key: str, value: str) -> Setting:
    definition = TOPIC_SETTINGS.get(key)
    if definition is None:
        # Kafka's words: clients and tools look for them.
        message = f"Unknown topic config name: {shorten(key)}"
        raise ConfigError(key, value, "a topic setting", message)
    return definition


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Checks the overrides of a topic, as they are in force. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key in sorted(configs):
        definition = _definition(key, configs[key])
        values[definition.attribute] = parse_value(definition, configs[key])
    config = replace(_DEFAULTS, **values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            "min.compaction.lag.ms",
            configs.get("min.compaction.lag.ms"),
            f"max.compaction.lag.ms={config.max_compaction_lag_ms} or less",
        )
