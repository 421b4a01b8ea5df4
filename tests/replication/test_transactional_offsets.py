"""Offsets in transactions on three nodes: coordinators are killed, and each record counts once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Cluster
from tests.clients.pipelines import ConfluentConsumer, Own, Pipeline
from tests.server.test_transactional_offsets import UNSTABLE, Group
from tests.server.test_transactions import Id
from tests.waiting import wait_until

from .support import connect, leader_of, read_all
from .test_moving import reassign

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
RECORDS = 60
TIMEOUT_S = 90.0

NewTopicMaker = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node coordinates all groups, another one all transactions."""
    one = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    with Cluster(3, group_initial_rebalance_delay_ms=100, **one) as started:
        with connect(started, 1) as wire:
            for key_type in (0, 1):
                find = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
                (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators
                assert found.error_code == E.NONE
        started.wait_healthy()
        yield started


def spread(cluster: Cluster) -> tuple[int, int]:
    """The coordinator of the groups, and that of the transactions: two nodes."""
    groups, transactions = leader_of(cluster, OFFSETS), leader_of(cluster, TRANSACTIONS)
    if groups == transactions:
        others = [node for node in cluster.nodes if node != transactions]
        reassign(cluster, OFFSETS, others)
        wait_until(lambda: leader_of(cluster, OFFSETS) in others, "another one leads")
        groups = leader_of(cluster, OFFSETS)
        wait_until(lambda: _is_reassigned(cluster, others), "the move is over")
        reassign(cluster, OFFSETS, [groups, *(n for n in cluster.nodes if n != groups)])
        cluster.wait_healthy()
    return groups, transactions


def _is_reassigned(cluster: Cluster, nodes: list[int]) -> bool:
    return set(cluster.replicas_of(OFFSETS)) == set(nodes)


def test_pending_offsets(cluster: Cluster, new_topic: NewTopicMaker) -> None:
    """In flight, overtaken, and read again by the next coordinator."""
    topic = new_topic(cluster)
    groups, transactions = spread(cluster)
    (third,) = cluster.nodes.keys() - {groups, transactions}
    with connect(cluster, transactions) as wire, connect(cluster, groups) as another:
        group = Group(wire, "g")
        opened, overtaken = (Id(wire, name).begin() for name in ("opened", "overtaken"))
        assert group.add(overtaken) is group.add(opened) is E.NONE
        assert group.commit_in(overtaken, topic, 5) is E.NONE
        assert group.commit(topic, 6) is E.NONE
        assert group.offset(topic) == 6
        cluster.pause(third)
        token = threading.Thread(target=Group(another, "g").commit_in, args=(opened, topic, 7))
        token.start()
        wait_until(lambda: group.offset(topic) is UNSTABLE, "the commit is on its way")
        assert token.is_alive(), "it isn't committed"
        assert group.offset(topic, stable=False) == 6
        cluster.resume(third)
        token.join()
        assert group.offset(topic) is UNSTABLE
        cluster.kill(groups)
        wait_until(lambda: leader_of(cluster, OFFSETS) != groups, "another one leads")
        wait_until(lambda: group.offset(topic, stable=False) == 6, "it has read the log")
        assert group.offset(topic) is UNSTABLE
        assert overtaken.end() is E.NONE
        overtaken.wait_ended()
        assert group.offset(topic, stable=False) == 6
        assert opened.end() is E.NONE
        opened.wait_ended()
        assert group.offset(topic) == 7
    cluster.restart(groups)
    cluster.wait_healthy()


class Transform(threading.Thread):
    """A pipeline that begins anew whenever something fails, as a supervisor would have it."""

    def __init__(
        self, kind: type[Pipeline], cluster: Cluster, source: str, target: str, group: str
    ) -> None:
        super().__init__()
        self._make = lambda: kind(cluster.bootstrap, f"id-{group}", group)
        self._source, self._target = source, target
        self._stopped = threading.Event()
        self.taken = self.failures = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(Exception):
                self._go_on(self._make())
            self.failures += 1

    def _go_on(self, pipeline: Pipeline) -> None:
        try:
            while not self._stopped.is_set():
                self.taken += pipeline.step(self._source, self._target)
        finally:
            pipeline.vanish()

    def wait_progress(self) -> None:
        before = self.taken
        wait_until(lambda: self.taken > before, "it goes on", TIMEOUT_S)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Feed:
    """What there is to transform, some at a time."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.values: list[bytes] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap})

    def send(self) -> None:
        for _ in range(RECORDS):
            value = b"%d" % len(self.values)
            self._producer.produce(self._topic, value, partition=len(self.values) % 2)
            self.values.append(value)
        assert self._producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize("kind", [ConfluentConsumer, Own], ids=lambda kind: kind.name)
def test_transform_killed(cluster: Cluster, kind: type[Pipeline]) -> None:
    """Each record counts once, whoever is killed amid it."""
    source, target, group = (f"{each}-{kind.name}" for each in ("source", "target", "group"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(source, 2, 3), NewTopic(target, 1, 3)]).values():
        made.result(timeout=20)
    feed = Feed(cluster, source)
    transform = Transform(kind, cluster, source, target, group)
    transform.start()
    try:
        for topic in (OFFSETS, TRANSACTIONS):
            feed.send()
            transform.wait_progress()
            feed.send()
            victim = leader_of(cluster, topic)
            cluster.kill(victim)
            wait_until(lambda: leader_of(cluster, topic) != victim, "another one leads")  # noqa: B023
            feed.send()
            transform.wait_progress()
            cluster.restart(victim)
            cluster.wait_healthy()
        count = len(feed.values)
        wait_until(lambda: committed(cluster, source, group) == count, "the end", TIMEOUT_S)
    finally:
        transform.stop()
    seen = read_all(cluster.bootstrap, target, **{"isolation.level": "read_committed"})
    assert sorted(seen) == sorted(feed.values)


def committed(cluster: Cluster, topic: str, group: str) -> int:
    """How far the group has come."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, index) for index in range(2)], 20)
        return sum(max(each.offset, 0) for each in found)
    finally:
        consumer.close()
