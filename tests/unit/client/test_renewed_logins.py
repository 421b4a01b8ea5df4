"""Connections whose login counts for a time (KIP-368): when they log in again, and what waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.connection import RENEWED_AFTER, Connection, ConnectionLostError
from kraftpy.client.security import Login, Security
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import MetadataRequest
from kraftpy.protocol.sasl.clients import ClientLogin
from kraftpy.secret import Secret

from .peer import SILENCE, running
from .secured_peer import SaslPeer

MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
LIFETIME_MS = 60_000


def peer_of() -> SaslPeer:
    peer = SaslPeer({"alice": "secret"}, MECHANISMS)
    peer.lifetime_ms = LIFETIME_MS
    return peer


def alice(mechanism: str = "PLAIN") -> Login:
    return Login(mechanism=mechanism, username="alice", password=Secret("secret"))


async def opened(peer: SaslPeer, login: Any = None) -> Connection:
    return await Connection.open("127.0.0.1", peer.port, login=login or alice().begin)


def make_due(connection: Connection) -> None:
    connection._renew_at_s = 0.0


def keys_of(peer: SaslPeer) -> list[ApiKey]:
    return [key for key, _, _ in peer.requests]


async def ask(connection: Connection) -> Any:
    return await connection.request(MetadataRequest([]), timeout_ms=5000)


async def test_it_is_renewed_before_its_time_is_over_but_not_at_once() -> None:
    peer = peer_of()
    async with running(peer):
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        connection = await opened(peer)
        after_s = loop.time()
        due_s = connection._renew_at_s
        assert due_s is not None
        first, last = (share * LIFETIME_MS / 1000 for share in RENEWED_AFTER)
        assert before_s + first <= due_s <= after_s + last < before_s + LIFETIME_MS / 1000 + 50
        await ask(connection)
        assert keys_of(peer).count(HANDSHAKE) == 1
        await connection.close()


async def test_without_a_limit_it_never_is() -> None:
    peer = SaslPeer({"alice": "secret"}, MECHANISMS)
    async with running(peer):
        connection = await opened(peer)
        assert connection._renew_at_s is None
        await connection.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_what_is_asked_when_it_is_due_waits_for_the_login(mechanism: str) -> None:
    peer = peer_of()
    async with running(peer):
        connection = await opened(peer, alice(mechanism).begin)
        posted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        before = len(peer.requests)
        make_due(connection)
        first = asyncio.create_task(ask(connection))
        await asyncio.sleep(0)
        connection.post(MetadataRequest([]), 9, posted.set_result)
        await asyncio.gather(first, ask(connection), posted)
        steps = 1 if mechanism == "PLAIN" else 2
        assert keys_of(peer)[before:] == [
            HANDSHAKE,
            *[AUTHENTICATE] * steps,
            *[ApiKey.METADATA] * 3,
        ]
        assert peer.connections == 1
        assert connection._renew_at_s is not None
        assert connection._renew_at_s > asyncio.get_running_loop().time()
        await ask(connection)
        assert keys_of(peer).count(HANDSHAKE) == 2
        await connection.close()


async def test_a_request_without_an_answer_waits_as_well() -> None:
    peer = peer_of()
    peer.answers[ApiKey.METADATA] = lambda _: SILENCE
    async with running(peer):
        connection = await opened(peer)
        make_due(connection)
        await connection.send_unanswered(MetadataRequest([]), timeout_ms=5000)
        async with asyncio.timeout(10):
            while ApiKey.METADATA not in keys_of(peer):
                await asyncio.sleep(0.01)
        assert keys_of(peer)[-3:] == [HANDSHAKE, AUTHENTICATE, ApiKey.METADATA]
        await connection.close()


async def test_who_is_not_let_in_again_learns_why_from_the_next_connection() -> None:
    peer = peer_of()
    security = Security(user=alice())
    async with running(peer), Cluster(peer.bootstrap, security=security) as cluster:
        await cluster.refresh(None)
        connection = await cluster.connection(1)
        peer.users["alice"] = "another"
        make_due(connection)
        with pytest.raises(
            ConnectionLostError, match=r"couldn't be renewed: .*invalid credentials"
        ):
            await asyncio.gather(ask(connection), ask(connection))
        assert connection.closed
        with pytest.raises(KafkaError) as caught:
            await cluster.connection(1)
        assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_login_that_cannot_be_made_ends_the_connection() -> None:
    peer = peer_of()
    made = 0

    def make() -> ClientLogin:
        nonlocal made
        made += 1
        if made > 1:
            raise RuntimeError("the clock of the caller is broken")
        return alice().begin()

    async with running(peer):
        connection = await opened(peer, make)
        make_due(connection)
        with pytest.raises(ConnectionLostError, match="clock of the caller"):
            await ask(connection)
        assert connection.closed


async def test_a_connection_that_is_closed_meanwhile_fails_what_waits() -> None:
    peer = peer_of()
    never: asyncio.Future[ClientLogin] = asyncio.get_running_loop().create_future()
    made: list[None] = []

    async def make() -> ClientLogin:
        made.append(None)
        return alice().begin() if len(made) == 1 else await never

    async with running(peer):
        connection = await opened(peer, make)
        make_due(connection)
        asked = asyncio.create_task(ask(connection))
        async with asyncio.timeout(10):
            while len(made) < 2:
                await asyncio.sleep(0.01)
        await connection.close()
        with pytest.raises(ConnectionLostError, match="closed by this client"):
            await asked
        assert never.cancelled()
    assert keys_of(peer).count(ApiKey.METADATA) == 0
