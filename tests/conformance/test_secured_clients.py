"""Clients that aren't Python's at a listener with SASL_SSL, and at one that wants a certificate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftpy.testing import Broker
from tests.certificates import Authority
from tests.conformance.secured_clients import TIMEOUT_S, Client, Login, RefusedError, start
from tests.processes import free_port

PASSWORD = "marker-password-12"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CERTIFICATE = "certificate"
VALUES = ["one", "two", "three"]
ERRORS = {
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "kafkajs": "KafkaJSSASLAuthenticationError",
    "Java": "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
    "kcat": "SASL authentication error: Authentication failed",
}
"""What each says of a wrong password."""


class Listeners:
    """A broker that lets only alice do anything, whom its listeners know by different signs."""

    def __init__(self, broker: Broker, logins: Mapping[str, Login]) -> None:
        self.broker = broker
        self.logins = logins


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    ca = str(authority.write(folder / "ca.pem"))
    own = str(authority.issue("CN=alice,O=Acme").write_pem(folder / "alice.pem"))
    ports = {name: free_port() for name in ("LOGIN", "MUTUAL", "CONTROLLER")}
    login, mutual, controller = (f"127.0.0.1:{port}" for port in ports.values())
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,LOGIN://{login},MUTUAL://{mutual},"
        f"CONTROLLER://{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,MUTUAL:SSL,"
        "CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{controller}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue("CN=broker").write_pem(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
        "listener.name.login.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.login.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        f'PlainLoginModule required user_alice="{PASSWORD}";',
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
    }
    logins = {each: Login(login, ca, each, "alice", PASSWORD) for each in MECHANISMS}
    logins[CERTIFICATE] = Login(mutual, ca, own=own)
    with Broker(**settings) as broker:
        admin = AdminClient(logins[CERTIFICATE].librdkafka())
        upsertions = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(each, 4096), PASSWORD.encode()
            )
            for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        assert admin.alter_user_scram_credentials(upsertions)["alice"].result(TIMEOUT_S) is None
        yield Listeners(broker, logins)


@pytest.fixture(scope="module")
def clients() -> Iterator[Mapping[str, Client]]:
    with contextlib.ExitStack() as stack:
        # All are started before the first is asked for something: they get ready side by side.
        started = {kind: start(kind) for kind in ERRORS}
        for each in started.values():
            stack.callback(each.end)
        yield started


@pytest.mark.parametrize("shown", [*MECHANISMS, CERTIFICATE])
@pytest.mark.parametrize("kind", ERRORS)
def test_a_client_is_let_in_as_alice(
    listeners: Listeners, clients: Mapping[str, Client], kind: str, shown: str
) -> None:
    topic = f"{kind}-{shown}".lower()
    assert clients[kind].round(listeners.logins[shown], topic, VALUES) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("kind", ERRORS)
def test_a_wrong_password_is_an_error_of_the_client(
    listeners: Listeners, clients: Mapping[str, Client], kind: str, mechanism: str
) -> None:
    login = replace(listeners.logins[mechanism], password=f"{PASSWORD}x")
    with pytest.raises(RefusedError, match=ERRORS[kind]):
        clients[kind].round(login, "never", VALUES)


def test_no_password_is_in_the_log(listeners: Listeners, clients: Mapping[str, Client]) -> None:
    """The trap of security called secrets."""
    login = replace(listeners.logins["PLAIN"], password=f"{PASSWORD}x")
    with pytest.raises(RefusedError):
        clients["franz-go"].round(login, "never", VALUES)
    text = listeners.broker.log_path.read_text()
    assert "authentication-failed" in text
    assert PASSWORD not in text
