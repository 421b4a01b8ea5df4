"""What the tests of replication do with brokers: write, read, look into the folders."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kraftpy.core.coordination import partition_for
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster
from kraftpy.testing.view import ask_metadata
from tests.server.wire import Wire
from tests.waiting import TIMEOUT_S, wait_until


def batch(*values: bytes, **options: int) -> bytes:
    return build_batch([(1, None, value, []) for value in values], **options)


def connect(cluster: Cluster, node: int) -> Wire:
    return Wire(cluster.nodes[node].host, cluster.nodes[node].port)


class Writer:
    """An idempotent producer with acks=all; `acknowledged` are the values with their offsets."""

    def __init__(self, cluster: Cluster, topic: str, *, padding: int = 0) -> None:
        self.topic = topic
        self._padding = b"." * padding
        self.acknowledged: dict[bytes, int] = {}
        self.failed: list[KafkaError] = []
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": 60_000,
                "log_level": 2,
            }
        )

    def send(self, count: int) -> None:
        """Sends the next values of the sequence, without waiting for them."""
        for _ in range(count):
            value = b"%08d" % self._sent + self._padding
            self._sent += 1
            self._producer.produce(self.topic, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[message.value()] = message.offset()  # type: ignore[attr-defined]

    def wait(self, count: int | None = None) -> None:
        """Waits until so many values (all that were sent by default) are acknowledged."""
        wanted = self._sent if count is None else count
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.acknowledged) < wanted:
            assert not self.failed, self.failed
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {wanted} in time"
            self._producer.poll(0.05)


def read_all(bootstrap: str, topic: str, partition: int = 0, **config: object) -> list[bytes]:
    """The values of a partition, as a stock consumer reads them from the start to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 2,
            **config,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            elif not error.retriable():
                raise KafkaException(error)
        raise AssertionError(f"no end of {topic}-{partition} in {TIMEOUT_S:.0f} s")
    finally:
        consumer.close()


def log_bytes(cluster: Cluster, node: int, topic: str, partition: int = 0) -> bytes:
    """What a node's segments of a partition hold, without what is reserved behind the end."""
    folder = Path(cluster.nodes[node].log_dir) / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def assert_replicas_identical(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """All replicas hold the same bytes, once the last of them has caught up."""

    def same() -> bool:
        return len({log_bytes(cluster, node, topic, partition) for node in cluster.nodes}) == 1

    wait_until(same, f"replicas of {topic}-{partition} are byte-identical")
    assert log_bytes(cluster, next(iter(cluster.nodes)), topic, partition)


def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """The partition's leader; waits until there is one."""
    found: list[int] = []

    def is_led() -> bool:
        leader = cluster.leader_of(topic, partition)
        found.extend([] if leader is None else [leader])
        return leader is not None

    wait_until(is_led, f"{topic}-{partition} has a leader")
    return found[-1]


def coordinator_of(cluster: Cluster, group: str, offsets_partitions: int) -> int:
    """The node that coordinates the group, of an offsets topic with so many partitions."""
    return leader_of(cluster, "__consumer_offsets", partition_for(group, offsets_partitions))


def in_sync(cluster: Cluster, topic: str, node: int, partition: int = 0) -> frozenset[int]:
    """The partition's ISR as the node knows it."""
    host, port = cluster.nodes[node].host, cluster.nodes[node].port
    return ask_metadata(host, port, TIMEOUT_S).partitions[topic, partition].isr
