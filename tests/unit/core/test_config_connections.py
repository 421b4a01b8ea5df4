"""Settings of connections: numbers by host, limits of one listener, what would let nobody in."""

from __future__ import annotations

import pytest

from kraftpy.core.config import BrokerConfig, judge_dynamic_broker_configs, judge_per_ip
from kraftpy.core.config.describe import ConfigSource, describe_broker
from kraftpy.core.config.kinds import INT_MAX
from kraftpy.core.config.listeners import connection_limits
from kraftpy.core.config.understood import understood_broker_configs
from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.commands import OP_DELETE, OP_SET, ConfigChange, ConfigOp
from kraftpy.core.metadata.judgement import refuse_values
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.config_files import error_of

PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


def config_with(**keys: str) -> BrokerConfig:
    return BrokerConfig.from_properties({k.replace("_", "."): v for k, v in keys.items()})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("127.0.0.1:5", (("127.0.0.1", 5),)),
        (" host-1.example : 5 , ::1:0", (("host-1.example", 5), ("::1", 0))),
        ("2001:DB8:0::1:7,::ffff:192.0.2.1:8", (("2001:db8::1", 7), ("192.0.2.1", 8))),
        ("a:1,b:2,a:3", (("a", 3), ("b", 2))),
    ],
)
def test_numbers_by_host_are_read_as_kafka_reads_them(
    text: str, found: tuple[tuple[str, int], ...]
) -> None:
    config = config_with(max_connections_per_ip_overrides=text)
    assert config.max_connections_per_ip_overrides == found


@pytest.mark.parametrize(
    "text",
    ["a", "a:", ":1", "a:-1", "a:x", "a b:1", "a/8:1", "300.1.1.1:1", "fe80::1%eth0:1", "é:1"],
)
def test_what_is_no_number_of_a_host_is_refused(text: str) -> None:
    error = error_of(BrokerConfig.from_properties, {OVERRIDES: text})
    assert "must be host:number, comma-separated" in str(error)


def test_a_listener_has_limits_of_its_own() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "IN://:1,OUT://:2",
            "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "max.connections": "5",
            "listener.name.out.max.connections": "3",
        }
    )
    assert connection_limits(config, "IN") == (INT_MAX, INT_MAX)  # that of all counts beside it
    assert connection_limits(config, "OUT") == (3, INT_MAX)
    config = config.with_dynamic(
        {"listener.name.out.max.connections": "4"},
        {
            "listener.name.out.max.connections": "2",
            "listener.name.out.max.connection.creation.rate": "9",
        },
    )
    assert connection_limits(config, "OUT") == (4, 9)
    shown = {each.name: each for each in describe_broker(config)}
    assert shown["max.connections"].value == "5"
    own = shown["listener.name.out.max.connections"]
    assert (own.value, own.source) == ("4", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert not own.read_only
    assert [each.value for each in own.synonyms] == ["4", "2", "3"]


@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext."])
@pytest.mark.parametrize("key", ["max.connections", "max.connection.creation.rate"])
def test_a_limit_of_0_that_nobody_could_undo_is_refused(prefix: str, key: str) -> None:
    judge_dynamic_broker_configs({prefix + key: "1"})
    error = error_of(judge_dynamic_broker_configs, {prefix + key: "0"})
    assert str(error).startswith(f"{prefix}{key}=0: must be ")
    assert understood_broker_configs({prefix + key: "7"}) == {prefix + key: "7"}
    if prefix:
        error_of(BrokerConfig.from_properties, {prefix + key: "0"})
        assert understood_broker_configs({prefix + key: "0"}) == {}
    else:
        BrokerConfig.from_properties({key: "0"})  # as in Kafka, who writes it into the file gets it


def test_an_address_may_have_none_only_if_others_have_some() -> None:
    error = error_of(BrokerConfig.from_properties, {PER_IP: "0"})
    assert str(error).startswith(f"{PER_IP}=0 lets nobody in: set {OVERRIDES} as well")
    config = BrokerConfig.from_properties({PER_IP: "0", OVERRIDES: "127.0.0.1:5"})
    assert config.max_connections_per_ip == 0


def test_nobody_is_locked_out_while_a_broker_runs() -> None:
    plain = BrokerConfig.from_properties({})
    some = BrokerConfig.from_properties({OVERRIDES: "127.0.0.1:5"})
    closed = plain.with_dynamic({PER_IP: "0", OVERRIDES: "127.0.0.1:5"})

    def refused(config: BrokerConfig, *ops: tuple[str, int, str | None]) -> bool:
        change = ConfigChange(
            ResourceType.BROKER, "1", ops=tuple(ConfigOp(key, op, value) for key, op, value in ops)
        )
        answer = refuse_values(change, config)
        assert answer is None or answer[0] == ErrorCode.INVALID_CONFIG
        return answer is not None

    assert refused(plain, (PER_IP, OP_SET, "0"))
    assert not refused(plain, (PER_IP, OP_SET, "0"), (OVERRIDES, OP_SET, "a:1"))
    assert not refused(some, (PER_IP, OP_SET, "0"))
    assert refused(some, (PER_IP, OP_SET, "0"), (OVERRIDES, OP_SET, ""))
    assert refused(closed, (OVERRIDES, OP_DELETE, None))
    assert not refused(closed, (OVERRIDES, OP_DELETE, None), (PER_IP, OP_DELETE, None))
    assert not refused(closed, ("log.retention.ms", OP_SET, "5"))
    judge_per_ip(closed, {}, whole=True)
    error_of(lambda: judge_per_ip(closed, {PER_IP: "0"}, whole=True))
