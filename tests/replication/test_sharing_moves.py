"""Members that share a partition while their coordinator's logs move from broker to broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from kraftpy.client.cluster import Cluster as Client
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.ledger import Claim
from kraftpy.client.producer import Producer
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.key_hash import key_hash
from kraftpy.testing import Cluster
from tests.cli.commands import Running, output, running
from tests.server.test_sharing import Group, Reader

from .support import leader_of
from .test_moving import reassign

OFFSETS, TWIN = LOGS = "__consumer_offsets", "__individual_commit_offsets"
TOPIC = "orders"
STICKY = ["kraftpy-cooperative-sticky"]
KEYS, MEMBERS = 40, 3
TIMEOUT_S = 60.0


class Holder(Reader):
    """Leaves each seventh record undone until it is told to do it; those behind are claimed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: list[ConsumerRecord] = []
        self._holds = True

    def handed(self, record: ConsumerRecord) -> None:
        super().handed(record)
        if self._holds and not record.offset % 7:
            self._held.append(record)
        else:
            self.consumer.done(record)

    def release(self) -> None:
        self._holds = False
        for record in self._held:
            self.consumer.done(record)


class Feed:
    """Records, all the time; `keys` are those of the offsets."""

    def __init__(self, producer: Producer) -> None:
        self.keys: list[bytes] = []
        self._producer = producer
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for _ in range(10):
                self.keys.append(b"%d" % (len(self.keys) * 7 % KEYS))
                await self._producer.send(TOPIC, b"v", key=self.keys[-1], partition=0)
            await self._producer.flush()
            await asyncio.sleep(0.02)

    async def stop(self) -> int:
        """The end of the partition."""
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._producer.flush()
        return len(self.keys)


class Watch:
    """What was answered as claimed; whoever takes the coordinator over has to have it."""

    def __init__(self, group: Group, feed: Feed) -> None:
        self.answered: set[int] = set()
        self._group = group
        self._name = (TOPIC, 0)
        self._feed = feed

    async def claim(self) -> None:
        """Has all members commit what they have done until now, and sees that nothing is gone."""
        done = {record.offset for _, record in self._group.seen if record.offset % 7}
        for reader in self._group.readers:
            await self._insist(reader.consumer.commit)
        claims = await self._insist(self._claims)
        stable = await self._insist(self._stable)
        covered = {
            offset
            for offset in range(len(self._feed.keys))
            if offset < stable or _is_in(claims, offset, self._feed.keys[offset])
        }
        assert self.answered <= covered, f"lost: {sorted(self.answered - covered)[:20]}"
        # A member that has given a slice up meanwhile may not have claimed all that it was handed.
        assert len(done & covered) > len(self.answered), "claims go on"
        self.answered |= done & covered

    async def _claims(self) -> list[Claim]:
        return (await self._group.readers[0].consumer.committed_ranges([self._name]))[self._name]

    async def _stable(self) -> int:
        return (await self._group.readers[0].consumer.committed([self._name]))[self._name]

    async def _insist(self, ask: Callable[[], Any]) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with contextlib.suppress(KafkaError, ConnectionError):
                    return await ask()
                await asyncio.sleep(0.05)


def _is_in(claims: list[Claim], offset: int, key: bytes) -> bool:
    hash_ = key_hash(key, offset)
    return any(
        low <= hash_ <= high and first <= offset <= last for low, high, first, last in claims
    )


def assert_together(cluster: Cluster, *, without: int) -> None:
    """Both logs are at the same brokers, by the same leader."""
    first, second = [cluster.replicas_of(log) for log in LOGS]
    assert first == second
    assert len(first) == 3
    assert without not in first
    assert leader_of(cluster, OFFSETS) == leader_of(cluster, TWIN)


async def is_true(condition: Callable[[], bool]) -> bool:
    return await asyncio.to_thread(condition)


async def test_claims_move_with_their_group(kraftpy_cluster: Callable[..., Cluster]) -> None:
    """To other brokers, then away from one that goes: nothing is lost, done again or skipped."""
    cluster = kraftpy_cluster(
        4, links=False, offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=100
    )
    create = ("topic", "create", TOPIC, "-r", "3", "-c", "accept.range.fetch=true")
    output(*create, bootstrap=cluster.bootstrap)
    async with (
        Client(cluster.bootstrap) as client,
        Producer(client) as producer,
        AsyncExitStack() as stack,
    ):
        group = Group(client, stack, TOPIC)
        feed = Feed(producer)
        members = [
            await group.start(Holder, assignors=STICKY, explicit_done=True) for _ in range(MEMBERS)
        ]
        await group.until_shared(*members)
        watch = Watch(group, feed)

        async def goes_on(count: int = 100) -> None:
            wanted = len(group.seen) + count
            await group.until(lambda: len(group.seen) >= wanted)
            await watch.claim()

        await goes_on()
        # The newest broker leads, and who led until now has nothing of it any more.
        old = await asyncio.to_thread(leader_of, cluster, OFFSETS)
        rest = [node for node in cluster.nodes if node not in (old, 4)]
        target = [4, *rest][:3] if old != 4 else [rest[0], 4, rest[1]]
        gone = next(node for node in cluster.nodes if node not in target)
        await asyncio.to_thread(reassign, cluster, OFFSETS, target)
        await goes_on(20)

        def is_moved() -> bool:
            return all(set(cluster.in_sync(log)) == set(target) for log in LOGS) and all(
                set(cluster.replicas_of(log)) == set(target) for log in LOGS
            )

        await group.until(lambda: is_true(is_moved))
        await goes_on()
        await asyncio.to_thread(assert_together, cluster, without=gone)

        with running("cluster", "decommission", "4", bootstrap=cluster.bootstrap) as command:
            await asyncio.to_thread(_until_free, command)
            held = await asyncio.to_thread(lambda: [cluster.replicas_of(log) for log in LOGS])
            assert all(4 not in replicas for replicas in held)
            await goes_on(20)
            await asyncio.to_thread(cluster.stop, 4)
            assert await asyncio.to_thread(command.process.wait, TIMEOUT_S) == 0
        await goes_on()
        await asyncio.to_thread(assert_together, cluster, without=4)

        end = await feed.stop()
        for each in members:
            each.release()
        await group.until_committed(end)
        group.check(end, once=False)
        again = {
            offset
            for offset, count in Counter(record.offset for _, record in group.seen).items()
            if count > 1
        }
        assert not again, "nobody's session was over"


def _until_free(command: Running) -> None:
    while not command.stderr_line().startswith("broker 4 holds nothing any more"):
        pass
