"""Who has a token: a JSON Web Token (RFC 7519) that an authorization server has signed (KIP-768).

Rules:

* A token is opened by `Opener`, which knows the keys; before that nothing is read of it but its
  header. Which algorithm counts is for the key to say (`server.network.token_keys`), and "none" is
  none. Only where a listener says so tokens without a signature are taken, and no others.
* `exp`, `iat` and the name's claim have to be there. A token counts until `exp`, and SKEW longer
  for clocks that differ; one that has been issued, or begins to count, later than that is refused.
* The issuer has to be the expected one, if there is one, and one of the audiences an expected one.
  A token for somebody is refused where nobody is expected (RFC 7519, and so does Kafka).
* No name makes a principal that stands for others.
* A client is told that its token isn't taken, and nothing else; the log has the reason.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from kraftpy.core.security.principals import USER, Principal, reserved
from kraftpy.core.security.sasl_server import Exchange, Step
from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.sasl import SaslError, oauthbearer

HEADER_MAX_CHARS = 8192
NAME_MAX_CHARS = 1024
_KID_MAX_CHARS = 1024
_LATEST_S = 253402300799  # the end of the year 9999
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class TokenError(ValueError):
    """A token isn't taken; says why, and has nothing of the token that is secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What is expected of tokens, by Kafka's keys `sasl.oauthbearer.…`."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    skew_s: int = 30


class Header(NamedTuple):
    """What a token says about its signature."""

    algorithm: str
    kid: str | None


class Holder(NamedTuple):
    """Who has a token, and until when it counts, in milliseconds since 1970."""

    name: str
    ends_ms: int


Opener = Callable[[str, Header], bytes]
"""Gives what a token claims, if its signature is good. Raises TokenError."""


def read_header(token: str) -> Header:
    """Raises TokenError."""
    head, *rest = token.split(".", 3)
    if len(rest) != 2 or len(head) > HEADER_MAX_CHARS:
        raise TokenError("it is no signed JSON Web Token")
    found = _object(decoded(head))
    algorithm, kid = found.get("alg"), found.get("kid")
    if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)):
        raise TokenError("its header doesn't say by what it's signed")
    if kid is not None and len(kid) > _KID_MAX_CHARS:
        raise TokenError("the id of its key is too long")
    if "crit" in found or "b64" in found:
        raise TokenError("its header demands what isn't known here")
    return Header(algorithm, kid)


def open_unsigned(token: str, header: Header) -> bytes:
    """What a token without a signature claims. Raises TokenError."""
    _, payload, signature = token.split(".")
    if header.algorithm != "none" or signature:
        raise TokenError("it's signed, and this listener takes tokens without a signature only")
    return decoded(payload)


def decoded(text: str) -> bytes:
    """Base64 for URLs, without padding. Raises TokenError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise TokenError("it is no JSON Web Token") from None


def judge(payload: bytes, rules: TokenRules, now_s: float) -> Holder:
    """Who has a token that claims this. Raises TokenError."""
    claims = _object(payload)
    ends_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
    if now_s >= ends_s + rules.skew_s:
        raise TokenError("it has expired")
    begins_s = _time(claims, "nbf") if "nbf" in claims else issued_s
    if max(issued_s, begins_s) > now_s + rules.skew_s:
        raise TokenError("it doesn't count yet: do the clocks differ?")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError("it isn't of sasl.oauthbearer.expected.issuer")
    _check_audience(claims, rules)
    scope = claims.get(rules.scope_claim, "")
    if not isinstance(scope, str) and not _is_list_of_texts(scope):
        raise TokenError(f"its {rules.scope_claim!r} is neither text nor a list of texts")
    name = claims.get(rules.subject_claim)
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_MAX_CHARS:
        raise TokenError(f"it has no name in {rules.subject_claim!r}")
    if reserved(name) or _CONTROL.search(name):
        raise TokenError("its name stands for others than a user")
    # For a clock that differs it has begun to end; it counts until it's refused.
    return Holder(name, int((ends_s if ends_s > now_s else ends_s + rules.skew_s) * 1000))


def _check_audience(claims: dict[str, Any], rules: TokenRules) -> None:
    audience = claims.get("aud")
    if audience is None and not rules.audiences:
        return
    if isinstance(audience, str):
        audience = [audience]
    if not _is_list_of_texts(audience) or set(rules.audiences).isdisjoint(audience or ()):
        raise TokenError("it isn't for sasl.oauthbearer.expected.audience")


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TokenError(f"it doesn't say {name!r}")
    if not 0 <= value <= _LATEST_S:
        raise TokenError(f"it doesn't say {name!r}")
    return float(value)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise TokenError("it is no JSON Web Token") from None
    if not isinstance(found, dict):
        raise TokenError("it is no JSON Web Token")
    return found


class OAuthMechanism:
    """OAUTHBEARER; `open_token` judges signatures, `now_s` is the wall clock."""

    name = oauthbearer.OAUTHBEARER

    def __init__(self, rules: TokenRules, open_token: Opener, now_s: Callable[[], float]) -> None:
        self._rules = rules
        self._open = open_token
        self._now_s = now_s

    def begin(self, nonce: str) -> Exchange:
        return _OAuthExchange(self)

    def holder(self, token: str) -> Holder:
        """Raises TokenError."""
        return judge(self._open(token, read_header(token)), self._rules, self._now_s())


class _OAuthExchange:
    def __init__(self, mechanism: OAuthMechanism) -> None:
        self._mechanism = mechanism
        self._problem: str | None = None

    def step(self, message: bytes) -> Step:
        if self._problem is not None:
            raise SaslError(f"its token isn't taken: {self._problem}")
        first = oauthbearer.read_first(message)
        try:
            holder = self._mechanism.holder(first.token)
        except TokenError as error:
            self._problem = str(error)
            return Step(oauthbearer.REFUSED)
        if first.authzid not in ("", holder.name):
            raise SaslError("nobody acts for another user here")
        return Step(b"", Principal(USER, holder.name), holder.ends_ms)
