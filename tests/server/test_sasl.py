"""A broker whose clients have to log in, spoken to in raw requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl.clients import login
from kraftpy.testing import Broker
from tests.server.wire import Closed, Wire

PASSWORD = "marker-password-9"
USERS = ("admin", "alice", "bob")
SHA_256, SHA_512 = 1, 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    file: Path = tmp_path_factory.mktemp("users") / "first"
    lines = [
        f"{mechanism}=[name={name},password={PASSWORD}]\n"
        for name in USERS
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    file.write_text("".join(lines))
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "kraftpy.bootstrap.scram.file": file,
    }
    with Broker(**settings) as started:
        yield started


def logged_in(broker: Broker, name: str, mechanism: str = "SCRAM-SHA-256") -> Wire:
    wire = Wire(broker.host, broker.port)
    answer = wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism))
    assert answer.error_code == 0
    side = login(mechanism, name, PASSWORD, "a-nonce")
    token: bytes | None = side.first()
    while token is not None:
        answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(token))
        assert answer.error_code == 0, answer.error_message
        token = side.answer(answer.auth_bytes)
    return wire


def topics(wire: Wire) -> Any:
    return wire.call(ApiKey.METADATA, 9, m.MetadataRequest(None)).topics


def alter(wire: Wire, **changes: Any) -> None:
    request = m.AlterUserScramCredentialsRequest(**changes)
    (answer,) = wire.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request).results
    assert answer.error_code == 0, answer.error_message


def delete(wire: Wire, name: str, mechanism: int) -> None:
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name, mechanism)
    alter(wire, deletions=[deletion])


def test_the_connections_of_a_deleted_user_end(broker: Broker) -> None:
    """Those that came by another mechanism go on, and so do those of others."""
    with (
        logged_in(broker, "admin") as admin,
        logged_in(broker, "alice") as first,
        logged_in(broker, "alice", "SCRAM-SHA-512") as second,
        logged_in(broker, "bob") as bob,
    ):
        delete(admin, "alice", SHA_256)
        with pytest.raises(Closed):
            first.receive_frame()
        for wire in (second, bob, admin):
            assert topics(wire) is not None
        delete(admin, "alice", SHA_512)
        with pytest.raises(Closed):
            second.receive_frame()
        assert topics(bob) is not None


def test_who_changes_the_own_password_goes_on(broker: Broker) -> None:
    with logged_in(broker, "bob") as bob:
        upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            "bob", SHA_512, 4096, b"salt", b"p" * 64
        )
        alter(bob, upsertions=[upsertion])
        assert topics(bob) is not None


def test_nothing_is_answered_before_a_login(broker: Broker) -> None:
    with Wire(broker.host, broker.port) as wire:
        wire.send(ApiKey.METADATA, 9, m.MetadataRequest(None))
        with pytest.raises(Closed):
            wire.receive_frame()
    with Wire(broker.host, broker.port) as wire:
        versions = wire.call(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("test", "1"))
        assert versions.error_code == 0
        assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= {
            each.api_key for each in versions.api_keys
        }
        answer = wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest("PLAIN"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_no_password_is_in_the_log_or_the_configuration_that_is_shown(broker: Broker) -> None:
    """The trap of security called secrets."""
    with logged_in(broker, "admin") as admin:
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(4, "1", None)
        answer = admin.call(ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest([resource]))
        assert answer.results[0].configs
        assert PASSWORD not in repr(answer)
    assert PASSWORD not in broker.log_path.read_text()
