"""Java's clients with tokens, and where a login counts for a time (KIP-255, KIP-368, KIP-768)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import run_tool
from tests.tokens import Issuer, write_keys

PASSWORD = "marker-password-14"
SECURITY = "org.apache.kafka.common.security"
ISSUER = Issuer()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{SECURITY}.plain.PlainLoginModule "
        f'required user_alice="{PASSWORD}";',
        "listener.name.plaintext.plain.connections.max.reauth.ms": 3000,
        "listener.name.plaintext.oauthbearer.sasl.server.callback.handler.class": f"{SECURITY}"
        ".oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": write_keys(keys, ISSUER),
        "sasl.oauthbearer.expected.audience": "kafka",
        "kraftpy.log.level": "debug",
    }
    with Broker(**settings) as started:
        yield started


def plain(folder: Path) -> str:
    return written(
        folder / "plain.properties",
        "sasl.mechanism=PLAIN",
        f"sasl.jaas.config={SECURITY}.plain.PlainLoginModule required "
        f'username="alice" password="{PASSWORD}";',
    )


def by_token(folder: Path, monkeypatch: pytest.MonkeyPatch, issuer: Issuer, **more: Any) -> str:
    """A client whose token is in a file, as Java reads it only where it's told that it may."""
    file = folder / "token"
    file.write_text(issuer.token(aud="kafka", **more))
    options = [
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}={value}"
        for what, value in (("urls", file.as_uri()), ("files", file))
    ]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(options))
    return written(
        folder / "token.properties",
        "sasl.mechanism=OAUTHBEARER",
        f"sasl.jaas.config={SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        f"sasl.login.callback.handler.class={SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        f"sasl.oauthbearer.jwt.retriever.class={SECURITY}.oauthbearer.FileJwtRetriever",
        f"sasl.oauthbearer.token.endpoint.url={file.as_uri()}",
    )


def written(path: Path, *lines: str) -> str:
    path.write_text(
        "\n".join(
            [
                "security.protocol=SASL_PLAINTEXT",
                "default.api.timeout.ms=15000",
                "request.timeout.ms=10000",
                *lines,
            ]
        )
    )
    return str(path)


def round_trip(broker: Broker, config: str, topic: str, client: str, wait_ms: int) -> list[str]:
    """What comes out of a topic when it has gone in; the consumer stays for so long."""
    common = ("--bootstrap-server", broker.bootstrap, "--command-config", config)
    run_tool("kafka-console-producer", *common, "--topic", topic, stdin="one\ntwo\n")
    read = run_tool(
        "kafka-console-consumer",
        *(*common, "--topic", topic, "--from-beginning", "--timeout-ms", str(wait_ms)),
        *("--command-property", f"client.id={client}"),
    )
    # It says on the same way that nothing more has come.
    return sorted(line for line in read.splitlines() if line in ("one", "two"))


def test_java_logs_in_again_on_its_connections(broker: Broker, tmp_path: Path) -> None:
    assert round_trip(broker, plain(tmp_path), "again", "java-again", 8000) == ["one", "two"]
    assert re.search(r"java-again \(\S+\) has logged in again", broker.log_path.read_text())


def test_java_logs_in_by_a_token(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = by_token(tmp_path, monkeypatch, ISSUER)
    assert round_trip(broker, config, "tokens", "java-token", 4000) == ["one", "two"]


def test_java_hears_that_its_token_is_not_taken(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = by_token(tmp_path, monkeypatch, Issuer(), exp=int(time.time()) + 600)
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        run_tool(
            *("kafka-topics", "--bootstrap-server", broker.bootstrap),
            *("--command-config", config, "--list"),
        )
