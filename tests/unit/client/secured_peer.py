"""A scripted broker that wants TLS, a login, or both."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl import plain, scram
from tests.certificates import Authority

from .peer import Peer

FAILED = messages.SaslAuthenticateResponse(
    error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="invalid credentials"
)


class SaslPeer(Peer):
    """Takes logins of `users`, names with passwords; SCRAM with so many iterations.

    `impostor` knows no password and lets everybody in. A login counts for `lifetime_ms`, 0: for
    ever.
    """

    def __init__(self, users: dict[str, str], mechanisms: tuple[str, ...]) -> None:
        super().__init__({"t": 1})
        self.users = users
        self.mechanisms = mechanisms
        self.iterations = 4096
        self.impostor = False
        self.lifetime_ms = 0
        self.logins: list[str] = []
        self.versions[ApiKey.SASL_HANDSHAKE] = (0, 1)
        self.versions[ApiKey.SASL_AUTHENTICATE] = (0, 2)
        self.answers[ApiKey.SASL_HANDSHAKE] = self._handshake
        self.answers[ApiKey.SASL_AUTHENTICATE] = self._authenticate
        self._mechanism = ""
        self._begun: dict[bytes, tuple[scram.ClientFirst, bytes]] = {}

    def _handshake(self, request: Any) -> Any:
        self._mechanism = request.mechanism
        known = request.mechanism in self.mechanisms
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return messages.SaslHandshakeResponse(error_code=code, mechanisms=list(self.mechanisms))

    def _authenticate(self, request: Any) -> Any:
        token = bytes(request.auth_bytes)
        if self._mechanism == plain.PLAIN:
            login = plain.read(token)
            if self.users.get(login.name) != login.password:
                return FAILED
            self.logins.append(login.name)
            return messages.SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
        return self._scram(token)

    def _scram(self, token: bytes) -> Any:
        mechanism = self._mechanism
        if token.startswith(b"n,"):
            first = scram.read_client_first(token)
            nonce = first.nonce + b"more"
            challenge = scram.server_first(nonce, b"salt", self.iterations)
            self._begun[nonce] = first, challenge
            return messages.SaslAuthenticateResponse(auth_bytes=challenge)
        final = scram.read_client_final(token)
        first, challenge = self._begun.pop(final.nonce)
        signed = scram.signed_text(first, challenge, final)
        password = self.users.get(first.name, "")
        keys = scram.keys(
            mechanism, scram.salted_password(mechanism, password, b"salt", self.iterations)
        )
        proved = scram.proves(mechanism, keys.stored_key, signed, final.proof)
        if not proved and not self.impostor:
            return FAILED
        self.logins.append(first.name)
        answer = scram.server_final(mechanism, keys.server_key, signed)
        return messages.SaslAuthenticateResponse(
            auth_bytes=answer, session_lifetime_ms=self.lifetime_ms
        )


def listening_context(authority: Authority, folder: Path, **options: Any) -> ssl.SSLContext:
    """What a broker on 127.0.0.1 listens with; with `clients` it wants their certificates."""
    clients: Authority | None = options.pop("clients", None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue(**options).write_pem(folder / "broker.pem"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)
    return context
