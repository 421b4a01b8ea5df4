"""DescribeUserScramCredentials and AlterUserScramCredentials, over the wire."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.wire import Wire

SHA_256, SHA_512 = 1, 2
Alter = m.AlterUserScramCredentialsRequest
MARKER = b"marker-password-".ljust(32, b"7")

_numbers = itertools.count()


@pytest.fixture
def user() -> str:
    return f"user-{next(_numbers)}"


def upsertion(name: str, mechanism: int = SHA_256, **fields: Any) -> Any:
    size = 64 if mechanism == SHA_512 else 32
    given = {"iterations": 4096, "salt": b"salt", "salted_password": b"p" * size, **fields}
    return Alter.ScramCredentialUpsertion(name, mechanism, **given)


def alter(wire: Wire, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
    deleted = [Alter.ScramCredentialDeletion(*each) for each in deletions]
    answer = wire.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, Alter(deleted, list(upsertions)))
    assert len({each.user for each in answer.results}) == len(answer.results)
    assert all(bool(each.error_code) == bool(each.error_message) for each in answer.results)
    return {each.user: each.error_code for each in answer.results}


def describe(wire: Wire, *names: str) -> dict[str, Any]:
    request = m.DescribeUserScramCredentialsRequest
    users = [request.UserName(name) for name in names] or None
    answer = wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request(users))
    assert answer.error_code == 0
    return {
        each.user: each.error_code
        or {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


def test_credentials_are_set_described_and_deleted(wire: Wire, user: str) -> None:
    assert alter(wire, upsertion(user), upsertion(user, SHA_512, iterations=8192)) == {user: 0}
    assert describe(wire, user) == {user: {SHA_256: 4096, SHA_512: 8192}}
    assert describe(wire)[user] == {SHA_256: 4096, SHA_512: 8192}
    assert alter(wire, deletions=[(user, SHA_256)]) == {user: 0}
    assert describe(wire, user) == {user: {SHA_512: 8192}}
    assert alter(wire, upsertion(user), deletions=[(user, SHA_512)]) == {user: 0}
    assert alter(wire, deletions=[(user, SHA_256)]) == {user: 0}
    assert describe(wire, user) == {user: ErrorCode.RESOURCE_NOT_FOUND}
    assert user not in describe(wire)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": -1}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b"s" * 129}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"p" * 33}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_what_is_no_credential_changes_nothing(
    wire: Wire, user: str, fields: dict[str, Any], code: ErrorCode
) -> None:
    other = f"{user}-too"
    assert alter(wire, upsertion(user, **fields), upsertion(other)) == {user: code, other: 0}
    assert describe(wire, user, other) == {
        user: ErrorCode.RESOURCE_NOT_FOUND,
        other: {SHA_256: 4096},
    }


@pytest.mark.parametrize("name", ["", "*", "ANONYMOUS", "__broker_1", "älice", "a\0b", "n" * 300])
def test_names_that_nobody_can_log_in_with_are_refused(wire: Wire, name: str) -> None:
    """Traps of security: Unicode, and reserved names."""
    assert alter(wire, upsertion(name)) == {name: ErrorCode.UNACCEPTABLE_CREDENTIAL}


def test_a_credential_is_altered_once_in_a_request(wire: Wire, user: str) -> None:
    twice = ErrorCode.DUPLICATE_RESOURCE
    assert alter(wire, upsertion(user), upsertion(user)) == {user: twice}
    assert alter(wire, upsertion(user), deletions=[(user, SHA_256)]) == {user: twice}
    assert alter(wire, deletions=[(user, SHA_512)]) == {user: ErrorCode.RESOURCE_NOT_FOUND}
    assert describe(wire, user, "b", user) == {user: twice, "b": ErrorCode.RESOURCE_NOT_FOUND}


def test_many_users_come_in_several_commands(wire: Wire) -> None:
    names = [f"many-{number}" for number in range(350)]
    assert set(alter(wire, *map(upsertion, names)).values()) == {0}
    assert set(names) <= describe(wire).keys()
    deletions = [(name, SHA_256) for name in names]
    assert set(alter(wire, deletions=deletions).values()) == {0}
    assert not set(names) & describe(wire).keys()


def test_the_salted_password_is_kept_nowhere(broker: Broker, wire: Wire, user: str) -> None:
    """The trap of security called secrets: it logs in as well as the password."""
    assert alter(wire, upsertion(user, salted_password=MARKER, salt=b"salt-that-is-kept")) == {
        user: 0
    }
    assert alter(wire, upsertion(user, salted_password=MARKER + b"x")) != {user: 0}
    files = [each for each in broker.dir.rglob("*") if each.is_file()]
    contents = {each: each.read_bytes() for each in files}
    assert any(b"salt-that-is-kept" in each for each in contents.values())
    key = hashlib.sha256(MARKER).digest()
    for path, content in contents.items():
        assert MARKER not in content, path
        assert key not in content, path


def test_they_are_advertised(wire: Wire) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("test", "1"))
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    for key in (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    ):
        assert ranges[key] == ADVERTISED[key]
