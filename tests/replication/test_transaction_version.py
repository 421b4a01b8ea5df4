"""Transactions of the second version (KIP-890) on three nodes, whose coordinators are killed.

kraftpy's client writes them, and commits offsets in them. It learns at its beginning which version
the cluster wants, and so producers of both are at work when an operator changes that. Every record
is its transaction's number: those that count are whole, and they are those that producers were told
of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster as Client
from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import Coordinator, GroupMetadata
from kraftpy.client.offsets import LATEST, READ_COMMITTED, list_offsets
from kraftpy.client.transactional_producer import OutcomeUnknownError, TransactionalProducer
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages import UpdateFeaturesRequest
from kraftpy.testing import Cluster

FEATURE = "transaction.version"
PARTITIONS = 3
PRODUCERS = 4
TIMEOUT_S = 100

_UPGRADE, _SAFE_DOWNGRADE = 1, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as started:
        yield started


@dataclass
class Writer:
    """A transactional id: one transaction after the other, and what it was told of each."""

    name: str
    topic: str
    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    producer: TransactionalProducer | None = None

    @property
    def is_second_version(self) -> bool:
        assert self.producer is not None
        return self.producer._state.second_version

    @property
    def coordinator(self) -> int:
        assert self.producer is not None
        node = self.producer._transactions._route.node_id
        assert node is not None
        return node

    async def run(self, client: Client, stopped: asyncio.Event) -> None:
        async with TransactionalProducer(client, self.name, linger_ms=0) as self.producer:
            number = 0
            while not stopped.is_set():
                number += 1
                try:
                    async with self.producer.transaction():
                        for partition in range(PARTITIONS):
                            await self.producer.send(
                                self.topic, f"{self.name} {number}".encode(), partition=partition
                            )
                        await self.producer.send_offsets_to_transaction(
                            {(self.topic, 0): number}, GroupMetadata(self.name)
                        )
                        if number % 4 == 0:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    self.aborted.append(number)
                except OutcomeUnknownError:
                    self.unknown.append(number)
                except (ConnectionError, KafkaError):
                    self.aborted.append(number)
                else:
                    self.committed.append(number)
            await self.producer.begin_transaction()  # which settles what is unknown
            await self.producer.abort_transaction()


@asynccontextmanager
async def writing(client: Client, topic: str, *names: str) -> AsyncIterator[list[Writer]]:
    """Producers at work, each with three transactions when it begins and more when it ends."""
    writers = [Writer(f"{topic}-{name}", topic) for name in names]
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(client, stopped))
        await progress(writers)
        yield writers
        await progress(writers)
        stopped.set()


async def progress(writers: list[Writer]) -> None:
    """Waits until each has committed some more."""
    wanted = [len(writer.committed) + 5 for writer in writers]
    while any(len(w.committed) < count for w, count in zip(writers, wanted, strict=True)):
        await asyncio.sleep(0.02)


async def give_level(client: Client, level: int, kind: int) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(FEATURE, level, False, kind)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            connection = await client.any_connection()
            answer = await connection.request(
                UpdateFeaturesRequest(10_000, [update]), timeout_ms=15_000
            )
            if not answer.error_code:
                return
            await asyncio.sleep(0.1)


async def check(client: Client, topic: str, writers: list[Writer]) -> None:
    """What counts is whole, and it is what the producers were told."""
    names = [(topic, number) for number in range(PARTITIONS)]
    latest = dict.fromkeys(names, LATEST)
    ends = await list_offsets(client, latest)
    while await list_offsets(client, latest, isolation=READ_COMMITTED) != ends:
        await asyncio.sleep(0.05)
        ends = await list_offsets(client, latest)
    found: dict[int, list[bytes]] = {}
    for number, name in enumerate(names):
        async with Consumer(
            client, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([name])
            found[number] = []
            while await consumer.position(name) < ends[name]:
                found[number] += [record.value for record in await consumer.poll(200)]
    for values in found.values():
        assert len(values) == len(set(values)), "none is there twice"
        assert sorted(values) == sorted(found[0]), "a transaction is whole"
    for writer in writers:
        counts = {
            int(value.split()[1]) for value in found[0] if value.split()[0].decode() == writer.name
        }
        assert set(writer.committed) <= counts <= {*writer.committed, *writer.unknown}
        group = Coordinator(client, writer.name, shared=True)
        assert await group.committed([(topic, 0)]) == {(topic, 0): max(counts)}


def test_whole_when_their_coordinators_are_killed(cluster: Cluster) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(cluster.bootstrap) as client:
            await Admin(client).create_topic("killed", partitions=PARTITIONS, replication_factor=3)
            names = [str(number) for number in range(PRODUCERS)]
            async with writing(client, "killed", *names) as writers:
                assert all(writer.is_second_version for writer in writers)
                for _ in range(2):
                    victim = writers[0].coordinator
                    await asyncio.to_thread(cluster.kill, victim)
                    await progress(writers)
                    await asyncio.to_thread(cluster.restart, victim)
                    await asyncio.to_thread(cluster.wait_healthy)
            await check(client, "killed", writers)

    asyncio.run(run())


def test_whole_when_the_level_changes(cluster: Cluster) -> None:
    """Producers go on in the version in which they have begun; new ones follow the level."""

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(cluster.bootstrap) as client:
            await Admin(client).create_topic("levels", partitions=PARTITIONS, replication_factor=3)
            async with writing(client, "levels", "a", "b") as before:
                assert all(writer.is_second_version for writer in before)
                await give_level(client, 0, _SAFE_DOWNGRADE)
                await progress(before)
                async with (
                    Client(cluster.bootstrap) as newer,
                    writing(newer, "levels", "c", "d") as lowered,
                ):
                    assert not any(writer.is_second_version for writer in lowered)
                    victim = lowered[0].coordinator
                    await asyncio.to_thread(cluster.kill, victim)
                    await progress([*before, *lowered])
                    await give_level(client, 2, _UPGRADE)
                    await asyncio.to_thread(cluster.restart, victim)
                    await asyncio.to_thread(cluster.wait_healthy)
                    await progress([*before, *lowered])
                    async with (
                        Client(cluster.bootstrap) as newest,
                        writing(newest, "levels", "e") as raised,
                    ):
                        assert all(writer.is_second_version for writer in raised)
                        await progress([*before, *lowered])
            await check(client, "levels", [*before, *lowered, *raised])

    asyncio.run(run())
