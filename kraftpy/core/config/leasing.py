"""How the records of a partition are leased to a share group, at its leader (KIP-932).

A group's own value wins over the broker's setting. One that lies outside of the limits of the
broker that leads counts as the nearest one inside, and one that a later release has taken not at
all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from kraftpy.core.config.broker import BrokerConfig
from kraftpy.core.config.group_resource import GROUP_SETTINGS
from kraftpy.core.config.kinds import ConfigError
from kraftpy.core.config.settings import parse_value
from kraftpy.core.leases.terms import LeaseLimits
from kraftpy.frozen import NamedTuple

T = TypeVar("T")

LATEST = "latest"
EARLIEST = "earliest"

_DURATION = re.compile(
    r"by_duration:P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?",
    re.ASCII,
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


class LeaseSettings(NamedTuple):
    """What a group's configuration says of its leases.

    `starts_at` is LATEST or EARLIEST, or how many milliseconds ago.
    """

    limits: LeaseLimits
    starts_at: str | int = LATEST
    reads_committed: bool = False
    may_renew: bool = True


def lease_settings(configs: Mapping[str, str], broker: BrokerConfig) -> LeaseSettings:
    """Those of a group with this configuration."""
    reset = _own(configs, "share.auto.offset.reset", LATEST)
    limits = LeaseLimits(
        max_record_locks=_limited(
            configs,
            "share.partition.max.record.locks",
            broker.group_share_partition_max_record_locks,
            broker.group_share_min_partition_max_record_locks,
            broker.group_share_max_partition_max_record_locks,
        ),
        max_deliveries=_limited(
            configs,
            "share.delivery.count.limit",
            broker.group_share_delivery_count_limit,
            broker.group_share_min_delivery_count_limit,
            broker.group_share_max_delivery_count_limit,
        ),
        lock_ms=_limited(
            configs,
            "share.record.lock.duration.ms",
            broker.group_share_record_lock_duration_ms,
            broker.group_share_min_record_lock_duration_ms,
            broker.group_share_max_record_lock_duration_ms,
        ),
    )
    return LeaseSettings(
        limits,
        reset if reset in (LATEST, EARLIEST) else _duration_ms(reset),
        _own(configs, "share.isolation.level", "") == "read_committed",
        _own(configs, "share.renew.acknowledge.enable", True),
    )


def _limited(configs: Mapping[str, str], key: str, default: int, minimum: int, maximum: int) -> int:
    return max(minimum, min(_own(configs, key, default), maximum))


def _own(configs: Mapping[str, str], key: str, default: T) -> T:
    value = configs.get(key)
    if value is None:
        return default
    try:
        found: T = parse_value(GROUP_SETTINGS[key], value)
    except ConfigError:  # a later release took it
        return default
    return found


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    assert found is not None
    return int(
        sum(
            float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part
        )
    )
