"""OAUTHBEARER through the gate: who is let in, for how long, and what others hear (KIP-255)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.metadata import MetadataState
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl.oauthbearer import ACKNOWLEDGED, OAUTHBEARER, OAuthBearerClient
from kraftpy.quorum.credentials import QuorumSecret
from kraftpy.server.cluster.logins import gates
from tests.server.wire import Closed, Wire
from tests.tokens import Issuer, claims_of, unsigned, write_keys
from tests.unit.server.network.gates import (
    SECRET,
    Door,
    config_of,
    door,
    handshake,
    token,
    who_am_i,
)
from tests.waiting import until

ISSUER = Issuer()
UNSIGNED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)


@asynccontextmanager
async def opened(tmp_path: Path, **more: str) -> AsyncIterator[Door]:
    settings = {
        "listener__name__strict__sasl__enabled__mechanisms": OAUTHBEARER,
        "sasl__oauthbearer__jwks__endpoint__url": write_keys(tmp_path / "keys", ISSUER),
        "sasl__oauthbearer__expected__audience": "kafka",
    }
    async with door(**settings, **more) as made:
        keys = made.gates["STRICT"].token_keys
        assert keys is not None
        await until(lambda: bool(keys._keys))
        yield made


def log_in(wire: Wire, text: str) -> Any:
    assert handshake(wire, OAUTHBEARER).error_code == 0
    side = OAuthBearerClient(text)
    answer = token(wire, side.first())
    if not answer.error_code and answer.auth_bytes:
        assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
        return token(wire, ACKNOWLEDGED)
    return answer


async def test_a_login_counts_as_long_as_its_token_at_most(tmp_path: Path) -> None:
    def talk(wire: Wire) -> int:
        answer = log_in(wire, ISSUER.token(aud="kafka", exp=int(time.time()) + 100))
        assert answer.error_code == 0
        assert who_am_i(wire) == "User:alice"
        lifetime_ms: int = answer.session_lifetime_ms
        return lifetime_ms

    async with opened(tmp_path) as made:
        assert 0 < await made.talk(talk, "STRICT") <= 100_000
    limit = {"listener__name__strict__oauthbearer__connections__max__reauth__ms": "1234"}
    async with opened(tmp_path, **limit) as made:
        assert await made.talk(talk, "STRICT") == 1234


async def test_trap_4_another_token_is_for_the_same_name(tmp_path: Path) -> None:
    def again(wire: Wire) -> None:
        for _ in range(2):
            assert log_in(wire, ISSUER.token(aud="kafka")).error_code == 0
        assert who_am_i(wire) == "User:alice"

    def as_another(wire: Wire) -> None:
        log_in(wire, ISSUER.token(aud="kafka"))
        answer = log_in(wire, ISSUER.token("bob", aud="kafka"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    async with opened(tmp_path) as made:
        await made.talk(again, "STRICT")
        await made.talk(as_another, "STRICT")


async def test_who_is_not_let_in_hears_the_same_whatever_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 22, over the wire: JSON, the client's word, 58, closed. The log says why."""
    tokens = {
        "has expired": ISSUER.token(aud="kafka", exp=1),
        "expected.audience": ISSUER.token(aud="others"),
        "signature is wrong": Issuer().token(aud="kafka"),
        "isn't known": ISSUER.token(aud="kafka", kid="another"),
        "no key is good": unsigned(claims_of(aud="kafka")),
        "stands for others": ISSUER.token("__broker_1", aud="kafka"),
    }

    def talk(wire: Wire, text: str) -> tuple[int, str, bytes]:
        answer = log_in(wire, text)
        with pytest.raises(Closed):
            wire.receive_frame()
        return answer.error_code, answer.error_message, answer.auth_bytes

    told: list[str] = []
    monkeypatch.setattr(
        "kraftpy.server.network.gate.emit", lambda *_, **values: told.append(str(values))
    )
    async with opened(tmp_path) as made:
        heard = {
            await made.talk(lambda wire, text=text: talk(wire, text), "STRICT")  # type: ignore[misc]
            for text in tokens.values()
        }
        same = "Authentication failed with SASL mechanism OAUTHBEARER"
        assert heard == {(ErrorCode.SASL_AUTHENTICATION_FAILED, same, b"")}
        assert made.asked == []
    for reason, line, text in zip(tokens, told, tokens.values(), strict=True):
        assert reason in line
        assert text.split(".")[1] not in line


async def test_tokens_without_a_signature_are_taken_where_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def talk(wire: Wire) -> None:
        assert log_in(wire, unsigned(claims_of())).error_code == 0
        assert who_am_i(wire) == "User:alice"
        with Wire(*wire.sock.getpeername()) as other:
            assert log_in(other, ISSUER.token()).error_code != 0

    settings = {
        "listener__name__strict__sasl__enabled__mechanisms": OAUTHBEARER,
        "listener__name__strict__oauthbearer__sasl__server__callback__handler__class": UNSIGNED,
    }
    async with door(**settings) as made:
        await made.talk(talk, "STRICT")
    assert "takes tokens without a signature" in caplog.text


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_tokens_that_can_be_read_on_the_network_are_told_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(
        listeners=f"SASL://127.0.0.1:1,STRICT://{host}:2",
        listener__name__strict__sasl__enabled__mechanisms=OAUTHBEARER,
        sasl__oauthbearer__jwks__endpoint__url="file:///nowhere",
    )
    gates(config, MetadataState, QuorumSecret(SECRET))
    assert ("listener STRICT takes tokens by OAUTHBEARER without TLS" in caplog.text) == warned


def test_tokens_without_a_signature_stay_on_loopback() -> None:
    settings = {
        "listener__name__strict__sasl__enabled__mechanisms": OAUTHBEARER,
        "listener__name__strict__oauthbearer__sasl__server__callback__handler__class": UNSIGNED,
    }
    for host in ("", "0.0.0.0", "10.1.2.3", "broker.example"):
        listeners = f"SASL://127.0.0.1:1,STRICT://{host}:2"
        with pytest.raises(ValueError, match="that anybody can make"):
            config_of(
                listeners=listeners, advertised__listeners="SASL://a:1,STRICT://a:2", **settings
            )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("listener__name__strict__sasl__enabled__mechanisms", OAUTHBEARER, "url isn't set"),
        ("sasl__oauthbearer__jwks__endpoint__url", "http://host/keys", "https"),
        ("sasl__oauthbearer__jwks__endpoint__url", "/keys", "https"),
        ("sasl__oauthbearer__jwks__endpoint__url", "file://host/keys", "https"),
        ("sasl__oauthbearer__jwks__endpoint__url", "https://user:word@host/keys", "https"),
        ("sasl__oauthbearer__jwks__endpoint__url", "https://host:port/", "https"),
        ("sasl__oauthbearer__clock__skew__seconds", "-1", "whole number"),
        ("sasl__mechanism__inter__broker__protocol", OAUTHBEARER, "one of PLAIN"),
        ("sasl__server__callback__handler__class", UNSIGNED, "handler"),
    ],
)
def test_what_is_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config_of(**{key: value})
