"""Members that share a partition and write in transactions: each record counts once, in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.producer import Producer
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing import Broker
from tests.server.test_sharing import TIMES

NewTopic = Callable[..., str]
TIMEOUT_S = 60
KEYS, COUNT = 20, 400


class Member:
    """Reads, writes what it has read and commits that, a poll to a transaction; some it aborts."""

    def __init__(
        self, consumer: Consumer, producer: TransactionalProducer, output: str, *, waits: bool
    ) -> None:
        self.consumer = consumer
        self.committed = self.aborted = 0
        self._producer = producer
        self._output = output
        self._waits = waits

    async def run(self) -> None:
        while True:
            records = await self.consumer.poll(100, max_records=10)
            if records:
                await self._transform(records)
                continue
            with contextlib.suppress(KafkaError):
                # Who has nothing to do says so, as others may wait for it.
                await self.consumer.commit()

    async def leave(self) -> None:
        await self._producer.close()
        await self.consumer.close()

    async def _transform(self, records: list[ConsumerRecord]) -> None:
        producer = self._producer
        await producer.begin_transaction()
        try:
            for record in records:
                value = str(record.offset).encode()
                await producer.send(self._output, value, key=record.key)
            await producer.send_offsets_to_transaction(
                None, self.consumer.group_metadata, wait_for_stable=self._waits
            )
            if (self.committed + self.aborted) % 4 == 1:
                raise ValueError("as something may go wrong")
            await producer.commit_transaction()
            self.committed += 1
        except (KafkaError, ValueError):
            self.aborted += 1
            await producer.abort_transaction()
            self.consumer.rewind()


async def outputs(cluster: Cluster, output: str, *, until: int) -> list[int]:
    """The inputs of what counts, until there are so many; each once, and of each key in order."""
    found: list[ConsumerRecord] = []
    async with Consumer(
        cluster, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        reader.assign([(output, 0)])
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < until:
                found += await reader.poll(200)
        found += await reader.poll(200)
    last: dict[bytes | None, int] = {}
    for record in found:
        offset = int(record.value or b"")
        assert last.get(record.key, -1) < offset, "a key out of order"
        last[record.key] = offset
    return [int(record.value or b"") for record in found]


@pytest.mark.parametrize("waits", [False, True], ids=["", "wait_for_stable"])
def test_each_record_counts_once(broker: Broker, new_topic: NewTopic, waits: bool) -> None:
    source, output = new_topic(accept_range_fetch="true"), new_topic()

    async def work() -> None:
        async with Cluster(broker.bootstrap) as cluster, AsyncExitStack() as stack:
            async with Producer(cluster) as producer:
                for number in range(COUNT):
                    await producer.send(source, b"v", key=b"%d" % (number % KEYS))
            tasks = []

            async def start(number: int) -> Member:
                consumer = Consumer(
                    cluster,
                    group_id=source,
                    times=TIMES,
                    assignors=["kraftpy-cooperative-sticky"],
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    fetch_max_wait_ms=50,
                )
                await stack.enter_async_context(consumer)
                producer = TransactionalProducer(cluster, f"{source}-{number}")
                await stack.enter_async_context(producer)
                consumer.subscribe([source])
                member = Member(consumer, producer, output, waits=waits)
                tasks.append(asyncio.create_task(member.run()))
                return member

            async with asyncio.timeout(TIMEOUT_S):
                members = [await start(1), await start(2)]
                while not all(each.committed for each in members):
                    await asyncio.sleep(0.05)
                    for task in tasks:
                        if task.done():
                            task.result()
                # One goes amid a transaction, maybe; another comes.
                tasks[0].cancel()
                await asyncio.gather(tasks.pop(0), return_exceptions=True)
                await members[0].leave()
                members.append(await start(3))
            found = await outputs(cluster, output, until=COUNT)
            for task in tasks:
                if task.done():
                    task.result()
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert Counter(found) == Counter(range(COUNT))
            assert sum(each.aborted for each in members) > 0

    asyncio.run(work())


def test_claims_need_the_second_version_of_transactions(
    broker: Broker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = new_topic(accept_range_fetch="true")

    async def work() -> None:
        async with Cluster(broker.bootstrap) as cluster:
            async with Producer(cluster) as producer:
                await producer.send(source, b"v", key=b"k")
            async with (
                Consumer(
                    cluster, group_id="first", auto_offset_reset="earliest", explicit_done=True
                ) as consumer,
                TransactionalProducer(cluster, "first") as producer,
            ):
                consumer.assign({(source, 0): [(0, 1 << 62)]})
                while not await consumer.poll(100):
                    if await consumer.position((source, 0)):
                        break
                await producer.begin_transaction()
                monkeypatch.setattr(producer._state, "second_version", False)
                with pytest.raises(KafkaError) as refused:
                    await producer.send_offsets_to_transaction(
                        {(source, 0): 1}, consumer.group_metadata
                    )
                assert refused.value.code is ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED

    asyncio.run(work())
