"""The lag that a cluster's nodes serve: right for every group, whoever leads what it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster
from kraftpy.testing.cluster import Node
from tests.cli.commands import run_command
from tests.server.test_metrics import TIMEOUT_S, scrape
from tests.waiting import wait_until

PARTITIONS = 3
TOPICS = ("a", "b")
GROUPS = tuple(f"g{number}" for number in range(6))
LAG = "kafka_consumergroup_lag"
Lags = dict[tuple[str, str, int], float]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Topics with one replica of each partition, spread over the nodes; groups of each node."""
    with Cluster(3, offsets_topic_num_partitions=3) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        for future in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in TOPICS]).values():
            future.result()
        yield started


def produce(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def commit(cluster: Cluster, group: str, offsets: dict[tuple[str, int], int]) -> None:
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0}
    consumer = Consumer(config | {"enable.auto.commit": False})
    wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
    assert consumer.commit(offsets=wanted, asynchronous=False) is not None
    consumer.close()


def ends(cluster: Cluster) -> dict[tuple[str, int], int]:
    """The high watermarks as librdkafka asks for them."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "asks", "log_level": 0}
    consumer = Consumer(config)
    found = {
        (topic, index): consumer.get_watermark_offsets(TopicPartition(topic, index), TIMEOUT_S)[1]
        for topic in TOPICS
        for index in range(PARTITIONS)
    }
    consumer.close()
    return found


def served(cluster: Cluster) -> Lags:
    """The lag of every partition of every group; each is served by one running node only."""
    found: Lags = {}
    for node in cluster.nodes.values():
        if not node.running:
            continue
        for key, value in scrape(node.config).items():
            if key[0] == LAG:
                assert value >= 0
                name = (key[1], key[3], int(key[2]))
                assert name not in found, f"{name} is served by two nodes"
                found[name] = value
    return found


def test_the_lag_of_every_group_is_right_whoever_leads(cluster: Cluster) -> None:
    committed = {group: 3 * number for number, group in enumerate(GROUPS)}
    for topic in TOPICS:
        for index in range(PARTITIONS):
            produce(cluster, topic, index, 20 + index)
    for group, offset in committed.items():
        commit(cluster, group, {(t, p): offset for t in TOPICS for p in range(PARTITIONS)})
    expected = {
        (group, topic, index): end - offset
        for group, offset in committed.items()
        for (topic, index), end in ends(cluster).items()
    }
    assert served(cluster) == expected
    scrapes = [scrape(node.config) for node in cluster.nodes.values()]
    for group in GROUPS:
        key = (f"{LAG}_sum", group, "a")
        sums = [found[key] for found in scrapes if key in found]
        assert sums == [sum(expected[group, "a", p] for p in range(PARTITIONS))]
        done = run_command("group", "describe", group, "-o", "json", bootstrap=cluster.bootstrap)
        assert done.returncode == 0, done.stderr
        (described,) = json.loads(done.stdout)
        rows = {
            (group, row["topic"], row["partition"]): row["lag"] for row in described["partitions"]
        }
        assert rows == {name: lag for name, lag in expected.items() if name[0] == group}


def test_lag_stays_right_while_nodes_and_topics_go(cluster: Cluster) -> None:
    """Of a dead leader the last known is served, of a deleted topic nothing, groups move on."""
    everything = {(t, p): 5 for t in TOPICS for p in range(PARTITIONS)}
    for topic, index in everything:
        produce(cluster, topic, index, 20)
    for group in GROUPS:
        commit(cluster, group, everything)
    expected = {(group, *name): 15.0 for group in GROUPS for name in everything}
    assert served(cluster) == expected
    victim = cluster.leader_of("a")
    assert victim is not None
    orphans = {("a", p) for p in range(PARTITIONS) if cluster.leader_of("a", p) == victim}
    orphans |= {("b", p) for p in range(PARTITIONS) if cluster.leader_of("b", p) == victim}
    cluster.kill(victim)
    kept = {name: lag for name, lag in expected.items() if name[1:] not in orphans}

    def moved() -> bool:
        """Its groups have another coordinator; the new one may never have known the dead ends."""
        found = served(cluster)
        assert all(expected[name] == lag for name, lag in found.items())
        return kept.items() <= found.items()

    wait_until(moved, "the groups of the dead coordinator are served by another one")
    for topic, index in everything.keys() - orphans:
        produce(cluster, topic, index, 10)
        kept |= {(group, topic, index): 25.0 for group in GROUPS}

    def grown() -> bool:
        found = served(cluster)
        assert all(lag in (15, 25) for lag in found.values())
        return kept.items() <= found.items()

    wait_until(grown, "the lag of partitions that grew has grown")
    cluster.restart(victim)
    cluster.wait_healthy()
    expected |= kept

    wait_until(lambda: served(cluster) == expected, "all is back after the restart")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.delete_topics(["b"])["b"].result()
    rest = {name: lag for name, lag in expected.items() if name[1] == "a"}
    wait_until(lambda: served(cluster) == rest, "the lag of a topic that is gone is gone")


def test_a_coordinator_that_is_cut_off_stops_serving_its_groups() -> None:
    """By the time that the others have fenced it, they are another coordinator's."""
    settings = {
        "offsets_topic_num_partitions": 3,
        "broker_session_timeout_ms": 2000,
        "broker_heartbeat_interval_ms": 500,
    }
    with Cluster(3, **settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("a", 1, 3)])["a"].result()
        produce(cluster, "a", 0, 10)
        for group in GROUPS:
            commit(cluster, group, {("a", 0): 4})
        old = next(node for node in cluster.nodes.values() if groups_of(node))
        cut_off = groups_of(old)
        cluster.isolate(old.id)
        wait_until(lambda: not groups_of(old), "it no longer serves groups that it has lost")
        others = [node for node in cluster.nodes.values() if node is not old]

        def moved() -> bool:
            return cut_off <= set().union(*(groups_of(node) for node in others))

        wait_until(moved, "others serve its groups")


def groups_of(node: Node) -> set[str]:
    """The groups that a node serves."""
    return {key[1] for key in scrape(node.config) if key[0] == "kafka_consumergroup_members"}
