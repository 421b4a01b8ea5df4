"""Members that share a partition: each key in order, each record once, all of them in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.consumer_shares import Ranges
from kraftpy.client.group import GroupTimes, Member
from kraftpy.client.offsets import Partition
from kraftpy.client.producer import Producer
from kraftpy.client.spans import join
from kraftpy.protocol.key_hash import HASH_MAX, key_hash
from kraftpy.testing import Broker

NewTopic = Callable[..., str]
TIMES = GroupTimes(session_timeout_ms=6000, heartbeat_interval_ms=100, max_poll_interval_ms=20_000)
TIMEOUT_S = 40
KEYS = 40


class Reader(RebalanceListener):
    """A member that is polled all the time; `records` are what it got."""

    def __init__(self, consumer: Consumer, seen: list[tuple[Reader, ConsumerRecord]]) -> None:
        self.consumer = consumer
        self.records: list[ConsumerRecord] = []
        self.revoked_shares: list[Mapping[Partition, Sequence[tuple[int, int]]]] = []
        self._seen = seen
        self._task: asyncio.Task[None] | None = None

    def start(self, topic: str) -> None:
        self.consumer.subscribe([topic], listener=self)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            for record in await self.consumer.poll(100, max_records=10):
                self.handed(record)

    def handed(self, record: ConsumerRecord) -> None:
        self.records.append(record)
        self._seen.append((self, record))

    async def shares_revoked(self, shares: Mapping[Partition, Sequence[tuple[int, int]]]) -> None:
        self.revoked_shares.append(shares)

    def check(self) -> None:
        """Raises what ended the reading."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Stops polling, as in a crash: nothing is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Group:
    """Members of a group on one topic, and all that they were handed, in that order."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack, topic: str) -> None:
        self.seen: list[tuple[Reader, ConsumerRecord]] = []
        self.readers: list[Reader] = []
        self._cluster = cluster
        self._stack = stack
        self._topic = topic

    async def start(self, kind: type[Reader] = Reader, **options: Any) -> Reader:
        defaults = {
            "group_id": self._topic,
            "times": TIMES,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 50,
            "fetch_max_wait_ms": 50,
        }
        consumer = Consumer(self._cluster, **(defaults | options))
        await self._stack.enter_async_context(consumer)
        reader = kind(consumer, self.seen)
        self._stack.push_async_callback(reader.stop)
        self.readers.append(reader)
        reader.start(self._topic)
        return reader

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for reader in self.readers:
                    reader.check()
                found = condition()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(0.01)

    async def until_shared(self, *readers: Reader) -> None:
        """Until these have all hashes between them, and each has some."""

        def shared() -> bool:
            slices = [reader.consumer.shares.get((self._topic, 0)) for reader in readers]
            if any(each is None for each in slices):
                return False
            pieces = [(low, high + 1) for each in slices for low, high in each or [(0, HASH_MAX)]]
            whole = sum(end - begin for begin, end in pieces)
            return join(pieces) == [(0, HASH_MAX + 1)] and whole == HASH_MAX + 1

        await self.until(shared)

    async def until_committed(self, end: int) -> None:
        name = (self._topic, 0)
        reader = self.readers[0]

        async def committed() -> bool:
            return (await reader.consumer.committed([name])).get(name) == end

        await self.until(committed)

    def check(self, count: int, *, once: bool = True) -> None:
        """All were handed out, those of a key in order; with `once`, none to two."""
        offsets = Counter(record.offset for _, record in self.seen)
        assert sorted(offsets) == list(range(count))
        if once:
            assert set(offsets.values()) == {1}
        first: dict[bytes, int] = {}
        known: set[int] = set()
        for _, record in self.seen:
            if record.offset not in known:
                known.add(record.offset)
                if record.key is not None:
                    assert first.get(record.key, -1) < record.offset, "a key out of order"
                    first[record.key] = record.offset


@asynccontextmanager
async def group_on(broker: Broker, topic: str) -> AsyncIterator[tuple[Group, Cluster]]:
    async with Cluster(broker.bootstrap) as cluster, AsyncExitStack() as stack:
        yield Group(cluster, stack, topic), cluster


async def send(cluster: Cluster, topic: str, numbers: range) -> None:
    async with Producer(cluster) as producer:
        for number in numbers:
            key = None if number % 10 == 9 else b"%d" % (number * 7 % KEYS)
            await producer.send(topic, b"%d" % number, key=key, partition=0)
        await producer.flush()


@pytest.fixture
def shared(new_topic: NewTopic) -> str:
    return new_topic(accept_range_fetch="true")


@pytest.mark.parametrize(
    "assignor", ["range", "roundrobin", "kraftpy-colocate", "kraftpy-cooperative-sticky"]
)
async def test_members_come_and_go_on_one_partition(
    broker: Broker, shared: str, assignor: str
) -> None:
    async with group_on(broker, shared) as (group, cluster):
        await send(cluster, shared, range(300))
        one = await group.start(assignors=[assignor])
        await group.until_shared(one)
        assert one.consumer.shares == {(shared, 0): []}
        two, three = [await group.start(assignors=[assignor]) for _ in range(2)]
        await group.until_shared(one, two, three)
        await send(cluster, shared, range(300, 600))
        await group.until(lambda: len(group.seen) >= 600)
        assert two.records
        assert three.records
        for reader in (one, two, three):
            slices = reader.consumer.shares[shared, 0]
            late = [record for record in reader.records if record.offset >= 300]
            for record in late:
                hash_ = key_hash(record.key, record.offset)
                assert any(low <= hash_ <= high for low, high in slices)
        await three.stop()
        await three.consumer.close()
        await group.until_shared(one, two)
        await send(cluster, shared, range(600, 900))
        await group.until(lambda: len(group.seen) >= 900)
        group.check(900)
        await group.until_committed(900)


async def test_who_crashes_is_read_on_where_it_was(broker: Broker, shared: str) -> None:
    """Its session ends; what it had done and not claimed comes again, in order."""
    sticky = ["kraftpy-cooperative-sticky"]
    async with group_on(broker, shared) as (group, cluster):
        readers = [await group.start(assignors=sticky) for _ in range(3)]
        await group.until_shared(*readers)
        await send(cluster, shared, range(300))
        await group.until(lambda: len(group.seen) >= 150)
        crashed = readers.pop()
        await crashed.stop()
        group.readers.remove(crashed)
        member = crashed.consumer._member
        assert member is not None
        await member._stop_heart()
        await group.until_shared(*readers)
        await send(cluster, shared, range(300, 600))
        await group.until_committed(600)
        group.check(600, once=False)


async def test_who_may_have_been_replaced_hands_out_nothing(
    broker: Broker, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it doesn't hear is that its session is over and that others read its slices."""
    async with group_on(broker, shared) as (group, cluster):
        one, two = [await group.start() for _ in range(2)]
        await group.until_shared(one, two)
        with monkeypatch.context() as patch:
            patch.setattr(Member, "in_touch", False)
            await send(cluster, shared, range(100))
            fetched = [reader.consumer._reading for reader in (one, two)]
            await group.until(lambda: all(fetched))
            assert not group.seen
        await group.until(lambda: len(group.seen) == 100)
        group.check(100)


async def test_what_is_done_out_of_order_isn_t_done_again(broker: Broker, shared: str) -> None:
    async with group_on(broker, shared) as (group, cluster):
        await send(cluster, shared, range(100))
        options: dict[str, Any] = {"explicit_done": True, "enable_auto_commit": False}
        one = await group.start(**options)
        await group.until(lambda: len(one.records) == 100)
        await one.stop()
        done = [record for record in one.records if record.offset % 3]
        for record in reversed(done):
            one.consumer.done(record)
        await one.consumer.commit()
        assert await one.consumer.committed([(shared, 0)]) == {(shared, 0): 0}
        await one.consumer.close()
        group.readers.remove(one)
        two = await group.start(**options)
        await group.until(lambda: len(two.records) == 34)
        assert [record.offset for record in two.records] == list(range(0, 100, 3))
        for record in two.records:
            two.consumer.done(record)
        await two.consumer.commit()
        await group.until_committed(100)


@pytest.mark.parametrize(("accepts", "allow"), [("true", False), ("false", True)])
async def test_members_that_don_t_share_have_whole_partitions(
    broker: Broker, new_topic: NewTopic, accepts: str, allow: bool
) -> None:
    topic = new_topic(accept_range_fetch=accepts)
    whole: list[Ranges] = [{}, {(topic, 0): []}]
    async with group_on(broker, topic) as (group, cluster):
        await send(cluster, topic, range(100))
        for _ in range(2):
            await group.start(allow_individual_commit=allow)
        await group.until(lambda: len(group.seen) >= 100)
        await group.until(
            lambda: sorted((reader.consumer.shares for reader in group.readers), key=len) == whole
        )
        await group.until_committed(100)
