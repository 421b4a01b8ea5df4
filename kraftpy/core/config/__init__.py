"""Configuration: reading it, checking it, resolving it and showing it.

`parse_properties` reads the text of a server.properties file, `BrokerConfig.from_properties` makes
typed settings of it and `TopicConfig.resolve` those of a topic. The modules `broker` and `topic`
hold the two tables of settings. What's wrong with a value is said by `ConfigError`, in a sentence
that a person can act on.
"""

from __future__ import annotations

from kraftpy.core.config.addresses import Address, Listener, Voter
from kraftpy.core.config.broker import (
    BROKER_SETTINGS,
    BrokerConfig,
    judge_dynamic_broker_configs,
    judge_per_ip,
    validate_dynamic_broker_configs,
)
from kraftpy.core.config.client_metrics import (
    CLIENT_METRICS_SETTINGS,
    SubscriptionError,
    judge_client_metrics_configs,
    validate_client_metrics_configs,
)
from kraftpy.core.config.group_resource import (
    GROUP_SETTINGS,
    consumer_times,
    judge_group_configs,
    share_times,
    validate_group_configs,
)
from kraftpy.core.config.kinds import PARTITIONS_MAX, ConfigError, ConfigType
from kraftpy.core.config.properties import parse_properties
from kraftpy.core.config.settings import Setting
from kraftpy.core.config.throttled import ThrottledReplicas
from kraftpy.core.config.topic import (
    TOPIC_SETTINGS,
    TopicConfig,
    judge_topic_configs,
    validate_topic_configs,
)

__all__ = [
    "BROKER_SETTINGS",
    "CLIENT_METRICS_SETTINGS",
    "GROUP_SETTINGS",
    "PARTITIONS_MAX",
    "TOPIC_SETTINGS",
    "Address",
    "BrokerConfig",
    "ConfigError",
    "ConfigType",
    "Listener",
    "Setting",
    "SubscriptionError",
    "ThrottledReplicas",
    "TopicConfig",
    "Voter",
    "consumer_times",
    "judge_client_metrics_configs",
    "judge_dynamic_broker_configs",
    "judge_group_configs",
    "judge_per_ip",
    "judge_topic_configs",
    "parse_properties",
    "share_times",
    "validate_client_metrics_configs",
    "validate_dynamic_broker_configs",
    "validate_group_configs",
    "validate_topic_configs",
]
