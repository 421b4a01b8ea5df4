"""A broker's side of SASL: a client's bytes in, an answer out, and at the end a principal.

Rules:

* Whatever is wrong is one `SaslError`; what of it a client is told is for the caller, who tells
  everybody the same. An unknown user takes the same steps and the same time as a wrong password: a
  SCRAM user gets a salt that is always the same for this name, and fails at the end.
* PLAIN has the users of its listener's JAAS line, as digests under a key of this process. SCRAM has
  those of the metadata (`security_commands`), as they are when the proof comes: who was changed or
  deleted between the two messages isn't let in by what was there before.
* No mechanism of users makes a principal of the type `Broker`, nor one that stands for nobody or
  everybody. A broker logs in as `__broker_ID`, where the listener takes brokers
  (`broker_login`).
* Who has logged in may have to do so again (KIP-368): after the mechanism's
  `connections.max.reauth.ms`, and when what it was proved by ends, whichever is sooner.
* Who has `tokenauth` in its first message logs in by a delegation token (`token_logins`), and is
  its owner from then on. An exchange that needs keys which take milliseconds to derive says so by
  `Underived`, and takes the same message again when they are there.
* A nonce and keys are arguments: there is no randomness in here.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from kraftpy.core.metadata.records import SCRAM_KEY_BYTES, ScramCredential, ScramMechanism
from kraftpy.core.security.principals import USER, Principal, parsed, reserved
from kraftpy.core.security.token_logins import TokenLogins
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.sasl import SaslError, plain, scram

DECOY_ITERATIONS = 4096


class Step(NamedTuple):
    """What a client is answered; `principal` is who it is, once that is known.

    `ends_ms` is when what it has shown ends, by the wall clock; None: never. `token_id`: it has
    logged in by this delegation token.
    """

    answer: bytes
    principal: Principal | None = None
    ends_ms: int | None = None
    token_id: str | None = None


class Underived(Exception):
    """`derive` has to be called, which takes milliseconds; then the same message can be taken."""

    def __init__(self, derive: Callable[[], None]) -> None:
        super().__init__("keys have to be derived")
        self.derive = derive


class Exchange(Protocol):
    """One login."""

    def step(self, message: bytes) -> Step:
        """Takes the client's next message. Raises SaslError; there is no step after that.

        Raises Underived, and has taken nothing.
        """


class Mechanism(Protocol):
    """What a listener takes logins by; `begin` is given a nonce for one of them."""

    name: str

    def begin(self, nonce: str) -> Exchange: ...


def lifetime_ms(limit_ms: int, ends_ms: int | None, now_ms: int) -> int | None:
    """How long a login counts; None: for ever. `limit_ms` is 0 where the mechanism has none."""
    lifetimes = [limit_ms] if limit_ms > 0 else []
    if ends_ms is not None:
        lifetimes.append(max(ends_ms - now_ms, 0))
    return min(lifetimes, default=None)


# -- PLAIN


class PlainMechanism:
    """PLAIN, with the users in the options of a JAAS line."""

    name = plain.PLAIN

    def __init__(self, options: Mapping[str, str], key: bytes) -> None:
        self._key = key
        self._digests = {
            option.removeprefix(plain.USER_OPTION): self._digest(password)
            for option, password in options.items()
            if option.startswith(plain.USER_OPTION)
        }
        self._nobody = self._digest("")  # no password is empty

    def begin(self, nonce: str) -> Exchange:
        return _PlainExchange(self)

    def check(self, login: plain.Login) -> Principal:
        """Raises SaslError."""
        known = self._digests.get(login.name, self._nobody)
        if not hmac.compare_digest(self._digest(login.password), known):
            raise SaslError("no user of this name, or another password")
        if reserved(login.name):
            raise SaslError("the name stands for others than a user")
        return Principal(USER, login.name)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


class _PlainExchange:
    def __init__(self, mechanism: PlainMechanism) -> None:
        self._mechanism = mechanism

    def step(self, message: bytes) -> Step:
        return Step(b"", self._mechanism.check(plain.read(message)))


# -- SCRAM


class Known(NamedTuple):
    """Who logs in by a credential; `also`: by others with its salt and iterations."""

    credential: ScramCredential
    principal: Principal
    also: tuple[ScramCredential, ...] = ()


Lookup = Callable[[ScramMechanism, str], Known | None]
"""Gives whoever has this name and a credential for the mechanism, as it is now."""


class ScramMechanismServer:
    """SCRAM with the users that `lookup` knows; `decoy_key` makes salts for all others.

    `tokens` are delegation tokens, None where nobody logs in by them.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Lookup,
        decoy_key: bytes,
        tokens: TokenLogins | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.tokens = tokens
        self.name = mechanism.wire_name
        self.lookup = lookup
        self._decoy_key = decoy_key

    def begin(self, nonce: str) -> Exchange:
        return _ScramExchange(self, nonce)

    def decoy(self, name: str) -> ScramCredential:
        """What a user that isn't there would have: nobody's password fits."""
        seed = hmac.digest(self._decoy_key, f"{self.name}\0{name}".encode(), "sha512")
        size = SCRAM_KEY_BYTES[self.mechanism]
        return ScramCredential(DECOY_ITERATIONS, scram.salt_of(seed), seed[:size], seed[:size])


class _ScramExchange:
    def __init__(self, mechanism: ScramMechanismServer, nonce: str) -> None:
        self._mechanism = mechanism
        self._own_nonce = nonce.encode()
        self._first: scram.ClientFirst | None = None
        self._challenge = b""
        self._nonce = b""
        self._known: Known | None = None
        self._by_token = False
        self._credential: ScramCredential

    def step(self, message: bytes) -> Step:
        if self._first is None:
            return self._begin(message)
        return self._finish(self._first, message)

    def _begin(self, message: bytes) -> Step:
        first = scram.read_client_first(message)
        mechanism = self._mechanism
        decoy = mechanism.decoy(first.name)
        self._by_token = first.extensions.get(scram.TOKEN_AUTH, "").lower() == "true"
        if not self._by_token:
            self._known = mechanism.lookup(mechanism.mechanism, first.name)
        self._credential = decoy if self._known is None else self._known.credential
        self._nonce = first.nonce + self._own_nonce
        self._challenge = scram.server_first(
            self._nonce, self._credential.salt, self._credential.iterations
        )
        self._first = first
        return Step(self._challenge)

    def _finish(self, first: scram.ClientFirst, message: bytes) -> Step:
        final = scram.read_client_final(message)
        if self._by_token:
            return self._finish_by_token(first, final)
        name = self._mechanism.name
        signed = scram.signed_text(first, self._challenge, final)
        credentials = (self._credential, *(self._known.also if self._known is not None else ()))
        proved = [
            each for each in credentials if scram.proves(name, each.stored_key, signed, final.proof)
        ]
        now = self._mechanism.lookup(self._mechanism.mechanism, first.name)
        if not proved or now is None:
            raise SaslError("no user of this name, or another password")
        if now != self._known:
            raise SaslError("the user's credential was changed during the login")
        self._check_login(first, final)
        return Step(scram.server_final(name, proved[0].server_key, signed), now.principal)

    def _finish_by_token(self, first: scram.ClientFirst, final: scram.ClientFinal) -> Step:
        mechanism, tokens, salt = self._mechanism, self._mechanism.tokens, self._credential.salt
        token = tokens.living(first.name) if tokens is not None else None
        if tokens is None or token is None:
            raise SaslError("no delegation token of this id, or it is over")
        keys = tokens.keys(mechanism.mechanism, token.id, salt)
        if keys is None:
            iterations = self._credential.iterations
            derive = partial(tokens.derive, mechanism.mechanism, token.id, salt, iterations)
            raise Underived(derive)
        signed = scram.signed_text(first, self._challenge, final)
        if not scram.proves(mechanism.name, keys.stored_key, signed, final.proof):
            raise SaslError("another delegation token's HMAC")
        self._check_login(first, final)
        return Step(
            scram.server_final(mechanism.name, keys.server_key, signed),
            parsed(token.owner),
            token.expires_ms,
            token.id,
        )

    def _check_login(self, first: scram.ClientFirst, final: scram.ClientFinal) -> None:
        if final.binding != first.gs2 or not self._is_of_this_login(final.nonce, first.nonce):
            raise SaslError("what the client has proved belongs to another login")

    def _is_of_this_login(self, nonce: bytes, clients: bytes) -> bool:
        """Whether it's the nonce of this login, whole.

        librdkafka before 2.6.1, and so Debian's kcat, has the client's part in front once more.
        Some releases of Kafka refuse it therefore, and some take whatever ends with the nonce; here
        it's that and nothing else.
        """
        return nonce in (self._nonce, clients + self._nonce)


def user_lookup(
    users: Callable[[], Mapping[str, Mapping[ScramMechanism, ScramCredential]]],
) -> Lookup:
    """Looks among the users of the metadata that `users` gives."""

    def lookup(mechanism: ScramMechanism, name: str) -> Known | None:
        credential = users().get(name, {}).get(mechanism)
        if credential is None or reserved(name):
            return None
        return Known(credential, Principal(USER, name))

    return lookup
