"""Controllers and brokers on nodes of their own: `process.roles` with one of the two."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import warm
from tests.processes import free_port

CONTROLLERS, BROKERS = (101, 102, 103), (1, 2, 3)


class Nodes:
    """Nodes that `kraftpy server` runs, each by its configuration file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {node: free_port() for node in (*CONTROLLERS, *BROKERS)}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "secret").write_text("sixteen bytes or more of it\n")

    def start(self, node: int, role: str, quorum: str, *, secret: bool = True) -> None:
        name = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        settings = {
            "node.id": node,
            "process.roles": role,
            "listeners": f"{name}://127.0.0.1:{self.ports[node]}",
            "log.dirs": self.folder / f"node-{node}",
            # A broker that is gone is noticed in 3 s instead of 9.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
        }
        if secret:
            settings["kraftpy.quorum.secret.file"] = self.folder / "secret"
        lines = [f"{key}={value}" for key, value in settings.items()]
        config = self.folder / f"{node}.properties"
        config.write_text("\n".join([*lines, quorum]))
        with (self.folder / f"{node}.log").open("ab") as log:
            command = [sys.executable, "-m", "kraftpy", "server", "--config", config]
            self.processes[node] = warm.popen(command, stdout=log, stderr=log)

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def log(self, node: int) -> str:
        return (self.folder / f"{node}.log").read_text()

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node) for node in BROKERS)


@contextlib.contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    started = Nodes(folder)
    try:
        yield started
    finally:
        for node in list(started.processes):
            started.kill(node)


def wait_for_brokers(admin: AdminClient, wanted: set[int]) -> None:
    deadline = time.monotonic() + 60
    there: set[int] = set()
    while there != wanted:
        assert time.monotonic() < deadline
        # While no broker answers librdkafka gives up at once or after its timeout.
        with contextlib.suppress(KafkaException):
            there = set(admin.list_topics(timeout=1).brokers)
        time.sleep(0.05)


def write(nodes: Nodes, topic: str, count: int) -> None:
    """Have so many records acknowledged by all in-sync replicas."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "acks": "all"})
    for n in range(count):
        producer.produce(topic, str(n), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * count


def active_controller(nodes: Nodes) -> int:
    """The controller that was elected last."""
    terms = {
        int(line.rpartition("=")[2]): node
        for node in CONTROLLERS
        for line in nodes.log(node).splitlines()
        if f"quorum-leader voter={node} leader={node} " in line
    }
    return terms[max(terms)]


def test_controllers_and_brokers_apart_survive_the_loss_of_one_of_each(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        voters = ",".join(f"{node}@{cluster.address(node)}" for node in CONTROLLERS)
        for node in CONTROLLERS:
            cluster.start(node, "controller", f"controller.quorum.voters={voters}")
        for node in BROKERS[:2]:
            cluster.start(node, "broker", f"controller.quorum.voters={voters}")
        one_of_them = cluster.address(CONTROLLERS[1])
        cluster.start(BROKERS[2], "broker", f"controller.quorum.bootstrap.servers={one_of_them}")
        admin = AdminClient(
            {"bootstrap.servers": cluster.bootstrap, "reconnect.backoff.max.ms": 200}
        )
        wait_for_brokers(admin, {1, 2, 3})
        topic = NewTopic("t", 6, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result()
        write(cluster, "t", 100)
        cluster.kill(active_controller(cluster))
        cluster.kill(BROKERS[0])
        write(cluster, "t", 100)
        wait_for_brokers(admin, {2, 3})


def test_a_broker_needs_the_secret(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        cluster.start(1, "broker", "controller.quorum.voters=101@127.0.0.1:1", secret=False)
        assert cluster.processes[1].wait(10) == 4
        assert "needs a shared secret" in cluster.log(1)
