"""The keys that tokens are signed with: a set of JSON Web Keys (RFC 7517), read and read again.

It is read from a file, or by HTTPS without following redirects, in a thread that waits for a file
or a peer. Rules (KIP-768):

* A key says which algorithms it is good for: RS and PS for RSA, ES for the curve that it's on. So
  there is no "none", and no HMAC with a public key. Keys for anything else aren't taken.
* It is read every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and for a key that isn't known
  UNKNOWN_MIN_S after the last time at the soonest; whoever comes with it isn't let in meanwhile.
  What can't be read leaves the keys that were there, `token-keys-refused` in the log, and is tried
  again.
* All of it is bounded: bytes, keys, their sizes, and the time it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kraftpy.client.https import SIZE_MAX_BYTES, ExchangeError, bounded, exchange
from kraftpy.core.security.tokens import Header, TokenError
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.sasl.oauthbearer import TOKEN_MAX_BYTES

log = logging.getLogger(__name__)

KEYS_MAX = 200
UNKNOWN_MIN_S = 10.0
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_BITS = range(2048, 8193)
_EXPONENT_MAX = 1 << 33
_TRIED_MAX = 2


class KeysError(Exception):
    """The set of keys can't be had, or is none."""


class Key(NamedTuple):
    """One key, and the algorithms that it is good for."""

    kid: str | None
    algorithms: tuple[str, ...]
    public: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysEndpoint:
    """Where the set is, and how often it's read; times in milliseconds."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    context: ssl.SSLContext | None = None  # for https


def read_keys(text: bytes) -> tuple[Key, ...]:
    """The keys of a set that signatures can be checked with. Raises KeysError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KeysError("it is no JSON") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeysError(f"it is no set of at most {KEYS_MAX} JSON Web Keys")
    keys = tuple(key for each in listed if (key := _key(each)) is not None)
    if not keys:
        raise KeysError("it has no key of RSA or of an elliptic curve for signatures")
    return keys


def _key(given: Any) -> Key | None:
    import jwt

    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    kid, kind = given.get("kid"), given.get("kty")
    algorithms: tuple[str, ...]
    parts: tuple[str, ...]
    if kind == "RSA":
        algorithms, parts = _RSA, ("kty", "n", "e")
    elif kind == "EC" and given.get("crv") in _CURVES:
        algorithms, parts = (_CURVES[given["crv"]],), ("kty", "crv", "x", "y")
    else:
        return None
    if "alg" in given:
        algorithms = tuple(each for each in algorithms if each == given["alg"])
    if not algorithms or not (kid is None or isinstance(kid, str)):
        return None
    try:
        # Only what is public, if somebody has put the private key there.
        public = jwt.PyJWK({part: given.get(part) for part in parts}, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA":
        numbers = public.public_numbers()
        if numbers.n.bit_length() not in _RSA_BITS or numbers.e > _EXPONENT_MAX:
            return None
    return Key(kid, algorithms, public)


class TokenKeys:
    """Those of one listener; `open` is an `Opener`. There are none before the first reading."""

    def __init__(self, endpoint: KeysEndpoint, listener: str) -> None:
        self._endpoint = endpoint
        self._listener = listener
        self._keys: tuple[Key, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._begun_s = 0.0
        self._failures = 0
        self.readings = 0

    # -- signatures

    def open(self, token: str, header: Header) -> bytes:
        """What the token claims. Raises TokenError."""
        import jwt

        same = [key for key in self._keys if header.kid in (None, key.kid)]
        if not same:
            self._read_for_unknown()
            raise TokenError("the key that it's signed with isn't known")
        fitting = [key for key in same if header.algorithm in key.algorithms]
        if not fitting or (header.kid is None and len(fitting) > 1):
            raise TokenError(f"no key is good for it by {header.algorithm[:20]!r}")
        if len(token) > TOKEN_MAX_BYTES:
            raise TokenError("it is too long")
        judge = jwt.PyJWS(algorithms=[header.algorithm])
        for key in fitting[:_TRIED_MAX]:
            try:
                found = judge.decode_complete(token, key.public, algorithms=[header.algorithm])
            except (jwt.PyJWTError, ValueError):
                continue
            payload: bytes = found["payload"]
            return payload
        raise TokenError("its signature is wrong")

    # -- reading

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reads the set, and again from time to time. A file's keys are there at once."""
        if self._loop is not None:
            return
        self._loop = loop
        if self._endpoint.url.startswith("file:"):
            self._begun_s = loop.time()
            self.readings += 1
            self._fetched(*self._attempt())
        else:
            self._read()

    def close(self) -> None:
        """Reads no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None

    def _read_for_unknown(self) -> None:
        """Somebody has a key that isn't known: it may be new."""
        if self._loop is not None and self._loop.time() - self._begun_s >= UNKNOWN_MIN_S:
            self._read()

    def _read(self) -> None:
        loop = self._loop
        if loop is None or self._reading:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._reading, self._begun_s = True, loop.time()
        self.readings += 1
        threading.Thread(target=self._fetch, args=[loop], daemon=True, name="token-keys").start()

    def _attempt(self) -> tuple[tuple[Key, ...], str]:
        """The keys that there are, and what is wrong with them if these are those of before."""
        try:
            return read_keys(read_url(self._endpoint.url, self._endpoint.context)), ""
        except (KeysError, ExchangeError, OSError) as error:
            return self._keys, str(error) or type(error).__name__

    def _fetch(self, loop: asyncio.AbstractEventLoop) -> None:
        keys, problem = self._attempt()
        with contextlib.suppress(RuntimeError):  # the broker has stopped
            loop.call_soon_threadsafe(self._fetched, keys, problem)

    def _fetched(self, keys: tuple[Key, ...], problem: str) -> None:
        self._reading = False
        endpoint, loop = self._endpoint, self._loop
        if loop is None:
            return
        if problem:
            emit(
                log,
                logging.ERROR,
                "token-keys-refused",
                listener=self._listener,
                url=endpoint.url,
                reason=problem,
            )
            wait_ms = min(endpoint.backoff_ms << min(self._failures, 30), endpoint.backoff_max_ms)
            self._failures += 1
        else:
            self._keys, self._failures, wait_ms = keys, 0, endpoint.refresh_ms
        self._timer = loop.call_later(wait_ms / 1000, self._read)


def read_url(url: str, context: ssl.SSLContext | None) -> bytes:
    """What is there, at most SIZE_MAX_BYTES. Raises ExchangeError or OSError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return bounded(file.read(SIZE_MAX_BYTES + 1))
    return exchange(url, context)
