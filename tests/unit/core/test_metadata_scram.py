"""SCRAM credentials in the metadata: who gets one, what it must be, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, packed, restored

from kraftpy.core.metadata import (
    LaterReleaseError,
    ScramChanged,
    ScramCredential,
    ScramMechanism,
    security_commands,
)
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.protocol.errors import ErrorCode

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def upsertion(mechanism: int = SHA_256, **fields: Any) -> dict[str, Any]:
    size = 64 if mechanism == SHA_512 else 32
    return {
        "mechanism": int(mechanism),
        "iterations": 4096,
        "salt": b"salt",
        "stored_key": b"s" * size,
        "server_key": b"k" * size,
        **fields,
    }


def user(name: str, *upsertions: dict[str, Any], deletions: Any = ()) -> dict[str, Any]:
    return {"name": name, "upsertions": list(upsertions), "deletions": list(map(int, deletions))}


def alter(*users: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "alter_scram", "users": list(users), **fields}


def errors(cluster: Cluster, *users: dict[str, Any]) -> list[tuple[ErrorCode, str]]:
    result = cluster.apply(alter(*users))
    assert result.error is ErrorCode.NONE, result
    assert [each["name"] for each in result.value["users"]] == [each["name"] for each in users]
    return [(ErrorCode(each["error"]), each["message"] or "") for each in result.value["users"]]


def test_a_credential_is_set_replaced_and_deleted() -> None:
    cluster = Cluster()
    result = cluster.apply(alter(user("alice", upsertion(SHA_512), upsertion(SHA_256))))
    assert result.changes == (ScramChanged("alice"),)
    assert list(cluster.state.scram["alice"]) == [SHA_256, SHA_512]
    cluster.apply(alter(user("alice", upsertion(SHA_512, iterations=8192))))
    expected = ScramCredential(8192, b"salt", b"s" * 64, b"k" * 64)
    assert cluster.state.scram["alice"][SHA_512] == expected
    result = cluster.apply(alter(user("alice", deletions=[SHA_256])))
    assert result.changes == (ScramChanged("alice", (SHA_256,)),)
    assert list(cluster.state.scram["alice"]) == [SHA_512]
    assert packed(restored(cluster.state)) == packed(cluster.state)
    assert restored(cluster.state).scram == cluster.state.scram
    cluster.apply(alter(user("alice", deletions=[SHA_512])))
    assert cluster.state.scram == {}


def test_one_that_is_there_already_is_no_change() -> None:
    cluster = Cluster()
    cluster.apply(alter(user("alice", upsertion())))
    assert cluster.apply(alter(user("alice", upsertion()))).changes == ()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "*",
        "ANONYMOUS",
        "__broker_1",
        "__broker_",
        "müller",
        "a\0b",
        "a\nb",
        "\uff4bafka",
        "n" * 256,
    ],
)
def test_names_that_nobody_can_log_in_with_are_refused(name: str) -> None:
    """Traps of security: Unicode, and reserved names."""
    cluster = Cluster()
    ((error, message),) = errors(cluster, user(name, upsertion()))
    assert error is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert message
    assert cluster.state.scram == {}


@pytest.mark.parametrize("name", ["a,b=c", "=2C", "CN=alice", "a b", "anonymous", "_broker_1"])
def test_others_are_taken(name: str) -> None:
    cluster = Cluster()
    assert errors(cluster, user(name, upsertion())) == [(ErrorCode.NONE, "")]
    assert list(cluster.state.scram) == [name]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (user("bob", deletions=[SHA_256]), ErrorCode.RESOURCE_NOT_FOUND),
        (user("bob", upsertion(), deletions=[SHA_256]), ErrorCode.DUPLICATE_RESOURCE),
        (user("bob", upsertion(), upsertion()), ErrorCode.DUPLICATE_RESOURCE),
        (user("alice", upsertion()), ErrorCode.DUPLICATE_RESOURCE),
        (user("bob", upsertion(0)), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (user("bob", deletions=[3]), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (user("bob", upsertion(salt=b"")), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (user("bob", upsertion(stored_key=b"s")), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (user("bob", upsertion(server_key=b"k" * 64)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_user_changes_as_a_whole_or_not_at_all(wrong: dict[str, Any], code: ErrorCode) -> None:
    cluster = Cluster()
    before = user("bob", upsertion(SHA_512))
    cluster.apply(alter(before))
    kept = dict(cluster.state.scram["bob"])
    assert errors(cluster, user("alice", upsertion()), wrong)[1][0] is code
    assert cluster.state.scram["bob"] == kept
    assert "alice" in cluster.state.scram


@pytest.mark.parametrize(
    "wrong",
    [
        upsertion(iterations=4095),
        upsertion(iterations=16385),
        upsertion(salt=b"s" * 129),
        upsertion(stored_key=b"s" * 65),
        upsertion(salt="salt"),
        {"mechanism": 1, "iterations": 4096},
    ],
)
def test_what_is_no_credential_is_no_command(wrong: dict[str, Any]) -> None:
    cluster = Cluster()
    error, _ = cluster.error(alter(user("alice", wrong)))
    assert error is ErrorCode.INVALID_REQUEST


def test_the_first_credential_is_the_first() -> None:
    """What is there for a cluster's first user gives nobody a password back."""
    cluster = Cluster()
    first = alter(user("admin", upsertion()), user("alice", upsertion()), only_first=True)
    cluster.ok(first)
    assert list(cluster.state.scram) == ["admin", "alice"]
    cluster.apply(alter(user("admin", deletions=[SHA_256])))
    error, message = cluster.error(first)
    assert error is ErrorCode.DUPLICATE_RESOURCE
    assert "already" in message


def test_only_so_many_users_have_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_commands, "SCRAM_USERS_MAX", 2)
    cluster = Cluster()
    full = errors(cluster, *(user(name, upsertion()) for name in "abc"))
    assert [error for error, _ in full] == [ErrorCode.NONE] * 2 + [ErrorCode.POLICY_VIOLATION]
    assert errors(cluster, user("a", upsertion(SHA_512)))[0][0] is ErrorCode.NONE
    cluster.apply(alter(user("b", deletions=[SHA_256])))
    assert errors(cluster, user("c", upsertion()))[0][0] is ErrorCode.NONE


def test_below_its_level_there_is_none() -> None:
    cluster = Cluster(level=SECURITY - 1)
    assert f"it takes {SECURITY}" in str(cluster.state.why_not("alter_scram", dict))
    with pytest.raises(LaterReleaseError, match=f"of level {SECURITY} at index"):
        cluster.state.apply(cluster.state.applied_index + 1, alter(user("alice", upsertion())))
    assert "scram" not in cluster.state.snapshot()


def test_no_key_is_in_what_is_printed() -> None:
    """The trap of security called secrets."""
    cluster = Cluster()
    cluster.apply(alter(user("alice", upsertion(stored_key=b"MARK" * 8, server_key=b"MARK" * 8))))
    assert "MARK" not in repr(cluster.state.scram)
