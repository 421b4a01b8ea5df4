"""Kafka's own tools, and kcat, that have to log in; users made by kafka-configs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import run_tool

PASSWORD = "marker-password-8"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY = "org.apache.kafka.common.security"
MODULES = dict.fromkeys(MECHANISMS, f"{SECURITY}.scram.ScramLoginModule")
MODULES["PLAIN"] = f"{SECURITY}.plain.PlainLoginModule"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.plaintext.plain.sasl.jaas.config": f"{MODULES['PLAIN']} required "
    f'user_admin="{PASSWORD}" user_alice="{PASSWORD}";',
}


def client(folder: Path, mechanism: str, name: str, password: str = PASSWORD) -> str:
    """A client's configuration for Java."""
    path = folder / f"{name}-{mechanism}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={MODULES[mechanism]} required "
        f'username="{name}" password="{password}";\n'
        "default.api.timeout.ms=15000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


def configs(broker: Broker, folder: Path, *words: str) -> str:
    admin = client(folder, "PLAIN", "admin")
    options = ("--bootstrap-server", broker.bootstrap, "--command-config", admin)
    return run_tool("kafka-configs", *options, *words)


def user(name: str) -> tuple[str, ...]:
    return "--entity-type", "users", "--entity-name", name


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("users")
    with Broker(**SETTINGS) as started:  # type: ignore[arg-type]
        both = ",".join(
            f"{each}=[iterations=8192,password={PASSWORD}]"
            for each in MECHANISMS
            if each != "PLAIN"
        )
        said = configs(started, folder, *user("alice"), "--alter", "--add-config", both)
        assert "Completed updating config for user alice" in said
        yield started


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_producer_and_consumer(broker: Broker, mechanism: str, tmp_path: Path) -> None:
    config = client(tmp_path, mechanism, "alice")
    common = ("--bootstrap-server", broker.bootstrap, "--command-config", config)
    topic = f"java-{mechanism}".lower()
    run_tool("kafka-console-producer", *common, "--topic", topic, stdin="one\ntwo\n")
    read = run_tool(
        "kafka-console-consumer",
        *(*common, "--topic", topic),
        *("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"),
    )
    assert sorted(read.split()) == ["one", "two"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_java_hears_that_it_could_not_log_in(
    broker: Broker, mechanism: str, tmp_path: Path
) -> None:
    config = client(tmp_path, mechanism, "alice", "wrong")
    with pytest.raises(RuntimeError, match="SaslAuthenticationException: Authentication failed"):
        run_tool(
            *("kafka-topics", "--bootstrap-server", broker.bootstrap),
            *("--command-config", config, "--list"),
        )


def test_kafka_configs_describes_and_deletes_users(broker: Broker, tmp_path: Path) -> None:
    described = configs(broker, tmp_path, *user("alice"), "--describe")
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=8192" in described
    own = f"SCRAM-SHA-256=[password={PASSWORD}]"
    configs(broker, tmp_path, *user("carol"), "--alter", "--add-config", own)
    assert "SCRAM-SHA-256=iterations=4096" in configs(
        broker, tmp_path, *user("carol"), "--describe"
    )
    configs(broker, tmp_path, *user("carol"), "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in configs(broker, tmp_path, *user("carol"), "--describe")
    with pytest.raises(RuntimeError, match="UnacceptableCredentialException"):
        configs(broker, tmp_path, *user("__broker_1"), "--alter", "--add-config", own)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(broker: Broker, mechanism: str) -> None:
    options = ["-b", broker.bootstrap, "-t", f"kcat-{mechanism}".lower()]
    for setting in (
        "security.protocol=SASL_PLAINTEXT",
        f"sasl.mechanism={mechanism}",
        "sasl.username=alice",
        f"sasl.password={PASSWORD}",
    ):
        options += ["-X", setting]

    def kcat(*words: str, stdin: str = "") -> str:
        return subprocess.run(
            ["kcat", *options, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    kcat("-P", stdin="one\ntwo\n")
    assert kcat("-C", "-e", "-o", "beginning", "-q").split() == ["one", "two"]
