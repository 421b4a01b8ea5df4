"""From plaintext to secured, by rolling restarts under load, in the steps of docs/security.md."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from kraftpy.core.config import parse_properties
from kraftpy.testing import Cluster
from kraftpy.testing.networks.ports import free_ports
from tests.certificates import Authority
from tests.cli.commands import failure, output, run_command
from tests.waiting import wait_until

TIMEOUT_S = 30.0
TOPIC, GROUP = "orders", "kitchen"
PASSWORD = "marker-password-4"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
AS_BROKERS = "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config"
REFUSALS = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


def is_refusal(error: KafkaError) -> bool:
    """Whether a client wasn't let in, or not let do something.

    librdkafka calls it a failed login, too, if the node ends in the middle of one.
    """
    return error.code() in REFUSALS and "Local: Broker transport failure" not in error.str()


class Securing:
    """Three nodes with what they are told next, and how to get at them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._ports = dict(zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True))
        authority = Authority()
        self.ca = str(authority.write(folder / "ca.pem"))
        self.broker_pem = str(authority.issue("CN=broker").write_pem(folder / "broker.pem"))
        self.plain = cluster.bootstrap
        self.secured = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def login(self, user: str) -> dict[str, Any]:
        """A client's settings."""
        return {
            "bootstrap.servers": self.secured,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "ssl.ca.location": self.ca,
        }

    def given(self, user: str) -> tuple[str, ...]:
        """A command's options."""
        file = self._folder / f"{user}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.login(user).items()))
        return "-b", self.secured, "--command-config", str(file)

    def listener(self, node: int) -> str:
        return f"SASL_SSL://127.0.0.1:{self._ports[node]}"

    def roll(self, change: Any, where: tuple[str, ...]) -> None:
        """Restarts each node with other settings, and waits until all is well."""
        for node in self.cluster.nodes:
            self.tell(node, change)
            self.cluster.restart(node)
            self.wait_until_well(where, f"the restart of node {node}")

    def tell(self, node_id: int, change: Any) -> None:
        """Writes other settings for a node."""
        node = self.cluster.nodes[node_id]
        settings = parse_properties(node.config.read_text())
        change(node_id, settings)
        lines = [f"{key}={value}" for key, value in settings.items()]
        node.config.write_text("\n".join([*lines, ""]))

    def wait_until_well(self, where: tuple[str, ...], behind: str) -> None:
        wait_until(
            lambda: run_command("cluster", "health", *where).returncode == 0,
            f"all is well behind {behind}",
            timeout_s=TIMEOUT_S,
        )

    def encrypts_its_quorum(self, node: int) -> bool:
        """Whether who connects to a node's controller is shown its certificate."""
        listeners = parse_properties(self.cluster.nodes[node].config.read_text())["listeners"]
        (own,) = [each for each in listeners.split(",") if each.startswith("CONTROLLER:")]
        host, _, port = own.partition("//")[2].rpartition(":")
        shown = ssl.get_server_certificate((host, int(port)), timeout=TIMEOUT_S)
        return shown.strip() in Path(self.broker_pem).read_text()


class Load:
    """A producer and a consumer that commits, which go on until told to connect otherwise."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.acknowledged: set[bytes] = set()
        self.read: set[bytes] = set()
        self.failures: list[Any] = []
        self.moved = [threading.Event(), threading.Event()]
        self.failed: list[BaseException] = []
        self._last: int | None = None
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._produce, self._consume)
        ]
        for each in self._threads:
            each.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)

    def move(self, settings: dict[str, Any]) -> None:
        """Has both close their clients, and go on with others."""
        for each in self.moved:
            each.clear()
        self.settings = settings
        wait_until(
            lambda: all(each.is_set() for each in self.moved) or self.failed,
            "the clients have moved",
            timeout_s=2 * TIMEOUT_S,
        )

    def stop(self) -> None:
        """Ends the producer; the consumer when it has read all that was acknowledged."""
        self._stop.set()
        for each in self._threads:
            each.join(2 * TIMEOUT_S)
            assert not each.is_alive()

    def _client(self, kind: Any, settings: dict[str, Any], **own: Any) -> Any:
        return kind(
            {**settings, **own, "log_level": 0, "error_cb": self.failures.append},
        )

    def _produce(self) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.add(message.value())
            else:
                self.failures.append(error)

        number = 0
        while not self._stop.is_set():
            settings = self.settings
            producer = self._client(Producer, settings, acks="all")
            while settings is self.settings and not self._stop.wait(0.01):
                producer.produce(TOPIC, b"%d" % number, on_delivery=delivered)
                producer.poll(0)
                number += 1
            assert producer.flush(TIMEOUT_S) == 0
            self.moved[0].set()
        self._last = number

    def _consume(self) -> None:
        own = {
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
        while not self._is_over():
            settings = self.settings
            consumer = self._client(Consumer, settings, **own)
            consumer.subscribe([TOPIC])
            while settings is self.settings and not self._is_over():
                some = consumer.consume(500, 0.2)
                self.failures += [each.error() for each in some if each.error() is not None]
                values = {each.value() for each in some if each.error() is None}
                self.read |= values
                if values:
                    consumer.commit(asynchronous=True)
            consumer.close()
            self.moved[1].set()

    def _is_over(self) -> bool:
        return bool(self.failed) or (self._last is not None and self.acknowledged <= self.read)


@pytest.fixture
def securing(tmp_path: Path) -> Iterator[Securing]:
    with Cluster(3, links=False) as cluster:
        yield Securing(cluster, tmp_path)


@pytest.mark.timeout(180)
def test_a_cluster_is_secured_while_clients_go_on(securing: Securing) -> None:
    plain = securing.plain
    output("topic", "create", TOPIC, "-p", "3", "-r", "3", "-b", plain)
    load = Load({"bootstrap.servers": plain})
    try:
        # 1: a second listener, and an authorizer that lets whoever comes by the first one go on.
        def open_second(node: int, settings: dict[str, str]) -> None:
            settings["listeners"] += f",{securing.listener(node)}"
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": securing.broker_pem,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": securing.ca,
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin;User:ANONYMOUS",
            }

        securing.roll(open_second, ("-b", plain))
        # 2: users and their rights; 3: clients move.
        for user in ("admin", "alice", "mallory", "brokers"):
            output("user", "add", user, "-b", plain, stdin=f"{PASSWORD}\n".encode())
        alice = ("acl", "add", "--allow-principal", "User:alice", "--topic", TOPIC, "-b", plain)
        output(*alice, "--producer")
        output(*alice, "--consumer", "--group", GROUP)
        action = ("--operation", "ClusterAction", "--cluster")
        output("acl", "add", "--allow-principal", "User:brokers", *action, "-b", plain)
        load.move(securing.login("alice"))
        # 4: brokers among themselves, as a user that each listener knows.

        def log_in(node: int, settings: dict[str, str]) -> None:
            line = f'{MODULE} required username="brokers" password="{PASSWORD}";'
            settings |= {
                "security.inter.broker.protocol": "SASL_SSL",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                AS_BROKERS: line,
            }

        admin = securing.given("admin")
        securing.roll(log_in, admin)
        # 5: the first listener is closed; brokers log in by the quorum's secret.

        def close_first(node: int, settings: dict[str, str]) -> None:
            listeners = settings["listeners"].split(",")
            kept = [each for each in listeners if not each.startswith("PLAINTEXT:")]
            settings["listeners"] = ",".join(kept)
            settings["super.users"] = "User:admin"
            settings.pop("advertised.listeners", None)
            del settings[AS_BROKERS]

        securing.roll(close_first, admin)
        output("user", "remove", "brokers", *admin)
        output("acl", "remove", "--principal", "User:brokers", *admin)
        securing.wait_until_well(admin, "the end of the brokers' user")
        # 6: the quorum's links, with the one pause: who has TLS and who hasn't can't talk.

        def encrypt(node: int, settings: dict[str, str]) -> None:
            settings["listener.security.protocol.map"] = "CONTROLLER:SSL,SASL_SSL:SASL_SSL"

        for node in securing.cluster.nodes:
            securing.tell(node, encrypt)
        for nodes in ((1, 2), (3,)):
            securing.cluster.restart(*nodes)
        securing.wait_until_well(admin, "TLS in the quorum")
        assert all(map(securing.encrypts_its_quorum, securing.cluster.nodes))
        reached = len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > reached, "records are written again")
    finally:
        load.stop()
    assert not load.failed
    assert not [str(each) for each in load.failures if is_refusal(each)]
    assert len(load.acknowledged) > 100
    assert load.acknowledged <= load.read
    failure("topic", "list", "-b", plain, "--timeout", "2", code=3)
    failure("topic", "list", "-b", securing.secured, "--timeout", "2", code=3)
    mallory = securing.given("mallory")
    assert TOPIC not in output("topic", "list", *mallory)
    said = run_command("consume", TOPIC, "-o", "start:end", *mallory)
    assert said.returncode == 1
    assert not said.stdout
