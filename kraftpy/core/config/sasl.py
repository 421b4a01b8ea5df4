"""The settings of SASL, by Kafka's keys: mechanisms, limits, and whom a listener knows.

Users and passwords of a listener stand in a line of JAAS under
`listener.name.<listener>.<mechanism>.sasl.jaas.config`; `logins` says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import int32, int64, one_of
from kraftpy.core.config.oauth import HANDLER, HANDLERS, OAuthSettings
from kraftpy.core.config.oauth import SETTINGS as OF_TOKENS
from kraftpy.core.config.settings import Setting, setting
from kraftpy.frozen import dataclass
from kraftpy.protocol.sasl import jaas
from kraftpy.protocol.sasl.clients import MECHANISMS
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER

JAAS_CONFIG = "sasl.jaas.config"
MAX_REAUTH = "connections.max.reauth.ms"
JAAS_LENGTH_MAX = jaas.LENGTH_MAX
OFFERED = (*MECHANISMS, OAUTHBEARER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings(OAuthSettings):
    """What `BrokerConfig` has for SASL."""

    sasl_enabled_mechanisms: tuple[str, ...] | None = setting(
        kinds.text_list(f"some of {', '.join(OFFERED)}, comma-separated", *OFFERED),
        None,
        "The mechanisms that clients may log in by. Kafka's default is GSSAPI, which isn't there: "
        "a listener with SASL needs this.",
    )
    sasl_mechanism_inter_broker_protocol: str | None = setting(
        one_of(*MECHANISMS),
        None,
        "The mechanism that brokers log in by at each other. Without a user for it in the "
        "listener's sasl.jaas.config they log in by SCRAM and the quorum's secret. Kafka's default "
        "is GSSAPI.",
    )
    sasl_server_max_receive_size: int = setting(
        int32(1), "524288", "The largest request of a client that hasn't logged in."
    )
    connections_max_reauth_ms: int = setting(
        int64(0),
        "0",
        "Time for which a login counts; a client that goes on later without another one is "
        "disconnected. 0: for ever. With the prefix of a listener, or of a listener and a "
        "mechanism in lower case, for those alone.",
    )
    connection_failed_authentication_delay_ms: int = setting(
        int32(0), "100", "Time after which a client is told that it couldn't log in."
    )
    kraftpy_bootstrap_scram_file: str | None = setting(
        kinds.text("a file"),
        None,
        "File with the first users, as SCRAM-SHA-512=[name=admin,password=PASSWORD] a line. It "
        "counts while nobody has a SCRAM credential, and may be deleted then.",
    )


def key_of(mechanism: str, key: str) -> str:
    """The key of a mechanism's own setting, without the listener's prefix."""
    return f"{mechanism.lower()}.{key}"


def _of(mechanism: str, key: str, kind: kinds.Kind, default: str | None, doc: str) -> Setting:
    own = key_of(mechanism, key)
    attribute = own.replace(".", "_").replace("-", "_")
    return Setting(own, attribute, kind, default, doc, dynamic=False)


def _settings_of(mechanism: str) -> Iterator[Setting]:
    yield _of(
        mechanism,
        JAAS_CONFIG,
        kinds.password("a line of JAAS", JAAS_LENGTH_MAX),
        None,
        f"Users or credentials of {mechanism}, as "
        '`org.apache.kafka...LoginModule required user_NAME="PASSWORD";`.',
    )
    yield _of(
        mechanism, MAX_REAUTH, int64(0), None, f"Time for which a login by {mechanism} counts."
    )
    if mechanism == OAUTHBEARER:
        doc = "The class by which Kafka judges tokens; it may be left out but for unsigned tokens."
        yield _of(mechanism, HANDLER, one_of(*HANDLERS), None, doc)
        for each in OF_TOKENS.values():
            yield _of(mechanism, each.key, each.kind, None, each.doc)


OF_MECHANISMS: Mapping[str, Setting] = MappingProxyType(
    {each.key: each for mechanism in OFFERED for each in _settings_of(mechanism)}
)
"""Settings that a listener has for each mechanism, and only there."""
