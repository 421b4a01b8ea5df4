"""Metrics and the page of a node that is secured: TLS, users, and no secret anywhere."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from cryptography.x509 import load_pem_x509_certificate

from kraftpy.cli.user import command as user_command
from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.core.config import BrokerConfig, parse_properties
from kraftpy.metrics.log_ends import LogEnds
from kraftpy.protocol import messages as m
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.node.metrics_door import door_of
from kraftpy.server.node.page_login import PageSecurity
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.testing import Broker, BrokerError
from tests.certificates import Authority, Issued
from tests.endpoints import metrics_address
from tests.secured import MARKER
from tests.server.test_exporter_limits import exporter_pid
from tests.waiting import wait_until

TIMEOUT_S = 30.0
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_admin="{MARKER}" user_alice="{MARKER}";'
)


def users_line(name: str, password: str) -> str:
    """What `kraftpy user hash` prints."""
    done = CliRunner().invoke(user_command, ["hash", name], input=f"{password}\n")
    assert done.exit_code == 0, done.output
    assert password not in done.output
    return done.stdout


class Node:
    """A broker that has one listener, with SASL_SSL, and its metrics behind TLS and a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = str(self.authority.write(folder / "ca.pem"))
        self.shown = self.authority.issue("CN=metrics")
        self.keystore = self.shown.write_pem(folder / "metrics.pem", MARKER)
        (folder / "users").write_text(users_line("prometheus", MARKER))
        settings: dict[str, Any] = {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.authority.issue("CN=b").write_pem(folder / "b.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:admin",
            "listener.name.metrics.ssl.keystore.location": self.keystore,
            "listener.name.metrics.ssl.key.password": MARKER,
            "kraftpy.metrics.users.file": folder / "users",
        }
        self.broker = Broker(dir=folder / "broker", **settings)
        self.context = ssl.create_default_context(cafile=self.ca)

    def client(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": MARKER,
        }

    def get(self, path: str, password: str | None = MARKER) -> tuple[int, str]:
        host, _, port = metrics_address(self.broker.config).rpartition(":")
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=TIMEOUT_S, context=self.context
        )
        headers = {}
        if password is not None:
            given = base64.b64encode(f"prometheus:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {given}"
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def certificate(self) -> int:
        """The serial number of what is shown where metrics are."""
        host, _, port = metrics_address(self.broker.config).rpartition(":")
        pem = ssl.get_server_certificate((host, int(port)), ca_certs=self.ca, timeout=TIMEOUT_S)
        return serial_number(pem)


def serial_number(pem: str) -> int:
    return load_pem_x509_certificate(pem.encode()).serial_number


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("door"))
    with made.broker:
        yield made


def test_who_has_a_password_sees_metrics_and_page(node: Node) -> None:
    for path in ("/metrics", "/", "/status.json"):
        assert node.get(path)[0] == 200
        assert node.get(path, None)[0] == 401
        assert node.get(path, "wrong")[0] == 401
    for path in ("/healthz", "/readyz"):
        wait_until(lambda path=path: node.get(path, None)[0] == 200, f"{path} is well")
    expiry_s = node.shown.certificate.not_valid_after_utc.timestamp()
    sample = 'kraftpy_tls_certificate_expiry_timestamp_seconds{listener="METRICS"}'
    (line,) = [each for each in node.get("/metrics")[1].splitlines() if each.startswith(sample)]
    assert float(line.split()[1]) == expiry_s


def test_a_new_certificate_is_shown_on_sighup(node: Node) -> None:
    """Of the exporter that runs, and of one that takes its place later."""
    renewed: Issued = node.authority.issue("CN=metrics")
    renewed.write_pem(node.keystore, MARKER)
    os.kill(node.broker.pid, signal.SIGHUP)
    serial = renewed.certificate.serial_number
    wait_until(lambda: node.certificate() == serial, "the new one is shown")
    os.kill(exporter_pid(node.broker), signal.SIGKILL)

    def is_back() -> bool:
        try:
            return node.certificate() == serial
        except OSError:
            return False

    wait_until(is_back, "the next one shows it, too")
    assert "certificate-loaded listener=METRICS" in node.broker.log_path.read_text()


def test_23_no_secret_is_in_a_page_a_log_or_an_answer(node: Node) -> None:
    """Also not in what is on disk, besides the files that the secrets were written into."""
    node.get("/metrics", MARKER + "x")
    texts = {path: node.get(path)[1] for path in ("/metrics", "/", "/status.json")}
    admin = AdminClient(node.client("admin"))
    (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    entries = {entry.name: entry for entry in described.result(TIMEOUT_S).values()}
    key = "listener.name.metrics.ssl.key.password"
    assert entries[key].value is None
    assert entries[key].is_sensitive
    assert entries["kraftpy.metrics.users.file"].value == str(node.folder / "users")
    texts["configs"] = " ".join(f"{each.name}={each.value}" for each in entries.values())
    for path in node.broker.dir.rglob("*"):
        if path.is_file() and path != node.broker.config:
            texts[str(path)] = path.read_bytes().decode("latin-1")
    assert any("__cluster_metadata" in each for each in texts)
    hashed = (node.folder / "users").read_text().partition(":")[2].strip()
    encoded = base64.b64encode(f"prometheus:{MARKER}".encode()).decode()
    for where, text in texts.items():
        for secret in (MARKER, hashed, encoded, "PRIVATE KEY"):
            assert secret not in text, where


def test_the_page_logs_in_where_everybody_has_to(node: Node) -> None:
    """It shows what brokers are asked for, with one listener of SASL_SSL and an authorizer."""
    topic, group = "shown", "readers"
    producer = Producer(node.client("admin"))
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(node.client("admin") | {"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(node.get("/status.json")[1])
        return found

    wait_until(lambda: seen()["groups"] and seen()["brokers"][0]["folders"], "all is asked for")
    found = seen()
    assert found["problems"] == []
    assert {part["problem"] for part in found["parts"].values()} == {None}
    assert [(each["group"], each["lag"]) for each in found["groups"]] == [(group, 3)]
    wait_until(
        lambda: json.loads(node.get(f"/status.json?topic={topic}")[1])["partitions"][0]["end"] == 5,
        "its end is told",
    )
    assert "access-denied" not in node.broker.log_path.read_text()


def security_of(node: Node) -> PageSecurity:
    config = BrokerConfig.from_properties(parse_properties(node.broker.config.read_text()))
    folder = Path(config.metadata_dir) / METADATA_FOLDER
    return PageSecurity(config, folder / "quorum.secret")


def test_a_scrape_asks_others_where_partitions_end(node: Node) -> None:
    producer = Producer(node.client("admin"))
    producer.produce("ended", b"x", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    ends = LogEnds(security_of(node))
    found = ends.ask(node.broker.bootstrap, {("ended", 0): 0}, TIMEOUT_S)
    assert found["ended", 0].offset == 1


async def test_who_asks_for_the_page_can_change_nothing(node: Node) -> None:
    """Its password follows from the quorum's secret, and it isn't a broker."""
    async with Cluster(node.broker.bootstrap, security=security_of(node)) as cluster:
        await cluster.refresh()
        fetch = m.FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=0, topics=[])
        assert (await cluster.request(fetch)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(KafkaError) as raised:
            await Admin(cluster, timeout_ms=5000).create_topic("made", partitions=1, configs={})
        assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_without_the_secret_or_a_file_the_page_says_so(tmp_path: Path) -> None:
    settings = {
        "process.roles": "controller",
        "listeners": "CONTROLLER://127.0.0.1:9093",
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    security = PageSecurity(BrokerConfig.from_properties(settings), tmp_path / "secret")
    with pytest.raises(ConnectionError, match=r"ca\.pem: No such file"):
        _ = security.ssl_context
    with pytest.raises(ConnectionError, match="can't read the quorum's secret"):
        _ = security.login
    authority = Authority()
    authority.write(tmp_path / "ca.pem")
    (tmp_path / "secret").write_text("0123456789abcdef")
    first = security.ssl_context
    assert first is not None
    assert first is security.ssl_context
    assert security.login is not None
    (tmp_path / "ca.pem").write_text("nothing")
    assert security.ssl_context is first
    Authority("CN=Another").write(tmp_path / "ca.pem")
    assert security.ssl_context is not first


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kraftpy.metrics.users.file": "/nowhere/users"}, "No such file or directory"),
        (
            {
                "listener.name.metrics.ssl.keystore.location": "/nowhere/a.pem",
                "listener.name.metrics.ssl.keystore.type": "PEM",
            },
            "/nowhere/a.pem: No such file or directory",
        ),
    ],
)
def test_a_node_whose_door_cant_be_made_doesnt_start(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BrokerError, match=problem):
        Broker(**settings).start()


@pytest.mark.parametrize(
    ("host", "has_users", "has_tls", "warning"),
    [
        ("0.0.0.0", False, False, "sees the names of topics"),
        ("", False, True, "sees the names of topics"),
        ("0.0.0.0", True, False, "takes passwords without TLS"),
        ("0.0.0.0", True, True, ""),
        ("127.0.0.1", False, False, ""),
        ("127.0.0.1", True, False, ""),
    ],
)
def test_a_page_that_others_can_see_is_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    host: str,
    has_users: bool,
    has_tls: bool,
    warning: str,
) -> None:
    (tmp_path / "users").write_text("")
    Authority().issue("CN=m").write_pem(tmp_path / "m.pem")
    settings = {"kraftpy.metrics.listener": f"{host}:9404", "ssl.keystore.type": "PEM"}
    if has_users:
        settings["kraftpy.metrics.users.file"] = str(tmp_path / "users")
    if has_tls:
        settings["listener.name.metrics.ssl.keystore.location"] = str(tmp_path / "m.pem")
    door = door_of(BrokerConfig.from_properties(settings))
    assert (door is not None) == (has_users or has_tls)
    assert (warning in caplog.text) if warning else not caplog.text
