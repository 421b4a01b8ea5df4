"""The part of a committed configuration that this release understands.

Settings are judged when they are proposed, by the release that proposes them. While a cluster is
being upgraded, another release may meet a key or a value that it doesn't know: it leaves that one
out, as if it weren't set, and goes by the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.config.broker import BROKER_SETTINGS
from kraftpy.core.config.kinds import ConfigError
from kraftpy.core.config.listeners import prefixed_setting
from kraftpy.core.config.settings import Setting, parse_value
from kraftpy.core.config.topic import TOPIC_SETTINGS


def understood_topic_configs(configs: Mapping[str, str]) -> Mapping[str, str]:
    """The overrides of a topic that this release understands; `configs` itself if all are."""
    return understood_configs(configs, TOPIC_SETTINGS)


def understood_broker_configs(configs: Mapping[str, str]) -> Mapping[str, str]:
    """The dynamic configs of a broker, or of all, that this release understands."""
    return understood_configs(configs, _DYNAMIC)


def understood_configs(
    configs: Mapping[str, str], settings: Mapping[str, Setting]
) -> Mapping[str, str]:
    """What of `configs` is among `settings` and can be read; `configs` itself if all of it is."""
    if all(_is_understood(key, value, settings) for key, value in configs.items()):
        return configs
    return {key: text for key, text in configs.items() if _is_understood(key, text, settings)}


def _is_understood(key: str, value: str, settings: Mapping[str, Setting]) -> bool:
    definition = settings.get(key)
    if definition is None and settings is _DYNAMIC:
        definition = prefixed_setting(key)
        if definition is not None and not definition.dynamic:
            return False
    if definition is None:
        return False
    try:
        parse_value(definition, value)
    except ConfigError:
        return False
    return True


_DYNAMIC = {key: each for key, each in BROKER_SETTINGS.items() if each.dynamic}
