"""How delegation tokens log in (KIP-48): by SCRAM, with an HMAC for a password.

    HMAC  HMAC-SHA512(delegation.token.secret.key, token id); in base64 it is the password

Rules:

* The metadata says which tokens there are, and brokers share the key: so nothing is kept of an
  HMAC but in the memory of brokers.
* Keys of SCRAM take milliseconds to derive. That is done once for a token and mechanism, when
  somebody proves to have it; until then a login is like one by a token that isn't there, whose salt
  follows from its name in the same way (`sasl_server`).
* A token that is over logs nobody in, whether it has been removed yet or not.
* The wall clock is an argument.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping

from kraftpy.core.metadata.limits import TOKENS_MAX
from kraftpy.core.metadata.records import DelegationToken, ScramMechanism
from kraftpy.protocol.sasl import scram
from kraftpy.secret import Secret

KEYS_MAX = 2 * TOKENS_MAX
"""For so many tokens and mechanisms keys are kept."""


class TokenLogins:
    """The tokens of a cluster, for brokers that have the key; `tokens` gives those there are."""

    def __init__(
        self,
        key: Secret,
        tokens: Callable[[], Mapping[str, DelegationToken]],
        now_ms: Callable[[], int],
    ) -> None:
        self._key = key
        self._tokens = tokens
        self._now_ms = now_ms
        self._keys: dict[tuple[ScramMechanism, str, bytes], scram.Keys] = {}
        self._ids: dict[bytes, str] = {}  # by HMAC; also of tokens that are gone
        self._noted: set[str] = set()

    def hmac(self, token_id: str) -> bytes:
        """What the token logs in with."""
        return hmac.digest(self._key.reveal().encode(), token_id.encode(), "sha512")

    # -- by the HMAC

    def unnoted(self) -> list[str]:
        """The tokens that `find` doesn't know yet: each of them is to be noted first."""
        if len(self._noted) > 2 * TOKENS_MAX:
            self._noted.clear()
            self._ids.clear()
        return [each for each in self._tokens() if each not in self._noted]

    def note(self, token_id: str) -> None:
        """Has `find` know a token."""
        self._noted.add(token_id)
        self._ids[self.hmac(token_id)] = token_id

    def find(self, digest: bytes) -> DelegationToken | None:
        """The token with this HMAC."""
        return self._tokens().get(self._ids.get(digest, ""))

    # -- logins

    def living(self, token_id: str) -> DelegationToken | None:
        """The token with this id that isn't over."""
        token = self._tokens().get(token_id)
        return None if token is None or token.expired(self._now_ms()) else token

    def keys(self, mechanism: ScramMechanism, token_id: str, salt: bytes) -> scram.Keys | None:
        """What a login is checked with; None if it has to be derived first."""
        return self._keys.get((mechanism, token_id, salt))

    def derive(
        self, mechanism: ScramMechanism, token_id: str, salt: bytes, iterations: int
    ) -> None:
        """Derives these keys, in milliseconds."""
        name = mechanism.wire_name
        password = base64.b64encode(self.hmac(token_id)).decode()
        salted = scram.salted_password(name, password, salt, iterations)
        if len(self._keys) >= KEYS_MAX:
            self._keys.clear()
        self._keys[mechanism, token_id, salt] = scram.keys(name, salted)
