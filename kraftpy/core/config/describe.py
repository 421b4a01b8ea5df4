"""What DescribeConfigs shows: each setting with its value, where that comes from, and its synonyms.

Rules (KIP-226, KIP-569): a value's source is the first of these that has it: the topic's own, this
broker's dynamic one, the cluster's dynamic default, server.properties, the default. Synonyms are
all values that compete for a setting, in that order, the winner first; for a topic these are also
the broker's settings that it inherits from. A password's value is never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

from kraftpy.core.config.broker import BROKER_SETTINGS, BrokerConfig, broker_setting
from kraftpy.core.config.client_metrics import CLIENT_METRICS_SETTINGS
from kraftpy.core.config.group_resource import GROUP_SETTINGS
from kraftpy.core.config.kinds import ConfigType
from kraftpy.core.config.settings import Setting, parse_value
from kraftpy.core.config.topic import TOPIC_SETTINGS, inherited_value
from kraftpy.core.config.understood import understood_broker_configs, understood_configs
from kraftpy.frozen import dataclass


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One value that competes for a setting; `value` is None if it's secret."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs shows it; `value` is None if it's unset or secret."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    sensitive: bool
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a broker, and those that its listeners have for themselves."""
    layers = (config.static, config.dynamic_default, config.dynamic_broker)
    own = sorted({key for layer in layers for key in layer} - BROKER_SETTINGS.keys())
    return [
        _entry(
            definition, getattr(config, definition.attribute), _broker_values(definition, config)
        )
        for definition in BROKER_SETTINGS.values()
        if not definition.internal or getattr(config, definition.attribute) is not None
    ] + [entry for key in own if (entry := _own_entry(key, config)) is not None]


def _own_entry(key: str, config: BrokerConfig) -> ConfigEntry | None:
    """The setting of one listener, if it has it."""
    definition = broker_setting(key)
    if definition is None:
        return None
    unset = replace(definition, default=None)  # what it has without is the broker's own setting
    values = list(_broker_values(unset, config))
    return _entry(definition, parse_value(definition, values[0][1]), values)


def describe_broker_defaults(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """The cluster-wide dynamic broker configs: those that are set, as Kafka does."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    entries = []
    configs = understood_broker_configs(configs)
    for key in sorted(configs):
        definition = broker_setting(key)
        assert definition is not None
        value = parse_value(definition, configs[key])
        entries.append(_entry(definition, value, [(key, configs[key], source)]))
    return entries


def describe_group(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a group with these overrides, as it is on a broker."""
    return _describe_own(GROUP_SETTINGS, overrides, config, ConfigSource.GROUP_CONFIG)


def describe_client_metrics(
    overrides: Mapping[str, str], config: BrokerConfig
) -> list[ConfigEntry]:
    """Every setting of a subscription to clients' metrics with these overrides."""
    source = ConfigSource.CLIENT_METRICS_CONFIG
    return _describe_own(CLIENT_METRICS_SETTINGS, overrides, config, source)


def describe_logger(name: str, level: str) -> ConfigEntry:
    """A logger of a broker's process as DescribeConfigs shows it."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return ConfigEntry(
        name=name,
        value=level,
        source=source,
        type=ConfigType.UNKNOWN,
        read_only=False,
        sensitive=False,
        documentation="",
        synonyms=(),
    )


def describe_topic(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a topic with these overrides, as it is on a broker."""
    return _describe_own(TOPIC_SETTINGS, overrides, config, ConfigSource.DYNAMIC_TOPIC_CONFIG)


def _describe_own(
    settings: Mapping[str, Setting],
    overrides: Mapping[str, str],
    config: BrokerConfig,
    source: ConfigSource,
) -> list[ConfigEntry]:
    """Every setting of a resource that has these overrides, from `source`, over the broker's."""
    entries = []
    overrides = understood_configs(overrides, settings)
    for key, definition in settings.items():
        values: list[_Value] = []
        if key in overrides:
            values.append((key, overrides[key], source))
            value = parse_value(definition, overrides[key])
        elif definition.broker_keys:
            value = inherited_value(definition, config)
        else:
            value = parse_value(definition, definition.default or "")
        for broker_key, _ in definition.broker_keys:
            values.extend(_broker_values(BROKER_SETTINGS[broker_key], config))
        if not definition.broker_keys and definition.default is not None:
            values.append((key, definition.default, ConfigSource.DEFAULT_CONFIG))
        if not definition.internal or value is not None:
            entries.append(_entry(definition, value, values))
    return entries


_Value = tuple[str, str, ConfigSource]


def _broker_values(definition: Setting, config: BrokerConfig) -> Iterator[_Value]:
    key = definition.key
    if key in config.dynamic_broker:
        yield key, config.dynamic_broker[key], ConfigSource.DYNAMIC_BROKER_CONFIG
    if key in config.dynamic_default:
        yield key, config.dynamic_default[key], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    if key in config.static:
        yield key, config.static[key], ConfigSource.STATIC_BROKER_CONFIG
    if definition.default is not None:
        yield key, definition.default, ConfigSource.DEFAULT_CONFIG


def _entry(definition: Setting, value: Any, values: Iterator[_Value] | list[_Value]) -> ConfigEntry:
    sensitive = definition.kind.type is ConfigType.PASSWORD
    synonyms = tuple(
        ConfigSynonym(name, None if sensitive else text, source) for name, text, source in values
    )
    shown = None if sensitive or value is None else definition.kind.render(value)
    if definition.kind.type is ConfigType.LIST and synonyms and shown is not None:
        # In the order in which it was set: tools compare text and would see a change for ever.
        shown = synonyms[0].value
    return ConfigEntry(
        name=definition.key,
        value=shown,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=definition.kind.type,
        read_only=not definition.dynamic,
        sensitive=sensitive,
        documentation=definition.doc,
        synonyms=synonyms,
    )
