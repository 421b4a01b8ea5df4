"""What a context is made from. The names are those of Kafka's keys, without `ssl.`."""

from __future__ import annotations

from kraftpy.frozen import dataclass
from kraftpy.secret import Secret

REQUIRED, REQUESTED, NONE = "required", "requested", "none"


class TlsError(Exception):
    """Keys, certificates or settings of TLS can't be used; a sentence for people, no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A keystore or a truststore: a file, or PEM itself."""

    prefix: str
    type: str = "JKS"
    location: str | None = None
    password: Secret | None = None
    pem: Secret | None = None

    @property
    def is_set(self) -> bool:
        return self.location is not None or self.pem is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Of one listener, or of one client."""

    keystore: StoreSettings = StoreSettings(prefix="ssl.keystore")
    key: Secret | None = None
    key_password: Secret | None = None
    truststore: StoreSettings = StoreSettings(prefix="ssl.truststore")
    client_auth: str = NONE
    protocol: str = "TLSv1.3"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str = "https"
    principal_mapping_rules: str = "DEFAULT"

    @property
    def files(self) -> tuple[str, ...]:
        """What may change while the settings stay."""
        stores = (self.keystore, self.truststore)
        return tuple(each.location for each in stores if each.location is not None)
