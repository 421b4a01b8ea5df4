"""Tokens of OAUTHBEARER: who is let in by one. Traps 10 and 22 of security have tests here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kraftpy.core.security.principals import USER, Principal
from kraftpy.core.security.tokens import (
    NAME_MAX_CHARS,
    Header,
    Holder,
    OAuthMechanism,
    TokenError,
    TokenRules,
    judge,
    open_unsigned,
    read_header,
)
from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.oauthbearer import ACKNOWLEDGED, REFUSED, OAuthBearerClient
from tests.tokens import unpadded, unsigned

NOW_S = 1_000_000.0
CLAIMS = {"sub": "alice", "iat": 999_000, "exp": 1_003_600}
PLAIN_RULES = TokenRules()


def judged(rules: TokenRules = PLAIN_RULES, **claims: Any) -> Holder:
    given = {key: value for key, value in (CLAIMS | claims).items() if value is not None}
    return judge(json.dumps(given).encode(), rules, NOW_S)


def test_a_token_counts_until_its_end() -> None:
    assert judged() == ("alice", 1_003_600_000)
    assert judged(exp=1_000_000.5) == ("alice", 1_000_000_500)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": None}, "doesn't say 'exp'"),
        ({"exp": "1003600"}, "doesn't say 'exp'"),
        ({"exp": True}, "doesn't say 'exp'"),
        ({"exp": float("nan")}, "doesn't say 'exp'"),
        ({"exp": float("inf")}, "doesn't say 'exp'"),
        ({"exp": 10**400}, "doesn't say 'exp'"),
        ({"exp": -1}, "doesn't say 'exp'"),
        ({"iat": None}, "doesn't say 'iat'"),
        ({"iat": [999_000]}, "doesn't say 'iat'"),
        ({"nbf": "soon"}, "doesn't say 'nbf'"),
        ({"exp": 999_970}, "has expired"),
        ({"iat": 1_000_031}, "doesn't count yet"),
        ({"nbf": 1_000_031}, "doesn't count yet"),
        ({"sub": None}, "no name in 'sub'"),
        ({"sub": ""}, "no name in 'sub'"),
        ({"sub": " "}, "no name in 'sub'"),
        ({"sub": 7}, "no name in 'sub'"),
        ({"sub": "a" * (NAME_MAX_CHARS + 1)}, "no name in 'sub'"),
        ({"scope": 7}, "'scope' is neither"),
        ({"scope": ["a", 7]}, "'scope' is neither"),
        ({"aud": "kafka"}, "expected.audience"),
    ],
)
def test_what_it_lacks(claims: dict[str, Any], problem: str) -> None:
    with pytest.raises(TokenError, match=problem):
        judged(**claims)


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", "__broker_1", "__broker_", "a\0b", "a\nb"])
def test_trap_10_no_sub_makes_somebody_else(name: str) -> None:
    with pytest.raises(TokenError, match="stands for others"):
        judged(sub=name)
    with pytest.raises(TokenError, match="stands for others"):
        judged(TokenRules(subject_claim="email"), email=name)


def test_a_sub_that_looks_like_a_principal_is_a_users_name() -> None:
    mechanism = OAuthMechanism(PLAIN_RULES, open_unsigned, lambda: NOW_S)
    token = unsigned(CLAIMS | {"sub": "Broker:1"})
    step = mechanism.begin("").step(OAuthBearerClient(token).first())
    assert step[:3] == (b"", Principal(USER, "Broker:1"), 1_003_600_000)


def test_clocks_may_differ() -> None:
    """A token in that time counts until it would be refused, or nobody could do anything by it."""
    assert judged(exp=999_971) == ("alice", 1_000_001_000)
    assert judged(iat=1_000_030, nbf=1_000_030) == ("alice", 1_003_600_000)
    with pytest.raises(TokenError, match="has expired"):
        judged(TokenRules(skew_s=0), exp=1_000_000)


def test_trap_22_aud() -> None:
    rules = TokenRules(audiences=("kafka", "orders"))
    for audience in ("kafka", ["others", "orders"]):
        assert judged(rules, aud=audience).name == "alice"
    for other in (None, "others", [], ["Kafka"], 7, ["kafka", 7], {"kafka": 1}):
        with pytest.raises(TokenError, match=r"expected\.audience"):
            judged(rules, aud=other)


def test_the_issuer() -> None:
    rules = TokenRules(issuer="https://issuer")
    assert judged(rules, iss="https://issuer")[0] == "alice"
    for other in (None, "https://issuer/", ["https://issuer"]):
        with pytest.raises(TokenError, match=r"expected\.issuer"):
            judged(rules, iss=other)


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"exp":1'])
def test_what_is_no_object(payload: bytes) -> None:
    with pytest.raises(TokenError, match="no JSON Web Token"):
        judge(payload, PLAIN_RULES, NOW_S)


def head(found: Any) -> str:
    return unpadded(json.dumps(found).encode()) + ".e30.c2ln"


def test_the_header() -> None:
    assert read_header(head({"alg": "RS256", "kid": "a", "typ": "JWT"})) == Header("RS256", "a")
    assert read_header(head({"alg": "none"})) == Header("none", None)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "e30.e30.e30.e30",
        "e30.e30.e30",
        "!.e30.e30",
        "e.e30.e30",
        unpadded(b"[" * 6000) + ".e30.e30",
        head({"alg": 7}),
        head({"alg": "RS256", "kid": 7}),
        head({"alg": "RS256", "kid": "k" * 1025}),
        head({"alg": "RS256", "pad": "k" * 8192}),
        head({"alg": "RS256", "crit": ["exp"]}),
        head({"alg": "RS256", "b64": False}),
    ],
)
def test_a_header_that_is_none(token: str) -> None:
    with pytest.raises(TokenError):
        read_header(token)


def test_what_is_signed_is_not_taken_where_nothing_is() -> None:
    assert json.loads(open_unsigned(unsigned(CLAIMS), Header("none", None))) == CLAIMS
    for token, algorithm in ((unsigned(CLAIMS) + "c2ln", "none"), (unsigned(CLAIMS), "RS256")):
        with pytest.raises(TokenError, match="without a signature only"):
            open_unsigned(token, Header(algorithm, None))


def test_who_is_not_let_in_hears_it_in_json_and_fails_at_the_next_word() -> None:
    mechanism = OAuthMechanism(PLAIN_RULES, open_unsigned, lambda: NOW_S)
    bad = OAuthBearerClient(unsigned(CLAIMS | {"exp": 1}))
    for word in (ACKNOWLEDGED, b"", OAuthBearerClient(unsigned(CLAIMS)).first()):
        exchange = mechanism.begin("")
        step = exchange.step(bad.first())
        assert step[:3] == (REFUSED, None, None)
        assert json.loads(step.answer) == {"status": "invalid_token"}
        assert bad.answer(step.answer) == ACKNOWLEDGED
        with pytest.raises(SaslError, match="isn't taken: it has expired"):
            exchange.step(word)


def test_nobody_acts_for_another_one() -> None:
    mechanism = OAuthMechanism(PLAIN_RULES, open_unsigned, lambda: NOW_S)
    first = b"n,a=%s,\x01auth=Bearer " + unsigned(CLAIMS).encode() + b"\x01\x01"
    assert mechanism.begin("").step(first % b"alice").principal == Principal(USER, "alice")
    with pytest.raises(SaslError, match="acts for another"):
        mechanism.begin("").step(first % b"bob")
