"""Configurations over the wire: what Kafka takes is taken, in Kafka's words refused, and described.

What is expected was asked of Apache Kafka 4.4.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Broker
from tests.server.wire import Closed, Wire, fetch, produce

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)

Answer = tuple[int, str | None]


def alter(
    wire: Wire, type_: int, name: str, *ops: tuple[str, int, str | None], validate: bool = False
) -> Answer:
    """The answer to IncrementalAlterConfigs of one resource; `ops` are (key, operation, value)."""
    request = m.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(*op) for op in ops]
    answer = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        request([request.AlterConfigsResource(type_, name, configs)], validate),
    )
    (one,) = answer.responses
    assert (one.resource_type, one.resource_name) == (type_, name)
    return one.error_code, one.error_message


def describe(wire: Wire, type_: int, name: str) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    request = m.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(type_, name, None)
    answer = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, request([resource], True, True))
    return answer.results[0]


def values(wire: Wire, type_: int, name: str) -> dict[str, tuple[str | None, int]]:
    """(value, source) of each setting."""
    found = describe(wire, type_, name)
    assert found.error_code == 0, found.error_message
    return {each.name: (each.value, each.config_source) for each in found.configs}


def create_error(wire: Wire, **configs: str) -> Answer:
    request = m.CreateTopicsRequest
    topic = request.CreatableTopic(
        "judged",
        1,
        1,
        configs=[
            request.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in configs.items()
        ],
    )
    answer = wire.call(ApiKey.CREATE_TOPICS, 7, request([topic], 10_000, validate_only=True))
    return answer.topics[0].error_code, answer.topics[0].error_message


# -- topics


def test_what_mirror_maker_copies_is_taken(wire: Wire, new_topic: Callable[..., str]) -> None:
    copied = {
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.zstd.level": "3",
        "remote.storage.enable": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "local.retention.ms": "-2",
        "local.retention.bytes": "-2",
        "internal.segment.bytes": "4096",
        "cleanup.policy": "",
    }
    topic = new_topic(**{key.replace(".", "_"): value for key, value in copied.items()})
    shown = values(wire, TOPIC, topic)
    assert {key: shown[key] for key in copied} == {key: (copied[key], 1) for key in copied}
    assert alter(wire, TOPIC, new_topic(), *((key, SET, copied[key]) for key in copied)) == (
        0,
        None,
    )


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("segment.bytes", "1048575", "segment.bytes=1048575: must be a whole number, 1048576 or"),
        ("remote.storage.enable", "true", "remote.storage.enable=true: must be false: there is no"),
        ("local.retention.ms", "1000", "local.retention.ms=1000: must be -2: there is no tiered"),
        ("no.such.key", "1", "Unknown topic config name: no.such.key"),
    ],
)
def test_what_cant_be_so_is_refused_with_a_sentence(
    wire: Wire, new_topic: Callable[..., str], key: str, value: str, sentence: str
) -> None:
    code, message = create_error(wire, **{key.replace(".", "_"): value})
    assert code == ErrorCode.INVALID_CONFIG
    assert message is not None
    assert message.startswith(sentence)
    assert alter(wire, TOPIC, new_topic(), (key, SET, value)) == (code, message)


def test_a_policy_may_end_up_empty(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert alter(wire, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == (0, None)
    assert values(wire, TOPIC, topic)["cleanup.policy"] == ("", 1)
    assert alter(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == (0, None)
    assert values(wire, TOPIC, topic)["cleanup.policy"] == ("compact", 1)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_the_level_of_a_codec_has_effect(
    wire: Wire, new_topic: Callable[..., str], codec: str
) -> None:
    lowest, highest = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}[codec]
    value = b" ".join(b"%d" % (n * n % 9973) for n in range(20_000))
    sizes = []
    for level in (lowest, highest):
        level_of = {f"compression_{codec}_level": level}
        topic = new_topic(compression_type=codec, **level_of)
        batch = build_batch([(1_700_000_000_000, b"k", value, [])])
        assert produce(wire, topic, batch).error_code == 0
        sizes.append(len(fetch(wire, topic, 0).records))
    assert sizes[1] < sizes[0] * 0.99


def test_segments_are_as_small_as_a_test_wants_them(
    broker: Broker, wire: Wire, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(internal_segment_bytes=2000)
    for _ in range(5):
        batch = build_batch([(1_700_000_000_000, b"k", b"v" * 1500, [])])
        assert produce(wire, topic, batch).error_code == 0
    assert len(list(broker.log_dir.glob(f"{topic}-0/*.log"))) == 5


# -- brokers

TUNED = {
    "log.cleaner.backoff.ms": "5000",
    "log.cleaner.dedupe.buffer.size": "64000000",
    "log.cleaner.io.buffer.size": "1000000",
    "log.cleaner.io.max.bytes.per.second": "100000.0",
    "log.cleaner.threads": "2",
    "num.io.threads": "9",
    "num.network.threads": "4",
    "num.replica.fetchers": "2",
    "background.threads": "11",
    "num.recovery.threads.per.data.dir": "3",
}


@pytest.mark.parametrize("name", ["1", ""])
def test_what_tunes_a_running_broker_is_taken_and_described(wire: Wire, name: str) -> None:
    before = values(wire, BROKER, "1")
    ops = ((key, SET, value) for key, value in TUNED.items())
    assert alter(wire, BROKER, name, *ops) == (0, None)
    source = 2 if name else 3
    shown = values(wire, BROKER, name)
    assert {key: shown[key] for key in TUNED} == {k: (v, source) for k, v in TUNED.items()}
    read_only = {each.name for each in describe(wire, BROKER, "1").configs if each.read_only}
    assert not read_only & TUNED.keys()
    assert alter(wire, BROKER, name, *((key, DELETE, None) for key in TUNED)) == (0, None)
    assert values(wire, BROKER, "1") == before


def test_limits_of_connections_count_at_once(wire: Wire, broker: Broker) -> None:
    overrides, own = "max.connections.per.ip.overrides", "listener.name.plaintext.max.connections"
    assert alter(wire, BROKER, "1", (overrides, SET, "127.0.0.1:1")) == (0, None)
    with pytest.raises(Closed), Wire(broker.host, broker.port) as another:
        describe(another, BROKER, "1")
    assert alter(wire, BROKER, "1", (overrides, DELETE, None)) == (0, None)
    assert alter(wire, BROKER, "", (own, SET, "1")) == (0, None)
    with Wire(broker.host, broker.port, timeout_s=0.5) as another:
        with pytest.raises(TimeoutError):
            describe(another, BROKER, "1")
        # What comes next on the connection that is there makes room for it.
        assert alter(wire, BROKER, "", (own, DELETE, None)) == (0, None)
    with Wire(broker.host, broker.port) as another:
        shown = values(another, BROKER, "1")
    assert shown["max.connections"] == ("2147483647", 5)
    assert own not in shown


def test_what_a_running_broker_cant_take_is_refused(wire: Wire) -> None:
    for key, value, sentence in (
        ("num.io.threads", "0", "num.io.threads=0: must be a whole number, 1 or more"),
        ("log.segment.bytes", "1024", "log.segment.bytes=1024: must be a whole number, 1048576"),
        ("log.retention.hours", "5", "log.retention.hours can't be changed while the broker runs"),
        (
            "kraftpy.delete.policy.class",
            "a.B",
            "kraftpy.delete.policy.class can't be changed while",
        ),
        ("max.connections", "0", "max.connections=0: must be 1 or more while the broker runs"),
        ("max.connections.per.ip", "0", "max.connections.per.ip=0 lets nobody in: set max.conn"),
    ):
        code, message = alter(wire, BROKER, "1", (key, SET, value))
        assert code == ErrorCode.INVALID_CONFIG
        assert message is not None
        assert message.startswith(sentence)


# -- groups, subscriptions to clients' metrics, loggers

CLIENT_METRICS, BROKER_LOGGER, GROUP = 16, 8, 32


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name


def listed(wire: Wire, *types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    request = m.ListConfigResourcesRequest(list(types))
    answer = wire.call(ApiKey.LIST_CONFIG_RESOURCES, version, request)
    found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
    return answer.error_code, found


def replace(wire: Wire, type_: int, name: str, **configs: str) -> Answer:
    request = m.AlterConfigsRequest
    items = [request.AlterableConfig(k.replace("_", "."), v) for k, v in configs.items()]
    resource = request.AlterConfigsResource(type_, name, items)
    (answer,) = wire.call(ApiKey.ALTER_CONFIGS, 2, request([resource], False)).responses
    return answer.error_code, answer.error_message


def heartbeat(wire: Wire, group: str, member: str, epoch: int) -> Any:
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1,
        subscribed_topic_names=["nothing"] if epoch == 0 else None,
        topic_partitions=[] if epoch == 0 else None,
    )
    return wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)


def joined(wire: Wire, group: str, member: str) -> Any:
    """The answer of a coordinator that is ready: the first one finds the group's log not loaded."""
    deadline = time.monotonic() + 30
    while True:
        wire.call(ApiKey.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(coordinator_keys=[group]))
        answer = heartbeat(wire, group, member, 0)
        if answer.error_code == 0:
            return answer
        assert answer.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 15, 16), answer
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_group_has_its_own_heartbeat_interval(wire: Wire, unique: str) -> None:
    assert joined(wire, unique, "a").heartbeat_interval_ms == 5000
    assert alter(wire, GROUP, unique, ("consumer.heartbeat.interval.ms", SET, "6000")) == (0, None)
    assert heartbeat(wire, unique, "a", 1).heartbeat_interval_ms == 6000
    assert joined(wire, unique + "-other", "a").heartbeat_interval_ms == 5000
    assert alter(wire, GROUP, unique, ("consumer.heartbeat.interval.ms", DELETE, None)) == (0, None)
    assert heartbeat(wire, unique, "a", 1).heartbeat_interval_ms == 5000


def test_a_group_has_its_own_session_timeout() -> None:
    """A member that may be silent for a second only is taken out, that of another group stays."""
    with (
        Broker(group_consumer_min_session_timeout_ms=1000) as broker,
        Wire(broker.host, broker.port) as wire,
    ):
        ops = [("consumer.session.timeout.ms", SET, "1000")]
        assert alter(wire, GROUP, "hasty", *ops) == (0, None)
        joined(wire, "hasty", "a")
        joined(wire, "patient", "a")
        deadline = time.monotonic() + 30
        while heartbeat(wire, "hasty", "b", 0).member_epoch < 3:  # a comes, b comes, a is gone
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert heartbeat(wire, "hasty", "a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert heartbeat(wire, "patient", "a", 1).error_code == 0


def test_what_is_set_on_groups_and_subscriptions_outlives_the_broker() -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            group_ops = [("consumer.session.timeout.ms", SET, "50000")]
            assert alter(wire, GROUP, "kept", *group_ops) == (0, None)
            assert alter(wire, CLIENT_METRICS, "kept", ("interval.ms", SET, "1000")) == (0, None)
            logger = "kraftpy.server.broker"
            assert alter(wire, BROKER_LOGGER, "1", (logger, SET, "DEBUG")) == (0, None)
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            assert values(wire, GROUP, "kept")["consumer.session.timeout.ms"] == ("50000", 8)
            assert values(wire, CLIENT_METRICS, "kept")["interval.ms"] == ("1000", 7)
            assert values(wire, BROKER_LOGGER, "1")[logger] == ("INFO", 6)


def test_a_group_is_described_with_what_it_inherits(wire: Wire, unique: str) -> None:
    shown = values(wire, GROUP, unique)
    assert len(shown) == 21  # as many as in Kafka 4.4.0
    assert shown["consumer.session.timeout.ms"] == ("45000", 5)
    assert replace(wire, GROUP, unique, consumer_session_timeout_ms="50000") == (0, None)
    (entry,) = (
        each
        for each in describe(wire, GROUP, unique).configs
        if each.name == "consumer.session.timeout.ms"
    )
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert replace(wire, GROUP, unique) == (0, None)
    assert values(wire, GROUP, unique) == shown


@pytest.mark.parametrize(
    ("type_", "name", "key", "value", "code", "message"),
    [
        (
            GROUP,
            "g",
            "consumer.session.timeout.ms",
            "44999",
            40,
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            GROUP,
            "g",
            "consumer.heartbeat.interval.ms",
            "15001",
            40,
            "consumer.heartbeat.interval.ms must be in the range 5000 to 15000 inclusive.",
        ),
        (GROUP, "g", "nope", "1", 40, "Unknown group config name: nope"),
        (GROUP, "", "share.isolation.level", "read_committed", 42, "Default group resources are"),
        (GROUP, "g", "share.delivery.count.limit", "11", 40, "share.delivery.count.limit=11: must"),
        (GROUP, "g", "share.auto.offset.reset", "x", 40, "share.auto.offset.reset=x: must be"),
        (GROUP, "g" * 2000, "share.isolation.level", "read_committed", 42, "the resource's name"),
        (
            CLIENT_METRICS,
            "m",
            "interval.ms",
            "99",
            42,
            "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (CLIENT_METRICS, "m", "interval.ms", "x", 40, "interval.ms=x: must be"),
        (CLIENT_METRICS, "m", "match", "client_id", 40, "Illegal client matching pattern: "),
        (CLIENT_METRICS, "m", "match", "foo=x", 40, "Illegal client matching pattern: foo=x"),
        (CLIENT_METRICS, "m", "match", "client_id=[", 40, "Illegal client matching pattern: "),
        (CLIENT_METRICS, "m", "nope", "1", 42, "Unknown client metrics configuration: nope"),
        (CLIENT_METRICS, "", "interval.ms", "100", 42, "Subscription name can't be empty"),
        (BROKER_LOGGER, "2", "root", "INFO", 42, "Unexpected node id. Expected 1, but received 2"),
        (BROKER_LOGGER, "1", "nope", "INFO", 40, "Logger nope does not exist!"),
        (
            BROKER_LOGGER,
            "1",
            "root",
            "debug",
            40,
            "Cannot set the log level of root to debug as it is not a supported log level. Valid "
            "log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
    ],
)
def test_what_kafka_refuses_is_refused(
    wire: Wire, type_: int, name: str, key: str, value: str, code: int, message: str
) -> None:
    got, text = alter(wire, type_, name, (key, SET, value))
    assert (got, (text or "")[: len(message)]) == (code, message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "earliest"),
        ("streams.rack.aware.assignment.tags", "a,b"),
        ("streams.rack.aware.assignment.tags", ""),
        ("streams.num.standby.replicas", "2"),
        ("errors.deadletterqueue.topic.name", "dlq.x"),
        ("consumer.assignment.interval.ms", "0"),
    ],
)
def test_what_kafka_takes_for_a_group_is_kept(
    wire: Wire, unique: str, key: str, value: str
) -> None:
    assert alter(wire, GROUP, unique, (key, SET, value)) == (0, None)
    assert values(wire, GROUP, unique)[key] == (value, 8)


def test_a_subscription_is_kept_and_described(wire: Wire, unique: str) -> None:
    defaults = {"interval.ms": ("300000", 5), "metrics": ("", 5), "match": ("", 5)}
    assert values(wire, CLIENT_METRICS, unique) == defaults
    wanted = {
        "interval.ms": "3600000",
        "metrics": "org.apache.kafka.consumer.,a",
        "match": "client_id=a.*,client_source_port=[0-9]+",
    }
    ops = [(key, SET, value) for key, value in wanted.items()]
    assert alter(wire, CLIENT_METRICS, unique, *ops, validate=True) == (0, None)
    assert values(wire, CLIENT_METRICS, unique) == defaults
    assert alter(wire, CLIENT_METRICS, unique, *ops) == (0, None)
    assert values(wire, CLIENT_METRICS, unique) == {k: (v, 7) for k, v in wanted.items()}
    assert alter(wire, CLIENT_METRICS, unique, ("metrics", APPEND, "b"))[0] == 40
    ops = [(key, DELETE, None) for key in wanted]
    assert alter(wire, CLIENT_METRICS, unique, *ops) == (0, None)
    assert values(wire, CLIENT_METRICS, unique) == defaults


def test_levels_of_loggers_have_effect(broker: Broker, wire: Wire) -> None:
    name = "kraftpy.server.network.connection"

    def level(name: str) -> str | None:
        return values(wire, BROKER_LOGGER, "1")[name][0]

    assert values(wire, BROKER_LOGGER, "1")["root"] == ("INFO", 6)
    assert level(name) == "INFO"

    def lines() -> int:
        """A connection that sends nonsense is a line of that logger."""
        with Wire(broker.host, broker.port) as other:
            other.send_frame(b"\xff" * 20)
            with pytest.raises(Closed):
                other.receive_frame()
        return broker.log_path.read_text().count(f"{name}: ")

    # A line at INFO while it has INFO, and no more when it has ERROR.
    before = lines()
    assert before
    assert alter(wire, BROKER_LOGGER, "1", (name, SET, "ERROR")) == (0, None)
    assert level(name) == "ERROR"
    silent = lines()
    assert lines() == silent == before
    assert alter(wire, BROKER_LOGGER, "1", (name, SET, "WARN"), ("nope", SET, "INFO"))[0] == 40
    assert level(name) == "ERROR"
    assert alter(wire, BROKER_LOGGER, "1", (name, SET, "WARN"), validate=True) == (0, None)
    assert level(name) == "ERROR"
    assert alter(wire, BROKER_LOGGER, "1", (name, DELETE, None)) == (0, None)
    assert level(name) == "INFO"
    assert alter(wire, BROKER_LOGGER, "1", ("root", DELETE, None)) == (
        42,
        "Removing the log level of the root logger is not allowed",
    )
    assert alter(wire, BROKER_LOGGER, "1", (name, APPEND, "INFO"))[0] == 42
    code, message = replace(wire, BROKER_LOGGER, "1", root="INFO")
    assert code == 42
    assert message is not None
    assert message.startswith("Unknown resource type 8")


def test_resources_are_listed(wire: Wire, new_topic: Callable[..., str], unique: str) -> None:
    topic = new_topic()
    assert alter(wire, GROUP, unique, ("share.isolation.level", SET, "read_committed"))[0] == 0
    assert alter(wire, CLIENT_METRICS, unique, ("interval.ms", SET, "1000"))[0] == 0
    error, found = listed(wire)
    assert error == 0
    assert {
        (TOPIC, topic),
        (BROKER, "1"),
        (BROKER_LOGGER, "1"),
        (CLIENT_METRICS, unique),
        (GROUP, unique),
    } <= set(found)
    assert len(set(found)) == len(found)
    assert listed(wire, GROUP) == (0, [each for each in found if each[0] == GROUP])
    assert listed(wire, version=0) == (0, [each for each in found if each[0] == CLIENT_METRICS])
    assert listed(wire, 3) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert alter(wire, GROUP, unique, ("share.isolation.level", DELETE, None))[0] == 0
    assert (GROUP, unique) not in listed(wire, GROUP)[1]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_what_a_batch_holds_uncompressed_can_be_limited(
    wire: Wire, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(max_decompressed_message_bytes=100_000)
    for value_bytes, error in ((90_000, 0), (110_000, ErrorCode.MESSAGE_TOO_LARGE)):
        record = (1_700_000_000_000, b"k", b"v" * value_bytes, [])
        assert produce(wire, topic, build_batch([record], compression=codec)).error_code == error
    # As in Kafka, what isn't compressed isn't meant.
    record = (1_700_000_000_000, b"k", b"v" * 110_000, [])
    assert produce(wire, topic, build_batch([record])).error_code == 0
