"""Broker and topic settings: values, defaults, precedence, and what is said about mistakes."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from typing import get_type_hints

import pytest

from kraftpy.core.config import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigError,
    Listener,
    Setting,
    TopicConfig,
    Voter,
    parse_properties,
)
from kraftpy.core.config.client_metrics import ClientMetricsConfig
from kraftpy.core.config.group_resource import GroupResourceConfig
from kraftpy.core.config.kinds import LONG_MAX, VALUE_LENGTH_MAX
from tests.sources import MODULES, text_of, tree_of
from tests.unit.core.config_files import broker, error_of

# -- the tables


TABLES: dict[type, Mapping[str, Setting]] = {
    BrokerConfig: BROKER_SETTINGS,
    TopicConfig: TOPIC_SETTINGS,
    GroupResourceConfig: GROUP_SETTINGS,
    ClientMetricsConfig: CLIENT_METRICS_SETTINGS,
}


@pytest.mark.parametrize("cls", TABLES)
def test_every_field_is_a_setting_and_its_default_has_the_declared_type(cls: type) -> None:
    table = TABLES[cls]
    provenance = {"static", "dynamic_broker", "dynamic_default", "ignored"}
    hints = get_type_hints(cls)
    config = cls()
    names = {field.name for field in dataclasses.fields(cls)} - provenance
    assert {definition.attribute for definition in table.values()} == names
    for key, definition in table.items():
        assert definition.attribute == key.replace(".", "_")
        value = getattr(config, definition.attribute)
        hint = hints[definition.attribute]
        allowed = getattr(hint, "__args__", ()) if "None" in str(hint) else (hint,)
        origins = tuple(getattr(each, "__origin__", each) for each in allowed)
        assert isinstance(value, origins), (key, value, hint)
        assert definition.doc.endswith("."), key
        if definition.default is None:
            assert value is None
        else:
            assert definition.kind.parse(definition.default) == value
            assert definition.kind.parse(definition.kind.render(value)) == value


def test_a_setting_is_read_or_says_that_it_has_no_effect() -> None:
    inheriting = (*TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values())
    inherited = {key for setting in inheriting for key, _ in setting.broker_keys}
    attributes = {setting.attribute for setting in BROKER_SETTINGS.values()}
    for module in MODULES:
        # To look through a tree is slow: only where the text has the name of one that is left.
        if not attributes.isdisjoint(re.findall(r"\w+", text_of(module))):
            attributes -= {
                node.attr for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute)
            }
    unread = [
        key
        for key, setting in BROKER_SETTINGS.items()
        if setting.attribute in attributes and key not in inherited
    ]
    assert unread, "those of Kafka that are kept without effect"
    silent = [key for key in unread if not BROKER_SETTINGS[key].doc.startswith("No effect: ")]
    assert not silent, f"nothing in kraftpy/ reads {silent}"


def test_a_topic_inherits_settings_of_the_same_type_and_limits() -> None:
    for key, definition in TOPIC_SETTINGS.items():
        if not definition.broker_keys:
            assert definition.default is not None, key
            continue
        first = BROKER_SETTINGS[definition.broker_keys[0][0]]
        assert first.kind.type == definition.kind.type, key
        assert first.kind.allowed == definition.kind.allowed, key
        assert first.proposed == definition.proposed, key
        assert first.dynamic, key


def test_defaults_are_those_of_kafka() -> None:
    config = BrokerConfig.from_properties({})
    assert config.num_partitions == 1
    assert config.log_segment_bytes == 1 << 30
    assert config.message_max_bytes == 1_048_588
    assert config.offsets_topic_num_partitions == 50
    assert config.group_initial_rebalance_delay_ms == 3000
    assert config.listeners == (Listener("PLAINTEXT", "", 9092),)
    assert config.advertised_listeners is None
    topic = TopicConfig.resolve({}, config)
    assert topic == TopicConfig()
    assert topic.retention_ms == 7 * 24 * 3_600_000
    assert topic.segment_ms == 7 * 24 * 3_600_000
    assert topic.flush_messages == topic.flush_ms == LONG_MAX
    assert topic.cleanup_policy == {"delete"}
    assert topic.message_timestamp_after_max_ms == 3_600_000


def test_two_phase_commit_is_refused() -> None:
    key = "transaction.two.phase.commit.enable"
    BrokerConfig.from_properties({key: "false"})
    with pytest.raises(ConfigError, match="must be one of false"):
        BrokerConfig.from_properties({key: "true"})


def test_kafkas_own_example_file_is_accepted() -> None:
    config = BrokerConfig.from_properties(
        parse_properties(
            """
            process.roles=broker,controller
            node.id=1
            controller.quorum.bootstrap.servers=localhost:9093
            listeners=PLAINTEXT://:9092,CONTROLLER://:9093
            inter.broker.listener.name=PLAINTEXT
            advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            controller.listener.names=CONTROLLER
            listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
                SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
            num.network.threads=3
            num.io.threads=8
            socket.send.buffer.bytes=102400
            socket.receive.buffer.bytes=102400
            socket.request.max.bytes=104857600
            log.dirs=/tmp/kraft-combined-logs
            num.partitions=1
            num.recovery.threads.per.data.dir=1
            offsets.topic.replication.factor=1
            share.coordinator.state.topic.replication.factor=1
            share.coordinator.state.topic.min.isr=1
            transaction.state.log.replication.factor=1
            transaction.state.log.min.isr=1
            log.retention.hours=168
            log.segment.bytes=1073741824
            log.retention.check.interval.ms=300000
            """
        )
    )
    config.check_complete()
    assert config.voters == (Voter(1, "localhost", 9093),)
    assert config.data_dirs == ("/tmp/kraft-combined-logs",)
    assert len(config.ignored) == 3
    assert config.ignored[0].startswith("num.network.threads has no effect: a broker is one")
    assert config.num_network_threads == 3
    assert config.static["num.io.threads"] == "8"


# -- values


@pytest.mark.parametrize(
    ("key", "text", "attribute", "value"),
    [
        ("num.partitions", " +3 ", "num_partitions", 3),
        ("auto.create.topics.enable", "FALSE", "auto_create_topics_enable", False),
        ("log.cleaner.min.cleanable.ratio", ".25", "log_cleaner_min_cleanable_ratio", 0.25),
        ("log.cleaner.min.cleanable.ratio", "1e-1", "log_cleaner_min_cleanable_ratio", 0.1),
        ("log.cleanup.policy", "compact, delete", "log_cleanup_policy", {"compact", "delete"}),
        ("log.cleanup.policy", "", "log_cleanup_policy", set()),
        ("compression.gzip.level", "-1", "compression_gzip_level", -1),
        ("compression.zstd.level", "-131072", "compression_zstd_level", -131072),
        ("compression.type", "uncompressed", "compression_type", "none"),
        ("compression.type", "zstd", "compression_type", "zstd"),
        ("offsets.topic.compression.codec", "4", "offsets_topic_compression_codec", "zstd"),
        ("queued.max.request.bytes", "-1", "queued_max_request_bytes", LONG_MAX),
        ("log.dirs", "/a, /b", "log_dirs", ("/a", "/b")),
        ("listeners", "a://[::1]:0", "listeners", (Listener("A", "::1", 0),)),
        (
            "controller.quorum.voters",
            "1@a:1,2@[fe80::1]:2,3@c:3",
            "controller_quorum_voters",
            (Voter(1, "a", 1), Voter(2, "fe80::1", 2), Voter(3, "c", 3)),
        ),
    ],
)
def test_a_value_is_read(key: str, text: str, attribute: str, value: object) -> None:
    properties = {key: text}
    if key == "listeners":
        properties["listener.security.protocol.map"] = "A:PLAINTEXT"
    config = BrokerConfig.from_properties(properties)
    assert getattr(config, attribute) == value
    definition = BROKER_SETTINGS[key]
    assert definition.kind.parse(definition.kind.render(value)) == value


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("num.partitions", "0", "a whole number from 1 to 10000"),
        ("num.partitions", "1_0", "a whole number from 1 to 10000"),
        ("num.partitions", "\u0661", "a whole number from 1 to 10000"),
        ("num.partitions", "1.0", "a whole number from 1 to 10000"),
        ("num.partitions", "", "a whole number from 1 to 10000"),
        ("log.segment.bytes", "2147483648", "a whole number, 1048576 or more"),
        ("log.segment.bytes", "1048575", "a whole number, 1048576 or more"),
        ("compression.gzip.level", "0", "a whole number from 1 to 9, or -1 for gzip's own"),
        ("compression.gzip.level", "10", "a whole number from 1 to 9, or -1 for gzip's own"),
        ("compression.lz4.level", "18", "a whole number from 1 to 17"),
        ("compression.zstd.level", "-131073", "a whole number from -131072 to 22"),
        ("log.retention.ms", "9223372036854775808", "a whole number, -1 or more"),
        ("log.retention.ms", "-2", "a whole number, -1 or more"),
        ("log.cleaner.min.cleanable.ratio", "nan", "a number from 0 to 1"),
        ("log.cleaner.min.cleanable.ratio", "1.01", "a number from 0 to 1"),
        ("log.preallocate", "yes", "true or false"),
        ("log.cleanup.policy", ",", "delete or compact or both, comma-separated, or empty"),
        (
            "log.cleanup.policy",
            "delete,shred",
            "delete or compact or both, comma-separated, or empty",
        ),
        (
            "compression.type",
            "brotli",
            "one of uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "offsets.topic.compression.codec",
            "zstd",
            "one of 0 (none), 1 (gzip), 2 (snappy), 3 (lz4), 4 (zstd)",
        ),
        ("queued.max.request.bytes", "0", "a whole number, 1 or more, or -1 for no limit"),
        ("broker.rack", " ", "the name of a rack"),
        ("log.dirs", "/a,/a", "folders, comma-separated, each once"),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(key: str, text: str, allowed: str) -> None:
    error = error_of(BrokerConfig.from_properties, {key: text})
    assert str(error) == f"{key}={text}: must be {allowed}"
    assert (error.key, error.value, error.allowed) == (key, text, allowed)


@pytest.mark.parametrize(
    "text",
    [
        "9092",
        "PLAINTEXT://h",
        "PLAINTEXT://h:65536",
        "PLAINTEXT://h:-1",
        "PLAINTEXT://a b:1",
        "PLAINTEXT://[::g]:1",
        "PLAINTEXT://:1,PLAINTEXT://:2",
        "PLAINTEXT://:1,CONTROLLER://:1",
        "://:1",
        "PLAINTEXT://..:1",
        "PLAINTEXT://a..b:1",
        "PLAINTEXT://.:1",
        "PLAINTEXT://" + "a" * 64 + ":1",
    ],
)
def test_bad_listeners(text: str) -> None:
    error = error_of(BrokerConfig.from_properties, {"listeners": text})
    assert str(error).startswith(f"listeners={text}: must be NAME://host:port")


@pytest.mark.parametrize("host", ["a.b-c.example.", "_x", "1.2.3.4", "a" * 63])
def test_good_hosts(host: str) -> None:
    config = BrokerConfig.from_properties({"listeners": f"PLAINTEXT://{host}:1"})
    assert config.listeners[0].host == host


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]", "[::ffff:0.0.0.0]", "0", "0x0.0", "[::%eth0]"],
)
def test_nobody_is_told_to_connect_to_every_interface(host: str) -> None:
    properties = {"advertised.listeners": f"PLAINTEXT://{host}:9092"}
    error = error_of(BrokerConfig.from_properties, properties)
    assert "clients can't connect to" in str(error)
    assert "or leave advertised.listeners out" in str(error)
    BrokerConfig.from_properties({"listeners": f"PLAINTEXT://{host}:9092"})
    reachable = {"advertised.listeners": "PLAINTEXT://[::1]:9092,"}
    BrokerConfig.from_properties(reachable)


@pytest.mark.parametrize("text", ["1@a:1,2@b:2", "1@a:1,1@b:1,2@c:1", "a:1", "1@a:0", "x@a:1"])
def test_bad_voters(text: str) -> None:
    assert "one, three or five" in str(
        error_of(BrokerConfig.from_properties, {"controller.quorum.voters": text})
    )


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            {"log.retention.minute": "1"},
            "unknown broker setting 'log.retention.minute': did you mean log.retention.minutes?",
        ),
        (
            {"frobnicate": "1"},
            "unknown broker setting 'frobnicate': remove it, or check how it is spelled",
        ),
        (
            {"zookeeper.connect": "localhost:2181"},
            "zookeeper.connect: there is no ZooKeeper here, the metadata quorum takes its place; "
            "leave out zookeeper.* and set controller.quorum.voters",
        ),
        (
            {"broker.id": "1", "node.id": "2"},
            "broker.id=1 and node.id=2 differ: they're two names of one setting, leave broker.id "
            "out",
        ),
        (
            {"listeners": "SASL_SSL://:9092"},
            "listener SASL_SSL speaks SASL_SSL and has no certificate: set ssl.keystore.location",
        ),
        (
            {"listeners": "INSIDE://:9092"},
            "listener INSIDE is not in listener.security.protocol.map: add INSIDE:PLAINTEXT to it",
        ),
        (
            {"advertised.listeners": "OUTSIDE://a:1"},
            "advertised.listeners names OUTSIDE, which is not in listeners",
        ),
        (
            {"inter.broker.listener.name": "INSIDE"},
            "inter.broker.listener.name=INSIDE: must be the name of a broker's listener",
        ),
        (
            {"queued.max.request.bytes": "1000"},
            "queued.max.request.bytes=1000: must be socket.request.max.bytes=104857600 or more",
        ),
        (
            {"broker.session.timeout.ms": "3000"},
            "broker.heartbeat.interval.ms=2000: must be at most half of "
            "broker.session.timeout.ms=3000",
        ),
        (
            {"group.min.session.timeout.ms": "2000000"},
            "group.min.session.timeout.ms=2000000: must be group.max.session.timeout.ms=1800000 "
            "or less",
        ),
        (
            {"controller.quorum.bootstrap.servers": "a:1,b:1"},
            "a quorum of several controllers has a fixed list of voters: set "
            "controller.quorum.voters=1@host:9093,2@host:9093,3@host:9093",
        ),
        ({"create.topic.policy.class": "x"}, "unknown broker setting 'create.topic.policy.class'"),
    ],
)
def test_what_is_said_about_a_configuration_that_cant_be_used(
    properties: dict[str, str], sentence: str
) -> None:
    assert sentence in str(error_of(BrokerConfig.from_properties, properties))


def test_an_error_never_repeats_a_long_value_or_key() -> None:
    for key in ("num.partitions", "x" * 100_000, "zookeeper." + "x" * 100_000):
        assert len(str(error_of(BrokerConfig.from_properties, {key: "9" * 100_000}))) < 500


def test_a_value_has_a_limit() -> None:
    assert broker(broker_rack="r" * VALUE_LENGTH_MAX).broker_rack is not None
    error_of(BrokerConfig.from_properties, {"broker.rack": "r" * (VALUE_LENGTH_MAX + 1)})


def test_broker_id_is_another_name_of_node_id() -> None:
    assert broker(broker_id="7").node_id == 7
    assert broker(broker_id="7", node_id="7").node_id == 7


# -- what follows from several settings


def test_listeners_are_split_between_broker_and_controller() -> None:
    config = BrokerConfig.from_properties(
        {
            "node.id": "1",
            "listeners": "OUT://h:1,IN://h:2,QUORUM://:3",
            "listener.security.protocol.map": "OUT:PLAINTEXT,IN:PLAINTEXT,QUORUM:PLAINTEXT",
            "controller.listener.names": "quorum",
            "inter.broker.listener.name": "IN",
        }
    )
    config.check_complete()
    assert [each.name for each in config.broker_listeners] == ["OUT", "IN"]
    assert [each.name for each in config.controller_listeners] == ["QUORUM"]
    assert config.inter_broker_listener == Listener("IN", "h", 2)
    assert config.voters == (Voter(1, "127.0.0.1", 3),)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({}, "set for example node.id=1"),
        (
            {"node.id": "1", "controller.quorum.voters": "1@a:1"},
            "set for example listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093",
        ),
        (
            {"node.id": "1", "process.roles": "controller"},
            "set for example listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093",
        ),
        (
            {"node.id": "1", "listeners": "CONTROLLER://:9093"},
            "set for example listeners=PLAINTEXT://127.0.0.1:9092",
        ),
        (
            {"node.id": "1", "process.roles": "broker"},
            "set for example controller.quorum.voters=1@host:9093",
        ),
        (
            {
                "node.id": "4",
                "process.roles": "controller",
                "listeners": "CONTROLLER://:9093",
                "controller.quorum.voters": "1@a:1",
            },
            "node.id=4 is a controller but no voter: add it to controller.quorum.voters, or set "
            "process.roles=broker",
        ),
    ],
)
def test_what_a_server_cant_start_without(properties: dict[str, str], sentence: str) -> None:
    config = BrokerConfig.from_properties(properties)
    assert sentence in str(error_of(config.check_complete))


def test_a_cluster_of_one_needs_a_node_id_only() -> None:
    config = broker(node_id="1")
    config.check_complete()
    assert config.voters == ()


def test_folders() -> None:
    assert broker(log_dir="/one").data_dirs == ("/one",)
    several = broker(log_dir="/one", log_dirs="/a,/b")
    assert several.data_dirs == ("/a", "/b")
    assert several.metadata_dir == "/a"
    assert broker(metadata_log_dir="/m").metadata_dir == "/m"


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"},
            4,
        ),
        ({"log.retention.minutes": "3", "log.retention.ms": "-1"}, -1),
    ],
)
def test_the_finest_unit_wins(properties: dict[str, str], retention_ms: int) -> None:
    config = BrokerConfig.from_properties(properties)
    assert TopicConfig.resolve({}, config).retention_ms == retention_ms


def test_flush_ms_falls_back_to_the_scheduler() -> None:
    config = broker(log_flush_scheduler_interval_ms="500")
    assert TopicConfig.resolve({}, config).flush_ms == 500
    config = broker(log_flush_scheduler_interval_ms="500", log_flush_interval_ms="7")
    assert TopicConfig.resolve({}, config).flush_ms == 7
