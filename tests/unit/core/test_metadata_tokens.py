"""Delegation tokens in the metadata: whose they are, who renews them, and when they end."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, packed, restored

from kraftpy.core.metadata import (
    DelegationToken,
    LaterReleaseError,
    TokenChanged,
    TokensRemoved,
    token_commands,
)
from kraftpy.core.metadata.levels import QUOTAS_AND_TOKENS
from kraftpy.core.metadata.limits import TOKEN_RENEWERS_MAX, TOKEN_TEXT_LENGTH_MAX
from kraftpy.protocol.errors import ErrorCode

E = ErrorCode
ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
TOKEN = DelegationToken("one", ALICE, CAROL, (BOB,), 100, 150, 200)


def create(token_id: str = "one", owner: str = ALICE, **fields: Any) -> dict[str, Any]:
    return {
        "type": "create_token",
        "token_id": token_id,
        "owner": owner,
        "requester": CAROL,
        "renewers": [BOB],
        "issued_ms": 100,
        "expires_ms": 150,
        "max_ms": 200,
        **fields,
    }


def renew(principal: str, now_ms: int, expires_ms: int, token_id: str = "one") -> dict[str, Any]:
    return {
        "type": "renew_token",
        "token_id": token_id,
        "principal": principal,
        "now_ms": now_ms,
        "expires_ms": expires_ms,
    }


def expire(
    principal: str, now_ms: int, expires_ms: int | None = None, token_id: str = "one"
) -> dict[str, Any]:
    return {**renew(principal, now_ms, 0, token_id), "type": "expire_token"} | {
        "expires_ms": expires_ms
    }


def test_a_token_is_created_renewed_expired_and_removed() -> None:
    cluster = Cluster()
    result = cluster.ok(create())
    assert result.value == {"expires_ms": 150}
    assert result.changes == (TokenChanged(None, TOKEN),)
    assert cluster.state.tokens == {"one": TOKEN}
    result = cluster.ok(renew(BOB, 120, 180))
    assert result.value == {"expires_ms": 180}
    (change,) = result.changes
    assert isinstance(change, TokenChanged)
    assert change.old == TOKEN
    assert change.new == cluster.state.tokens["one"]
    assert cluster.state.tokens["one"].expires_ms == 180
    assert packed(restored(cluster.state)) == packed(cluster.state)
    assert restored(cluster.state).tokens == cluster.state.tokens
    assert cluster.ok(expire(ALICE, 130, 140)).value == {"expires_ms": 140}
    result = cluster.ok(expire(ALICE, 139))
    assert result.value == {"expires_ms": 139}
    assert cluster.state.tokens == {}


def test_a_token_lasts_no_longer_than_it_may() -> None:
    cluster = Cluster()
    assert cluster.ok(create(expires_ms=900)).value == {"expires_ms": 200}
    assert cluster.ok(expire(ALICE, 110, 900)).changes == ()
    assert cluster.ok(renew(ALICE, 110, 900)).value == {"expires_ms": 200}


def test_a_token_lasts_through_its_last_millisecond() -> None:
    cluster = Cluster()
    cluster.ok(create())
    cluster.ok(renew(ALICE, 150, 150))
    assert cluster.error(renew(ALICE, 151, 190))[0] is E.DELEGATION_TOKEN_EXPIRED
    assert cluster.error(expire(ALICE, 151, 190))[0] is E.DELEGATION_TOKEN_EXPIRED
    assert cluster.ok(expire(BOB, 151)).value == {"expires_ms": 151}


@pytest.mark.parametrize("whose", [CAROL, "User:mallory", "Broker:1", ""])
def test_only_owner_and_renewers_change_its_end(whose: str) -> None:
    """Who has asked for it is none of them, as in Kafka."""
    cluster = Cluster()
    cluster.ok(create())
    assert cluster.error(renew(whose, 120, 180))[0] is E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert cluster.error(expire(whose, 120, 180))[0] is E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert cluster.error(expire(whose, 120))[0] is E.DELEGATION_TOKEN_OWNER_MISMATCH
    # Of one that is over, Kafka says so before it looks whose it is; but not to who removes it.
    assert cluster.error(renew(whose, 151, 180))[0] is E.DELEGATION_TOKEN_EXPIRED
    assert cluster.error(expire(whose, 151, 180))[0] is E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert cluster.state.tokens == {"one": TOKEN}


def test_what_is_not_there_is_not_found() -> None:
    cluster = Cluster()
    assert cluster.error(renew(ALICE, 120, 180))[0] is E.DELEGATION_TOKEN_NOT_FOUND
    assert cluster.error(expire(ALICE, 120))[0] is E.DELEGATION_TOKEN_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"owner": "Broker:1"}, E.INVALID_PRINCIPAL_TYPE),
        ({"owner": "alice"}, E.INVALID_PRINCIPAL_TYPE),
        ({"owner": "User:"}, E.INVALID_REQUEST),
        ({"owner": "User:*"}, E.INVALID_REQUEST),
        ({"owner": "User:ANONYMOUS"}, E.INVALID_REQUEST),
        ({"owner": "User:__broker_1"}, E.INVALID_REQUEST),
        ({"renewers": [BOB, "Broker:1"]}, E.INVALID_PRINCIPAL_TYPE),
        ({"renewers": [f"User:{n}" for n in range(TOKEN_RENEWERS_MAX + 1)]}, E.INVALID_REQUEST),
        ({"renewers": ["User:" + "n" * TOKEN_TEXT_LENGTH_MAX]}, E.INVALID_REQUEST),
        ({"renewers": ["User:" + "n" * (TOKEN_TEXT_LENGTH_MAX - 20)]}, E.INVALID_REQUEST),
        ({"token_id": ""}, E.INVALID_REQUEST),
        ({"token_id": "i" * 65}, E.INVALID_REQUEST),
        ({"issued_ms": -1}, E.INVALID_REQUEST),
        ({"max_ms": 2**63}, E.INVALID_REQUEST),
    ],
)
def test_trap_10_no_token_is_a_brokers_or_everybodys(fields: dict[str, Any], code: E) -> None:
    cluster = Cluster()
    assert cluster.error(create(**fields))[0] is code
    assert cluster.state.tokens == {}


def test_no_two_tokens_have_an_id() -> None:
    cluster = Cluster()
    cluster.ok(create())
    assert cluster.error(create(owner=BOB))[0] is E.INVALID_REQUEST
    assert cluster.state.tokens == {"one": TOKEN}


def test_what_is_over_is_removed_together() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.ok(create(f"t{number}", expires_ms=110 + number, renewers=[BOB, BOB]))
    assert cluster.state.tokens["t0"].renewers == (BOB,)
    result = cluster.ok({"type": "remove_expired_tokens", "now_ms": 112})
    assert result.value == {"removed": 2}
    (change,) = result.changes
    assert isinstance(change, TokensRemoved), "one, so that brokers look at their sessions once"
    assert [each.id for each in change.tokens] == ["t0", "t1"]
    assert list(cluster.state.tokens) == ["t2", "t3"]
    assert cluster.ok({"type": "remove_expired_tokens", "now_ms": 112}).changes == ()


def test_only_so_many_tokens_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_commands, "TOKENS_PER_OWNER_MAX", 2)
    monkeypatch.setattr(token_commands, "TOKENS_MAX", 3)
    cluster = Cluster()
    cluster.ok(create("a"))
    cluster.ok(create("b"))
    assert cluster.error(create("c"))[0] is E.POLICY_VIOLATION
    cluster.ok(create("c", owner=BOB))
    assert cluster.error(create("d", owner=BOB))[0] is E.POLICY_VIOLATION
    cluster.ok(expire(ALICE, 120, token_id="a"))
    cluster.ok(create("d", owner=BOB))


def test_trap_16_a_right_that_is_gone_gives_no_token() -> None:
    cluster = Cluster()
    acl = [7, ALICE, 3, CAROL, "*", 13, 3]
    version = cluster.ok({"type": "create_acls", "acls": [acl]}) and cluster.state.acls.version
    cluster.ok(create("a", allowed_under=version))
    cluster.ok({"type": "delete_acls", "filters": [acl]})
    assert cluster.error(create("b", allowed_under=version))[0] is E.INVALID_UPDATE_VERSION


def test_below_its_level_there_is_none() -> None:
    cluster = Cluster(level=QUOTAS_AND_TOKENS - 1)
    assert f"it takes {QUOTAS_AND_TOKENS}" in str(cluster.state.why_not("create_token", dict))
    with pytest.raises(LaterReleaseError, match=f"of level {QUOTAS_AND_TOKENS} at index"):
        cluster.state.apply(cluster.state.applied_index + 1, create())
    assert "tokens" not in cluster.state.snapshot()
