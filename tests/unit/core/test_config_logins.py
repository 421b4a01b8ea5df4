"""Settings of SASL: which listener has which mechanisms, whom it knows, and what is refused."""

from __future__ import annotations

import pytest

from kraftpy.core.config import BrokerConfig, ConfigError, judge_dynamic_broker_configs
from kraftpy.core.config.describe import describe_broker
from kraftpy.core.config.logins import logins_of, own_login
from tests.unit.core.config_files import error_of

MARKER = "marker-password-7"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
IN_OUT = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
}
IN_PLAIN = "listener.name.in.plain.sasl.jaas.config"


def config_of(**keys: str) -> BrokerConfig:
    return BrokerConfig.from_properties(IN_OUT | keys)


def with_plain(line: str) -> dict[str, str]:
    return {"listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", IN_PLAIN: line}


def test_each_listener_has_its_mechanisms_and_users() -> None:
    line = f'{PLAIN} required user_alice="{MARKER}";'
    config = config_of(**with_plain(line), **{"sasl.server.max.receive.size": "1000"})
    inside, outside = logins_of(config, config, "IN"), logins_of(config, config, "OUT")
    assert inside is not None
    assert outside is not None
    assert (inside.mechanisms, outside.mechanisms) == (
        ("PLAIN", "SCRAM-SHA-256"),
        ("SCRAM-SHA-512",),
    )
    assert inside.modules["PLAIN"].options == {"user_alice": MARKER}
    assert (inside.max_receive_bytes, outside.modules) == (1000, {})
    assert logins_of(config, config, "PLAINTEXT") is None


def test_a_listener_with_sasl_says_its_mechanisms() -> None:
    without = {key: value for key, value in IN_OUT.items() if "mechanisms" not in key}
    error = error_of(BrokerConfig.from_properties, without)
    assert "listener IN speaks SASL" in str(error)
    assert "GSSAPI, isn't there" in str(error)
    for mechanisms in ("GSSAPI", "", "PLAIN,PLAIN", "plain"):
        with pytest.raises(ConfigError, match=r"sasl\.enabled\.mechanisms"):
            config_of(**{"sasl.enabled.mechanisms": mechanisms})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"{PLAIN} required user_alice={MARKER}", "is no line of JAAS: a ; is missing"),
        (f"{PLAIN} required user_alice={MARKER} user_alice={MARKER};", "name of an earlier one"),
        (f"{SCRAM} required user_alice={MARKER};", "one entry, of a PlainLoginModule"),
        (f"{PLAIN} required user_alice={MARKER}; {PLAIN} required;", "must have one entry"),
        (f'{PLAIN} required "user_"={MARKER};', "a user without a name"),
        (f'{PLAIN} required "user_*"={MARKER};', "would be taken for others"),
        (f"{PLAIN} required user_ANONYMOUS={MARKER};", "would be taken for others"),
        (f"{PLAIN} required user___broker_1={MARKER};", "would be taken for others"),
        (f'{PLAIN} required user_alice="";', "no password for 'alice'"),
    ],
)
def test_what_nobody_could_log_in_by_is_refused_without_its_passwords(
    line: str, problem: str
) -> None:
    """Traps of security: reserved names, and secrets."""
    with pytest.raises(ConfigError) as caught:
        config_of(**with_plain(line))
    assert problem in str(caught.value)
    assert MARKER not in str(caught.value)
    assert MARKER not in repr(caught.value.value)


def test_plain_needs_its_users() -> None:
    with pytest.raises(ConfigError, match=r"PLAIN is enabled and listener\.name\.in\.plain\.sasl"):
        config_of(**{"listener.name.in.sasl.enabled.mechanisms": "PLAIN"})


@pytest.mark.parametrize("key", ["sasl.jaas.config", "plain.sasl.jaas.config"])
def test_a_line_of_no_listener_is_refused(key: str) -> None:
    with pytest.raises(
        ConfigError, match=r"write listener\.name\.<listener>\.<mechanism>"
    ) as error:
        config_of(**{key: MARKER})
    assert MARKER not in str(error.value)


def test_a_line_of_no_mechanism_is_refused() -> None:
    with pytest.raises(ConfigError, match="no listener has it"):
        config_of(**{"listener.name.in.sasl.jaas.config": MARKER})


def test_a_line_is_not_shown_and_not_changed_while_a_broker_runs() -> None:
    """The trap of security called secrets."""
    config = config_of(**with_plain(f"{PLAIN} required user_alice={MARKER};"))
    assert MARKER not in repr(config)
    shown = {each.name: each for each in describe_broker(config)}
    assert shown[IN_PLAIN].sensitive
    assert MARKER not in repr(describe_broker(config))
    error = error_of(judge_dynamic_broker_configs, {IN_PLAIN: MARKER})
    assert "can't be changed while the broker runs" in str(error)
    assert MARKER not in str(error)


# -- between brokers


def test_brokers_log_in_by_the_quorums_secret_unless_they_are_somebody() -> None:
    config = config_of()
    assert own_login(config, config) == ("SCRAM-SHA-256", None, None)
    config = config_of(**{"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"})
    assert own_login(config, config) == ("SCRAM-SHA-512", None, None)
    config = config_of(**{"inter.broker.listener.name": "PLAINTEXT"})
    assert own_login(config, config) is None


def test_brokers_log_in_as_the_user_of_their_line() -> None:
    line = f"{PLAIN} required username=admin password={MARKER} user_admin={MARKER};"
    config = config_of(**with_plain(line), **{"sasl.mechanism.inter.broker.protocol": "PLAIN"})
    own = own_login(config, config)
    assert own is not None
    assert own[:2] == ("PLAIN", "admin")
    assert own.password is not None
    assert own.password.reveal() == MARKER
    assert MARKER not in repr(own)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (with_plain(f"{PLAIN} required user_a={MARKER};"), "doesn't say as whom"),
        (
            {IN_PLAIN: f"{PLAIN} required username=a password={MARKER};"},
            "isn't among the mechanisms of listener IN",
        ),
        ({}, "doesn't say as whom"),
    ],
)
def test_brokers_that_could_not_log_in_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(**settings, **{"sasl.mechanism.inter.broker.protocol": "PLAIN"})
    assert problem in str(caught.value)
    assert MARKER not in str(caught.value)


def test_how_long_logins_count_is_said_for_all_a_listener_or_its_mechanism() -> None:
    config = config_of(
        **{
            "connections.max.reauth.ms": "10",
            "listener.name.in.connections.max.reauth.ms": "20",
            "listener.name.in.scram-sha-512.connections.max.reauth.ms": "0",
        }
    )
    inside, outside = logins_of(config, config, "IN"), logins_of(config, config, "OUT")
    assert inside is not None
    assert outside is not None
    assert inside.limits_ms["SCRAM-SHA-512"] == 0
    assert inside.limits_ms["SCRAM-SHA-256"] == 20
    assert outside.limits_ms["SCRAM-SHA-512"] == 10


@pytest.mark.parametrize("value", ["-1", "soon", ""])
def test_how_long_logins_count_is_a_number(value: str) -> None:
    for prefix in ("", "listener.name.in.", "listener.name.in.plain."):
        with pytest.raises(ConfigError, match="a whole number, 0 or more"):
            config_of(**{f"{prefix}connections.max.reauth.ms": value})
    with pytest.raises(ConfigError, match=r"write listener\.name\.<listener>\.<mechanism>\.conn"):
        config_of(**{"plain.connections.max.reauth.ms": "1"})
