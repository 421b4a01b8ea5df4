"""Every setting of a broker, in one table: the fields of `BrokerConfig` (those of groups are in
`groups`, those of the logs in `logs`, the others in `node`).

Rules: the field `log_retention_ms` is the key `log.retention.ms` (underscore for dot, no
exceptions), and its metadata holds type, allowed values, default and documentation, so there is no
second table to keep in step. Names, types and defaults are Kafka's (4.x); where a default differs
its documentation says so. A value is looked up once, when the object is made: dynamic per broker,
dynamic cluster-wide, server.properties, default (KIP-226). `BrokerConfig` never changes; a dynamic
change makes a new one (`with_dynamic`).

Keys that Kafka has and that mean nothing here are accepted and reported in `ignored`, and those
that Kafka lets change while a broker runs are kept (`noted`). ZooKeeper's are refused, because a
cluster that expects one is not what its owner thinks it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from kraftpy.core.config import kinds
from kraftpy.core.config.broker_checks import check_complete, check_together
from kraftpy.core.config.connections import ABOVE_ZERO, OVERRIDES, PER_IP, check_per_ip
from kraftpy.core.config.ignored import why_ignored
from kraftpy.core.config.kinds import KEY_LENGTH_MAX, ConfigError, unknown_key
from kraftpy.core.config.listeners import prefixed_setting, refuse_plug_ins, refuse_prefixed
from kraftpy.core.config.logins import refuse_unprefixed
from kraftpy.core.config.node import NodeSettings
from kraftpy.core.config.noted import NotedSettings
from kraftpy.core.config.settings import Setting, judge_value, parse_value, settings_of
from kraftpy.frozen import dataclass

_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(NodeSettings):
    """The settings of one node, parsed and checked. Make one with `from_properties`."""

    # Where the values come from, as text; for DescribeConfigs.
    static: Mapping[str, str] = field(default_factory=dict, repr=False)
    dynamic_broker: Mapping[str, str] = field(default_factory=dict, repr=False)
    dynamic_default: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """The configuration that a server.properties file asks for; all else at its default.

        `ignored` of the result says in one sentence each which keys have no effect and why.
        Raises ConfigError for a key that is unknown, a value that is not allowed, and settings
        that contradict each other.
        """
        properties = _with_node_id(properties)
        static: dict[str, str] = {}
        ignored: list[str] = []
        for key, value in properties.items():
            definition = broker_setting(key)
            if definition is not None and (key in _IN_EFFECT or key not in BROKER_SETTINGS):
                judge_value(definition, value)
                static[key] = value
                continue
            _refuse_zookeeper(key, value)
            refuse_prefixed(key)
            refuse_plug_ins(key)
            refuse_unprefixed(key)
            reason = why_ignored(key)
            if reason is None:
                raise unknown_key(key, value, BROKER_SETTINGS)
            if definition is not None:
                judge_value(definition, value)
                static[key] = value
            ignored.append(f"{key} has no effect: {reason}")
        config = cls(
            static=MappingProxyType(static), ignored=tuple(ignored), **dict(_parsed(static))
        )
        check_together(config, config)
        check_per_ip(config.max_connections_per_ip, config.max_connections_per_ip_overrides)
        return config

    def with_dynamic(
        self, broker: Mapping[str, str], default: Mapping[str, str] = _EMPTY
    ) -> BrokerConfig:
        """This node's static configuration with these dynamic ones on top.

        `broker` are the overrides of this broker, `default` the cluster-wide ones; `broker` wins.
        Replaces whatever dynamic configuration this object had. Raises ConfigError.
        """
        validate_dynamic_broker_configs(broker)
        validate_dynamic_broker_configs(default)
        merged = {**self.static, **default, **broker}
        config = BrokerConfig(
            static=self.static,
            dynamic_broker=MappingProxyType(dict(broker)),
            dynamic_default=MappingProxyType(dict(default)),
            ignored=self.ignored,
            **dict(_parsed(merged)),
        )
        check_together(config, config)
        return config

    def check_complete(self) -> None:
        """Raises ConfigError if something is missing that a server can't start without."""
        check_complete(self)


BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(settings_of(BrokerConfig))
"""Every broker setting by its key."""


def broker_setting(key: str) -> Setting | None:
    """What the table knows of a key, that of one listener too."""
    return BROKER_SETTINGS.get(key) or prefixed_setting(key)


_IN_EFFECT = BROKER_SETTINGS.keys() - settings_of(NotedSettings).keys()


def validate_dynamic_broker_configs(configs: Mapping[str, str]) -> None:
    """Checks configs set on a broker resource while it runs. Raises ConfigError."""
    for key, value in sorted(configs.items()):
        definition = broker_setting(key)
        if definition is None:
            refuse_prefixed(key)
            raise unknown_key(key, value, BROKER_SETTINGS)
        if not definition.dynamic:
            raise ConfigError(
                key,
                None if definition.kind.type is kinds.ConfigType.PASSWORD else value,
                "set in server.properties",
                f"{key} can't be changed while the broker runs: set it in server.properties and "
                "restart the broker",
            )
        parse_value(definition, value)


def judge_dynamic_broker_configs(configs: Mapping[str, str | None]) -> None:
    """Checks what somebody wants to set on a broker, each key by itself. Raises ConfigError."""
    for key in sorted(configs):
        value = configs[key]
        if value is not None:
            validate_dynamic_broker_configs({key: value})
            definition = broker_setting(key)
            assert definition is not None
            judge_value(definition, value)
            if key in ABOVE_ZERO and parse_value(definition, value) == 0:
                raise ConfigError(key, value, "1 or more while the broker runs")


def judge_per_ip(config: BrokerConfig, configs: Mapping[str, str | None], *, whole: bool) -> None:
    """Whether anybody can connect still, once `configs` are set while the broker has `config`.

    None is removed; if they are the `whole` of what is set, so is what isn't among them. Raises
    ConfigError.
    """
    values = []
    for key in (PER_IP, OVERRIDES):
        definition = BROKER_SETTINGS[key]
        value = configs.get(key)
        if value is not None:
            values.append(parse_value(definition, value))
        elif whole or key in configs:
            values.append(getattr(config.with_dynamic({}), definition.attribute))
        else:
            values.append(getattr(config, definition.attribute))
    if whole or PER_IP in configs or OVERRIDES in configs:
        check_per_ip(*values)


def _parsed(texts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for key, value in texts.items():
        definition = BROKER_SETTINGS.get(key)
        if definition is not None:  # else it's that of one listener
            yield definition.attribute, parse_value(definition, value)


def _with_node_id(properties: Mapping[str, str]) -> Mapping[str, str]:
    """`broker.id` is the old name of `node.id`."""
    if "broker.id" not in properties:
        return properties
    old = properties["broker.id"]
    if properties.get("node.id", old).strip() != old.strip():
        raise ConfigError(
            "broker.id",
            old,
            "the same as node.id",
            f"broker.id={kinds.shorten(old)} and node.id={kinds.shorten(properties['node.id'])} "
            "differ: they're two names of one setting, leave broker.id out",
        )
    return {
        **{key: value for key, value in properties.items() if key != "broker.id"},
        "node.id": old,
    }


def _refuse_zookeeper(key: str, value: str) -> None:
    if key.startswith("zookeeper."):
        raise ConfigError(
            key,
            value,
            "left out",
            f"{kinds.shorten(key, KEY_LENGTH_MAX)}: there is no ZooKeeper here, the metadata "
            "quorum takes its place; leave out zookeeper.* and set controller.quorum.voters",
        )
