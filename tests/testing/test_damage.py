"""A replica whose disk has damaged it is noticed, kept aside, and fetched again from the others."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy import client
from kraftpy.client import Consumer
from kraftpy.testing import Cluster, ClusterError
from kraftpy.testing.consistency.faults.storage import flip_bits
from tests.replication.support import connect, log_bytes
from tests.server.wire import fetch
from tests.waiting import wait_until


def fill(cluster: Cluster, topic: str = "orders") -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for number in range(40):
        producer.produce(topic, f"{number:>500}".encode(), partition=0)
        assert not producer.flush(20)


def test_a_damaged_replica_is_fetched_again() -> None:
    with Cluster(3, internal_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        before = log_bytes(cluster, victim, "orders")
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        assert log_bytes(cluster, victim, "orders") != before
        wait_until(lambda: victim not in cluster.in_sync("orders"), "it is out of sync", 30.0)
        cluster.restart(victim)
        cluster.wait_healthy()
        assert log_bytes(cluster, victim, "orders") == before
        (aside,) = cluster.nodes[victim].log_dir.glob("orders-*-damaged")
        assert str(aside) in cluster.nodes[victim].log_path.read_text()


def test_a_damaged_replica_that_is_back_before_it_is_missed() -> None:
    """It ends its former life, which is in sync and leads, before it gives up what that had."""
    late = {"broker_disconnect_grace_ms": 60_000, "broker_session_timeout_ms": 60_000}
    with Cluster(3, internal_segment_bytes=4096, **late) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        before = log_bytes(cluster, victim, "orders")
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        assert victim in cluster.in_sync("orders")
        cluster.restart(victim)
        cluster.wait_healthy()
        assert log_bytes(cluster, victim, "orders") == before


def test_a_damaged_log_of_a_topic_that_was_deleted_meanwhile() -> None:
    with Cluster(3, internal_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        cluster.kill(victim)
        assert "orders-0/" in flip_bits(cluster.nodes[victim].log_dir, random.Random(1))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics(["orders"])["orders"].result(30)
        cluster.restart(victim)
        cluster.wait_healthy()
        (aside,) = cluster.nodes[victim].log_dir.glob("orders-*-damaged")
        assert str(aside) in cluster.nodes[victim].log_path.read_text()


def test_the_only_replica_is_never_given_up() -> None:
    with Cluster(1, links=False, internal_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.kill(1)
        flip_bits(cluster.nodes[1].log_dir, random.Random(1))
        with pytest.raises(ClusterError, match="is damaged"):
            cluster.restart(1)
        assert len(list(cluster.nodes[1].log_dir.glob("orders-0/*.log"))) > 3
        assert not list(cluster.nodes[1].log_dir.glob("*-damaged"))


def lose_first_segment(folder: Path) -> None:
    min(folder.glob("*.log")).unlink()


def flip_topic_id(folder: Path) -> None:
    path = folder / "partition.metadata"
    data = bytearray(path.read_bytes())
    at = data.index(b"topic_id: ") + 13
    data[at] = ord("A") if data[at] != ord("A") else ord("B")
    path.write_bytes(data)


def lose_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def lose_files(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


LOSSES = {
    "first": lose_first_segment,
    "flipped": flip_topic_id,
    "folder": lose_folder,
    "files": lose_files,
}


def test_what_is_lost_after_a_clean_stop_is_fetched_again() -> None:
    with Cluster(3, internal_segment_bytes=4096) as cluster:
        for topic in LOSSES:
            fill(cluster, topic)
        cluster.wait_healthy()
        victim = cluster.leader_of("first")
        assert victim is not None
        before = {topic: log_bytes(cluster, victim, topic) for topic in LOSSES}
        cluster.stop(victim)
        for topic, loss in LOSSES.items():
            loss(cluster.nodes[victim].log_dir / f"{topic}-0")
        cluster.restart(victim)
        cluster.wait_healthy()
        assert {topic: log_bytes(cluster, victim, topic) for topic in LOSSES} == before
        assert {name.split("-")[0] for name in damaged_folders(cluster, victim)} == {
            "first",
            "flipped",
            "files",
        }
        log = cluster.nodes[victim].log_path.read_text()
        assert "folders of partitions have disappeared since (folder-0)" in log
        for topic in ("first", "flipped", "files"):
            assert f"set {topic}-0 aside as " in log


def test_an_only_replica_that_lost_something_stops_with_a_sentence() -> None:
    with Cluster(1, links=False, internal_segment_bytes=4096) as cluster:
        fill(cluster)
        cluster.stop(1)
        folder = cluster.nodes[1].log_dir / "orders-0"
        whole = folder.with_name("whole")
        shutil.copytree(folder, whole)
        for loss in LOSSES.values():
            loss(folder)
            with pytest.raises(ClusterError, match="orders-0") as error:
                cluster.restart(1)
            assert "Traceback" not in str(error.value)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
        cluster.restart(1)
        assert log_bytes(cluster, 1, "orders") == contents_of(whole)


def contents_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def damage(cluster: Cluster, node: int, log: str, at: int, batch: int = 1) -> None:
    """Flips a bit in the first segment, `at` bytes into the second batch or another."""
    with min(cluster.nodes[node].log_dir.glob(f"{log}/*.log")).open("r+b") as file:
        data = file.read()
        position = 0
        for _ in range(batch):
            position += 12 + int.from_bytes(data[position + 8 : position + 12])
        file.seek(position + at)
        file.write(bytes([data[position + at] ^ 1]))


def stop_and_damage(cluster: Cluster, node: int, log: str, at: int, batch: int = 1) -> None:
    """Where no start looks: after a clean shutdown."""
    cluster.stop(node)
    damage(cluster, node, log, at, batch)
    cluster.restart(node)
    cluster.wait_healthy()


def lead(cluster: Cluster, topic: str) -> None:
    """Has its preferred leader lead partition 0, though maybe not for long."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition(topic, 0)
    answer = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(30)
    assert answer[partition] is None or answer[partition].name() == "ELECTION_NOT_NEEDED"


def damaged_folders(cluster: Cluster, node: int) -> list[str]:
    return [path.name for path in cluster.nodes[node].log_dir.glob("*-damaged")]


@pytest.mark.parametrize("at", [100, 15], ids=["value", "epoch"])
def test_damage_that_a_leader_has_and_a_new_follower_meets(at: int) -> None:
    """It hands over first, and is given up when two others are in sync."""
    with Cluster(3, internal_segment_bytes=4096, min_insync_replicas=2) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        first, _, third = cluster.replicas_of("orders")
        before = log_bytes(cluster, third, "orders")
        stop_and_damage(cluster, first, "orders-0", at)
        lead(cluster, "orders")
        cluster.kill(third)
        shutil.rmtree(cluster.nodes[third].log_dir / "orders-0")
        cluster.restart(third)
        wait_until(lambda: bool(damaged_folders(cluster, first)), "it is given up", 30.0)
        cluster.wait_healthy()
        assert log_bytes(cluster, first, "orders") == log_bytes(cluster, third, "orders") == before
        assert [name.startswith("orders-0.") for name in damaged_folders(cluster, first)] == [True]
        assert "replica-damaged partition=orders-0" in cluster.nodes[first].log_path.read_text()


def test_two_damaged_replicas_give_a_third_what_each_has() -> None:
    """Neither can be given up before: as many have to be in sync as there are without the third."""
    with Cluster(3, internal_segment_bytes=4096, min_insync_replicas=2) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        first, second, third = cluster.replicas_of("orders")
        before = log_bytes(cluster, third, "orders")
        stop_and_damage(cluster, first, "orders-0", 100, batch=4)
        stop_and_damage(cluster, second, "orders-0", 100, batch=2)
        cluster.kill(third)
        shutil.rmtree(cluster.nodes[third].log_dir / "orders-0")
        cluster.restart(third)
        for damaged in (first, second):
            wait_until(
                lambda damaged=damaged: bool(damaged_folders(cluster, damaged)),
                "both are given up",
                60.0,
            )
        cluster.wait_healthy()
        for node in (first, second, third):
            assert log_bytes(cluster, node, "orders") == before


def test_damage_that_a_consumer_meets() -> None:
    """The followers have these records already; nobody but who reads them finds out."""
    with Cluster(3, internal_segment_bytes=4096, min_insync_replicas=2) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        first = cluster.replicas_of("orders")[0]
        before = log_bytes(cluster, first, "orders")
        stop_and_damage(cluster, first, "orders-0", 100)
        lead(cluster, "orders")
        with connect(cluster, first) as wire:

            def is_given_up() -> bool:
                """A consumer can't use what it gets, and asks again."""
                fetch(wire, "orders", 1)
                return bool(damaged_folders(cluster, first))

            wait_until(is_given_up, "it is given up", 30.0)
        cluster.wait_healthy()
        assert log_bytes(cluster, first, "orders") == before


@pytest.mark.parametrize("at", [7, 4], ids=["behind", "ahead"])
def test_a_first_offset_that_a_consumer_of_ours_meets(at: int) -> None:
    """No checksum covers it: whoever doesn't compare offsets goes on elsewhere in the log."""
    with Cluster(3, internal_segment_bytes=4096, min_insync_replicas=2) as cluster:
        fill(cluster)
        cluster.wait_healthy()
        leader = cluster.leader_of("orders")
        assert leader is not None
        damage(cluster, leader, "orders-0", at)

        async def read() -> list[bytes | None]:
            async with client.Cluster(cluster.bootstrap) as connections:
                consumer = Consumer(connections, auto_offset_reset="earliest")
                consumer.assign([("orders", 0)])
                found: list[bytes | None] = []
                async with asyncio.timeout(30):
                    while len(found) < 40:
                        found += [record.value for record in await consumer.poll()]
                await consumer.close()
                return found

        assert asyncio.run(read()) == [f"{number:>500}".encode() for number in range(40)]
        wait_until(lambda: bool(damaged_folders(cluster, leader)), "it is given up", 30.0)


def test_damage_that_a_coordinator_has() -> None:
    """What was committed is served by one whose records are sound."""
    with Cluster(3, offsets_topic_num_partitions=1, offsets_topic_segment_bytes=4096) as cluster:
        fill(cluster)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False}
        )
        for offset in range(100):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        cluster.wait_healthy()
        victim = cluster.replicas_of("__consumer_offsets")[0]
        stop_and_damage(cluster, victim, "__consumer_offsets-0", 100)
        lead(cluster, "__consumer_offsets")
        wait_until(lambda: bool(damaged_folders(cluster, victim)), "it is given up", 30.0)
        cluster.wait_healthy()
        (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=30)
        assert committed.offset == 99
        consumer.close()


def test_a_damaged_replica_that_is_needed_stays() -> None:
    with Cluster(3, internal_segment_bytes=4096) as cluster:
        first, second = 1, 2
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        orders = NewTopic("orders", 1, replica_assignment=[[first, second]])
        admin.create_topics([orders])["orders"].result(30)
        fill(cluster)
        cluster.wait_healthy()
        stop_and_damage(cluster, first, "orders-0", 100)
        lead(cluster, "orders")
        cluster.kill(second)
        wait_until(
            lambda: cluster.in_sync("orders") == {first}, "its follower is out of sync", 30.0
        )
        shutil.rmtree(cluster.nodes[second].log_dir / "orders-0")
        cluster.restart(second)
        log = cluster.nodes[first].log_path
        wait_until(
            lambda: "not given up yet" in log.read_text(),
            "it says that it is not given up yet",
            30.0,
        )
        assert cluster.leader_of("orders") == first
        assert not damaged_folders(cluster, first)
