"""kafka-delegation-tokens, and Java's clients that log in by a token: on Apache Kafka and here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka, run_tool
from tests.processes import free_port

PASSWORD = "marker-password-3"
USERS = ("alice", "bob")
_MODULES = "org.apache.kafka.common.security"
TOKEN = re.compile(r"^(\S+)\s+(\S{88})\s+User:(\w+)\s+User:(\w+)\s+\[(.*?)\]\s", re.MULTILINE)


@pytest.fixture(params=["Apache Kafka", "kraftpy"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a listener where alice and bob log in by PLAIN, and tokens by SCRAM."""
    port, controller = free_port(), f"127.0.0.1:{free_port()}"
    login = f"127.0.0.1:{port}"
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
    settings: dict[str, object] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},LOGIN://{login},"
        f"CONTROLLER://{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{controller}",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule "
        f"required {users};",
        "delegation.token.secret.key": "a-secret-key",
    }
    if request.param == "kraftpy":
        with Broker(**settings):  # type: ignore[arg-type]
            yield login
        return
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    for name in ("scram-sha-256", "scram-sha-512"):
        settings[f"listener.name.login.{name}.sasl.jaas.config"] = scram
    kafka = ApacheKafka(tmp_path, **settings)
    kafka.bootstrap = str(settings["listeners"]).partition(",")[0].removeprefix("PLAINTEXT://")
    try:
        kafka.start()
        yield login
    finally:
        kafka.stop()


def client(folder: Path, mechanism: str, name: str, password: str, more: str = "") -> str:
    """The configuration of one of Java's clients."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = folder / f"{name}-{mechanism}.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={_MODULES}.{module} required "
        f'username="{name}" password="{password}"{more};\n'
        "default.api.timeout.ms=15000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


def found(text: str) -> dict[str, tuple[str, str, str, str]]:
    """The tokens of a table by their ids: HMAC, owner, requester, renewers."""
    return {match[0]: match[1:] for match in TOKEN.findall(text)}


@pytest.mark.timeout(600)  # a dozen JVMs, one after another
def test_tokens_are_created_used_renewed_and_expired(servers: str, tmp_path: Path) -> None:
    own = {name: client(tmp_path, "PLAIN", name, PASSWORD) for name in USERS}

    def tokens(config: str, *words: str) -> str:
        common = ("--bootstrap-server", servers, "--command-config", config)
        return run_tool("kafka-delegation-tokens", *common, *words)

    def listed(config: str) -> str:
        common = ("--bootstrap-server", servers, "--command-config", config)
        return run_tool("kafka-topics", *common, "--list")

    creation = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    created = found(tokens(own["alice"], *creation))
    ((token_id, (hmac, owner, requester, renewers)),) = created.items()
    assert (owner, requester, renewers) == ("alice", "alice", "User:bob")
    for name in USERS:
        assert found(tokens(own[name], "--describe", "--owner-principal", "User:alice")) == created
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        by_token = client(tmp_path, mechanism, token_id, hmac, ' tokenauth="true"')
        listed(by_token)
    with pytest.raises(RuntimeError, match="UnsupportedByAuthenticationException"):
        tokens(by_token, *creation)
    named = ("--hmac", hmac)
    renewed = tokens(own["bob"], "--renew", *named, "--renew-time-period", "-1")
    assert "Completed renew operation" in renewed
    expired = tokens(own["bob"], "--expire", *named, "--expiry-time-period", "-1")
    assert "Completed expire operation" in expired
    with pytest.raises(RuntimeError, match="DelegationTokenNotFoundException"):
        tokens(own["alice"], "--renew", *named, "--renew-time-period", "-1")
    left = tokens(own["alice"], "--describe", "--owner-principal", "User:alice")
    assert "Total number of tokens : 0" in left
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        listed(by_token)
