"""The settings of one group: what the configuration resource of type GROUP takes (KIP-848 and on).

Rules: types, limits and defaults are Kafka's (4.4). A group's own value wins over the broker's
setting, which `broker_keys` names. It has effect from the next heartbeat on, and is judged by the
limits of the broker that is asked; a value that lies outside the limits of the broker that
coordinates the group counts as the nearest one inside. What concerns streams groups is kept and
described, and has no effect while there are no such groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kraftpy.core.config import kinds
from kraftpy.core.config.broker import BrokerConfig
from kraftpy.core.config.kinds import (
    ConfigError,
    ConfigType,
    Kind,
    boolean,
    int32,
    one_of,
    shorten,
)
from kraftpy.core.config.settings import Setting, judge_value, parse_value, setting, settings_of
from kraftpy.frozen import dataclass

_DEAD_LETTERS = "No effect: what can't be delivered isn't kept elsewhere. "
_STREAMS = "No effect while there are no streams groups: "
# Kafka's defaults of group.streams.min.session.timeout.ms and of the others like it.
_SESSION = int32(45_000, 60_000)
_HEARTBEAT = int32(5_000, 15_000)
_DURATION = re.compile(
    r"(earliest|latest|by_duration:P(?=.)([0-9]{1,9}D)?"
    r"(T(?=.)([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,9}(\.[0-9]{1,9})?S)?)?)",
    re.ASCII,
)


def _own(kind: Kind, default: str, doc: str, proposed: Kind | None = None) -> Any:
    return setting(kind, default, doc, dynamic=True, proposed=proposed)


def _reset() -> Kind:
    def parse(value: str) -> str:
        value = value.strip()
        if not _DURATION.fullmatch(value):
            raise ValueError(value)
        return value

    return Kind(ConfigType.STRING, "earliest, latest or by_duration:PnDTnHnMn.nS", parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResourceConfig:
    """What can be set on a group."""

    consumer_session_timeout_ms: int = setting(
        int32(1),
        "45000",
        "Time without a heartbeat after which a member is taken out.",
        dynamic=True,
        broker_keys=(("group.consumer.session.timeout.ms", 1),),
    )
    consumer_heartbeat_interval_ms: int = setting(
        int32(1),
        "5000",
        "Time between two heartbeats of a member: members are told.",
        dynamic=True,
        broker_keys=(("group.consumer.heartbeat.interval.ms", 1),),
    )
    consumer_assignment_interval_ms: int = _own(
        int32(0),
        "1000",
        "No effect: partitions are assigned at once. Time between two assignments.",
        int32(0, 15_000),
    )
    share_session_timeout_ms: int = setting(
        int32(1),
        "45000",
        "Time without a heartbeat after which a member is taken out.",
        dynamic=True,
        broker_keys=(("group.share.session.timeout.ms", 1),),
    )
    share_heartbeat_interval_ms: int = setting(
        int32(1),
        "5000",
        "Time between two heartbeats of a member: members are told.",
        dynamic=True,
        broker_keys=(("group.share.heartbeat.interval.ms", 1),),
    )
    share_record_lock_duration_ms: int = _own(
        int32(1000), "30000", "How long a record is a member's.", int32(15_000, 60_000)
    )
    share_delivery_count_limit: int = _own(
        int32(2), "5", "How often a record is delivered at most.", int32(2, 10)
    )
    share_partition_max_record_locks: int = _own(
        int32(100), "2000", "Records of a partition in work at most.", int32(100, 4000)
    )
    share_auto_offset_reset: str = _own(_reset(), "latest", "Where a new group begins.")
    share_isolation_level: str = _own(
        one_of("read_committed", "read_uncommitted"),
        "read_uncommitted",
        "Whether records of transactions that aren't committed are delivered.",
    )
    share_renew_acknowledge_enable: bool = _own(
        boolean(), "true", "Whether a member may keep a record for longer."
    )
    share_assignment_interval_ms: int = _own(
        int32(0),
        "1000",
        "No effect: partitions are assigned at once. Time between two assignments.",
        int32(0, 15_000),
    )
    streams_session_timeout_ms: int = _own(
        int32(1), "45000", f"{_STREAMS}time without a heartbeat.", _SESSION
    )
    streams_heartbeat_interval_ms: int = _own(
        int32(1), "5000", f"{_STREAMS}time between two heartbeats.", _HEARTBEAT
    )
    streams_num_standby_replicas: int = _own(
        int32(0), "0", f"{_STREAMS}copies of a task.", int32(0, 2)
    )
    streams_initial_rebalance_delay_ms: int = _own(
        int32(0), "3000", f"{_STREAMS}wait for more members after the first."
    )
    streams_assignment_interval_ms: int = _own(
        int32(0), "1000", f"{_STREAMS}time between two assignments.", int32(0, 15_000)
    )
    streams_assignor_name: str = _own(
        kinds.text(), "sticky", f"{_STREAMS}how tasks are assigned.", one_of("sticky")
    )
    streams_rack_aware_assignment_tags: tuple[str, ...] = _own(
        kinds.texts(), "", f"{_STREAMS}tags that tell clients apart."
    )
    errors_deadletterqueue_topic_name: str = _own(
        kinds.text(empty=True), "", f"{_DEAD_LETTERS}Topic of such records."
    )
    errors_deadletterqueue_copy_record_enable: bool = _own(
        boolean(), "false", f"{_DEAD_LETTERS}Whether they are copied as a whole."
    )


GROUP_SETTINGS: Mapping[str, Setting] = MappingProxyType(settings_of(GroupResourceConfig))
"""Every setting of a group by its key."""


def validate_group_configs(configs: Mapping[str, str]) -> None:
    """Checks the configuration of a group, as it is in force. Raises ConfigError."""
    for key in sorted(configs):
        parse_value(_definition(key, configs[key]), configs[key])


def judge_group_configs(configs: Mapping[str, str | None], broker: BrokerConfig) -> None:
    """Checks what somebody wants to set on a group, each key by itself. Raises ConfigError."""
    for key in sorted(configs):
        value = configs[key]
        if value is None:
            continue
        definition = _definition(key, value)
        judge_value(definition, value)
        limits = _limits(key, broker)
        if limits is not None and not limits[0] <= parse_value(definition, value) <= limits[1]:
            allowed = f"in the range {limits[0]} to {limits[1]} inclusive"  # as Kafka says it
            raise ConfigError(key, value, allowed, f"{key} must be {allowed}.")


def consumer_times(configs: Mapping[str, str], broker: BrokerConfig) -> tuple[int, int]:
    """(session timeout, heartbeat interval) in ms of a group with this configuration."""
    return _times("consumer", configs, broker)


def share_times(configs: Mapping[str, str], broker: BrokerConfig) -> tuple[int, int]:
    """The same of a share group."""
    return _times("share", configs, broker)


def _times(kind: str, configs: Mapping[str, str], broker: BrokerConfig) -> tuple[int, int]:
    session_ms, heartbeat_ms = (
        _clamped(key, configs.get(key), broker)
        for key in (f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms")
    )
    return session_ms, heartbeat_ms


def _clamped(key: str, value: str | None, broker: BrokerConfig) -> int:
    limits = _limits(key, broker)
    assert limits is not None
    if value is not None:
        try:
            number: int = parse_value(GROUP_SETTINGS[key], value)
        except ConfigError:  # a later release took it
            pass
        else:
            return max(limits[0], min(number, limits[1]))
    default: int = getattr(broker, f"group_{GROUP_SETTINGS[key].attribute}")
    return default


def _limits(key: str, broker: BrokerConfig) -> tuple[int, int] | None:
    match key:
        case "consumer.session.timeout.ms":
            return (
                broker.group_consumer_min_session_timeout_ms,
                broker.group_consumer_max_session_timeout_ms,
            )
        case "consumer.heartbeat.interval.ms":
            return (
                broker.group_consumer_min_heartbeat_interval_ms,
                broker.group_consumer_max_heartbeat_interval_ms,
            )
        case "share.session.timeout.ms":
            return (
                broker.group_share_min_session_timeout_ms,
                broker.group_share_max_session_timeout_ms,
            )
        case "share.heartbeat.interval.ms":
            return (
                broker.group_share_min_heartbeat_interval_ms,
                broker.group_share_max_heartbeat_interval_ms,
            )
    return None


def _definition(key: str, value: str) -> Setting:
    definition = GROUP_SETTINGS.get(key)
    if definition is None:
        message = f"Unknown group config name: {shorten(key)}"
        raise ConfigError(key, value, "a group setting", message)
    return definition
