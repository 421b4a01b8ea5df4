"""Subscriptions to the metrics of clients: the configuration resource of type CLIENT_METRICS.

They are kept, described and judged as Kafka does (KIP-714); no client is asked for metrics, as
there is nothing here that would take them. A pattern of `match` is NAME=REGEX, with the name of
something that is known of a client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import ConfigError, int32, shorten
from kraftpy.core.config.settings import Setting, parse_value, setting, settings_of
from kraftpy.frozen import dataclass

INTERVAL_MIN_MS = 100
INTERVAL_MAX_MS = 3_600_000
_MATCHED = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


class SubscriptionError(ConfigError):
    """What Kafka calls an invalid request, not an invalid configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """What can be set on a subscription."""

    interval_ms: int = setting(
        int32(0), "300000", "Time between two pushes of a client's metrics.", dynamic=True
    )
    metrics: tuple[str, ...] = setting(
        kinds.texts(), "", "Prefixes of the names of metrics that clients push.", dynamic=True
    )
    match: tuple[str, ...] = setting(
        kinds.texts(), "", "Which clients push: NAME=REGEX, comma-separated.", dynamic=True
    )


CLIENT_METRICS_SETTINGS: Mapping[str, Setting] = MappingProxyType(settings_of(ClientMetricsConfig))
"""Every setting of a subscription by its key."""


def validate_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Checks a subscription, as it is in force. Raises ConfigError."""
    for key in sorted(configs):
        parse_value(_definition(key, configs[key]), configs[key])


def judge_client_metrics_configs(configs: Mapping[str, str | None]) -> None:
    """Checks what somebody wants to set on a subscription, in Kafka's words. Raises ConfigError."""
    for key in sorted(configs):
        value = configs[key]
        if value is None:
            continue
        found = parse_value(_definition(key, value), value)
        if key == "interval.ms" and not INTERVAL_MIN_MS <= found <= INTERVAL_MAX_MS:
            allowed = f"between {INTERVAL_MIN_MS} and {INTERVAL_MAX_MS} (1 hour)"
            message = f"Invalid value {found} for interval.ms, interval must be {allowed}"
            raise SubscriptionError(key, value, allowed, message)
        if key == "match":
            for pattern in found:
                _judge_pattern(pattern)


def _judge_pattern(pattern: str) -> None:
    name, separator, expression = pattern.partition("=")
    try:
        if not separator or name.strip() not in _MATCHED or "=" in expression:
            raise ValueError(pattern)
        re.compile(expression)
    except (ValueError, OverflowError, RecursionError, re.error):
        message = f"Illegal client matching pattern: {shorten(pattern)}"
        raise ConfigError("match", pattern, "NAME=REGEX", message) from None


def _definition(key: str, value: str) -> Setting:
    definition = CLIENT_METRICS_SETTINGS.get(key)
    if definition is None:
        message = f"Unknown client metrics configuration: {shorten(key)}"
        raise SubscriptionError(key, value, "a setting of a subscription", message)
    return definition
