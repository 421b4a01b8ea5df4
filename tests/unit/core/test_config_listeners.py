"""Settings of listeners: protocols, TLS, and what one listener has for itself."""

from __future__ import annotations

import pytest

from kraftpy.core.config import BrokerConfig, judge_dynamic_broker_configs
from kraftpy.core.config.describe import ConfigSource, describe_broker
from kraftpy.core.config.kinds import ConfigError, ConfigType
from kraftpy.core.config.listeners import metrics_tls_settings, split_key, tls_settings
from kraftpy.core.config.understood import understood_broker_configs
from tests.unit.core.config_files import error_of

MARKER = "marker-password-7"
IN_OUT = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
    "listener.security.protocol.map": "IN:SSL,OUT:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "ssl.keystore.location": "/all.pem",
    "ssl.keystore.type": "PEM",
}


def config_with(**keys: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {**IN_OUT, **{key.replace("__", "."): value for key, value in keys.items()}}
    )


def test_a_listeners_own_setting_comes_before_that_of_all() -> None:
    config = BrokerConfig.from_properties(
        {
            **IN_OUT,
            "ssl.client.auth": "requested",
            "listener.name.out.ssl.keystore.location": "/out.pem",
            "listener.name.out.ssl.client.auth": "required",
            "listener.name.out.ssl.keystore.password": MARKER,
        }
    )
    inside, outside = tls_settings(config, "IN"), tls_settings(config, "OUT")
    assert (inside.keystore.location, outside.keystore.location) == ("/all.pem", "/out.pem")
    assert (inside.client_auth, outside.client_auth) == ("requested", "required")
    assert inside.keystore.type == outside.keystore.type == "PEM"
    assert outside.keystore.password is not None
    assert outside.keystore.password.reveal() == MARKER
    assert inside.keystore.password is None


@pytest.mark.parametrize(
    ("key", "listener", "setting"),
    [
        ("listener.name.a.ssl.keystore.key", "A", "ssl.keystore.key"),
        ("listener.name.a.b.ssl.keystore.key", "A.B", "ssl.keystore.key"),
        ("listener.name.ssl.ssl.protocol", "SSL", "ssl.protocol"),
    ],
)
def test_a_prefix_is_taken_apart(key: str, listener: str, setting: str) -> None:
    assert split_key(key) == (listener, setting)


def test_what_has_no_prefix_or_no_such_setting_isnt() -> None:
    for key in ("ssl.protocol", "listener.name.ssl.protocol", "listener.name.a.num.partitions"):
        assert split_key(key) is None


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            {"listeners": "SSL://:9092"},
            "listener SSL speaks SSL and has no certificate: set ssl.keystore.location=FILE",
        ),
        (
            {"listeners": "SASL_SSL://:9092", "ssl.keystore.location": "/a"},
            "listener SASL_SSL speaks SASL, and sasl.enabled.mechanisms doesn't say which",
        ),
        (
            {
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL",
            },
            "listener CONTROLLER asks for SASL_SSL, but a controller speaks only PLAINTEXT",
        ),
        (
            {**IN_OUT, "listener.name.other.ssl.client.auth": "none"},
            "there is no listener OTHER; those of listener.security.protocol.map are CONTROLLER,",
        ),
        (
            {**IN_OUT, "listener.name.out.ssl.client.aut": "none"},
            "no listener has it; did you mean ssl.client.auth?",
        ),
        ({**IN_OUT, "ssl.client.auth": "maybe"}, "must be one of required, requested, none"),
        ({**IN_OUT, "listener.name.out.ssl.client.auth": "x"}, "must be one of required,"),
        ({"principal.builder.class": "org.example.Own"}, "no class of Java's can be loaded"),
        ({"listener.name.out.ssl.engine.factory.class": "X"}, "no class of Java's can be loaded"),
        (
            {**IN_OUT, "ssl.principal.mapping.rules": "RULE:(/x/"},
            "ssl.principal.mapping.rules=RULE:(/x/: must be DEFAULT, or rules as",
        ),
        (
            {**IN_OUT, "security.inter.broker.protocol": "SASL_SSL"},
            "must be what one of the broker's listeners speaks",
        ),
        (
            {
                **IN_OUT,
                "security.inter.broker.protocol": "SSL",
                "inter.broker.listener.name": "OUT",
            },
            "two ways to say the same: leave one out",
        ),
    ],
)
def test_what_is_said_about_listeners_that_cant_be(
    properties: dict[str, str], sentence: str
) -> None:
    assert sentence in str(error_of(BrokerConfig.from_properties, properties))


def test_the_listener_of_other_brokers_is_found_by_its_protocol() -> None:
    assert config_with().inter_broker_listener.name == "IN"
    plain = config_with(security__inter__broker__protocol="PLAINTEXT")
    assert plain.inter_broker_listener.name == "PLAINTEXT"


def test_with_sasl_certificates_of_clients_are_asked_for_with_the_prefix_only() -> None:
    layers = BrokerConfig.from_properties({"ssl.client.auth": "required"})
    assert tls_settings(layers, "SSL").client_auth == "required"
    assert tls_settings(layers, "SASL_SSL").client_auth == "none"
    key = "listener.name.sasl_ssl.ssl.client.auth"
    layers = BrokerConfig.from_properties({key: "required"})
    assert tls_settings(layers, "SASL_SSL").client_auth == "required"


def test_a_keystores_file_may_change_while_the_broker_runs_with_the_prefix_only() -> None:
    config = config_with()
    key = "listener.name.out.ssl.keystore.location"
    judge_dynamic_broker_configs({key: "/new.pem"})
    dynamic = understood_broker_configs({key: "/new.pem", "listener.name.out.ssl.new": "1"})
    assert dynamic == {key: "/new.pem"}
    changed = config.with_dynamic(dynamic)
    assert tls_settings(changed, "OUT").keystore.location == "/new.pem"
    assert tls_settings(changed, "IN").keystore.location == "/all.pem"
    entry = next(each for each in describe_broker(changed) if each.name == key)
    assert (entry.value, entry.source) == ("/new.pem", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert not entry.read_only
    error = error_of(judge_dynamic_broker_configs, {"ssl.keystore.location": "/new.pem"})
    assert "can't be changed while the broker runs" in str(error)


def test_23_secrets_are_in_no_description_error_or_text_and_never_dynamic() -> None:
    keys = {
        "ssl.keystore.password": MARKER,
        "ssl.key.password": MARKER,
        "listener.name.out.ssl.truststore.password": MARKER,
        "listener.name.out.ssl.keystore.key": f"-----BEGIN PRIVATE KEY-----\n{MARKER}\n-----END",
    }
    config = BrokerConfig.from_properties({**IN_OUT, **keys})
    assert MARKER not in repr(config)
    assert MARKER not in repr(tls_settings(config, "OUT"))
    entries = {each.name: each for each in describe_broker(config)}
    assert MARKER not in repr(entries)
    for key in keys:
        assert entries[key].sensitive
        assert entries[key].value is None
        assert entries[key].type is ConfigType.PASSWORD
        error = error_of(judge_dynamic_broker_configs, {key: MARKER})
        assert MARKER not in str(error) + repr(vars(error))
        assert understood_broker_configs({key: MARKER}) == {}


# -- the listener of metrics

METRICS = {
    **IN_OUT,
    "ssl.client.auth": "required",
    "ssl.protocol": "TLSv1.2",
    "kraftpy.metrics.listener": "127.0.0.1:9404",
}


def test_metrics_have_tls_by_a_certificate_of_their_own() -> None:
    assert metrics_tls_settings(BrokerConfig.from_properties(METRICS)) is None
    own = {"listener.name.metrics.ssl.keystore.location": "/metrics.pem"}
    found = metrics_tls_settings(BrokerConfig.from_properties(METRICS | own))
    assert found is not None
    assert (found.keystore.location, found.keystore.type) == ("/metrics.pem", "PEM")
    assert (found.protocol, found.client_auth) == ("TLSv1.2", "none")
    asked = own | {"listener.name.metrics.ssl.client.auth": "required"}
    found = metrics_tls_settings(BrokerConfig.from_properties(METRICS | asked))
    assert found is not None
    assert found.client_auth == "required"


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            {"listener.name.metrics.ssl.client.auth": "required"},
            "listener.name.metrics.ssl.client.auth has no effect without a certificate",
        ),
        (
            {
                "listener.name.metrics.ssl.keystore.location": "/a",
                "listener.name.metrics.sasl.enabled.mechanisms": "PLAIN",
            },
            "listener.name.metrics.sasl.enabled.mechanisms has no effect: who may see metrics",
        ),
        (
            {
                "listeners": IN_OUT["listeners"].replace("OUT", "METRICS"),
                "listener.security.protocol.map": "IN:SSL,METRICS:SSL,PLAINTEXT:PLAINTEXT",
            },
            "a listener can't be called METRICS",
        ),
    ],
)
def test_what_has_no_effect_on_metrics_is_refused(
    properties: dict[str, str], sentence: str
) -> None:
    assert sentence in str(error_of(BrokerConfig.from_properties, METRICS | properties))


def test_where_the_certificate_of_metrics_lies_isnt_dynamic() -> None:
    with pytest.raises(ConfigError, match="can't be changed while the broker runs"):
        judge_dynamic_broker_configs({"listener.name.metrics.ssl.keystore.location": "/b.pem"})
