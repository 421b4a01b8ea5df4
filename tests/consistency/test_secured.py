"""A secured cluster of `kraftpy.testing`, and a run against it in which every client logs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kraftpy.client.security import SecurityError
from kraftpy.testing import Broker, Cluster
from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.history import HistoryReader
from kraftpy.testing.view import ask_metadata
from tests import warm
from tests.certificates import Authority

TIMEOUT_S = 60.0
MARKER = "marker-password-7"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, secure=True) as started:
        yield started


def test_a_secured_cluster_is_broken_and_heals(cluster: Cluster) -> None:
    """What is asked of its nodes logs in, links can be cut, and a node comes back."""
    assert cluster.secured is not None
    settings = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(settings | cluster.secured.settings())
    assert set(admin.list_topics(timeout=TIMEOUT_S).brokers) == {1, 2, 3}
    cluster.wait_healthy()
    leader = cluster.controller()
    assert leader is not None
    cluster.isolate(leader)
    cluster.heal()
    cluster.kill(leader)
    cluster.restart(leader)
    cluster.wait_healthy()
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=1)
    node = cluster.nodes[1]
    with pytest.raises(OSError, match=r"closed after 0 of 4 bytes|reset"):
        ask_metadata(node.host, node.port, 2.0)


def test_a_run_against_it_logs_in_with_every_client(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.secured is not None
    file = cluster.secured.users["admin"]
    arguments = ["consistency", "run", "-b", cluster.bootstrap, "--command-config", str(file)]
    arguments += ["--workload", "offsets", "--time-limit", "1", "--concurrency", "6"]
    done = warm.run([*arguments, "--out", str(tmp_path)], b"", os.environ, TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    (history,) = tmp_path.glob("*/history.jsonl")
    text = history.read_text()
    assert HistoryReader(history).header.options["security"] == "SASL_SSL"
    for client in ("confluent-kafka", "kafka-python", "kraftpy"):
        assert f'"client":"{client}"' in text
    password = cluster.secured.settings()["sasl.password"]
    for path in history.parent.rglob("*"):
        assert path.is_dir() or password.encode() not in path.read_bytes(), path


def test_a_secured_broker() -> None:
    with Broker(secure=True) as broker:
        assert broker.secured is not None
        settings = {"bootstrap.servers": broker.bootstrap, **broker.secured.settings("alice")}
        assert AdminClient(settings).list_topics(timeout=TIMEOUT_S).brokers


def test_what_settings_are_in_the_words_of_each_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(secured.VARIABLE, "")
    assert (secured.librdkafkas(), secured.keywords(), secured.javas()) == ({}, {}, "")
    authority = Authority()
    alice = authority.issue("CN=alice")
    given: dict[str, Any] = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": 'al"ice',
        "sasl.password": MARKER,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.write(tmp_path / "ca.pem")),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(alice.write_pem(tmp_path / "alice.pem", MARKER)),
        "ssl.key.password": MARKER,
        "ssl.endpoint.identification.algorithm": "",
    }
    secured.use(given)
    assert secured.own().protocol == "SASL_SSL"
    found = secured.librdkafkas()
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": 'al"ice',
        "sasl.password": MARKER,
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.ca.pem": authority.pem,
        "ssl.key.pem": found["ssl.key.pem"],
        "ssl.certificate.pem": alice.certificate_pem,
        "ssl.key.password": MARKER,
    }
    assert "ENCRYPTED PRIVATE KEY" in found["ssl.key.pem"]
    words = secured.keywords()
    assert words.pop("ssl_context").check_hostname is False
    assert words == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": 'al"ice',
        "sasl_plain_password": MARKER,
    }
    lines = dict(line.split("=", 1) for line in secured.javas().splitlines())
    assert lines["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="al\\\\"ice" password="{MARKER}";'
    )
    assert lines["ssl.truststore.certificates"] == authority.pem.replace("\n", "\\n")
    secured.use({})
    assert secured.own().protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "file:///t"},
            "log in by PLAIN or SCRAM",
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "id",
                "sasl.password": MARKER,
                "kraftpy.sasl.tokenauth": "true",
            },
            "log in by delegation tokens",
        ),
    ],
)
def test_what_not_every_client_can_is_refused_before_a_run(
    settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(secured.VARIABLE, "")
    with pytest.raises(SecurityError, match=said):
        secured.use({"security.protocol": "SASL_PLAINTEXT", **settings})
