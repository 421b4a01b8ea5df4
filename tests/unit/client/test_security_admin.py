"""What an operator's client asks about delegation tokens, and how it reads the answers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.security_admin import SecurityAdmin, Token
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.secret import Secret

from .peer import Peer, running

HMAC = b"\xff marker of an hmac \x00"
IN_BASE64 = Secret(base64.b64encode(HMAC).decode())
ALICE, BOB = ("User", "alice"), ("User", "bo:b")


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.versions |= {
        ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
        ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
        ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    }
    return peer


def ask(peer: Peer, work: Callable[[SecurityAdmin], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster:
            return await work(SecurityAdmin(cluster, timeout_ms=5000))

    return asyncio.run(run())


def test_a_token_is_created(peer: Peer) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append(request)
        return m.CreateDelegationTokenResponse(0, *ALICE, *BOB, 1, 2, 3, "an-id", HMAC)

    peer.answers[ApiKey.CREATE_DELEGATION_TOKEN] = answer
    token = ask(
        peer,
        lambda admin: admin.create_delegation_token(
            owner="User:alice", renewers=["User:bo:b"], max_lifetime_ms=9
        ),
    )
    ask(peer, lambda admin: admin.create_delegation_token())
    assert token == Token(
        id="an-id",
        owner="User:alice",
        requester="User:bo:b",
        renewers=("User:bo:b",),
        issued_ms=1,
        expires_ms=2,
        max_ms=3,
        hmac=IN_BASE64,
    )
    assert IN_BASE64.reveal() not in repr(token)
    owner = seen[0].owner_principal_type, seen[0].owner_principal_name
    renewers = [(each.principal_type, each.principal_name) for each in seen[0].renewers]
    assert (owner, renewers, seen[0].max_lifetime_ms) == (ALICE, [BOB], 9)
    assert seen[1] == m.CreateDelegationTokenRequest(None, None, [], -1)


def test_a_token_is_renewed_and_expired_by_its_hmac(peer: Peer) -> None:
    seen: list[Any] = []

    def renewed(request: Any) -> Any:
        seen.append((bytes(request.hmac), request.renew_period_ms))
        return m.RenewDelegationTokenResponse(0, 77)

    def expired(request: Any) -> Any:
        seen.append((bytes(request.hmac), request.expiry_time_period_ms))
        return m.ExpireDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)

    peer.answers[ApiKey.RENEW_DELEGATION_TOKEN] = renewed
    peer.answers[ApiKey.EXPIRE_DELEGATION_TOKEN] = expired
    assert ask(peer, lambda admin: admin.renew_delegation_token(IN_BASE64, 5)) == 77
    with pytest.raises(KafkaError) as caught:
        ask(peer, lambda admin: admin.expire_delegation_token(IN_BASE64))
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert seen == [(HMAC, 5), (HMAC, -1)]


def test_tokens_are_described_by_owner_or_all(peer: Peer) -> None:
    seen: list[Any] = []
    kinds = m.DescribeDelegationTokenResponse

    def answer(request: Any) -> Any:
        seen.append(request.owners)
        renewer = kinds.DescribedDelegationTokenRenewer(*BOB)
        return kinds(
            0,
            [
                kinds.DescribedDelegationToken(*ALICE, *BOB, 1, 2, 3, "z", HMAC, [renewer]),
                kinds.DescribedDelegationToken(*ALICE, *ALICE, 1, 2, 3, "a", HMAC, []),
            ],
        )

    peer.answers[ApiKey.DESCRIBE_DELEGATION_TOKEN] = answer
    found = ask(peer, lambda admin: admin.describe_delegation_tokens())
    assert [(each.id, each.requester, each.renewers) for each in found] == [
        ("a", "User:alice", ()),
        ("z", "User:bo:b", ("User:bo:b",)),
    ]
    assert {each.hmac for each in found} == {IN_BASE64}
    ask(peer, lambda admin: admin.describe_delegation_tokens(["User:bo:b"]))
    assert seen[0] is None
    assert [(each.principal_type, each.principal_name) for each in seen[1]] == [BOB]


def test_of_brokers_before_version_3_who_asks_is_the_owner(peer: Peer) -> None:
    peer.versions[ApiKey.CREATE_DELEGATION_TOKEN] = (1, 2)
    peer.answers[ApiKey.CREATE_DELEGATION_TOKEN] = lambda request: m.CreateDelegationTokenResponse(
        0, *ALICE, issue_timestamp_ms=1, token_id="an-id", hmac=HMAC
    )
    token = ask(peer, lambda admin: admin.create_delegation_token())
    assert (token.owner, token.requester) == ("User:alice", "User:alice")
    expired: list[bytes] = []

    def expire(request: Any) -> Any:
        expired.append(bytes(request.hmac))
        return m.ExpireDelegationTokenResponse(0, 5)

    peer.answers[ApiKey.EXPIRE_DELEGATION_TOKEN] = expire
    with pytest.raises(KafkaError, match="no tokens for others") as caught:
        ask(peer, lambda admin: admin.create_delegation_token(owner="User:bo:b"))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert expired == [HMAC], "nobody is given one that is somebody else's"
