"""A broker at which clients have to log in, and the settings by which those of several kinds do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftpy.testing import Broker
from tests.certificates import Authority
from tests.processes import free_port

PASSWORD = "marker-password-12"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CERTIFICATE = "certificate"
WAYS = (*MECHANISMS, CERTIFICATE)
"""How one can come in."""

LOGIN_MODULES = "org.apache.kafka.common.security"
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Login:
    """What a client shows at a listener with TLS, and whom it trusts.

    With a mechanism it is a name and a password, else a certificate; the file `own` has that and
    its key.
    """

    bootstrap: str
    ca: str
    mechanism: str = ""
    username: str = ""
    password: str = ""
    own: str = ""

    def with_wrong_password(self) -> Login:
        return replace(self, password=f"{self.password}x")

    def java(self) -> dict[str, str]:
        """The settings of Java's clients."""
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if not self.mechanism:
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.own}
            return {**found, **own, "security.protocol": "SSL"}
        kind = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
        return {
            **found,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f"{LOGIN_MODULES}.{kind}LoginModule required "
            f'username="{self.username}" password="{self.password}";',
        }

    def librdkafka(self) -> dict[str, str]:
        """The settings of librdkafka."""
        found = {"bootstrap.servers": self.bootstrap, "ssl.ca.location": self.ca}
        if not self.mechanism:
            own = {"ssl.certificate.location": self.own, "ssl.key.location": self.own}
            return {**found, **own, "security.protocol": "SSL"}
        return {
            **found,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }


@dataclass(frozen=True)
class Guarded:
    """A broker that lets only alice do anything, and by what its listeners know her."""

    broker: Broker
    logins: Mapping[str, Login]


@contextmanager
def guarded_broker(folder: Path) -> Iterator[Guarded]:
    """One with a listener with SASL_SSL, and one that wants a certificate."""
    authority = Authority()
    ca = str(authority.write(folder / "ca.pem"))
    own = str(authority.issue("CN=alice,O=Acme").write_pem(folder / "alice.pem"))
    login, mutual, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
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
        "listener.name.login.plain.sasl.jaas.config": f"{LOGIN_MODULES}.plain.PlainLoginModule "
        f'required user_alice="{PASSWORD}";',
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
    }
    logins = {each: Login(login, ca, each, "alice", PASSWORD) for each in MECHANISMS}
    logins[CERTIFICATE] = Login(mutual, ca, own=own)
    with Broker(**settings) as broker:
        set_password(logins[CERTIFICATE], "alice", PASSWORD)
        yield Guarded(broker, logins)


def set_password(admin: Login, name: str, password: str) -> None:
    """Gives a user both credentials of SCRAM."""
    upsertions = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(each, 4096), password.encode())
        for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    client = AdminClient(admin.librdkafka())  # what it was asked for ends with it
    assert client.alter_user_scram_credentials(upsertions)[name].result(_TIMEOUT_S) is None
