"""kraftpy's own producer and consumers while nodes die: nothing lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import time

from kraftpy.client.cluster import Cluster as Connected
from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import Coordinator
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.group import GroupTimes
from kraftpy.client.offsets import LATEST, Partition, list_offsets
from kraftpy.client.producer import Producer
from kraftpy.protocol import messages
from kraftpy.testing import Cluster

from .conftest import NewTopicMaker

PARTITIONS = 3
RECORDS = 6000
DEADLINE_S = 90
TIMES = GroupTimes(session_timeout_ms=6000, heartbeat_interval_ms=200, max_poll_interval_ms=20_000)


class Run:
    """What was written and read so far."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.seen: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        self.committed: dict[Partition, int] = {}
        self.finished = False


async def write(bootstrap: str, topic: str, run: Run) -> None:
    """Numbers 0 to RECORDS - 1, round robin over the partitions."""

    def delivered(number: int, place: object, error: Exception | None) -> None:
        assert error is None, error
        run.acknowledged += 1

    async with (
        Connected(bootstrap, request_timeout_ms=10_000) as cluster,
        Producer(cluster, batch_size_bytes=2000, linger_ms=2) as producer,
    ):
        for number in range(RECORDS):
            await producer.send(
                topic,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda place, error, number=number: delivered(number, place, error),
            )
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        await producer.flush()
    run.finished = True


async def read(bootstrap: str, topic: str, run: Run) -> None:
    """One of the members of the group, until everything was seen."""
    async with (
        Connected(bootstrap, request_timeout_ms=20_000) as cluster,
        Consumer(
            cluster,
            group_id=f"g-{topic}",
            assignors=["cooperative-sticky"],
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            times=TIMES,
        ) as consumer,
    ):
        consumer.subscribe([topic])
        while sum(len(set(numbers)) for numbers in run.seen.values()) < RECORDS:
            for record in await consumer.poll(100):
                run.seen[record.partition].append(int(record.value))


async def watch_commits(bootstrap: str, topic: str, run: Run) -> None:
    """Committed offsets never go back."""
    names = [(topic, p) for p in range(PARTITIONS)]
    async with Connected(bootstrap, request_timeout_ms=20_000) as cluster:
        coordinator = Coordinator(cluster, f"g-{topic}")
        while not run.finished:
            found = await coordinator.committed(names)
            for name, before in run.committed.items():
                assert found.get(name, -1) >= before, "a committed offset went back"
            run.committed = found
            await asyncio.sleep(0.05)


async def coordinator_of(bootstrap: str, group: str) -> int:
    async with Connected(bootstrap) as cluster:
        response = await cluster.request(messages.FindCoordinatorRequest(key=group, key_type=0))
        return int(response.node_id)


async def kill_two(three: Cluster, topic: str, run: Run) -> int:
    """Kills a partition's leader, later the group's coordinator; each comes back after a while."""
    killed = 0
    for share in (4, 2):
        while run.acknowledged < RECORDS // share:
            await asyncio.sleep(0.01)
        victim = three.leader_of(topic)
        if killed:
            victim = await coordinator_of(three.bootstrap, f"g-{topic}")
        assert victim is not None
        await asyncio.to_thread(three.kill, victim)
        killed += 1
        at_kill = run.acknowledged
        while run.acknowledged < at_kill + RECORDS // 10:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(three.restart, victim)
        await asyncio.to_thread(three.wait_healthy)
    return killed


async def log_of(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """What the partitions hold."""
    names = [(topic, p) for p in range(PARTITIONS)]
    found: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    async with Connected(bootstrap) as cluster:
        ends = await list_offsets(cluster, dict.fromkeys(names, LATEST))
        async with Fetcher(cluster, dict.fromkeys(names, 0)) as fetcher:
            while any(fetcher.positions[name] < ends[name] for name in names):
                for fetched in await fetcher.poll():
                    found[fetched.partition] += [int(r.value or b"") for r in fetched.records]
    return found


def test_leader_and_coordinator_die_under_producer_and_group(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three, PARTITIONS, min_insync_replicas=2)
    bootstrap = three.bootstrap
    run = Run()

    async def everything() -> None:
        started = time.monotonic()
        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(
                kill_two(three, topic, run),
                write(bootstrap, topic, run),
                watch_commits(bootstrap, topic, run),
                read(bootstrap, topic, run),
                read(bootstrap, topic, run),
            )
        assert results[0] == 2
        assert time.monotonic() - started < DEADLINE_S
        expected = {p: list(range(p, RECORDS, PARTITIONS)) for p in range(PARTITIONS)}
        assert await log_of(bootstrap, topic) == expected
        assert {p: sorted(set(seen)) for p, seen in run.seen.items()} == expected

    asyncio.run(everything())
