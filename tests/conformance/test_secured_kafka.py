"""kraftpy's own client and commands on Apache Kafka's listeners with TLS and logins."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.connection import UntrustedError
from kraftpy.client.consumer import Consumer
from kraftpy.client.producer import Producer
from kraftpy.client.security import Security
from kraftpy.client.security_settings import parse_security
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests import apache_kafka
from tests.certificates import Authority
from tests.processes import free_port

MARKER = "hunter2-marker"
SCRAM_PASSWORD = "her own=1,2"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Kafka:
    """A broker and its listeners: LOGIN is SASL_SSL, OPEN is SASL_PLAINTEXT, MUTUAL is SSL."""

    folder: Path
    authority: Authority
    login: str
    open: str
    mutual: str

    def settings(self, mechanism: str, password: str | None = None) -> dict[str, str]:
        """Those of Java's clients, for alice."""
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        password = password or (MARKER if mechanism == "PLAIN" else SCRAM_PASSWORD)
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{_LOGIN_MODULES}.{kind}LoginModule required "
            f'username="alice" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
        }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("kafka")
    authority = Authority()
    authority.write(folder / "ca.pem")
    authority.issue("CN=broker").write_pem(folder / "broker.pem")
    ports = {name: free_port() for name in ("PLAINTEXT", "LOGIN", "OPEN", "MUTUAL", "CONTROLLER")}
    jaas = f"{_LOGIN_MODULES}.plain.PlainLoginModule required user_alice='{MARKER}';"
    scram = f"{_LOGIN_MODULES}.scram.ScramLoginModule required;"
    logins = {}
    for name in ("login", "open"):
        logins |= {
            f"listener.name.{name}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"listener.name.{name}.plain.sasl.jaas.config": jaas,
            f"listener.name.{name}.scram-sha-256.sasl.jaas.config": scram,
            f"listener.name.{name}.scram-sha-512.sasl.jaas.config": scram,
        }
    broker = apache_kafka.ApacheKafka(
        folder,
        **{
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "LOGIN:SASL_SSL,OPEN:SASL_PLAINTEXT,MUTUAL:SSL",
            "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": folder / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "ca.pem",
            "listener.name.mutual.ssl.client.auth": "required",
            **logins,
        },
    )
    broker.bootstrap = f"127.0.0.1:{ports['PLAINTEXT']}"
    try:
        broker.start()
        for each in MECHANISMS[1:]:
            apache_kafka.run_tool(
                "kafka-configs",
                "--bootstrap-server",
                broker.bootstrap,
                "--alter",
                "--entity-type",
                "users",
                "--entity-name",
                "alice",
                "--add-config",
                f"{each}=[password={SCRAM_PASSWORD}]",
            )
        addresses = [f"127.0.0.1:{ports[name]}" for name in ("LOGIN", "OPEN", "MUTUAL")]
        yield Kafka(folder, authority, *addresses)
    finally:
        broker.stop()


async def through(address: str, security: Security, topic: str) -> list[bytes]:
    """What comes out of a topic when it has gone in."""
    async with Cluster(address, request_timeout_ms=20_000, security=security) as cluster:
        async with Producer(cluster) as producer:
            for value in (b"one", b"two"):
                await producer.send_and_wait(topic, value)
        consumer = Consumer(cluster, group_id=topic, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(60):
            consumer.subscribe([topic])
            found: list[bytes] = []
            while len(found) < 2:
                found += [each.value or b"" for each in await consumer.poll(timeout_ms=1000)]
            await consumer.commit()
            return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_logs_in(kafka: Kafka, mechanism: str) -> None:
    encrypted = kafka.settings(mechanism)
    plain = {key: value for key, value in encrypted.items() if not key.startswith("ssl.")}
    plain["security.protocol"] = "SASL_PLAINTEXT"
    topic = f"t-{mechanism.lower()}"
    assert await through(kafka.login, parse_security(encrypted), topic) == [b"one", b"two"]
    assert await through(kafka.open, parse_security(plain), f"{topic}-open") == [b"one", b"two"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_final(kafka: Kafka, mechanism: str) -> None:
    security = parse_security(kafka.settings(mechanism, "wrong"))
    async with Cluster(kafka.login, security=security) as cluster, asyncio.timeout(10):
        with pytest.raises(KafkaError) as caught:
            await cluster.topic("t")
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "uthentication failed" in str(caught.value)


async def test_who_shows_no_certificate(kafka: Kafka) -> None:
    trusted = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.folder / "ca.pem")}
    async with Cluster(kafka.mutual, security=parse_security(trusted)) as cluster:
        with pytest.raises(ConnectionError, match="a certificate of this client"):
            await cluster.refresh(None)


async def test_who_wants_something_else_than_the_listener(kafka: Kafka) -> None:
    async with Cluster(kafka.login) as cluster:
        with pytest.raises(ConnectionError, match="TLS"):
            await cluster.refresh(None)
    async with Cluster(kafka.open) as cluster:
        with pytest.raises(ConnectionError, match="it may want a login"):
            await cluster.refresh(None)


async def test_shows_its_certificate(kafka: Kafka, tmp_path: Path) -> None:
    alice = kafka.authority.issue("CN=alice")
    (tmp_path / "alice.pem").write_text(alice.certificate_pem)
    (tmp_path / "alice.key").write_text(alice.key_pem_with(MARKER))
    security = parse_security(
        {
            "security.protocol": "ssl",
            "ssl.ca.location": str(kafka.folder / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "alice.pem"),
            "ssl.key.location": str(tmp_path / "alice.key"),
            "ssl.key.password": MARKER,
        }
    )
    assert await through(kafka.mutual, security, "t-mutual") == [b"one", b"two"]


async def test_another_authority(kafka: Kafka) -> None:
    security = parse_security({"security.protocol": "SSL", "ssl.ca.pem": Authority().pem})
    async with Cluster(kafka.mutual, security=security) as cluster:
        with pytest.raises(UntrustedError):
            await cluster.refresh(None)


def test_commands_take_javas_file(kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    settings = kafka.settings("SCRAM-SHA-512") | {"bootstrap.servers": kafka.login}
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "kraftpy", "topic", "list", "--command-config", str(file)]
    environment = {key: value for key, value in os.environ.items() if key != "KRAFTPY_BOOTSTRAP"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "no topics yet" in done.stderr or done.stdout.startswith("TOPIC")
