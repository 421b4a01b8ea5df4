"""Configurations over the wire: what Kafka takes is taken, in Kafka's words refused, and described.

What is expected was asked of Apache Kafka 4.4.0.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Broker
from tests.server.wire import Wire, fetch, produce

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


def test_what_a_running_broker_cant_take_is_refused(wire: Wire) -> None:
    for key, value, sentence in (
        ("num.io.threads", "0", "num.io.threads=0: must be a whole number, 1 or more"),
        ("log.segment.bytes", "1024", "log.segment.bytes=1024: must be a whole number, 1048576"),
        ("log.retention.hours", "5", "log.retention.hours can't be changed while the broker runs"),
    ):
        code, message = alter(wire, BROKER, "1", (key, SET, value))
        assert code == ErrorCode.INVALID_CONFIG
        assert message is not None
        assert message.startswith(sentence)
