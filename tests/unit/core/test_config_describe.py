"""What DescribeConfigs shows: values, sources and synonyms."""

from __future__ import annotations

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.describe import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from kraftpy.core.config.kinds import ConfigType, Kind
from kraftpy.core.config.settings import Setting


def by_name(entries: list[ConfigEntry]) -> dict[str, ConfigEntry]:
    return {entry.name: entry for entry in entries}


def test_a_topic_setting_has_all_that_compete_for_it() -> None:
    config = BrokerConfig.from_properties({"log.retention.hours": "1"}).with_dynamic(
        {"log.retention.ms": "20"}, {"log.retention.ms": "30"}
    )
    entry = by_name(describe_topic({"retention.ms": "10"}, config))["retention.ms"]
    assert entry == ConfigEntry(
        name="retention.ms",
        value="10",
        source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        type=ConfigType.LONG,
        read_only=False,
        sensitive=False,
        documentation="Age at which records are deleted, -1 for never.",
        synonyms=(
            ConfigSynonym("retention.ms", "10", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ConfigSynonym("log.retention.ms", "20", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ConfigSynonym("log.retention.ms", "30", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ConfigSynonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
            ConfigSynonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
        ),
    )


def test_the_value_of_a_topic_setting_is_what_counts() -> None:
    config = BrokerConfig.from_properties({"log.retention.minutes": "2"})
    entries = by_name(describe_topic({}, config))
    assert entries["retention.ms"].value == "120000"
    assert entries["retention.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["cleanup.policy"].value == "delete"
    assert entries["cleanup.policy"].source is ConfigSource.DEFAULT_CONFIG
    assert entries["min.cleanable.dirty.ratio"].value == "0.5"
    assert entries["preallocate"].value == "false"
    assert entries["compression.type"].value == "producer"


def test_a_brokers_settings() -> None:
    config = BrokerConfig.from_properties({"num.partitions": "03", "num.io.threads": "8"})
    entries = by_name(describe_broker(config.with_dynamic({"message.max.bytes": "9"})))
    partitions = entries["num.partitions"]
    assert (partitions.value, partitions.source) == ("3", ConfigSource.STATIC_BROKER_CONFIG)
    assert partitions.read_only
    size = entries["message.max.bytes"]
    assert (size.value, size.source) == ("9", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert not size.read_only
    unset = entries["log.retention.ms"]
    assert (unset.value, unset.source) == (None, ConfigSource.DEFAULT_CONFIG)
    assert unset.synonyms == ()
    assert entries["listeners"].value == "PLAINTEXT://:9092"
    threads = entries["num.io.threads"]  # it means nothing, but Kafka's tools set it
    assert (threads.value, threads.source) == ("8", ConfigSource.STATIC_BROKER_CONFIG)
    assert threads.documentation.startswith("No effect: ")


def test_the_cluster_wide_defaults_are_those_that_are_set() -> None:
    entries = describe_broker_defaults({"message.max.bytes": "9", "log.cleanup.policy": "compact"})
    assert [(entry.name, entry.value) for entry in entries] == [
        ("log.cleanup.policy", "compact"),
        ("message.max.bytes", "9"),
    ]
    assert {entry.source for entry in entries} == {ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}


def test_a_password_is_never_shown() -> None:
    from kraftpy.core.config import describe

    kind = Kind(ConfigType.PASSWORD, "a password", str)
    secret = Setting("ssl.key.password", "ssl_key_password", kind, None, "A password.", False)
    values = [("ssl.key.password", "hunter2", ConfigSource.STATIC_BROKER_CONFIG)]
    entry = describe._entry(secret, "hunter2", values)
    assert entry.sensitive
    assert entry.value is None
    assert "hunter2" not in repr(entry)
