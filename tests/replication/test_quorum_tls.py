"""Three nodes whose controllers and brokers talk over TLS, and the secret of a quorum replaced."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from confluent_kafka import Producer

from kraftpy.testing import Cluster
from tests.certificates import Authority
from tests.replication.conftest import NewTopicMaker

MAP = "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"


def produce(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    errors: list[object] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert errors == [None]


def controller_address(cluster: Cluster, node: int) -> tuple[str, int]:
    """Where a node's controller listens, by its own configuration."""
    text = (cluster.dir / f"node{node}" / "server.properties").read_text()
    (line,) = [each for each in text.splitlines() if each.startswith("listeners=")]
    host, _, port = line.partition("CONTROLLER://")[2].rpartition(":")
    return host, int(port)


def test_the_quorum_is_encrypted(tmp_path: Path, new_topic: NewTopicMaker) -> None:
    keystore = Authority().issue().write_pem(tmp_path / "controller.pem")
    with Cluster(
        3,
        links=False,
        listener_security_protocol_map=MAP,
        **{
            "listener.name.controller.ssl.keystore.location": keystore,
            "listener.name.controller.ssl.keystore.type": "PEM",
        },
    ) as cluster:
        topic = new_topic(cluster)
        produce(cluster, topic)
        victim = cluster.controller()
        assert victim is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(controller_address(cluster, victim)) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            assert encrypted.version() == "TLSv1.3"
        cluster.kill(victim)
        produce(cluster, topic)
        cluster.restart(victim)
        cluster.wait_healthy()


def test_its_secret_is_replaced_while_it_runs(tmp_path: Path, new_topic: NewTopicMaker) -> None:
    """A node is killed and comes back at every step."""
    with Cluster(3, dir=tmp_path / "c", links=False) as cluster:
        topic = new_topic(cluster)
        file = tmp_path / "c" / "quorum.secret"
        old, new = file.read_text().strip(), "another secret, long enough"
        for step, lines in enumerate(([old, new], [new, old], [new]), 1):
            following = file.with_name("following")
            following.write_text("\n".join([*lines, ""]))
            following.replace(file)
            cluster.kill(step)
            produce(cluster, topic)
            cluster.restart(step)
            cluster.wait_healthy()
        assert "read again" in (tmp_path / "c" / "node1" / "log").read_text()
