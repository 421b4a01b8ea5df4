"""Kafka's own tools, and kcat, over TLS and with certificates of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import run_tool
from tests.certificates import Authority
from tests.processes import free_port
from tests.secured import Secured, listening, secured_broker
from tests.server.test_tls import shown_at
from tests.waiting import wait_until

PASSWORD = "a password"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("tls")) as started:
        yield started


def properties(secured: Secured, *, mutual: bool) -> str:
    """A client's configuration for Java: what it trusts in PEM, what it shows in PKCS12."""
    lines = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.ca,
    }
    if mutual:
        own = secured.alice.write_pkcs12(secured.folder / "alice.p12", PASSWORD)
        lines |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(own),
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
        }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    return secured.file(f"client-{mutual}.properties", text)


@pytest.mark.parametrize("mutual", [False, True], ids=["SSL", "MUTUAL"])
def test_javas_producer_and_consumer(secured: Secured, mutual: bool) -> None:
    address = secured.mutual if mutual else secured.ssl
    config = properties(secured, mutual=mutual)
    topic = f"java-{mutual}".lower()
    lines = [f"{number} " + "x" * 2000 for number in range(500)]
    run_tool(
        "kafka-console-producer",
        *("--bootstrap-server", address, "--command-config", config, "--topic", topic),
        stdin="\n".join(lines) + "\n",
    )
    read = run_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", address, "--command-config", config, "--topic", topic),
        *("--from-beginning", "--max-messages", str(len(lines)), "--timeout-ms", "30000"),
    )
    assert sorted(read.split("\n")[: len(lines)]) == sorted(lines)


def test_a_java_client_without_tls_is_refused_and_fails_soon(secured: Secured) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)timed ?out"):
        run_tool(
            "kafka-topics",
            *("--bootstrap-server", secured.ssl, "--list"),
            *(
                "--command-config",
                secured.file("plain", "default.api.timeout.ms=5000\nrequest.timeout.ms=3000\n"),
            ),
        )
    assert "is its security.protocol PLAINTEXT?" in secured.broker.log_path.read_text()


def test_kafka_configs_shows_a_broker_another_certificate(tmp_path: Path) -> None:
    authority = Authority()
    ca = authority.write(tmp_path / "ca.pem")
    first, second = authority.issue(), authority.issue()
    port = free_port()
    with Broker(
        **listening(PLAINTEXT=0, SSL=port),
        ssl_keystore_type="PEM",
        ssl_keystore_location=first.write_pem(tmp_path / "first.pem"),
    ) as broker:
        assert shown_at(f"127.0.0.1:{port}", ca)[0] == first.certificate.serial_number
        second.write_pem(tmp_path / "second.pem")
        config = tmp_path / "client.properties"
        config.write_text(
            f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
        )
        entity = ("--entity-type", "brokers", "--entity-name", "1")
        tool = ("kafka-configs", "--bootstrap-server", f"127.0.0.1:{port}")
        own = "listener.name.ssl.ssl.keystore.location"
        change = f"{own}={tmp_path / 'second.pem'}"
        command = ("--command-config", str(config))
        run_tool(*tool, *command, *entity, "--alter", "--add-config", change)
        wait_until(
            lambda: shown_at(f"127.0.0.1:{port}", ca)[0] == second.certificate.serial_number,
            "the second is shown",
        )
        assert change in run_tool(*tool, *command, *entity, "--describe")
        assert broker.running


@pytest.mark.parametrize("mutual", [False, True], ids=["SSL", "MUTUAL"])
def test_kcat(secured: Secured, mutual: bool) -> None:
    address = secured.mutual if mutual else secured.ssl
    options = ["-b", address, "-X", "security.protocol=ssl", "-X", f"ssl.ca.location={secured.ca}"]
    if mutual:
        own = secured.alice.write_pkcs12(secured.folder / "kcat.p12", PASSWORD)
        options += ["-X", f"ssl.keystore.location={own}", "-X", f"ssl.keystore.password={PASSWORD}"]
    lines = [f"{number} " + "x" * 2000 for number in range(2000)]

    def kcat(*words: str, stdin: str = "") -> str:
        return subprocess.run(
            ["kcat", *options, "-t", f"kcat-{mutual}".lower(), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    kcat("-P", stdin="\n".join(lines) + "\n")
    assert kcat("-C", "-e", "-o", "beginning", "-q").split("\n")[:-1] == lines
