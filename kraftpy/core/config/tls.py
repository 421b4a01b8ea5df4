"""The settings of TLS, by Kafka's keys: certificate and key, whom a listener trusts, its protocols.

A listener may have each of them for itself (`listeners`). What they become is
`kraftpy.tls.TlsSettings`. Keys that choose classes of the JVM are refused or noted (`ignored`).
"""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import one_of, text
from kraftpy.core.config.noted import NotedSettings
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass
from kraftpy.secret import Secret
from kraftpy.tls.mapping import parse_rules

PEM_LENGTH_MAX = 256 * 1024
_STORE_TYPES = ("JKS", "PKCS12", "PEM")


def _rules() -> kinds.Kind:
    def parse(value: str) -> str:
        parse_rules(value)
        return value.strip()

    allowed = (
        "DEFAULT, or rules as RULE:^CN=([^,]+),.*$/$1/L, comma-separated, with expressions that "
        "RE2 knows"
    )
    return kinds.Kind(kinds.ConfigType.STRING, allowed, parse)


def _endpoint_check() -> kinds.Kind:
    def parse(value: str) -> str:
        value = value.strip().lower()
        if value not in ("", "https"):
            raise ValueError(value)
        return value

    return kinds.Kind(kinds.ConfigType.STRING, "https, or empty", parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings(NotedSettings):
    """What `BrokerConfig` has for TLS."""

    ssl_keystore_type: str = setting(
        one_of(*_STORE_TYPES),
        "JKS",
        "Format of the keystore: PEM, or PKCS12 with the extra kraftpy[secure]. A JKS keystore "
        "can't be read here, but JKS is Java's name for PKCS12, too.",
    )
    ssl_keystore_location: str | None = setting(
        text("a file"), None, "File with a listener's certificate, what signed it, and its key."
    )
    ssl_keystore_password: Secret | None = setting(
        kinds.password(), None, "Password of a PKCS12 keystore."
    )
    ssl_keystore_key: Secret | None = setting(
        kinds.password("a private key in PEM", PEM_LENGTH_MAX),
        None,
        "The private key itself, in PEM (PKCS8), instead of ssl.keystore.location.",
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        kinds.password("certificates in PEM", PEM_LENGTH_MAX),
        None,
        "The certificate itself, in PEM, and what signed it; with ssl.keystore.key.",
    )
    ssl_key_password: Secret | None = setting(
        kinds.password(), None, "Password of the private key, if it's encrypted."
    )
    ssl_truststore_type: str = setting(
        one_of(*_STORE_TYPES), "JKS", "Format of the truststore, as ssl.keystore.type."
    )
    ssl_truststore_location: str | None = setting(
        text("a file"),
        None,
        "File with the certificates that peers' are trusted by. Unset, those of the system.",
    )
    ssl_truststore_password: Secret | None = setting(
        kinds.password(), None, "Password of a PKCS12 truststore."
    )
    ssl_truststore_certificates: Secret | None = setting(
        kinds.password("certificates in PEM", PEM_LENGTH_MAX),
        None,
        "The trusted certificates themselves, in PEM, instead of ssl.truststore.location.",
    )
    ssl_client_auth: str = setting(
        one_of("required", "requested", "none"),
        "none",
        "Whether clients must, may or needn't show a certificate. With SASL it counts only with "
        "the listener's prefix.",
    )
    ssl_principal_mapping_rules: str = setting(
        _rules(),
        "DEFAULT",
        "How the subject of a client's certificate becomes its name: the first rule that fits. "
        "DEFAULT is the subject itself; a client that none fits is refused.",
    )
    ssl_protocol: str = setting(
        one_of("TLSv1.2", "TLSv1.3", "TLS"),
        "TLSv1.3",
        "The newest version of TLS; TLS means the newest that there is.",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        kinds.text_list("TLSv1.2, TLSv1.3 or both, comma-separated", "TLSv1.2", "TLSv1.3"),
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that may be spoken.",
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        kinds.texts(),
        "",
        "Cipher suites that may be used, by their names in TLS. Empty, OpenSSL's choice.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        _endpoint_check(),
        "https",
        "How a broker that connects to another checks its certificate: https compares the host's "
        "name, empty doesn't.",
    )
