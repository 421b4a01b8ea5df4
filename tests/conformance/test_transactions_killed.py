"""kraftpy's transactional producer while Apache Kafka's coordinators are killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kraftpy.client import transactions
from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.coordinator import Coordinator, GroupMetadata
from kraftpy.client.transactional_producer import OutcomeUnknownError, TransactionalProducer
from kraftpy.protocol.errors import KafkaError
from tests.apache_kafka import ApacheKafkaQuorum
from tests.conformance.test_transactions import read
from tests.quorums import Quorum, running

KILLS = 1
TIMEOUT_S = 240
PARTITIONS = 3


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    with running(ApacheKafkaQuorum(folder)) as quorum:
        yield quorum


@dataclass
class Story:
    """What became of each transaction by its number, as far as the producer knows."""

    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        return len(self.committed) + len(self.aborted) + len(self.unknown)


async def write(producer: TransactionalProducer, topic: str, story: Story) -> None:
    """Transactions, one after the other, until it is cancelled in between."""
    group = GroupMetadata(f"g-{topic}")
    while True:
        number = story.numbers
        try:
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    await producer.send(topic, b"%d" % number, partition=partition)
                await producer.send_offsets_to_transaction({(topic, 0): number}, group)
        except OutcomeUnknownError:
            story.unknown.append(number)
        except (ConnectionError, KafkaError):
            story.aborted.append(number)
        else:
            story.committed.append(number)


async def progress(story: Story, writer: asyncio.Task[None], more: int = 20) -> None:
    """Waits until so many more transactions are committed."""
    wanted = len(story.committed) + more
    while len(story.committed) < wanted:
        if writer.done():
            writer.result()
        await asyncio.sleep(0.05)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", ["first", "second"])
def test_transactions_are_whole_when_their_coordinators_are_killed(
    quorum: Quorum, topic: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == "first":
        monkeypatch.setattr(transactions, "_SECOND_VERSION", 1000)
    story = Story()

    async def run() -> list[int]:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Cluster(quorum.bootstrap, request_timeout_ms=5000) as cluster,
            TransactionalProducer(cluster, topic, linger_ms=0) as producer,
        ):
            await Admin(cluster).create_topic(topic, partitions=PARTITIONS)
            writer = asyncio.create_task(write(producer, topic, story))
            await progress(story, writer)
            for _ in range(KILLS):
                node = producer._transactions._route.node_id or 1
                await asyncio.to_thread(quorum.kill, node)
                await progress(story, writer)
                await asyncio.to_thread(quorum.restart, node)
                await asyncio.to_thread(quorum.wait_in_sync)
                await progress(story, writer)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            if producer.in_transaction:
                with contextlib.suppress(ConnectionError, KafkaError):
                    await producer.abort_transaction()
            await producer.begin_transaction()  # which settles what is unknown
            await producer.abort_transaction()
            found = [int(value) for value in await read(cluster, topic)]
            coordinator = Coordinator(cluster, f"g-{topic}", shared=True)
            offsets = await coordinator.committed([(topic, 0)])
            assert offsets == {(topic, 0): max(found)}
            return found

    found = asyncio.run(run())
    assert sorted(found) == sorted(PARTITIONS * list(dict.fromkeys(found)))
    last = story.numbers  # it may have been cancelled in its commit
    assert set(story.committed) <= set(found) <= {*story.committed, *story.unknown, last}
    assert len(story.committed) > 20 * KILLS
