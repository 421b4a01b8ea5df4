"""A cluster under load for faults to happen to, and what can be seen of it from outside."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import ProduceRequest
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster
from kraftpy.testing.consistency.faults import cluster_options
from kraftpy.testing.consistency.faults.membership import put_in_order
from kraftpy.testing.consistency.runner import quick_cluster
from kraftpy.testing.view import PartitionView, Peer, ask_metadata
from tests.waiting import wait_until

TOPIC = "t"
ORDERS = {(TOPIC, 0): (1, 2, 3), (TOPIC, 1): (2, 3, 1), (TOPIC, 2): (3, 1, 2)}
RECORD_BYTES = 400
PREPARED = 250  # records in batches as small: a few closed segments in each partition
BATCH_BYTES = 4096
PAUSE_S = 0.02
TIMEOUT_S = 30.0
HEALTHY_S = 60.0


class Load:
    """Sends records one after the other with acks=all, and knows which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[bytes] = set()
        self._waiting = dict.fromkeys(range(len(ORDERS)), 0)
        self._numbers = itertools.count()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "batch.size": BATCH_BYTES,
                "log_level": 0,
            }
        )
        self._going, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        for _ in range(PREPARED):
            self._send()
        self.rest()
        assert len(self.acknowledged) == PREPARED
        self._going.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        # What is left would go to whoever has the cluster's ports next.
        self._producer.purge()
        self._producer.flush(TIMEOUT_S)

    def rest(self) -> None:
        """Send no more for a while, when all that was sent is answered."""
        self._going.clear()
        assert not self._producer.flush(TIMEOUT_S)

    def go_on(self) -> None:
        self._going.set()

    def waiting(self, index: int) -> int:
        """How many records of a partition are sent and not answered."""
        return self._waiting[index]

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            if self._going.is_set():
                self._send()
            self._producer.poll(0)

    def _send(self) -> None:
        number = next(self._numbers)
        index = number % len(ORDERS)
        value = f"{number:08}".encode().ljust(RECORD_BYTES, b".")

        def answered(error: object, _: Message) -> None:
            self._waiting[index] -= 1
            if error is None:
                self.acknowledged.add(value)

        self._waiting[index] += 1
        self._producer.produce(TOPIC, value, partition=index, on_delivery=answered)


class Stage:
    """A cluster of three with one topic under load: partition I is led by node I + 1 if it can."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster, self.load = cluster, load
        settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0}
        self._producers = {acks: Producer({**settings, "acks": acks}) for acks in (1, -1)}

    # -- what is done

    def send(self, index: int, value: bytes, *, acks: int) -> Message:
        """A record that was acknowledged."""
        (answer,) = self.send_all(index, [value], acks=acks, timeout_s=TIMEOUT_S)
        return answer

    def send_all(
        self, index: int, values: Sequence[bytes], *, acks: int, timeout_s: float
    ) -> list[Message]:
        """Those of the records that were acknowledged in time."""
        answers: list[Message] = []

        def answered(error: object, message: Message) -> None:
            if error is None:
                answers.append(message)

        producer = self._producers[acks]
        for value in values:
            producer.produce(TOPIC, value, partition=index, on_delivery=answered)
        producer.flush(timeout_s)
        return answers

    def take(self, leader: int, value: bytes) -> bool:
        """Whether a node takes a record for the partition that it led; nobody else is asked."""
        kinds = ProduceRequest
        data = kinds.PartitionProduceData(leader - 1, build_batch([(-1, None, value, [])]))
        topic = kinds.TopicProduceData(TOPIC, partition_data=[data])
        request = kinds(acks=1, timeout_ms=1000, topic_data=[topic])
        node = self.cluster.nodes[leader]
        with Peer(node.host, node.port, TIMEOUT_S) as peer:
            answer = peer.ask(ApiKey.PRODUCE, 9, request)
        return not answer.responses[0].partition_responses[0].error_code

    def put_in_order(self) -> None:
        cluster = self.cluster
        cluster.wait_healthy(HEALTHY_S)
        wait_until(
            lambda: self._is_in_order() or (put_in_order(cluster, ORDERS) and self._is_in_order()),
            "the replicas are where they were, and lead as they did",
            TIMEOUT_S,
        )
        cluster.wait_healthy(HEALTHY_S)

    def _is_in_order(self) -> bool:
        return all(
            (each.replicas, each.leader) == (ORDERS[name], ORDERS[name][0])
            for name, each in self.partitions().items()
        )

    # -- what can be seen

    def pids(self) -> dict[int, list[int]]:
        return {node.id: node.pids for node in self.cluster.nodes.values()}

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """The topic's, as a node sees it that runs."""
        nodes = self.cluster.nodes.values()
        node = next(each for each in nodes if not each.ended and not each.paused)
        view = ask_metadata(node.host, node.port, TIMEOUT_S)
        return {name: view.partitions[name] for name in ORDERS}

    def log(self, node: int, index: int) -> bytes:
        folder = self.cluster.nodes[node].log_dir / f"{TOPIC}-{index}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def logs(self, node: int) -> list[bytes]:
        return [self.log(node, index) for _, index in ORDERS]

    def wrong_s(self, node: int) -> tuple[float, float]:
        """Bounds for how far a node's clock is ahead of this machine's, by what it writes."""
        before_s = time.time()
        _, stamp_ms = self.send(node - 1, b"what time is it?", acks=1).timestamp()
        return stamp_ms / 1000 - time.time(), (stamp_ms + 1) / 1000 - before_s

    def lost(self) -> set[bytes]:
        """What was acknowledged, and is not there."""
        wanted = set(self.load.acknowledged)
        settings = {"group.id": "reader", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, **settings})
        consumer.assign([TopicPartition(*name, 0) for name in ORDERS])
        deadline = time.monotonic() + TIMEOUT_S
        while wanted and time.monotonic() < deadline:
            wanted -= {each.value() for each in consumer.consume(1000, 0.2) if not each.error()}
        consumer.close()
        return wanted


@contextmanager
def stage(faults: Sequence[str]) -> Iterator[Stage]:
    """One on which these kinds can happen."""
    with quick_cluster(3, **cluster_options(faults)) as cluster:
        topic = NewTopic(
            TOPIC,
            len(ORDERS),
            replica_assignment=[list(each) for each in ORDERS.values()],
            config={"message.timestamp.type": "LogAppendTime"},  # a node's own clock
        )
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        cluster.wait_healthy(HEALTHY_S)
        with Load(cluster.bootstrap) as load:
            yield Stage(cluster, load)
