"""Logins that count for a time (KIP-368): who has to come again, and how. Trap 4 of security."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.network import gate
from tests.server.wire import Closed, Wire
from tests.unit.server.network.gates import (
    PASSWORD,
    Door,
    client,
    door,
    handshake,
    log_in,
    token,
    who_am_i,
)

LIMIT_MS = 60_000
LIMITED = {"connections__max__reauth__ms": str(LIMIT_MS)}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
OUT_OF_PLACE = ErrorCode.ILLEGAL_SASL_STATE


def is_closed(wire: Wire) -> bool:
    """Whether nothing comes any more."""
    try:
        wire.receive_frame()
    except Closed:
        return True
    return False


def fails_and_is_closed(wire: Wire, answer: Any) -> bool:
    return answer.error_code == FAILED and is_closed(wire)


async def expire(opened: Door) -> None:
    """Lets the time be over of whoever has logged in."""
    for each in opened.connections:
        each.session.expires_s = asyncio.get_running_loop().time() - 0.001


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_who_has_logged_in_is_told_for_how_long_and_comes_again(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "RENEWAL_MIN_S", 0.0)

    def talk(wire: Wire) -> None:
        assert log_in(wire, mechanism).session_lifetime_ms == LIMIT_MS
        assert who_am_i(wire) == "User:alice"
        for _ in range(2):
            answer = log_in(wire, mechanism)
            assert (answer.error_code, answer.session_lifetime_ms) == (0, LIMIT_MS)
            assert who_am_i(wire) == "User:alice"

    async with door(**LIMITED) as opened:
        await opened.talk(talk)
        numbers = opened.listener.logins
        assert (numbers.done, numbers.renewed, numbers.failed, numbers.expired) == (1, 2, 0, 0)


async def test_a_listener_and_its_mechanism_have_their_own_limits() -> None:
    def lifetime_of(mechanism: str) -> Any:
        return lambda wire: log_in(wire, mechanism).session_lifetime_ms

    own = {
        "listener__name__sasl__connections__max__reauth__ms": "5000",
        "listener__name__sasl__scram-sha-256__connections__max__reauth__ms": "7000",
        "listener__name__sasl__plain__connections__max__reauth__ms": "0",
    }
    async with door(**LIMITED, **own) as opened:
        assert await opened.talk(lifetime_of("PLAIN")) == 0
        assert await opened.talk(lifetime_of("SCRAM-SHA-256")) == 7000
        assert await opened.talk(lifetime_of("SCRAM-SHA-512")) == 5000
        assert await opened.talk(lifetime_of("SCRAM-SHA-512"), "STRICT") == LIMIT_MS


async def test_without_a_limit_nothing_looks_at_what_is_asked_behind_the_gate() -> None:
    async with door() as opened:
        with opened.wire() as wire:
            await asyncio.to_thread(log_in, wire, "PLAIN")
            (connection,) = opened.connections
            assert connection._dispatch == opened.dispatcher.dispatch
            assert connection.session.expires_s is None


async def test_who_goes_on_when_the_time_is_over_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trap 4: expired, all but a login closes, and nothing of it is taken."""

    def ask(wire: Wire) -> bool:
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        return is_closed(wire)

    async with door(**LIMITED) as opened:
        with opened.wire() as wire:
            await asyncio.to_thread(log_in, wire, "PLAIN")
            await expire(opened)
            assert await asyncio.to_thread(ask, wire)
        assert opened.asked == []
        assert opened.listener.logins.expired == 1
    assert "its login has expired" in caplog.text


async def test_who_comes_late_may_log_in_again_and_goes_on() -> None:
    """As in Kafka: a client that was idle learns of it when it wants to ask."""
    async with door(**LIMITED) as opened:
        with opened.wire() as wire:
            await asyncio.to_thread(log_in, wire, "SCRAM-SHA-256")
            await expire(opened)
            answer = await asyncio.to_thread(log_in, wire, "SCRAM-SHA-256")
            assert answer.session_lifetime_ms == LIMIT_MS
            assert await asyncio.to_thread(who_am_i, wire) == "User:alice"


async def test_nobody_becomes_somebody_else() -> None:
    """Trap 4: principal."""

    def talk(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        assert fails_and_is_closed(wire, log_in(wire, "PLAIN", "bob", "other"))

    async with door(**LIMITED) as opened:
        await opened.talk(talk)
        numbers = opened.listener.logins
        assert (numbers.done, numbers.renewed, numbers.failed) == (1, 0, 1)


async def test_nobody_changes_the_mechanism() -> None:
    """Trap 4: mechanism. One that isn't there is told as at the first login."""

    def other(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        assert fails_and_is_closed(wire, log_in(wire, "SCRAM-SHA-512"))

    def missing(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        answer = handshake(wire, "GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert is_closed(wire)

    async with door(**LIMITED) as opened:
        await opened.talk(other)
        await opened.talk(missing)
        assert opened.listener.logins.renewed == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_ends_what_was_right(mechanism: str) -> None:
    def talk(wire: Wire) -> None:
        log_in(wire, mechanism)
        assert fails_and_is_closed(wire, log_in(wire, mechanism, password="wrong"))

    async with door(**LIMITED) as opened:
        await opened.talk(talk)


async def test_who_comes_again_too_soon_is_refused_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second login may come at once, the third not before another second is over."""
    monkeypatch.setattr(gate, "RENEWAL_MIN_S", 3600.0)

    def talk(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        log_in(wire, "PLAIN")
        for version in (0, 1):
            assert handshake(wire, "PLAIN", version).error_code == OUT_OF_PLACE
        assert token(wire, b"\0bob\0other").error_code == OUT_OF_PLACE
        assert who_am_i(wire) == "User:alice"

    async with door(**LIMITED) as opened:
        await opened.talk(talk)
        assert opened.listener.logins.renewed == 1


async def test_amid_a_second_login_nothing_else_is_taken() -> None:
    def asks(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        handshake(wire, "PLAIN")
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        assert is_closed(wire)

    def shouts(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        handshake(wire, "PLAIN")
        wire.sock.sendall(struct.pack(">i", 524289))
        assert is_closed(wire)

    def begins_large(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        wire.send_frame(struct.pack(">hhih", ApiKey.SASL_HANDSHAKE, 1, 9, -1).ljust(524289, b"\0"))
        assert is_closed(wire)

    async with door(**LIMITED) as opened:
        for talk in (asks, shouts, begins_large):
            await opened.talk(talk)
        assert opened.asked == []
        assert opened.listener.request_memory_bytes == 0


async def test_larger_requests_are_taken_again_behind_it() -> None:
    def talk(wire: Wire) -> None:
        for _ in range(2):
            log_in(wire, "PLAIN")
        topic = m.MetadataRequest.MetadataRequestTopic(name="t" * 30_000)
        answer = wire.call(ApiKey.METADATA, 9, m.MetadataRequest([topic] * 40))
        assert answer.cluster_id == "User:alice"

    async with door(**LIMITED) as opened:
        await opened.talk(talk)


async def test_a_second_login_is_taken_between_requests_that_were_sent_together() -> None:
    def talk(wire: Wire) -> None:
        log_in(wire, "PLAIN")
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        wire.send(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest("PLAIN"))
        first = client("PLAIN").first()
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(first))
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        assert wire.receive(ApiKey.METADATA, 9)[1].cluster_id == "User:alice"
        assert wire.receive(ApiKey.SASL_HANDSHAKE, 1)[1].error_code == 0
        assert wire.receive(ApiKey.SASL_AUTHENTICATE, 2)[1].session_lifetime_ms == LIMIT_MS
        assert wire.receive(ApiKey.METADATA, 9)[1].cluster_id == "User:alice"

    async with door(**LIMITED) as opened:
        await opened.talk(talk)


async def test_clients_that_are_not_told_have_the_same_limit() -> None:
    """SaslAuthenticate 0 and bare tokens have no place to say it; they may come again too."""

    def old(wire: Wire) -> None:
        for _ in range(2):
            handshake(wire, "PLAIN")
            assert token(wire, f"\0alice\0{PASSWORD}".encode(), 0).error_code == 0

    def bare(wire: Wire) -> None:
        for _ in range(2):
            handshake(wire, "PLAIN", 0)
            wire.send_frame(f"\0alice\0{PASSWORD}".encode())
            assert wire.receive_frame() == b""

    async with door(**LIMITED) as opened:
        for talk in (old, bare):
            with opened.wire() as wire:
                await asyncio.to_thread(talk, wire)
                assert await asyncio.to_thread(who_am_i, wire) == "User:alice"
                await expire(opened)
                with pytest.raises(Closed):
                    await asyncio.to_thread(who_am_i, wire)
