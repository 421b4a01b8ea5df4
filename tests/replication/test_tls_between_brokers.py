"""Three brokers that meet over TLS alone, each with a certificate that the others ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import warm
from tests.certificates import Authority
from tests.processes import free_port
from tests.waiting import wait_until

TIMEOUT_S = 60.0
NODES = (1, 2, 3)


class Nodes(NamedTuple):
    client: dict[str, Any]
    addresses: dict[int, str]
    folder: Path

    def log(self, node: int) -> str:
        return (self.folder / f"log{node}").read_text()


@contextmanager
def running(config: Path, log: Path) -> Iterator[Any]:
    with log.open("wb") as out:
        process = warm.popen(
            [sys.executable, "-m", "kraftpy", "server", "--config", str(config)],
            stdout=out,
            stderr=out,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


@contextmanager
def nodes_of(
    folder: Path, strangers: tuple[int, ...] = (), inside_protocol: str = "SSL"
) -> Iterator[Nodes]:
    """A cluster; what `strangers` show to other brokers is signed by nobody that those trust."""
    (folder / "secret").write_text("c2VjcmV0IGVub3VnaCBmb3IgYSB0ZXN0IG9mIFRMUw==\n")
    (folder / "secret").chmod(0o600)
    authority = Authority()
    authority.write(folder / "ca.pem")
    client = authority.issue("CN=client")
    (folder / "client.crt").write_text(client.certificate_pem)
    (folder / "client.key").write_text(client.key_pem)
    ports = {node: (free_port(), free_port()) for node in NODES}
    voters = ",".join(f"{node}@127.0.0.1:{ports[node][1]}" for node in NODES)
    with ExitStack() as stack:
        for node in NODES:
            keystore = authority.issue(f"CN=broker{node}").write_pem(folder / f"broker{node}.pem")
            signing = Authority() if node in strangers else authority
            inside = signing.issue(f"CN=broker{node}").write_pem(folder / f"inside{node}.pem")
            config = folder / f"server{node}.properties"
            config.write_text(
                f"""
                node.id={node}
                controller.quorum.voters={voters}
                listeners=SSL://127.0.0.1:{ports[node][0]},CONTROLLER://127.0.0.1:{ports[node][1]},\\
                    INSIDE://127.0.0.1:{free_port()}
                listener.security.protocol.map=SSL:SSL,INSIDE:{inside_protocol},CONTROLLER:PLAINTEXT
                listener.name.inside.sasl.enabled.mechanisms=SCRAM-SHA-256
                inter.broker.listener.name=INSIDE
                listener.name.inside.ssl.keystore.location={inside}
                controller.listener.names=CONTROLLER
                log.dirs={folder / f"data{node}"}
                kraftpy.quorum.secret.file={folder / "secret"}
                offsets.topic.replication.factor=3
                offsets.topic.num.partitions=3
                default.replication.factor=3
                min.insync.replicas=2
                replica.lag.time.max.ms=2000
                ssl.keystore.type=PEM
                ssl.keystore.location={keystore}
                ssl.truststore.type=PEM
                ssl.truststore.location={folder / "ca.pem"}
                ssl.client.auth=required
                """
            )
            stack.enter_context(running(config, folder / f"log{node}"))
        addresses = {node: f"127.0.0.1:{ports[node][0]}" for node in NODES}
        yield Nodes(
            {
                "bootstrap.servers": ",".join(addresses.values()),
                "security.protocol": "ssl",
                "ssl.ca.location": str(folder / "ca.pem"),
                "ssl.certificate.location": str(folder / "client.crt"),
                "ssl.key.location": str(folder / "client.key"),
            },
            addresses,
            folder,
        )


def make_topic(nodes: Nodes, name: str) -> AdminClient:
    admin = AdminClient(nodes.client)
    wait_until(lambda: len(admin.list_topics(timeout=TIMEOUT_S).brokers) == 3, "all are there")
    topic = NewTopic(name, 3, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([topic])[name].result(TIMEOUT_S)
    return admin


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_records_and_offsets_go_between_brokers_over_tls_alone(
    tmp_path: Path, protocol: str
) -> None:
    """With SASL_SSL brokers log in, too, by the quorum's secret."""
    with nodes_of(tmp_path, inside_protocol=protocol) as nodes:
        make_topic(nodes, "t")
        producer = Producer(nodes.client | {"acks": "all"})
        failed: list[Any] = []
        for number in range(600):
            producer.produce(
                "t",
                bytes(10_000),
                partition=number % 3,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed
        # Groups have their coordinators at all three, and commits are taken by each of them.
        for number in range(6):
            consumer = Consumer(nodes.client | {"group.id": f"g{number}"})
            consumer.commit(offsets=[TopicPartition("t", 0, number + 1)], asynchronous=False)
            committed = consumer.committed([TopicPartition("t", 0)], TIMEOUT_S)
            assert [each.offset for each in committed] == [number + 1]
            consumer.close()
        for node in NODES:
            assert "can't fetch from" not in nodes.log(node).split("broker-started", 1)[-1]


def test_a_broker_with_a_strangers_certificate_gets_no_records(tmp_path: Path) -> None:
    with nodes_of(tmp_path, strangers=(3,)) as nodes:
        admin = AdminClient(nodes.client)
        wait_until(lambda: len(admin.list_topics(timeout=TIMEOUT_S).brokers) == 3, "all are there")
        topic = NewTopic("t", 1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([topic])["t"].result(TIMEOUT_S)
        producer = Producer(nodes.client | {"acks": "all"})
        producer.produce("t", b"x")
        assert producer.flush(TIMEOUT_S) == 0
        wait_until(lambda: "can't fetch from broker 1" in nodes.log(3), "it is told why")
        described = admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions[0]
        assert described.leader == 1
        wait_until(
            lambda: (
                3 not in admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions[0].isrs
            ),
            "it leaves the ISR",
        )
