"""Logins by a token (OAUTHBEARER, KIP-255), and where tokens come from.

Rules:

* A token is asked for at each login, and so when one is renewed: a file is read again, an
  authorization server is asked again once RENEWED_AFTER of what it gave is over (KIP-768).
* No error and no `repr` has a token or a secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from kraftpy.client.https import ExchangeError, exchange
from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.clients import ClientLogin
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER, TOKEN_MAX_BYTES, OAuthBearerClient
from kraftpy.secret import Secret

RENEWED_AFTER = 0.8


@dataclass(frozen=True, kw_only=True)
class TokenLogin:
    """As whoever has the token that `token` gives, anew for each login."""

    token: Callable[[], Awaitable[str]]
    mechanism: str = OAUTHBEARER

    async def begin(self) -> ClientLogin:
        """One login. Raises SaslError."""
        return OAuthBearerClient(await self.token())


@dataclass(frozen=True)
class TokenFile:
    """A token in a file, which somebody else keeps fresh."""

    path: str

    async def __call__(self) -> str:
        """Raises SaslError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> str:
        try:
            with Path(self.path).open("rb") as file:
                data = file.read(TOKEN_MAX_BYTES + 2)
        except OSError as error:
            raise SaslError(f"no token: {self.path}: {error.strerror}") from None
        return data.decode("ascii", "replace").strip()


@dataclass(frozen=True, kw_only=True)
class ClientCredentials:
    """A token that an authorization server gives to who knows a client's secret (RFC 6749, 4.4)."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str = ""
    _kept: list[tuple[str, float]] = field(default_factory=list, repr=False, compare=False)

    async def __call__(self) -> str:
        """Raises SaslError."""
        if self._kept and time.monotonic() < self._kept[0][1]:
            return self._kept[0][0]
        try:
            answer = await asyncio.to_thread(self._ask)
        except ExchangeError as error:
            raise SaslError(f"no token from {self.url}: {error}") from None
        return self._take(answer)

    def _ask(self) -> bytes:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        credentials = f"{self.client_id}:{self.client_secret.reveal()}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(credentials).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        context = ssl.create_default_context()
        return exchange(self.url, context, body=urlencode(form).encode(), headers=headers)

    def _take(self, answer: bytes) -> str:
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        token = found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str):
            raise SaslError(f"no token from {self.url}: there is no access_token in the answer")
        lifetime_s = found.get("expires_in")
        if isinstance(lifetime_s, int | float) and 0 < lifetime_s < 1e9:
            self._kept[:] = [(token, time.monotonic() + RENEWED_AFTER * lifetime_s)]
        return token
