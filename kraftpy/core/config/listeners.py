"""What a listener speaks, and its own settings: `listener.name.<listener>.<key>`.

Rules:

* Settings of security may stand with a listener's name in front of them; there they count for it
  alone, before those without (KIP-103). The name is written in lower case, and has to be one of
  `listeners` or of the protocol map.
* `ssl.client.auth` counts on a listener with SASL only with the prefix (KIP-684).
* `listener.name.metrics.ssl.…` is of `kraftpy.metrics.listener`, which speaks TLS if it has a
  certificate there, of its own: that brokers have one changes nothing for who scrapes. Where files
  lie doesn't change there before a restart.
* Where files lie may be changed while a broker runs, with the prefix only (KIP-226). What is secret
  may not: it would stand in the metadata's log.
* How many connections a listener takes, and how fast, counts beside what all of them together may
  (KIP-402, KIP-612).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from kraftpy.core.config.connections import ABOVE_ZERO, CREATION_RATE, MAX_CONNECTIONS
from kraftpy.core.config.connections import ConnectionSettings as ConnectionKeys
from kraftpy.core.config.kinds import INT_MAX, ConfigError, closest, int32, shorten
from kraftpy.core.config.noted import NotedSettings
from kraftpy.core.config.oauth import SETTINGS as OF_TOKENS
from kraftpy.core.config.sasl import OF_MECHANISMS, SaslSettings
from kraftpy.core.config.settings import Setting, parse_value, settings_of
from kraftpy.core.config.tls import TlsSettings as TlsKeys
from kraftpy.frozen import NamedTuple
from kraftpy.tls.settings import NONE, StoreSettings, TlsSettings

PREFIX = "listener.name."
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
METRICS = "METRICS"
"""What `kraftpy.metrics.listener` is called among the listeners."""
WITH_TLS = frozenset({SSL, SASL_SSL})
WITH_SASL = frozenset({SASL_PLAINTEXT, SASL_SSL})

_OF_SASL = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.server.max.receive.size",
)
_NOTED = settings_of(NotedSettings)
PREFIXED: Mapping[str, Setting] = MappingProxyType(
    {
        **{key: each for key, each in settings_of(TlsKeys).items() if key not in _NOTED},
        **{key: settings_of(SaslSettings)[key] for key in _OF_SASL},
        **OF_TOKENS,
        **OF_MECHANISMS,
        **{
            key: replace(settings_of(ConnectionKeys)[key], kind=int32(1))
            for key in sorted(ABOVE_ZERO)
        },
    }
)
"""The settings that a listener may have for itself."""

_OF_TLS = settings_of(TlsKeys).keys() - _NOTED.keys()
_CERTIFICATE = ("ssl.keystore.location", "ssl.keystore.key")

DYNAMIC = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.truststore.type",
        "ssl.truststore.location",
        *ABOVE_ZERO,
    }
)
"""Those of them that may change while a broker runs."""

_PLUG_INS = frozenset(
    {
        "principal.builder.class",
        "security.providers",
        "ssl.engine.factory.class",
    }
)


class ListenerKey(NamedTuple):
    """A key with a listener's prefix, taken apart; the listener's name is in upper case."""

    listener: str
    key: str


class Layers(Protocol):
    """Where values come from; `BrokerConfig` is one."""

    @property
    def static(self) -> Mapping[str, str]: ...
    @property
    def dynamic_broker(self) -> Mapping[str, str]: ...
    @property
    def dynamic_default(self) -> Mapping[str, str]: ...
    @property
    def listener_security_protocol_map(self) -> tuple[tuple[str, str], ...]: ...


def split_key(key: str) -> ListenerKey | None:
    """Listener and setting of a key with a prefix; None if it has none, or no such setting."""
    if not key.startswith(PREFIX):
        return None
    rest = key.removeprefix(PREFIX)
    for position, letter in enumerate(rest):  # a listener's name may have dots
        if letter == "." and rest[position + 1 :] in PREFIXED:
            return ListenerKey(rest[:position].upper(), rest[position + 1 :])
    return None


def prefixed_setting(key: str) -> Setting | None:
    """What the table knows of a key with a listener's prefix."""
    found = split_key(key)
    if found is None:
        return None
    dynamic = found.key in DYNAMIC and found.listener != METRICS
    return replace(PREFIXED[found.key], key=key, dynamic=dynamic)


def refuse_prefixed(key: str) -> None:
    """Raises ConfigError for a key with a listener's prefix that isn't there."""
    if key.startswith(PREFIX):
        for plug_in in _PLUG_INS:
            if key.endswith("." + plug_in):
                refuse_plug_ins(plug_in)
        close = closest(key.removeprefix(PREFIX).partition(".")[2], PREFIXED)
        hint = f"did you mean {close}?" if close else "these may: " + ", ".join(sorted(PREFIXED))
        raise ConfigError(
            key,
            None,
            "a setting that a listener may have",
            f"{shorten(key)}: no listener has it; {hint}",
        )


def refuse_plug_ins(key: str) -> None:
    """Raises ConfigError for a key that names a class of Java's."""
    if key in _PLUG_INS:
        raise ConfigError(
            key, None, "left out", f"{key}: no class of Java's can be loaded here; leave it out"
        )


def check_listeners(config: Layers, names: set[str]) -> None:
    """Raises ConfigError for a prefix that is no listener's name."""
    known = names | dict(config.listener_security_protocol_map).keys()
    metrics = set()
    for key in config.static:
        found = split_key(key)
        if found is not None and found.listener == METRICS and METRICS not in known:
            metrics.add(found.key)
        elif found is not None and found.listener not in known:
            raise ConfigError(
                key,
                None,
                "the key of a listener",
                f"{shorten(key)}: there is no listener {shorten(found.listener)}; those of "
                f"listener.security.protocol.map are {', '.join(sorted(known))}",
            )
    _check_metrics(metrics)


def _check_metrics(keys: set[str]) -> None:
    """Raises ConfigError for what has no effect on the listener of metrics."""
    prefix = f"{PREFIX}{METRICS.lower()}."
    for key in sorted(keys - _OF_TLS):
        raise ConfigError(
            prefix + key,
            None,
            "a setting of TLS",
            f"{prefix}{key} has no effect: who may see metrics and the page is in the file that "
            "kraftpy.metrics.users.file names",
        )
    if keys and keys.isdisjoint(_CERTIFICATE):
        raise ConfigError(
            prefix + min(keys),
            None,
            "set together with a certificate",
            f"{prefix}{min(keys)} has no effect without a certificate: set "
            f"{prefix}ssl.keystore.location=FILE, too",
        )


def security_protocol(config: Layers, listener: str) -> str:
    """What the listener of this name speaks."""
    return dict(config.listener_security_protocol_map)[listener]


def own_texts(config: Layers, listener: str) -> Iterator[tuple[str, str]]:
    """The listener's own settings, by keys without the prefix; the last of a key counts."""
    for layer in (config.static, config.dynamic_default, config.dynamic_broker):
        for key, value in layer.items():
            found = split_key(key)
            if found is not None and found.listener == listener:
                yield found.key, value


def connection_limits(config: Layers, listener: str) -> tuple[int, int]:
    """How many connections the listener has for itself at most, and how many more in a second."""
    texts = dict(own_texts(config, listener))
    most, rate = (
        int(parse_value(PREFIXED[key], texts[key])) if key in texts else INT_MAX
        for key in (MAX_CONNECTIONS, CREATION_RATE)
    )
    return most, rate


def tls_keys(config: Layers, listener: str) -> TlsKeys:
    """The settings `ssl.…` as they count for this listener."""
    texts = {key: text for key, text in config.static.items() if key in _OF_TLS}
    if listener == METRICS or security_protocol(config, listener) == SASL_SSL:
        texts.pop("ssl.client.auth", None)
    texts.update(each for each in own_texts(config, listener) if each[0] in _OF_TLS)
    values: dict[str, Any] = {
        PREFIXED[key].attribute: parse_value(PREFIXED[key], text) for key, text in texts.items()
    }
    return TlsKeys(**values)


def metrics_tls_settings(config: Layers) -> TlsSettings | None:
    """What `kraftpy.metrics.listener` speaks TLS by; None if it doesn't."""
    own = dict(own_texts(config, METRICS))
    return None if own.keys().isdisjoint(_CERTIFICATE) else tls_settings(config, METRICS)


def tls_settings(config: Layers, listener: str) -> TlsSettings:
    """What the listener's context is made from."""
    keys = tls_keys(config, listener)
    return TlsSettings(
        keystore=StoreSettings(
            prefix="ssl.keystore",
            type=keys.ssl_keystore_type,
            location=keys.ssl_keystore_location,
            password=keys.ssl_keystore_password,
            pem=keys.ssl_keystore_certificate_chain,
        ),
        key=keys.ssl_keystore_key,
        key_password=keys.ssl_key_password,
        truststore=StoreSettings(
            prefix="ssl.truststore",
            type=keys.ssl_truststore_type,
            location=keys.ssl_truststore_location,
            password=keys.ssl_truststore_password,
            pem=keys.ssl_truststore_certificates,
        ),
        client_auth=keys.ssl_client_auth or NONE,
        protocol=keys.ssl_protocol,
        enabled_protocols=keys.ssl_enabled_protocols,
        cipher_suites=keys.ssl_cipher_suites,
        endpoint_identification_algorithm=keys.ssl_endpoint_identification_algorithm,
        principal_mapping_rules=keys.ssl_principal_mapping_rules,
    )
