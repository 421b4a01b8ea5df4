"""The settings of OAUTHBEARER (KIP-255, KIP-768), by Kafka's keys: which tokens a listener takes.

Rules:

* A listener with OAUTHBEARER says where the keys are that tokens are signed with, or by the class
  of its handler that it takes tokens without a signature. That is for tests: on loopback alone.
* Kafka's keys count for all listeners, with a listener's prefix for it, and with
  `oauthbearer.` behind that, as Kafka has it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import urlsplit

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import int32, int64, text
from kraftpy.core.config.settings import Setting, setting, settings_of
from kraftpy.core.config.tls import TlsSettings
from kraftpy.frozen import dataclass

HANDLER = "sasl.server.callback.handler.class"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
UNSIGNED = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
SIGNED = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
HANDLERS = (SIGNED, f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler", UNSIGNED)


def _url(value: str) -> str:
    value = value.strip()
    parts = urlsplit(value)
    is_file = parts.scheme == "file" and not parts.netloc and bool(parts.path)
    is_https = parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    if not (is_file or is_https) or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(value)
    _ = parts.port  # raises ValueError
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings(TlsSettings):
    """What `BrokerConfig` has for tokens."""

    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        kinds.Kind(kinds.ConfigType.STRING, "file:///... or https://...", _url),
        None,
        "Where the keys are that tokens are signed with (JWKS): file:///PATH or https://HOST/PATH. "
        "A listener with OAUTHBEARER needs it, and the extra kraftpy[secure].",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        int64(1000), "3600000", "How often these keys are read again."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        int64(1), "100", "Time until keys that couldn't be read are tried again, doubled each time."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        int64(1), "10000", "The longest such time."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None = setting(
        kinds.text_list("audiences, comma-separated"),
        None,
        "A token has to be for one of these. Unset, one that is for somebody is refused.",
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        text("an issuer"), None, "Who has to have issued a token. Unset, whoever has the keys."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        int32(0, 3600), "30", "By how much the clocks of who issues tokens may differ."
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        text("the name of a claim"), "scope", "The claim with a token's scopes."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        text("the name of a claim"), "sub", "The claim with the name of who has a token."
    )


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {key: each for key, each in settings_of(OAuthSettings).items() if ".oauthbearer." in key}
)


@dataclass(frozen=True, slots=True)
class ListenerTokens:
    """Which tokens a listener takes; `unsigned`: those without a signature, and no others."""

    settings: OAuthSettings
    unsigned: bool


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine gets to a listener there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
