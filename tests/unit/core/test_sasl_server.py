"""A broker's side of SASL: who is let in, and that nobody learns who there is."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

import pytest

from kraftpy.core.metadata.records import ScramCredential, ScramMechanism
from kraftpy.core.security.broker_login import (
    PAGE_USER,
    BrokerLogins,
    broker_password,
    broker_user,
    decoy_key,
    either,
    page_password,
)
from kraftpy.core.security.principals import BROKER, PAGE, USER, Principal, reserved
from kraftpy.core.security.sasl_server import (
    PlainMechanism,
    ScramMechanismServer,
    lifetime_ms,
    user_lookup,
)
from kraftpy.protocol.sasl import SaslError, plain, scram

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SECRET = b"quorum"


def credential(mechanism: ScramMechanism, password: str, salt: bytes = b"salt") -> ScramCredential:
    salted = scram.salted_password(mechanism.wire_name, password, salt, 4096)
    return ScramCredential(4096, salt, *_keys(mechanism, salted))


def _keys(mechanism: ScramMechanism, salted: bytes) -> tuple[bytes, bytes]:
    keys = scram.keys(mechanism.wire_name, salted)
    return keys.stored_key, keys.server_key


class Users:
    """Users as the metadata has them."""

    def __init__(self, mechanism: ScramMechanism = SHA_256) -> None:
        self.mechanism = mechanism
        self.all: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self.server = ScramMechanismServer(mechanism, user_lookup(lambda: self.all), b"decoys")

    def add(self, name: str, password: str, salt: bytes = b"salt") -> None:
        self.all[name] = {self.mechanism: credential(self.mechanism, password, salt)}


def log_in(
    server: ScramMechanismServer, name: str, password: str, nonce: str = "server"
) -> Principal:
    client = scram.ScramClient(server.name, name, password, "client")
    exchange = server.begin(nonce)
    challenge = exchange.step(client.first())
    assert challenge.principal is None
    final = client.answer(challenge.answer)
    assert final is not None
    answer, principal, *_ = exchange.step(final)
    assert principal is not None
    assert client.answer(answer) is None, "the server proves itself"
    return principal


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_who_knows_the_password_is_let_in(mechanism: ScramMechanism) -> None:
    users = Users(mechanism)
    users.add("a,b=c", "secret")
    assert log_in(users.server, "a,b=c", "secret") == Principal(USER, "a,b=c")
    for name, password in (("a,b=c", "Secret"), ("a", "secret"), ("A,B=C", "secret")):
        with pytest.raises(SaslError, match="no user of this name, or another password"):
            log_in(users.server, name, password)


def test_a_credential_for_one_mechanism_is_none_for_the_other() -> None:
    users = Users(SHA_256)
    users.all["alice"] = {SHA_512: credential(SHA_512, "secret")}
    with pytest.raises(SaslError, match="no user of this name"):
        log_in(users.server, "alice", "secret")


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    """The trap of security: same steps, same errors, and a salt that stays the same."""
    users = Users()
    users.add("alice", "secret", scram.salt_of(b"r" * 17))
    challenges = []
    for _ in range(2):
        exchange = users.server.begin("server")
        client = scram.ScramClient(users.server.name, "nobody", "secret", "client")
        challenges.append(exchange.step(client.first()).answer)
        final = client.answer(challenges[-1])
        assert final is not None
        with pytest.raises(SaslError) as unknown:
            exchange.step(final)
    with pytest.raises(SaslError) as wrong:
        log_in(users.server, "alice", "wrong")
    assert str(unknown.value) == str(wrong.value)
    assert challenges[0] == challenges[1]
    known = users.server.begin("server").step(b"n,,n=alice,r=client").answer
    assert abs(len(known) - len(challenges[0])) <= 4
    other = users.server.begin("server").step(b"n,,n=nobody2,r=client").answer
    assert other != challenges[0]


def test_another_logins_proof_proves_nothing() -> None:
    """The trap of security called SCRAM: a replayed nonce, a suffix of it, another c=."""
    users = Users()
    users.add("alice", "secret")
    client = scram.ScramClient(users.server.name, "alice", "secret", "client")
    exchange = users.server.begin("first")
    final = client.answer(exchange.step(client.first()).answer)
    assert final is not None
    again = users.server.begin("second")
    again.step(client.first())
    with pytest.raises(SaslError):
        again.step(final)


@pytest.mark.parametrize(
    ("binding", "nonce"),
    [
        (b"n,,", b"server"),
        (b"n,,", b"xclientserver"),
        (b"n,,", b"clientclientclientserver"),
        (b"n,,", b"clientclient"),
        (b"y,,", b"clientserver"),
    ],
)
def test_a_proof_for_another_nonce_or_binding_is_refused(binding: bytes, nonce: bytes) -> None:
    """It is signed by who knows the password, and yet not what this login is about."""
    with pytest.raises(SaslError, match="belongs to another login"):
        step_with(binding, nonce)


@pytest.mark.parametrize("nonce", [b"clientserver", b"clientclientserver"])
def test_the_nonce_may_have_the_clients_part_twice(nonce: bytes) -> None:
    """As librdkafka had it before 2.6.1."""
    assert step_with(b"n,,", nonce) == Principal(USER, "alice")


def step_with(binding: bytes, nonce: bytes) -> Principal | None:
    """Alice logs in, and signs this."""
    users = Users()
    users.add("alice", "secret")
    exchange = users.server.begin("server")
    first = scram.read_client_first(b"n,,n=alice,r=client")
    challenge = exchange.step(first.gs2 + first.bare).answer
    signed = b"c=%b,r=%b" % (base64.b64encode(binding), nonce)
    salted = scram.salted_password(users.server.name, "secret", b"salt", 4096)
    proof = _proof(
        salted, scram.signed_text(first, challenge, scram.ClientFinal(b"", b"", signed, b""))
    )
    return exchange.step(b"%b,p=%b" % (signed, base64.b64encode(proof))).principal


def _proof(salted: bytes, text: bytes) -> bytes:
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(credential(SHA_256, "secret").stored_key, text, "sha256")
    return bytes(a ^ b for a, b in zip(key, signature, strict=True))


@pytest.mark.parametrize("change", ["password", "deleted"])
def test_a_credential_that_is_replaced_midway_lets_nobody_in(change: str) -> None:
    users = Users()
    users.add("alice", "secret")
    client = scram.ScramClient(users.server.name, "alice", "secret", "client")
    exchange = users.server.begin("server")
    final = client.answer(exchange.step(client.first()).answer)
    assert final is not None
    if change == "deleted":
        del users.all["alice"]
    else:
        users.add("alice", "other")
    with pytest.raises(SaslError):
        exchange.step(final)


# -- PLAIN


def plain_step(options: Mapping[str, str], name: str, password: str) -> Principal | None:
    exchange = PlainMechanism(options, b"key").begin("")
    answer, principal, *_ = exchange.step(plain.PlainClient(name, password).first())
    assert answer == b""
    return principal


def test_plain_has_the_users_of_its_line() -> None:
    options = {"username": "admin", "password": "x", "user_alice": "a", "user_bob": "b"}
    assert plain_step(options, "alice", "a") == Principal(USER, "alice")
    for name, password in (("alice", "b"), ("admin", "x"), ("carol", "a"), ("Alice", "a")):
        with pytest.raises(SaslError, match="no user of this name, or another password"):
            plain_step(options, name, password)


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", "__broker_1"])
def test_no_name_of_users_makes_somebody_else(name: str) -> None:
    """The trap of security called reserved names."""
    with pytest.raises(SaslError, match="stands for others"):
        plain_step({f"user_{name}": "x"}, name, "x")
    users = Users()
    users.add(name, "secret")
    with pytest.raises(SaslError, match="no user of this name"):
        log_in(users.server, name, "secret")


@pytest.mark.parametrize("name", ["Broker:1", "User:alice"])
def test_what_looks_like_a_principal_is_a_name(name: str) -> None:
    assert plain_step({f"user_{name}": "x"}, name, "x") == Principal(USER, name)


def test_an_empty_password_fits_nobody() -> None:
    with pytest.raises(SaslError):
        PlainMechanism({"user_alice": ""}, b"key").begin("").step(b"\0alice\0")
    with pytest.raises(SaslError):
        PlainMechanism({}, b"key").begin("").step(b"\0alice\0")


# -- brokers


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_broker_logs_in_by_the_quorums_secret(mechanism: ScramMechanism) -> None:
    accepted = [SECRET]
    logins = BrokerLogins(lambda: tuple(accepted), {1, 3}.__contains__)
    users = Users(mechanism)
    users.add("alice", "secret")
    server = ScramMechanismServer(mechanism, either(logins.lookup, users.server.lookup), b"decoys")
    assert log_in(server, "__broker_3", broker_password(SECRET, 3)) == Principal(BROKER, "3")
    assert log_in(server, "alice", "secret") == Principal(USER, "alice")
    wrong = [
        ("__broker_1", broker_password(SECRET, 3)),
        ("__broker_2", broker_password(SECRET, 2)),
        ("__broker_3", broker_password(b"other", 3)),
        ("__broker_03", broker_password(SECRET, 3)),
        ("__broker_", broker_password(SECRET, 3)),
    ]
    for name, password in wrong:
        with pytest.raises(SaslError):
            log_in(server, name, password)
    accepted.insert(0, b"other")  # while the quorum's secret is replaced
    for secret in (SECRET, b"other"):
        assert log_in(server, "__broker_3", broker_password(secret, 3)) == Principal(BROKER, "3")
    accepted.remove(SECRET)
    with pytest.raises(SaslError):
        log_in(server, "__broker_3", broker_password(SECRET, 3))


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_the_page_logs_in_by_the_quorums_secret(mechanism: ScramMechanism) -> None:
    """As itself: by no password of a broker, and registered or not."""
    logins = BrokerLogins(lambda: (b"other", SECRET), {1}.__contains__)
    server = ScramMechanismServer(mechanism, logins.lookup, b"decoys")
    for secret in (SECRET, b"other"):
        assert log_in(server, PAGE_USER, page_password(secret)) == Principal(PAGE, "metrics")
    for name, password in (
        (PAGE_USER, broker_password(SECRET, 1)),
        ("__broker_1", page_password(SECRET)),
        ("__broker_-1", page_password(SECRET)),
    ):
        with pytest.raises(SaslError):
            log_in(server, name, password)
    assert reserved(PAGE_USER)


def test_what_follows_from_the_secret_does_not_follow_from_each_other() -> None:
    made = [broker_password(SECRET, 1), broker_password(SECRET, 2), decoy_key(SECRET).hex()]
    made.append(page_password(SECRET))
    assert len(set(made)) == 4
    assert broker_user(1) == "__broker_1"


@pytest.mark.parametrize(
    ("limit_ms", "ends_ms", "expected"),
    [
        (0, None, None),
        (500, None, 500),
        (0, 1300, 300),
        (500, 1300, 300),
        (200, 1300, 200),
        (0, 1000, 0),
        (500, 900, 0),
    ],
)
def test_a_login_counts_until_the_sooner_of_its_ends(
    limit_ms: int, ends_ms: int | None, expected: int | None
) -> None:
    assert lifetime_ms(limit_ms, ends_ms, now_ms=1000) == expected
