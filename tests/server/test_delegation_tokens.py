"""Delegation tokens over the wire: who gets which, what they log in as, and for how long."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.sasl.scram import ScramClient, salted_password
from kraftpy.testing import Broker
from tests.processes import free_port
from tests.secured import listening
from tests.server.wire import Closed, Wire

E = ErrorCode
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PASSWORD = "marker-password-4"
KEY = "marker-key-of-tokens"
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ALLOW, LITERAL = 3, 3


class World:
    """A broker with a listener SASL, where users log in, and one where nobody has to."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.port = port
        self.hmacs: list[bytes] = []

    def plain(self) -> Wire:
        return Wire(self.broker.host, self.broker.port)

    def user(self, name: str) -> Wire:
        return logged_in(self.port, name, PASSWORD)

    def token(self, created: Any, mechanism: str = SHA_256) -> Wire:
        password = base64.b64encode(created.hmac).decode()
        return logged_in(self.port, created.token_id, password, mechanism, tokenauth="true")

    def create(self, wire: Wire, version: int = 3, **fields: Any) -> Any:
        kinds = m.CreateDelegationTokenRequest
        renewers = [kinds.CreatableRenewers(*each) for each in fields.pop("renewers", ())]
        request = kinds(renewers=renewers, **{"max_lifetime_ms": -1, **fields})
        answer = wire.call(ApiKey.CREATE_DELEGATION_TOKEN, version, request)
        if answer.error_code == 0:
            self.hmacs.append(answer.hmac)
        else:
            assert (answer.token_id, answer.hmac, answer.max_timestamp_ms) == ("", b"", -1)
        return answer

    def acl(self, who: str, resource: tuple[int, str], operation: int) -> None:
        creation = m.CreateAclsRequest.AclCreation(
            *resource, LITERAL, f"User:{who}", "*", operation, ALLOW
        )
        with self.plain() as wire:
            answer = wire.call(ApiKey.CREATE_ACLS, 3, m.CreateAclsRequest([creation]))
        assert answer.results[0].error_code == 0


def logged_in(
    port: int, name: str, password: str, mechanism: str = SHA_256, **extensions: str
) -> Wire:
    wire = Wire("127.0.0.1", port)
    assert wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism)).error_code == 0
    side = ScramClient(mechanism, name, password, "a-nonce", extensions)
    token: bytes | None = side.first()
    while token is not None:
        answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(token))
        if answer.error_code:
            wire.sock.close()
            raise PermissionError(answer.error_message)
        token = side.answer(answer.auth_bytes)
    return wire


def renew(wire: Wire, digest: bytes, period_ms: int = -1, version: int = 2) -> tuple[int, int]:
    request = m.RenewDelegationTokenRequest(digest, period_ms)
    answer = wire.call(ApiKey.RENEW_DELEGATION_TOKEN, version, request)
    return answer.error_code, answer.expiry_timestamp_ms


def expire(wire: Wire, digest: bytes, period_ms: int = -1, version: int = 2) -> tuple[int, int]:
    request = m.ExpireDelegationTokenRequest(digest, period_ms)
    answer = wire.call(ApiKey.EXPIRE_DELEGATION_TOKEN, version, request)
    return answer.error_code, answer.expiry_timestamp_ms


def describe(wire: Wire, *owners: str, version: int = 3, everybodys: bool = True) -> Any:
    kinds = m.DescribeDelegationTokenRequest
    named = [kinds.DescribeDelegationTokenOwner("User", each) for each in owners]
    request = kinds(named if named or not everybodys else None)
    return wire.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, request)


def ids(wire: Wire, *owners: str) -> set[str]:
    answer = describe(wire, *owners)
    assert answer.error_code == 0
    return {each.token_id for each in answer.tokens}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    file: Path = tmp_path_factory.mktemp("users") / "first"
    users = ("admin", "alice", "bob", "carol", "mallory")
    file.write_text("".join(f"{SHA_256}=[name={each},password={PASSWORD}]\n" for each in users))
    port = free_port()
    settings = listening(PLAINTEXT=0, SASL=port)
    settings["listener_security_protocol_map"] = (
        "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    )
    with Broker(
        **settings,
        sasl_enabled_mechanisms=f"{SHA_256},{SHA_512}",
        kraftpy_bootstrap_scram_file=file,
        delegation_token_secret_key=KEY,
        delegation_token_expiry_check_interval_ms=50,
        authorizer_class_name=AUTHORIZER,
        super_users="User:admin;User:ANONYMOUS",
    ) as broker:
        yield World(broker, port)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_token_logs_in_as_its_owner(world: World, mechanism: str) -> None:
    with world.user("alice") as alice:
        created = world.create(alice, renewers=[("User", "bob")])
        assert created.error_code == 0
        assert (created.principal_type, created.principal_name) == ("User", "alice")
        assert len(created.hmac) == 64
        assert created.issue_timestamp_ms < created.expiry_timestamp_ms < created.max_timestamp_ms
        world.acl("alice", (Resource.TOPIC, "of-alice"), Operation.CREATE)
        for _ in range(2):  # the second time the keys are there
            with world.token(created, mechanism) as wire:
                kinds = m.CreateTopicsRequest
                topic = kinds.CreatableTopic("of-alice", 1, 1)
                answer = wire.call(ApiKey.CREATE_TOPICS, 7, kinds([topic], 9_999))
                assert answer.topics[0].error_code in (0, E.TOPIC_ALREADY_EXISTS)
                topic.name = "of-others"
                answer = wire.call(ApiKey.CREATE_TOPICS, 7, kinds([topic], 9_999))
                assert answer.topics[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(PermissionError, match="Authentication failed with SASL mechanism"):
        logged_in(world.port, created.token_id, "wrong", mechanism, tokenauth="true")
    password = base64.b64encode(created.hmac).decode()
    with pytest.raises(PermissionError):
        logged_in(world.port, created.token_id, password, mechanism)
    with pytest.raises(PermissionError):
        logged_in(world.port, "alice", PASSWORD, mechanism, tokenauth="true")


def test_what_is_sent_behind_a_proof_waits_for_the_keys(world: World) -> None:
    """Trap 1: keys are derived between the proof and what was sent with it."""
    with world.user("alice") as alice:
        created = world.create(alice)
    password = base64.b64encode(created.hmac).decode()
    for proof, follows in ((password, True), ("wrong", False)):
        with Wire("127.0.0.1", world.port) as wire:
            wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(SHA_512))
            side = ScramClient(SHA_512, created.token_id, proof, "n", {"tokenauth": "true"})
            first = m.SaslAuthenticateRequest(side.first())
            challenge = wire.call(ApiKey.SASL_AUTHENTICATE, 2, first)
            final = side.answer(challenge.auth_bytes)
            assert final is not None
            wire.send(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(final))
            wire.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
            wire.receive_frame()
            if follows:
                assert wire.receive_frame()
            else:
                with pytest.raises(Closed):
                    wire.receive_frame()


def test_4_a_login_by_a_token_counts_until_the_token_is_over(world: World) -> None:
    """Trap 4: its client is told so, and whoever goes on without another login is hung up on."""
    with world.user("alice") as alice:
        created = world.create(alice)
        code, expires_ms = expire(alice, created.hmac, 3_000)
        assert code == 0
        password = base64.b64encode(created.hmac).decode()
        with Wire("127.0.0.1", world.port) as wire:
            wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(SHA_256))
            side = ScramClient(SHA_256, created.token_id, password, "n", {"tokenauth": "true"})
            first = m.SaslAuthenticateRequest(side.first())
            challenge = wire.call(ApiKey.SASL_AUTHENTICATE, 2, first)
            final = m.SaslAuthenticateRequest(side.answer(challenge.auth_bytes) or b"")
            answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, final)
            assert 0 < answer.session_lifetime_ms <= 3_000 <= expires_ms
            assert wire.call(ApiKey.METADATA, 9, m.MetadataRequest([])) is not None
            with pytest.raises(Closed):
                wire.receive_frame()


def test_64_in_the_open_and_to_who_has_logged_in_by_a_token(world: World) -> None:
    with world.user("alice") as alice:
        created = world.create(alice)
    not_allowed = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with world.plain() as anonymous, world.token(created) as by_token:
        for wire in (anonymous, by_token):
            assert world.create(wire).error_code == not_allowed
            assert world.create(wire, renewers=[("Group", "x")]).error_code == not_allowed
            other: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
            assert world.create(wire, **other).error_code == not_allowed
            assert renew(wire, created.hmac) == (not_allowed, -1)
            assert expire(wire, created.hmac) == (not_allowed, -1)
            answer = describe(wire)
            assert (answer.error_code, answer.tokens) == (not_allowed, [])


def test_owner_and_renewers_renew_and_expire_and_nobody_else(world: World) -> None:
    with (
        world.user("alice") as alice,
        world.user("bob") as bob,
        world.user("mallory") as mallory,
    ):
        created = world.create(alice, renewers=[("User", "bob")], max_lifetime_ms=3_600_000)
        assert created.max_timestamp_ms == created.issue_timestamp_ms + 3_600_000
        assert created.expiry_timestamp_ms == created.max_timestamp_ms
        for version in (1, 2):
            assert renew(mallory, created.hmac, version=version) == (
                E.DELEGATION_TOKEN_OWNER_MISMATCH,
                -1,
            )
            assert expire(mallory, created.hmac, version=version) == (
                E.DELEGATION_TOKEN_OWNER_MISMATCH,
                -1,
            )
            code, expires_ms = renew(bob, created.hmac, 60_000, version)
            assert code == 0
            assert expires_ms <= created.issue_timestamp_ms + 1_200_000
            assert renew(alice, created.hmac, version=version) == (0, created.max_timestamp_ms)
        assert renew(alice, b"nothing") == (E.DELEGATION_TOKEN_NOT_FOUND, -1)
        assert expire(alice, created.hmac[:-1]) == (E.DELEGATION_TOKEN_NOT_FOUND, -1)
        code, expires_ms = expire(bob, created.hmac, 600_000)
        assert code == 0
        assert expires_ms < created.max_timestamp_ms
        assert expire(bob, created.hmac)[0] == 0
        assert renew(alice, created.hmac) == (E.DELEGATION_TOKEN_NOT_FOUND, -1)
        with pytest.raises(PermissionError):
            world.token(created)


def test_the_connections_of_a_token_end_with_it(world: World) -> None:
    """Once it is expired by hand, and once it is over and removed."""
    with world.user("alice") as alice:
        for period_ms in (-1, 1):
            created = world.create(alice)
            with world.token(created) as wire:
                assert describe(wire).error_code
                assert expire(alice, created.hmac, period_ms)[0] == 0
                with pytest.raises(Closed):
                    wire.receive_frame()
            assert created.token_id not in ids(alice)
        assert describe(alice).error_code == 0


NEIGHBOURS = [
    (Resource.USER, Operation.DESCRIBE_TOKENS),
    (Resource.USER, Operation.CREATE_TOKENS),
    (Resource.USER, Operation.DESCRIBE),
    (Resource.DELEGATION_TOKEN, Operation.DESCRIBE),
    (Resource.DELEGATION_TOKEN, Operation.CREATE_TOKENS),
    (Resource.CLUSTER, Operation.ALTER),
]


@pytest.mark.parametrize("right", NEIGHBOURS, ids=lambda right: f"{right[0].name}-{right[1].name}")
def test_trap_19_rights_on_others_tokens(world: World, right: tuple[Resource, Operation]) -> None:
    """For each right its own principal: nothing but the right one lets it through."""
    kind, operation = right
    name = f"client-{kind}-{operation}"
    with world.user("carol") as carol:
        secret = world.create(carol)
    with world.plain() as wire:
        upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name, 1, 4096, b"salt", salted_password(SHA_256, PASSWORD, b"salt", 4096)
        )
        wire.call(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            0,
            m.AlterUserScramCredentialsRequest([], [upsertion]),
        )
    named = {
        Resource.USER: "User:carol",
        Resource.DELEGATION_TOKEN: secret.token_id,
        Resource.CLUSTER: "kafka-cluster",
    }
    world.acl(name, (kind, named[kind]), operation)
    sees = right in (
        (Resource.USER, Operation.DESCRIBE_TOKENS),
        (Resource.DELEGATION_TOKEN, Operation.DESCRIBE),
    )
    creates = right == (Resource.USER, Operation.CREATE_TOKENS)
    with world.user(name) as wire:
        others: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "carol"}
        answer = world.create(wire, **others)
        denied = E.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert answer.error_code == (0 if creates else denied)
        assert (answer.principal_name, answer.token_requester_principal_name) == ("carol", name)
        if creates:
            assert ids(wire) == {answer.token_id}, "who has asked for it sees it, and no other"
            assert renew(wire, answer.hmac)[0] == E.DELEGATION_TOKEN_OWNER_MISMATCH
            with world.token(answer) as by_token:
                assert describe(by_token).error_code == E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        else:
            assert (secret.token_id in ids(wire)) == sees
            assert (secret.token_id in ids(wire, "carol", "nobody")) == sees
        for other in ("admin", "bob"):
            assert world.create(wire, **others | {"owner_principal_name": other}).error_code
        assert world.create(wire).error_code == 0, "one's own takes no right"


def test_described_tokens_are_whole_and_only_those_asked_for(world: World) -> None:
    with world.user("bob") as bob, world.user("admin") as admin, world.user("carol") as carol:
        others: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        created = world.create(admin, renewers=[("User", "carol")], **others)
        (found,) = [each for each in describe(bob).tokens if each.token_id == created.token_id]
        assert (found.principal_name, found.token_requester_principal_name) == ("bob", "admin")
        assert [each.principal_name for each in found.renewers] == ["carol"]
        assert found.hmac == created.hmac
        assert found.expiry_timestamp == created.expiry_timestamp_ms
        for wire in (bob, carol, admin):
            for owner in ("bob", "carol", "admin"):
                assert created.token_id in ids(wire, owner)
            assert created.token_id not in ids(wire, "alice")
            assert describe(wire, everybodys=False).tokens == []
        for version in (1, 2, 3):
            assert describe(bob, version=version).tokens
        assert world.create(bob, version=1).principal_name == "bob"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"renewers": [("Group", "x")]}, E.INVALID_PRINCIPAL_TYPE),
        ({"renewers": [("User", "x")] * 21}, E.INVALID_REQUEST),
        (
            {"owner_principal_type": "Broker", "owner_principal_name": "1"},
            E.INVALID_PRINCIPAL_TYPE,
        ),
        ({"owner_principal_type": "User", "owner_principal_name": "*"}, E.INVALID_REQUEST),
        ({"owner_principal_type": "User", "owner_principal_name": "__broker_1"}, E.INVALID_REQUEST),
        ({"owner_principal_type": None, "owner_principal_name": "x"}, E.INVALID_PRINCIPAL_TYPE),
    ],
)
def test_trap_10_no_token_makes_a_broker_of_anybody(
    world: World, fields: dict[str, Any], code: ErrorCode
) -> None:
    with world.user("admin") as admin:
        assert world.create(admin, **fields).error_code == code


def test_trap_23_no_hmac_and_no_key_is_kept_anywhere(world: World) -> None:
    with world.user("admin") as admin:
        created = world.create(admin)
        world.token(created).sock.close()
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(4, "1", None)
        answer = admin.call(ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest([resource]))
    shown = {each.name: each.value for each in answer.results[0].configs}
    assert shown["delegation.token.secret.key"] is None
    assert KEY not in repr(answer)
    texts = [world.broker.log_path.read_bytes()]
    texts += [
        each.read_bytes()
        for each in world.broker.dir.rglob("*")
        if each.is_file() and each.name != "server.properties"
    ]
    assert any(created.token_id.encode() in each for each in texts)
    for text in texts:
        assert KEY.encode() not in text
        for each in world.hmacs:
            assert each not in text
            assert base64.b64encode(each) not in text
            assert each.hex().encode() not in text


def test_without_a_key_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "first"
    file.write_text(f"{SHA_256}=[name=alice,password={PASSWORD}]\n")
    with Broker(
        listener_security_protocol_map="PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        sasl_enabled_mechanisms=SHA_256,
        kraftpy_bootstrap_scram_file=file,
    ) as broker:
        world = World(broker, broker.port)
        disabled = E.DELEGATION_TOKEN_AUTH_DISABLED
        with world.user("alice") as alice:
            assert world.create(alice).error_code == disabled
            assert renew(alice, b"") == expire(alice, b"") == (disabled, -1)
            assert describe(alice).error_code == disabled
        with pytest.raises(PermissionError):
            logged_in(broker.port, "an-id", "a-password", tokenauth="true")
