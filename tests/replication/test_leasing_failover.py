"""Members that lease batches of one partition, as processes: one is killed, then the leader is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kraftpy.testing import Cluster
from tests.cli.commands import output
from tests.replication.support import leader_of
from tests.waiting import wait_until

TOPIC, GROUP = "uploads", "thumbnails"
LONG_S = 60.0
HELD_MAX = 300
"""So many records lie in the batches that a member has at most: what it's handed, and the next."""

MEMBER = """
import asyncio, sys
from kraftpy.client import Cluster, Consumer
from kraftpy.client.group import GroupTimes

async def main(bootstrap, topic, group):
    times = GroupTimes(session_timeout_ms=3000, heartbeat_interval_ms=200)
    async with Cluster(bootstrap) as cluster, Consumer(
        cluster,
        group_id=group,
        assignors=["kraftpy-cooperative-fetch"],
        times=times,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
        fetch_max_wait_ms=100,
        max_partition_fetch_bytes=1000,
    ) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            await asyncio.sleep(0.002)
            print(record.offset, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Member:
    """A process of its own; `processed` are the offsets that it has worked on."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._path = path
        command = [sys.executable, "-c", MEMBER, cluster.bootstrap, TOPIC, GROUP]
        with path.open("wb") as out, path.with_suffix(".log").open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors)

    @property
    def processed(self) -> list[int]:
        lines = self._path.read_bytes().split(b"\n")[:-1]
        return [int(line) for line in lines]

    def check(self) -> None:
        assert self.process.poll() is None, self._path.with_suffix(".log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def members(cluster: Cluster, folder: Path, count: int) -> Iterator[list[Member]]:
    started = [Member(cluster, folder / f"member-{number}") for number in range(count)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()


def committed(cluster: Cluster) -> int:
    """The group's offset, -1 while nobody tells it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0)])]
    try:
        found = admin.list_consumer_group_offsets(wanted, request_timeout=5)[GROUP].result(10)
    except KafkaException:
        return -1
    return int(found.topic_partitions[0].offset)


def feed(cluster: Cluster, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "batch.num.messages": 20}
    )
    for _ in range(count):
        producer.produce(TOPIC, b"v" * 20, partition=0)
    assert producer.flush(LONG_S) == 0


def test_what_a_killed_member_and_a_killed_leader_had_is_processed(
    kraftpy_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = kraftpy_cluster(
        3, group_initial_rebalance_delay_ms=100, group_min_session_timeout_ms=500
    )
    create = ("topic", "create", TOPIC, "-r", "3", "-c", "accept.range.fetch=true")
    output(*create, bootstrap=cluster.bootstrap)
    feed(cluster, 1_000)
    with members(cluster, tmp_path, 4) as started:
        killed, *others = started

        def all_processed(end: int) -> bool:
            for each in others:
                each.check()
            return {o for each in started for o in each.processed} == set(range(end))

        def all_committed(end: int) -> bool:
            return committed(cluster) == end

        wait_until(lambda: all(len(each.processed) > 20 for each in started), "all at work", LONG_S)
        killed.kill()
        wait_until(lambda: all_processed(1_000), "what it had, too", LONG_S)
        wait_until(lambda: all_committed(1_000), "S at the end", LONG_S)
        assert all(len(each.processed) > 100 for each in others)
        more = sum(len(each.processed) for each in started) - 1_000
        assert more <= HELD_MAX, "others have done again what it hadn't committed, no more"

        feed(cluster, 600)
        wait_until(lambda: committed(cluster) > 1_100, "some of that", LONG_S)
        cluster.kill(leader_of(cluster, TOPIC))
        wait_until(lambda: all_processed(1_600), "all of that", LONG_S)
        wait_until(lambda: all_committed(1_600), "S at the end", LONG_S)
        times = Counter(o for each in started for o in each.processed)
        assert sum(times[o] - 1 for o in range(1_100)) <= more, (
            "what is committed isn't dealt again"
        )
