"""How clients log in at a listener, and brokers at each other, as the configuration has it.

Rules:

* A listener with SASL says which mechanisms it has; there is no default. PLAIN needs the line with
  its users, SCRAM's are in the metadata and need none.
* A line of JAAS has one entry, of the module of its mechanism: by the last word of the class.
* PLAIN's users have names and passwords that somebody can log in with, and that make nobody else of
  them (`core.security.principals.reserved`).
* Between brokers: with `username` and `password` in the line of
  `sasl.mechanism.inter.broker.protocol` brokers log in as that user. Without, by SCRAM and the
  quorum's secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kraftpy.core.config.kinds import ConfigError
from kraftpy.core.config.listeners import (
    PREFIX,
    WITH_SASL,
    Layers,
    own_texts,
    security_protocol,
)
from kraftpy.core.config.node import NodeSettings
from kraftpy.core.config.oauth import (
    HANDLER,
    UNSIGNED,
    ListenerTokens,
    OAuthSettings,
    is_loopback,
)
from kraftpy.core.config.oauth import SETTINGS as OF_TOKENS
from kraftpy.core.config.sasl import JAAS_CONFIG, MAX_REAUTH, OF_MECHANISMS, key_of
from kraftpy.core.config.settings import parse_value, settings_of
from kraftpy.core.security.principals import reserved
from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.sasl import jaas
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER
from kraftpy.protocol.sasl.plain import PLAIN, USER_OPTION
from kraftpy.protocol.sasl.scram import HASHES, SHA_256
from kraftpy.secret import Secret

_MODULES = {
    PLAIN: "PlainLoginModule",
    **dict.fromkeys(HASHES, "ScramLoginModule"),
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_ENABLED = "sasl.enabled.mechanisms"
_KEYS = "sasl.oauthbearer.jwks.endpoint.url"
_RECEIVE_MAX = "sasl.server.max.receive.size"


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """What a listener takes logins by; `modules` has the lines of JAAS that there are.

    `limits_ms` says how long a login by each mechanism counts, 0: for ever. `tokens` is there with
    OAUTHBEARER alone.
    """

    mechanisms: tuple[str, ...]
    max_receive_bytes: int
    modules: Mapping[str, jaas.LoginModule]
    limits_ms: Mapping[str, int]
    tokens: ListenerTokens | None


class OwnLogin(NamedTuple):
    """How this broker logs in at others; without a name by the quorum's secret."""

    mechanism: str
    name: str | None
    password: Secret | None


def logins_of(config: NodeSettings, layers: Layers, listener: str) -> ListenerLogins | None:
    """How clients log in at a listener; None where they needn't. Raises ConfigError."""
    if security_protocol(layers, listener) not in WITH_SASL:
        return None
    own = dict(own_texts(layers, listener))
    mechanisms = _value(own, _ENABLED, config.sasl_enabled_mechanisms)
    if not mechanisms:
        raise ConfigError(
            _ENABLED,
            None,
            "set for a listener with SASL",
            f"listener {listener} speaks SASL, and {_ENABLED} doesn't say which mechanisms it has "
            f"(Kafka's default, GSSAPI, isn't there): set for example {_ENABLED}=SCRAM-SHA-512",
        )
    modules = {}
    for mechanism in _MODULES:
        text = own.get(key_of(mechanism, JAAS_CONFIG))
        if text is not None:
            modules[mechanism] = _module(_prefixed(listener, mechanism), mechanism, text)
    if PLAIN in mechanisms:
        _check_users(_prefixed(listener, PLAIN), modules.get(PLAIN))
    size = _value(own, _RECEIVE_MAX, config.sasl_server_max_receive_size)
    tokens = _tokens(config, own, listener) if OAUTHBEARER in mechanisms else None
    return ListenerLogins(mechanisms, size, modules, _limits_ms(config, own), tokens)


def own_login(config: NodeSettings, layers: Layers) -> OwnLogin | None:
    """How this broker logs in at others; None where it needn't. Raises ConfigError."""
    listener = config.inter_broker_listener.name
    logins = logins_of(config, layers, listener)
    if logins is None:
        return None
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism is None:
        return OwnLogin(SHA_256, None, None)
    module = logins.modules.get(mechanism)
    name = module.options.get("username") if module is not None else None
    password = module.options.get("password") if module is not None else None
    if name and password:
        if mechanism not in logins.mechanisms:
            raise ConfigError(
                "sasl.mechanism.inter.broker.protocol",
                mechanism,
                f"one of {_ENABLED}",
                f"sasl.mechanism.inter.broker.protocol={mechanism} isn't among the mechanisms of "
                f"listener {listener}: add it to {_ENABLED}",
            )
        return OwnLogin(mechanism, name, Secret(password))
    if mechanism == PLAIN:
        key = _prefixed(listener, PLAIN)
        raise ConfigError(
            key,
            None,
            "a line with username and password",
            f"brokers log in at each other by PLAIN, and {key} doesn't say as whom: add "
            'username="..." password="..." to it, and user_... for the same user',
        )
    return OwnLogin(mechanism, None, None)


def check_logins(config: NodeSettings, layers: Layers) -> None:
    """Raises ConfigError for what nobody could log in by."""
    for listener in config.broker_listeners:
        logins_of(config, layers, listener.name)
    if config.broker_listeners:
        own_login(config, layers)


def refuse_unprefixed(key: str) -> None:
    """Raises ConfigError for what a listener has for a mechanism, without the listener."""
    if key == JAAS_CONFIG or key in OF_MECHANISMS:
        end = JAAS_CONFIG if key == JAAS_CONFIG else key.partition(".")[2]
        raise ConfigError(
            key,
            None,
            "set for a listener and a mechanism",
            f"{key} is of no listener: write {PREFIX}<listener>.<mechanism>.{end}, both in "
            "lower case",
        )


def _prefixed(listener: str, mechanism: str) -> str:
    return f"{PREFIX}{listener.lower()}.{key_of(mechanism, JAAS_CONFIG)}"


def _tokens(config: NodeSettings, own: Mapping[str, str], listener: str) -> ListenerTokens:
    """Which tokens a listener takes: by its mechanism's keys, else its own, else the broker's."""
    values: dict[str, Any] = {}
    for key, each in OF_TOKENS.items():
        text = own.get(key_of(OAUTHBEARER, key), own.get(key))
        of_all = getattr(config, each.attribute)
        values[each.attribute] = of_all if text is None else parse_value(each, text)
    settings = OAuthSettings(**values)
    handler = own.get(key_of(OAUTHBEARER, HANDLER), "").strip()
    if handler == UNSIGNED:
        host = next(each.host for each in config.broker_listeners if each.name == listener)
        if not is_loopback(host):
            raise ConfigError(
                f"{PREFIX}{listener.lower()}.{key_of(OAUTHBEARER, HANDLER)}",
                handler,
                "set on loopback only",
                f"listener {listener} would take tokens without a signature, that anybody can "
                f"make, at {host or 'every address'}: that is for tests, on 127.0.0.1",
            )
    elif settings.sasl_oauthbearer_jwks_endpoint_url is None:
        raise ConfigError(
            _KEYS,
            None,
            "set where OAUTHBEARER is enabled",
            f"OAUTHBEARER is enabled at listener {listener} and {_KEYS} isn't set: "
            "file:///PATH or https://HOST/PATH of the keys that tokens are signed with",
        )
    return ListenerTokens(settings, handler == UNSIGNED)


def _limits_ms(config: NodeSettings, own: Mapping[str, str]) -> Mapping[str, int]:
    """How long logins count: the mechanism's own limit, else the listener's, else the broker's."""
    of_listener = _value(own, MAX_REAUTH, config.connections_max_reauth_ms)
    found = {}
    for mechanism in _MODULES:
        key = key_of(mechanism, MAX_REAUTH)
        found[mechanism] = parse_value(OF_MECHANISMS[key], own[key]) if key in own else of_listener
    return found


def _value(own: Mapping[str, str], key: str, of_all: Any) -> Any:
    return of_all if key not in own else parse_value(settings_of(NodeSettings)[key], own[key])


def _module(key: str, mechanism: str, text: str) -> jaas.LoginModule:
    try:
        entries = jaas.parse(text)
    except jaas.JaasError as error:
        raise ConfigError(
            key, None, "a line of JAAS", f"{key} is no line of JAAS: {error}"
        ) from None
    if len(entries) != 1 or entries[0].kind != _MODULES[mechanism]:
        raise ConfigError(
            key,
            None,
            f"one {_MODULES[mechanism]}",
            f"{key} must have one entry, of a {_MODULES[mechanism]}",
        )
    return entries[0]


def _check_users(key: str, module: jaas.LoginModule | None) -> None:
    if module is None:
        raise ConfigError(
            key,
            None,
            "set where PLAIN is enabled",
            f"PLAIN is enabled and {key} isn't set: "
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_alice="PASSWORD";',
        )
    for option, password in module.options.items():
        if not option.startswith(USER_OPTION):
            continue
        name = option.removeprefix(USER_OPTION)
        problem = None
        if not name or "\0" in name:
            problem = "a user without a name"
        elif reserved(name):
            problem = f"a user {name[:120]!r}, who would be taken for others"
        elif not password or "\0" in password:
            problem = f"no password for {name[:120]!r}"
        if problem is not None:
            raise ConfigError(key, None, "names with passwords", f"{key} has {problem}")
