"""How a client's connections are secured: by TLS, by a login, by both or not at all.

`Security` is a value that never changes; `Cluster` gives each of its connections the same one.
`security_settings` makes one of the settings that users of Kafka know. Rules:

* A broker's certificate is verified, always. Whom the system trusts is trusted, if nobody else is
  named.
* A delegation token logs in by SCRAM, as a name and a password that say that they are one.
* Files are read once, for the first connection; each connection makes a login of its own, with
  the token that there is then (`tokens`).
* What can't work is refused when the value is made, not when a broker is met. No text of an error
  has a password.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from kraftpy.client.tokens import TokenLogin
from kraftpy.protocol.sasl import SaslError, clients
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER
from kraftpy.protocol.sasl.scram import TOKEN_AUTH
from kraftpy.secret import Secret
from kraftpy.tls.contexts import client_context
from kraftpy.tls.settings import TlsError, TlsSettings

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
MECHANISMS = (*clients.MECHANISMS, OAUTHBEARER)


class SecurityError(ValueError):
    """Settings of security that can't work; says what to set, and has no secret."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """As whom a client logs in, and by what.

    With `delegated` those are a delegation token's id and, in base64, its HMAC (KIP-48).
    """

    mechanism: str
    username: str
    password: Secret
    delegated: bool = False

    def __post_init__(self) -> None:
        try:
            self.begin()
        except SaslError as error:
            raise SecurityError(
                f"{self.mechanism} can't log in as {self.username!r}: {error}"
            ) from None

    def begin(self) -> clients.ClientLogin:
        """One login, with a nonce of its own."""
        nonce = secrets.token_urlsafe(24)
        extensions = {TOKEN_AUTH: "true"} if self.delegated else None
        password = self.password.reveal()
        return clients.login(self.mechanism, self.username, password, nonce, extensions)


class Secures(Protocol):
    """What a connection needs; `Security` is one. It is asked for each connection."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What it is encrypted with."""

    @property
    def login(self) -> clients.LoginMaker | None:
        """Makes its login."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """What all connections of a client have in common. `tls` is None for those in plain text."""

    tls: TlsSettings | None = None
    user: Login | TokenLogin | None = None

    @property
    def protocol(self) -> str:
        """As Kafka calls it."""
        if self.user is None:
            return PLAINTEXT if self.tls is None else SSL
        return SASL_PLAINTEXT if self.tls is None else SASL_SSL

    @cached_property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What connections are encrypted with. Raises SecurityError for files that don't serve."""
        if self.tls is None:
            return None
        try:
            return client_context(self.tls).context
        except TlsError as error:
            raise SecurityError(str(error)) from None

    @property
    def login(self) -> clients.LoginMaker | None:
        """Makes the login of one connection; None where nobody logs in."""
        return None if self.user is None else self.user.begin


NO_SECURITY = Security()
"""Plain text, and anonymous."""
