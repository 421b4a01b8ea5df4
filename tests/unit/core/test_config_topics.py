"""Settings that change while a broker runs: of the cluster, brokers, topics and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.config import (
    BROKER_SETTINGS,
    PARTITIONS_MAX,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    ThrottledReplicas,
    TopicConfig,
    consumer_times,
    judge_dynamic_broker_configs,
    judge_topic_configs,
    validate_dynamic_broker_configs,
    validate_topic_configs,
)
from kraftpy.core.config.describe import describe_broker, describe_topic
from kraftpy.core.config.noted import NotedSettings
from kraftpy.core.config.settings import settings_of
from tests.unit.core.config_files import broker, error_of


def test_precedence_topic_then_broker_then_cluster_then_file_then_default() -> None:
    config = BrokerConfig.from_properties({})
    key = "log.segment.bytes"
    expected = 1 << 30
    assert TopicConfig.resolve({}, config).segment_bytes == expected
    config = BrokerConfig.from_properties({key: "1048577"})
    assert TopicConfig.resolve({}, config).segment_bytes == 1048577
    config = config.with_dynamic({}, {key: "2000"})
    assert TopicConfig.resolve({}, config).segment_bytes == 2000
    config = config.with_dynamic({key: "3000"}, {key: "2000"})
    assert config.log_segment_bytes == 3000
    assert TopicConfig.resolve({}, config).segment_bytes == 3000
    assert TopicConfig.resolve({"segment.bytes": "4000"}, config).segment_bytes == 4000
    assert config.with_dynamic({}, {}).log_segment_bytes == 1048577


def test_a_dynamic_config_must_be_dynamic() -> None:
    validate_dynamic_broker_configs({"log.retention.ms": "5", "max.connections": "3"})
    assert str(error_of(validate_dynamic_broker_configs, {"log.dirs": "/a"})) == (
        "log.dirs can't be changed while the broker runs: set it in server.properties and "
        "restart the broker"
    )
    error = error_of(broker().with_dynamic, {"log.retention.mss": "5"})
    assert str(error).endswith("did you mean log.retention.ms?")


@pytest.mark.parametrize(
    ("configs", "sentence"),
    [
        (
            {"retention.mss": "1"},
            "Unknown topic config name: retention.mss",
        ),
        ({"retention.ms": "1h"}, "retention.ms=1h: must be a whole number, -1 or more"),
        ({"segment.bytes": "13"}, "segment.bytes=13: must be a whole number, 14 or more"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
            "min.compaction.lag.ms=10: must be max.compaction.lag.ms=9 or less",
        ),
        ({"log.retention.ms": "1"}, "Unknown topic config name: log.retention.ms"),
    ],
)
def test_what_is_said_about_topic_configs(configs: dict[str, str], sentence: str) -> None:
    assert sentence in str(error_of(validate_topic_configs, configs))


# What Kafka 4.4.0 says to each of these, asked: those it refuses are the ones refused here too, and
# without tiered storage whatever would need it.
@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("segment.bytes", "1048576", None),
        ("segment.bytes", "1048575", "a whole number, 1048576 or more"),
        ("internal.segment.bytes", "1024", None),
        ("cleanup.policy", "", None),
        ("cleanup.policy", "delete, compact", None),
        ("cleanup.policy", ",", "delete or compact or both, comma-separated, or empty"),
        ("cleanup.policy", "none", "delete or compact or both, comma-separated, or empty"),
        ("compression.gzip.level", "-1", None),
        ("compression.gzip.level", "9", None),
        ("compression.gzip.level", "0", "a whole number from 1 to 9, or -1 for gzip's own"),
        ("compression.lz4.level", "17", None),
        ("compression.lz4.level", "0", "a whole number from 1 to 17"),
        ("compression.zstd.level", "22", None),
        ("compression.zstd.level", "23", "a whole number from -131072 to 22"),
        ("max.decompressed.message.bytes", "2147483639", None),
        (
            "max.decompressed.message.bytes",
            "2147483647",
            "a whole number from 1 to 2147483639",
        ),
        ("remote.storage.enable", "false", None),
        ("remote.storage.enable", "true", "false: there is no tiered storage"),
        ("remote.log.copy.disable", "true", None),
        ("remote.log.delete.on.disable", "true", None),
        ("remote.copy.lag.ms", "0", None),
        ("remote.copy.lag.bytes", "-1", None),
        ("remote.copy.lag.bytes", "9", "-1: there is no tiered storage"),
        ("local.retention.ms", "-2", None),
        ("local.retention.ms", "5", "-2: there is no tiered storage, and retention.ms counts"),
        ("local.retention.bytes", "-2", None),
        (
            "local.retention.bytes",
            "x",
            "-2: there is no tiered storage, and retention.bytes counts",
        ),
        ("errors.deadletterqueue.group.enable", "false", None),
        ("errors.deadletterqueue.group.enable", "true", "false: there are no share groups"),
    ],
)
def test_a_new_value_of_a_topic_is_judged(key: str, value: str, allowed: str | None) -> None:
    if allowed is None:
        judge_topic_configs({key: value})
        validate_topic_configs({key: value})
    else:
        error = error_of(judge_topic_configs, {key: value})
        assert str(error) == f"{key}={value}: must be {allowed}"


def test_what_an_earlier_release_took_still_counts() -> None:
    config = BrokerConfig.from_properties({}).with_dynamic({"log.segment.bytes": "20"})
    assert TopicConfig.resolve({}, config).segment_bytes == 20
    validate_topic_configs({"segment.bytes": "14"})
    assert TopicConfig.resolve({"segment.bytes": "14"}, config).roll_size_bytes == 14
    error = error_of(judge_dynamic_broker_configs, {"log.segment.bytes": "20"})
    assert str(error) == "log.segment.bytes=20: must be a whole number, 1048576 or more"


@pytest.mark.parametrize("key", sorted(settings_of(NotedSettings)))
def test_what_means_nothing_here_is_kept_and_judged(key: str) -> None:
    definition = BROKER_SETTINGS[key]
    assert definition.doc.startswith("No effect: ")
    config = BrokerConfig.from_properties({key: "1"})
    assert any(notice.startswith(f"{key} has no effect") for notice in config.ignored)
    config = config.with_dynamic({key: "1"}, {key: "1"})
    (entry,) = (each for each in describe_broker(config) if each.name == key)
    assert not entry.read_only
    assert [each.source for each in entry.synonyms] == [2, 3, 4, 5]
    assert "-1: must be" in str(error_of(judge_dynamic_broker_configs, {key: "-1"}))
    assert "-1: must be" in str(error_of(BrokerConfig.from_properties, {key: "-1"}))


def test_the_internal_size_of_segments_is_for_tests() -> None:
    config = BrokerConfig.from_properties({"internal.segment.bytes": "100"})
    assert TopicConfig.resolve({}, config).roll_size_bytes == 100
    assert TopicConfig.resolve({"internal.segment.bytes": "7"}, config).roll_size_bytes == 7
    assert TopicConfig.resolve({}, BrokerConfig()).roll_size_bytes == 1 << 30
    shown = {entry.name for entry in describe_topic({}, BrokerConfig())}
    assert "segment.bytes" in shown
    assert "internal.segment.bytes" not in shown
    shown = {entry.name for entry in describe_topic({"internal.segment.bytes": "7"}, config)}
    assert "internal.segment.bytes" in shown
    assert "internal.segment.bytes" not in {each.name for each in describe_broker(BrokerConfig())}


def test_the_level_is_that_of_the_codec() -> None:
    levels = {"compression.gzip.level": "5", "compression.zstd.level": "7"}
    for codec, level in {"gzip": 5, "zstd": 7, "lz4": 9, "snappy": None, "producer": None}.items():
        config = TopicConfig.resolve({**levels, "compression.type": codec}, BrokerConfig())
        assert config.compression_level == level
    config = BrokerConfig().with_dynamic({"compression.lz4.level": "2"})
    assert TopicConfig.resolve({"compression.type": "lz4"}, config).compression_level == 2


@given(st.sampled_from(sorted(BROKER_SETTINGS)), st.text(max_size=40))
def test_any_text_is_a_value_or_a_config_error(key: str, text: str) -> None:
    definition = BROKER_SETTINGS[key]
    try:
        value = definition.kind.parse(text)
    except ValueError:
        return
    if definition.kind.type is ConfigType.PASSWORD:
        assert definition.kind.render(value) == "[hidden]"
    else:
        assert definition.kind.parse(definition.kind.render(value)) == value


@given(st.dictionaries(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text(max_size=12), max_size=3))
def test_what_validates_also_resolves(configs: dict[str, str]) -> None:
    try:
        validate_topic_configs(configs)
    except ConfigError:
        return
    TopicConfig.resolve(configs, BrokerConfig())


@pytest.mark.parametrize(
    ("configs", "times"),
    [
        ({}, (45_000, 5_000)),
        ({"consumer.session.timeout.ms": "50000"}, (50_000, 5_000)),
        ({"consumer.heartbeat.interval.ms": "6000"}, (45_000, 6_000)),
        # Set where the limits were others, or by a later release.
        ({"consumer.session.timeout.ms": "1"}, (45_000, 5_000)),
        ({"consumer.heartbeat.interval.ms": "99999"}, (45_000, 15_000)),
        ({"consumer.session.timeout.ms": "soon"}, (45_000, 5_000)),
    ],
)
def test_a_groups_own_times_keep_to_the_limits(
    configs: dict[str, str], times: tuple[int, int]
) -> None:
    assert consumer_times(configs, BrokerConfig()) == times


def test_types_are_those_of_kafka() -> None:
    assert TOPIC_SETTINGS["cleanup.policy"].kind.type is ConfigType.LIST
    assert TOPIC_SETTINGS["retention.ms"].kind.type is ConfigType.LONG
    assert TOPIC_SETTINGS["segment.bytes"].kind.type is ConfigType.INT
    assert TOPIC_SETTINGS["min.cleanable.dirty.ratio"].kind.type is ConfigType.DOUBLE
    assert TOPIC_SETTINGS["preallocate"].kind.type is ConfigType.BOOLEAN
    assert TOPIC_SETTINGS["compression.type"].kind.type is ConfigType.STRING


# -- replicas that are throttled

THROTTLED = "leader.replication.throttled.replicas"


def test_a_topic_names_the_replicas_that_are_throttled() -> None:
    def throttled(text: str) -> ThrottledReplicas:
        config = TopicConfig.resolve({THROTTLED: text}, BrokerConfig.from_properties({}))
        return config.leader_replication_throttled_replicas

    some = throttled("0:1, 10:2,0:1")
    assert some.includes(0, 1)
    assert some.includes(10, 2)
    assert not some.includes(1, 0)
    assert not some.includes(10, 1)
    assert throttled(" * ").includes(5, 5)
    for nothing in ("", TOPIC_SETTINGS[THROTTLED].default):
        assert nothing is not None
        assert not throttled(nothing).includes(0, 1)


@pytest.mark.parametrize(
    "text", ["1", "a:b", "1:", "-1:2", "*,0:1", "0:1;1:1", "1:2:3", "\u0661:1"]
)
def test_what_names_no_replicas(text: str) -> None:
    error = error_of(validate_topic_configs, {THROTTLED: text})
    assert error.allowed == "a list of PARTITION:BROKER, comma-separated, or *"


def test_all_replicas_of_the_largest_topic_can_be_throttled() -> None:
    text = ",".join(f"{partition}:100" for partition in range(PARTITIONS_MAX) for _ in range(2))
    validate_topic_configs({THROTTLED: text})
    error_of(validate_topic_configs, {THROTTLED: text * 2})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("group.consumer.session.timeout.ms", "10000", "from group.consumer.min.session"),
        ("group.consumer.session.timeout.ms", "60001", "group.consumer.max.session.timeout.ms="),
        ("group.consumer.heartbeat.interval.ms", "1000", "from group.consumer.min.heartbeat"),
        ("group.consumer.assignors", "sticky", "uniform, range or both"),
        ("group.consumer.assignors", "range,range", "uniform, range or both"),
        ("group.consumer.migration.policy", "both", "one of bidirectional"),
    ],
)
def test_consumer_group_settings_are_checked(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed):
        BrokerConfig.from_properties({key: value})


def test_consumer_group_heartbeats_must_come_before_the_session_ends() -> None:
    properties = {
        "group.consumer.min.session.timeout.ms": "1",
        "group.consumer.session.timeout.ms": "5000",
    }
    with pytest.raises(ConfigError, match=r"less than group\.consumer\.session\.timeout\.ms=5000"):
        BrokerConfig.from_properties(properties)
