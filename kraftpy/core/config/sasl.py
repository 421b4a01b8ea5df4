"""The settings of SASL, by Kafka's keys: mechanisms, limits, and whom a listener knows.

Users and passwords of a listener stand in a line of JAAS under
`listener.name.<listener>.<mechanism>.sasl.jaas.config`; `logins` says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import int32, one_of
from kraftpy.core.config.settings import Setting, setting
from kraftpy.core.config.tls import TlsSettings
from kraftpy.frozen import dataclass
from kraftpy.protocol.sasl import jaas
from kraftpy.protocol.sasl.clients import MECHANISMS

JAAS_CONFIG = "sasl.jaas.config"
JAAS_LENGTH_MAX = jaas.LENGTH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings(TlsSettings):
    """What `BrokerConfig` has for SASL."""

    sasl_enabled_mechanisms: tuple[str, ...] | None = setting(
        kinds.text_list(f"some of {', '.join(MECHANISMS)}, comma-separated", *MECHANISMS),
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
    connection_failed_authentication_delay_ms: int = setting(
        int32(0), "100", "Time after which a client is told that it couldn't log in."
    )
    kraftpy_bootstrap_scram_file: str | None = setting(
        kinds.text("a file"),
        None,
        "File with the first users, as SCRAM-SHA-512=[name=admin,password=PASSWORD] a line. It "
        "counts while nobody has a SCRAM credential, and may be deleted then.",
    )


def jaas_key(mechanism: str) -> str:
    """The key of a mechanism's line of JAAS, without the listener's prefix."""
    return f"{mechanism.lower()}.{JAAS_CONFIG}"


OF_MECHANISMS: Mapping[str, Setting] = MappingProxyType(
    {
        key: Setting(
            key,
            key.replace(".", "_").replace("-", "_"),
            kinds.password("a line of JAAS", JAAS_LENGTH_MAX),
            None,
            f"Users or credentials of {mechanism}, as "
            '`org.apache.kafka...LoginModule required user_NAME="PASSWORD";`.',
            dynamic=False,
        )
        for mechanism in MECHANISMS
        for key in [jaas_key(mechanism)]
    }
)
"""Settings that a listener has for each mechanism, and only there."""
