"""The gate: what may be asked before it is known who asks. Traps of security have tests here."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from functools import partial
from typing import Any

import pytest

from kraftpy.core.metadata import MetadataState, ScramMechanism
from kraftpy.core.security.broker_login import broker_password
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.credentials import QuorumSecret
from kraftpy.server.cluster.logins import gates, still_known
from kraftpy.server.network import unestablished
from tests.server.wire import Closed, Wire
from tests.unit.server.network.gates import (
    PASSWORD,
    SECRET,
    Door,
    client,
    config_of,
    door,
    handshake,
    log_in,
    token,
    versions,
    who_am_i,
)
from tests.waiting import until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


def is_closed(wire: Wire) -> bool:
    """Whether nothing comes any more."""
    try:
        wire.receive_frame()
    except Closed:
        return True
    return False


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_who_logs_in_is_known_from_then_on(mechanism: str) -> None:
    def talk(wire: Wire) -> str:
        versions(wire)
        answer = log_in(wire, mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        return who_am_i(wire)

    async with door() as opened:
        assert await opened.talk(talk) == "User:alice"
        assert opened.asked == ["User:alice"]
        assert (opened.listener.logins.done, opened.listener.logins.failed) == (1, 0)


async def test_without_a_gate_everybody_is_anonymous_and_sasl_is_out_of_place() -> None:
    def talk(wire: Wire) -> None:
        assert handshake(wire, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert token(wire, b"\0a\0b").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert who_am_i(wire) == "User:ANONYMOUS"

    async with door() as opened:
        await opened.talk(talk, "PLAINTEXT")


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_an_unknown_user_looks_like_a_wrong_password(mechanism: str) -> None:
    """The trap of security: the same bytes, after the same messages."""

    def talk(name: str) -> Any:
        def fail(wire: Wire) -> Any:
            answer = log_in(wire, mechanism, name, "wrong")
            assert is_closed(wire)
            return answer

        return fail

    async with door() as opened:
        wrong, unknown = [await opened.talk(talk(name)) for name in ("alice", "nobody")]
        assert (wrong.error_code, wrong.error_message) == (
            unknown.error_code,
            unknown.error_message,
        )
        assert wrong.error_code == FAILED
        assert (opened.listener.logins.done, opened.listener.logins.failed) == (0, 2)
        assert wrong.auth_bytes == unknown.auth_bytes == b""
        assert opened.asked == []


async def test_a_failure_is_told_late_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def talk(wire: Wire) -> float:
        handshake(wire, "PLAIN")
        before = time.monotonic()
        assert token(wire, b"\0alice\0" + PASSWORD.encode() + b"!").error_code == FAILED
        assert is_closed(wire)
        return time.monotonic() - before

    async with door(connection__failed__authentication__delay__ms="300") as opened:
        # The loop's timers count in whole milliseconds, and may ring one too early.
        assert await opened.talk(talk) > 0.29
    (record,) = caplog.records
    assert "authentication-failed" in record.getMessage()
    assert "mechanism=PLAIN" in record.getMessage()
    assert PASSWORD not in caplog.text


async def test_what_is_pipelined_behind_a_wrong_token_is_never_taken() -> None:
    """The trap of security called pipelined."""

    def talk(wire: Wire) -> None:
        handshake(wire, "PLAIN")
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(b"\0alice\0no"))
        for _ in range(3):
            wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        assert wire.receive(ApiKey.SASL_AUTHENTICATE, 2)[1].error_code == FAILED
        assert is_closed(wire)

    async with door() as opened:
        await opened.talk(talk)
        assert opened.asked == []


async def test_what_is_pipelined_behind_a_right_one_is_taken_as_of_who_logged_in() -> None:
    def talk(wire: Wire) -> None:
        wire.send(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest("PLAIN"))
        first = client("PLAIN").first()
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(first))
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        assert wire.receive(ApiKey.SASL_HANDSHAKE, 1)[1].error_code == 0
        assert wire.receive(ApiKey.SASL_AUTHENTICATE, 2)[1].error_code == 0
        assert wire.receive(ApiKey.METADATA, 9)[1].cluster_id == "User:alice"

    async with door() as opened:
        await opened.talk(talk)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_second_exchange_is_refused_and_changes_nobody(mechanism: str) -> None:
    """The trap of security called second exchange."""

    def talk(wire: Wire) -> None:
        log_in(wire, mechanism)
        for version in (0, 1):
            answer = handshake(wire, "PLAIN", version)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = token(wire, b"\0bob\0other")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert who_am_i(wire) == "User:alice"

    async with door() as opened:
        await opened.talk(talk)


@pytest.mark.parametrize("version", [0, 1])
async def test_another_listeners_mechanism_is_not_there(version: int) -> None:
    """The trap of security called downgrade: a handshake of version 0 takes no other way."""

    def talk(wire: Wire) -> None:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "", "scram-sha-512"):
            with Wire(*wire.sock.getpeername()) as other:
                answer = handshake(other, mechanism, version)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["SCRAM-SHA-512"]
                assert is_closed(other)
        log_in(wire, "SCRAM-SHA-512", "carol")
        assert who_am_i(wire) == "User:carol"

    async with door() as opened:
        await opened.talk(talk, "STRICT")


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_after_a_handshake_of_version_0_the_tokens_are_bare(mechanism: str) -> None:
    def talk(wire: Wire) -> None:
        assert handshake(wire, mechanism, 0).error_code == 0
        side = client(mechanism)
        message: bytes | None = side.first()
        while message is not None:
            wire.send_frame(message)
            message = side.answer(wire.receive_frame())
        assert who_am_i(wire) == "User:alice"

    async with door() as opened:
        await opened.talk(talk)


async def test_a_bare_token_that_fails_is_not_answered() -> None:
    def talk(wire: Wire) -> None:
        handshake(wire, "PLAIN", 0)
        wire.send_frame(b"\0alice\0no")
        assert is_closed(wire)

    async with door() as opened:
        await opened.talk(talk)


@pytest.mark.parametrize(
    "key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE, ApiKey.FETCH, 58, 999, -1]
)
async def test_any_other_key_closes_before_its_schema_is_touched(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise AssertionError("it was decoded")

    def talk(wire: Wire) -> None:
        wire.send_frame(struct.pack(">hhih", key, 1, 7, -1) + b"\xff" * 20)
        assert is_closed(wire)

    async with door() as opened:
        monkeypatch.setattr(codec, "decode_request", explode)
        monkeypatch.setattr(codec, "decode_request_header", explode)
        await opened.talk(talk)
        assert opened.asked == []


async def test_the_order_of_a_login_is_kept() -> None:
    def versions_twice(wire: Wire) -> None:
        versions(wire)
        wire.send(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
        assert is_closed(wire)

    def handshake_twice(wire: Wire) -> None:
        handshake(wire, "SCRAM-SHA-256")
        wire.send(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest("PLAIN"))
        assert is_closed(wire)

    def versions_late(wire: Wire) -> None:
        handshake(wire, "PLAIN")
        wire.send(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
        assert is_closed(wire)

    async with door() as opened:
        for talk in (versions_twice, handshake_twice, versions_late):
            await opened.talk(talk)


async def test_a_version_that_is_not_known_may_be_asked_for_first() -> None:
    """As Java clients do that are newer (KIP-511)."""

    def talk(wire: Wire) -> None:
        wire.send_frame(struct.pack(">hhih", 18, 99, 1, -1) + b"\0\0")
        assert wire.receive_frame()[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
        versions(wire)
        log_in(wire, "PLAIN")
        assert who_am_i(wire) == "User:alice"

    async with door() as opened:
        await opened.talk(talk)


@pytest.mark.parametrize("size", [524289, 2**31 - 1])
async def test_an_oversized_frame_closes_at_its_size(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The trap of security called oversize: nothing is kept of it."""

    def talk(wire: Wire) -> None:
        handshake(wire, "PLAIN")
        wire.sock.sendall(struct.pack(">i", size))
        assert is_closed(wire)

    async with door() as opened:
        await opened.talk(talk)
        assert opened.listener.request_memory_bytes == 0
    assert "sasl.server.max.receive.size" in caplog.text


async def test_the_largest_frame_is_taken_and_whoever_is_in_may_send_larger_ones() -> None:
    def talk(wire: Wire) -> None:
        handshake(wire, "PLAIN", 0)
        wire.send_frame(b"\0alice\0".ljust(524288, b"x"))
        assert is_closed(wire)
        with Wire(*wire.sock.getpeername()) as other:
            log_in(other, "PLAIN")
            topic = m.MetadataRequest.MetadataRequestTopic(name="t" * 30_000)
            request = m.MetadataRequest([topic] * 40)
            assert other.call(ApiKey.METADATA, 9, request).cluster_id == "User:alice"

    async with door() as opened:
        await opened.talk(talk)


async def test_a_listener_has_its_own_limit() -> None:
    def talk(wire: Wire) -> None:
        wire.sock.sendall(struct.pack(">i", 101))
        assert is_closed(wire)

    async with door(listener__name__strict__sasl__server__max__receive__size="100") as opened:
        await opened.talk(talk, "STRICT")


async def test_who_does_not_log_in_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap of security called slow-loris: a byte from time to time doesn't help."""
    monkeypatch.setattr(unestablished, "UNESTABLISHED_MAX_S", 0.3)

    def drip(wire: Wire) -> float:
        before = time.monotonic()
        handshake(wire, "PLAIN")
        wire.sock.sendall(struct.pack(">i", 1000))
        wire.sock.settimeout(0.05)
        while time.monotonic() - before < 10:
            try:
                wire.sock.sendall(b"\0")
                if not wire.sock.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - before

    def stay(wire: Wire) -> str:
        log_in(wire, "PLAIN")
        time.sleep(0.6)
        return who_am_i(wire)

    async with door() as opened:
        took_s, principal = await asyncio.gather(opened.talk(drip), opened.talk(stay))
        assert 0.25 < took_s < 5
        assert principal == "User:alice"


async def test_the_oldest_that_has_not_logged_in_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unestablished, "UNESTABLISHED_MAX", 3)
    async with door() as opened:
        loop = asyncio.get_running_loop()
        socks = []
        for number in range(5):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", opened.ports["SASL"]))
            await until(partial(_has_accepted, opened, number + 1))
            socks.append(sock)
        assert opened.listener.connections == 3
        for sock in socks[:2]:
            assert await asyncio.wait_for(loop.sock_recv(sock, 1), 5) == b""
        assert await opened.talk(lambda wire: log_in(wire, "PLAIN").error_code) == 0
        for sock in socks:
            sock.close()


def _has_accepted(opened: Door, count: int) -> bool:
    return opened.listener.acceptor.accepted == count


# -- who is somebody else


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", "__broker_1"])
async def test_no_mechanism_of_users_makes_somebody_else(name: str) -> None:
    """The trap of security called reserved names."""

    def talk(wire: Wire) -> None:
        assert log_in(wire, "SCRAM-SHA-256", name).error_code == FAILED

    async with door() as opened:
        opened.metadata.scram[name] = opened.metadata.scram["alice"]
        await opened.talk(talk)


async def test_a_broker_logs_in_between_brokers_and_nowhere_else() -> None:
    def talk(wire: Wire) -> Any:
        answer = log_in(wire, "SCRAM-SHA-512", "__broker_7", broker_password(SECRET, 7))
        return who_am_i(wire) if not answer.error_code else answer.error_code

    async with door() as opened:
        assert await opened.talk(talk) == FAILED
        opened.metadata.brokers[7] = opened.metadata.brokers.get(7)  # type: ignore[assignment]
        assert await opened.talk(talk) == "Broker:7"
        assert await opened.talk(talk, "STRICT") == FAILED


async def test_between_brokers_scram_is_there_that_clients_are_not_offered() -> None:
    def talk(wire: Wire) -> Any:
        assert handshake(wire, "X").mechanisms == ["PLAIN"]
        with Wire(*wire.sock.getpeername()) as other:
            password = broker_password(SECRET, 7)
            assert log_in(other, "SCRAM-SHA-256", "__broker_7", password).error_code == 0
            assert who_am_i(other) == "Broker:7"
        with Wire(*wire.sock.getpeername()) as other:
            assert log_in(other, "SCRAM-SHA-256", "alice").error_code == FAILED

    async with door(listener__name__sasl__sasl__enabled__mechanisms="PLAIN") as opened:
        opened.metadata.brokers[7] = opened.metadata.brokers.get(7)  # type: ignore[assignment]
        await opened.talk(talk)


async def test_the_connections_of_a_deleted_user_end() -> None:
    async with door() as opened:
        wires = [opened.wire() for _ in range(4)]
        logins = [
            ("SCRAM-SHA-256", "alice"),
            ("SCRAM-SHA-512", "alice"),
            ("PLAIN", "alice"),
            ("SCRAM-SHA-256", "carol"),
        ]
        for wire, (mechanism, name) in zip(wires, logins, strict=True):
            await asyncio.to_thread(log_in, wire, mechanism, name)
        del opened.metadata.scram["alice"][ScramMechanism.SCRAM_SHA_256]
        opened.listener.end_sessions(lambda session: still_known(opened.metadata, session))
        assert await asyncio.to_thread(is_closed, wires[0])
        for wire in wires[1:]:
            assert (await asyncio.to_thread(who_am_i, wire)).startswith("User:")
        del opened.metadata.scram["alice"]
        opened.listener.end_sessions(lambda session: still_known(opened.metadata, session))
        assert await asyncio.to_thread(is_closed, wires[1])
        for wire in wires:
            wire.sock.close()


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_passwords_that_can_be_read_on_the_network_are_told_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(listeners=f"SASL://{host}:1,STRICT://{host}:2")
    gates(config, MetadataState, QuorumSecret(SECRET))
    assert ("listener SASL takes passwords by PLAIN without TLS" in caplog.text) == warned
    assert "STRICT" not in caplog.text
