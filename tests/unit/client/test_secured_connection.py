"""Connections by TLS and with a login: what lets them in, and what is said where nothing does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kraftpy.client.cluster import Cluster, NoBrokerError, is_retriable
from kraftpy.client.connection import UntrustedError
from kraftpy.client.consumer import Consumer
from kraftpy.client.security import NO_SECURITY, Security
from kraftpy.client.security_settings import parse_security
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.certificates import Authority

from .peer import HANG_UP, Peer, running
from .secured_peer import SaslPeer, listening_context

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "a=b,c pässword"


def logging_in(mechanism: str, password: str = PASSWORD, **more: str) -> Security:
    return parse_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice,=",
            "sasl.password": password,
            **more,
        }
    )


def trusting(authority: Authority, **more: str) -> Security:
    settings = {key.replace("_", "."): value for key, value in more.items()}
    return parse_security({"security.protocol": "SSL", "ssl.ca.pem": authority.pem, **settings})


async def topics(peer: Peer, security: Security) -> list[str]:
    async with Cluster(peer.bootstrap, request_timeout_ms=5000, security=security) as cluster:
        await cluster.refresh(None)
        return list(cluster.topics)


# -- logins


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_connection_logs_in(mechanism: str) -> None:
    peer = SaslPeer({"alice,=": PASSWORD}, MECHANISMS)
    async with (
        running(peer),
        Cluster(peer.bootstrap, security=logging_in(mechanism)) as cluster,
    ):
        await cluster.refresh(None)
        await cluster.connection(1, lane="another")
        assert list(cluster.topics) == ["t"]
    assert peer.connections == len(peer.logins) == 2
    assert set(peer.logins) == {"alice,="}
    keys = [key for key, _, _ in peer.requests]
    assert keys[:3] == [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert ApiKey.METADATA not in keys[: keys.index(ApiKey.SASL_AUTHENTICATE)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_told_at_once_and_once(mechanism: str) -> None:
    peer = SaslPeer({"alice,=": "another"}, MECHANISMS)
    async with running(peer):
        began = time.monotonic()
        with pytest.raises(KafkaError, match="invalid credentials") as caught:
            await topics(peer, logging_in(mechanism))
        assert time.monotonic() - began < 2
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not is_retriable(caught.value)
    assert PASSWORD not in str(caught.value)
    assert peer.connections == 1


async def test_a_consumer_ends_with_a_wrong_password() -> None:
    peer = SaslPeer({}, MECHANISMS)
    security = logging_in("SCRAM-SHA-256")
    async with (
        running(peer),
        Cluster(peer.bootstrap, request_timeout_ms=20_000, security=security) as cluster,
        Consumer(cluster, group_id="g") as consumer,
    ):
        consumer.subscribe(["t"])
        with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            await asyncio.wait_for(_poll_for_ever(consumer), 5)


async def _poll_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll(timeout_ms=1000)


async def test_a_mechanism_that_the_broker_has_not() -> None:
    peer = SaslPeer({}, ("SCRAM-SHA-512", "GSSAPI"))
    async with running(peer):
        with pytest.raises(KafkaError, match="by PLAIN, but by SCRAM-SHA-512, GSSAPI"):
            await topics(peer, logging_in("PLAIN"))
    assert peer.connections == 1


async def test_a_broker_that_takes_no_logins() -> None:
    peer = SaslPeer({}, ())
    peer.answers[ApiKey.SASL_HANDSHAKE] = lambda _: _handshake_refused()
    async with running(peer):
        with pytest.raises(KafkaError, match=r"takes no logins: set security\.protocol"):
            await topics(peer, logging_in("PLAIN"))


def _handshake_refused() -> object:
    from kraftpy.protocol import messages

    return messages.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def test_trap_7_a_broker_that_only_says_that_it_knows_the_password() -> None:
    peer = SaslPeer({"alice,=": "guessed"}, MECHANISMS)
    peer.impostor = True
    async with running(peer):
        with pytest.raises(KafkaError, match="doesn't know this user's keys"):
            await topics(peer, logging_in("SCRAM-SHA-256"))
    assert not peer.asked(ApiKey.METADATA)


async def test_the_loop_goes_on_while_a_proof_is_computed() -> None:
    peer = SaslPeer({"alice,=": PASSWORD}, MECHANISMS)
    peer.iterations = 100_000
    turns = 0
    async with running(peer):
        connecting = asyncio.create_task(topics(peer, logging_in("SCRAM-SHA-512")))
        async with asyncio.timeout(30):
            while not peer.asked(ApiKey.SASL_AUTHENTICATE):
                await asyncio.sleep(0.001)
            while len(peer.asked(ApiKey.SASL_AUTHENTICATE)) < 2:
                await asyncio.sleep(0.001)
                turns += 1
        assert await connecting == ["t"]
    assert turns > 10


# -- TLS


async def test_encrypts_and_verifies(tmp_path: Path) -> None:
    authority = Authority()
    async with running(Peer({"t": 1}), listening_context(authority, tmp_path)) as peer:
        assert await topics(peer, trusting(authority)) == ["t"]


async def test_a_broker_that_another_authority_has_signed(tmp_path: Path) -> None:
    async with running(Peer(), listening_context(Authority(), tmp_path)) as peer:
        with pytest.raises(UntrustedError, match=r"certificate isn't accepted.*ssl\.ca\.location"):
            await topics(peer, trusting(Authority()))
        assert peer.requests == []


async def test_a_certificate_for_another_host(tmp_path: Path) -> None:
    authority = Authority()
    context = listening_context(authority, tmp_path, host="127.0.0.2")
    async with running(Peer({"t": 1}), context) as peer:
        with pytest.raises(UntrustedError, match="certificate isn't accepted"):
            await topics(peer, trusting(authority))
        unchecked = trusting(authority, ssl_endpoint_identification_algorithm="none")
        assert await topics(peer, unchecked) == ["t"]


async def test_another_broker_is_asked_if_one_shows_what_is_not_accepted(tmp_path: Path) -> None:
    authority = Authority()
    async with (
        running(Peer(), listening_context(Authority(), tmp_path)) as wrong,
        running(Peer({"t": 1}), listening_context(authority, tmp_path)) as right,
        Cluster([wrong.bootstrap, right.bootstrap], security=trusting(authority)) as cluster,
    ):
        await cluster.refresh(None)
        assert list(cluster.topics) == ["t"]


async def test_shows_a_certificate(tmp_path: Path) -> None:
    authority = Authority()
    context = listening_context(authority, tmp_path, clients=authority)
    own = authority.issue("CN=alice")
    (tmp_path / "alice.pem").write_text(own.certificate_pem)
    (tmp_path / "alice.key").write_text(own.key_pem_with("hidden"))
    alone = trusting(authority)
    librdkafkas = trusting(
        authority,
        ssl_certificate_location=str(tmp_path / "alice.pem"),
        ssl_key_location=str(tmp_path / "alice.key"),
        ssl_key_password="hidden",
    )
    javas = trusting(
        authority,
        ssl_keystore_location=str(own.write_pem(tmp_path / "both.pem")),
        ssl_keystore_type="PEM",
    )
    async with running(Peer({"t": 1}), context) as peer:
        assert await topics(peer, librdkafkas) == await topics(peer, javas) == ["t"]
        with pytest.raises(ConnectionError, match="a certificate of this client") as caught:
            await topics(peer, alone)
        assert not is_retriable(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_logs_in_over_tls(tmp_path: Path, mechanism: str) -> None:
    authority = Authority()
    security = logging_in(
        mechanism,
        **{
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.write(tmp_path / "c")),
        },
    )
    peer = SaslPeer({"alice,=": PASSWORD}, MECHANISMS)
    async with running(peer, listening_context(authority, tmp_path)):
        assert await topics(peer, security) == ["t"]


# -- the wrong protocol


async def test_plain_text_to_a_listener_with_tls(tmp_path: Path) -> None:
    async with running(Peer(), listening_context(Authority(), tmp_path)) as peer:
        with pytest.raises(NoBrokerError, match="it may want TLS") as caught:
            await topics(peer, NO_SECURITY)
    assert not is_retriable(caught.value)


async def test_tls_to_a_listener_in_plain_text() -> None:
    async with running(Peer()) as peer:
        with pytest.raises(NoBrokerError, match="by TLS"):
            await topics(peer, trusting(Authority()))


async def test_nobody_logged_in_where_one_has_to() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.METADATA] = lambda _: HANG_UP
    async with running(peer):
        with pytest.raises(ConnectionError, match="it may want a login"):
            await topics(peer, NO_SECURITY)
