"""A group of members that share partitions and of stock ones that don't know how to.

The story: ours come, stock ones join them, ours go, come back to a group that a stock one leads,
and have it to themselves in the end. Records come in all the time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Protocol

import confluent_kafka

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group import GroupTimes
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.producer import Producer
from kraftpy.client.spans import join
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.key_hash import HASH_MAX

SESSION_MS, HEARTBEAT_MS = 6_000, 100
TIMES = GroupTimes(SESSION_MS, HEARTBEAT_MS, 20_000)
TIMEOUT_S = 40
PARTITIONS = (0, 1)
OURS = 8
KEYS = 40
SEND_EVERY_S = 0.002
_WHOLE = [(0, HASH_MAX + 1)]


class Processed(NamedTuple):
    """A record that some member had, and when: by the machine's clock, which Java has, too."""

    at_ns: int
    partition: int
    offset: int
    key: str


Note = Callable[[Processed], None]


class Stock(Protocol):
    """A member of another client."""

    owned: frozenset[int]

    def close(self) -> None:
        """Leaves the group."""


class Librdkafka:
    """A confluent-kafka member that is polled in a thread."""

    def __init__(self, bootstrap: str, topic: str, note: Note) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.commit.interval.ms": 50,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.subscribe([topic])
        self._note = note
        self._stop = threading.Event()
        self.owned = frozenset[int]()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                key = message.key().decode()
                place = message.partition(), message.offset()
                self._note(Processed(time.monotonic_ns(), *place, key))
            self.owned = frozenset(p.partition for p in self._consumer.assignment())
        self._consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.owned = frozenset()


class Ours:
    """A member of ours that is polled all the time."""

    def __init__(self, consumer: Consumer, note: Note) -> None:
        self.consumer = consumer
        self._note = note
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            for record in await self.consumer.poll(50, max_records=5):
                assert record.key is not None
                key = record.key.decode()
                self._note(Processed(time.monotonic_ns(), record.partition, record.offset, key))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.consumer.close()


class MixedGroup:
    """The group, and what its members had."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.processed: list[Processed] = []
        self.ours: list[Ours] = []
        self.stock: list[Stock] = []
        self.sent = 0
        self.ending = asyncio.Event()
        self._cluster = cluster
        self._admin = GroupAdmin(cluster)
        self._topic = topic

    async def start_ours(self) -> None:
        for _ in range(OURS):
            consumer = Consumer(
                self._cluster,
                group_id=self._topic,
                assignors=["range"],
                times=TIMES,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=50,
                fetch_max_wait_ms=50,
            )
            consumer.subscribe([self._topic])
            self.ours.append(Ours(consumer, self.processed.append))

    async def stop_ours(self) -> None:
        members, self.ours = self.ours, []
        await asyncio.gather(*(member.close() for member in members))

    async def stop_stock(self) -> None:
        members, self.stock = self.stock, []
        await asyncio.gather(*(asyncio.to_thread(member.close) for member in members))

    async def send(self) -> None:
        """Goes on until it is told to stop."""
        async with Producer(self._cluster) as producer:
            while not self.ending.is_set():
                key = b"%d" % (self.sent * 7 % KEYS)
                for partition in PARTITIONS:
                    await producer.send(self._topic, b"x", key=key, partition=partition)
                self.sent += 1
                await asyncio.sleep(SEND_EVERY_S)

    async def until_read_on(self) -> None:
        """Until all that has been sent by now is processed."""
        sent = self.sent

        def is_processed() -> bool:
            return len({each[1:3] for each in self.processed if each.offset < sent}) == sent * len(
                PARTITIONS
            )

        await self.until(is_processed, "all processed")

    async def until_settled(self, condition: Callable[[], bool], what: str) -> None:
        """Until all have joined one generation, and this is so."""

        async def settled() -> bool:
            try:
                found = await self._admin.describe_group(self._topic)
            except KafkaError as error:
                if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
                    return False
                raise
            count = len(self.ours) + len(self.stock)
            return (found.state, len(found.members)) == ("Stable", count) and condition()

        await self.until(settled, what)

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            for member in self.ours:
                if member.task.done():
                    member.task.result()
            held = [member.consumer.shares for member in self.ours]
            left = [member.owned for member in self.stock]
            assert time.monotonic() < deadline, f"not {what}: {held}, {left}"
            await asyncio.sleep(0.02)

    def is_shared(self) -> bool:
        """Whether ours have both partitions, each of them a part, and nobody else has any."""
        held = [member.consumer.shares for member in self.ours]
        return (
            all(len(shares) == 1 and all(shares.values()) for shares in held)
            and self._is_tiled()
            and not any(member.owned for member in self.stock)
        )

    def is_whole(self) -> bool:
        """Whether each partition is one member's."""
        held = [p for member in self.stock for p in member.owned]
        for member in self.ours:
            shares = member.consumer.shares
            if any(shares.values()):
                return False
            held += [partition for _, partition in shares]
        return sorted(held) == list(PARTITIONS)

    def _is_tiled(self) -> bool:
        for partition in PARTITIONS:
            slices = [
                (low, high + 1)
                for member in self.ours
                for low, high in member.consumer.shares.get((self._topic, partition), ())
            ]
            if join(slices) != _WHOLE or sum(end - low for low, end in slices) != _WHOLE[0][1]:
                return False
        return True

    def check(self) -> None:
        """Nothing was skipped, and the records of a key were had in order, the first time."""
        places = {(each.partition, each.offset) for each in self.processed}
        assert places == {(p, offset) for p in PARTITIONS for offset in range(self.sent)}
        seen = set[tuple[int, int]]()
        last: dict[tuple[int, str], int] = {}
        for each in sorted(self.processed):
            if each[1:3] not in seen:
                seen.add(each[1:3])
                place = each.partition, each.key
                assert last.get(place, -1) < each.offset, f"{each} comes late"
                last[place] = each.offset


@asynccontextmanager
async def mixed_group(bootstrap: str, topic: str) -> AsyncIterator[MixedGroup]:
    async with Cluster(bootstrap) as cluster, AsyncExitStack() as stack:
        group = MixedGroup(cluster, topic)
        stack.push_async_callback(group.stop_ours)
        stack.push_async_callback(group.stop_stock)
        yield group


async def tell(
    bootstrap: str, topic: str, stock: Sequence[Callable[[str, str, Note], Stock]]
) -> None:
    """The story, with such stock members; the topic has two partitions that may be shared."""
    async with mixed_group(bootstrap, topic) as group:
        await group.start_ours()
        await group.until_settled(group.is_shared, "shared")
        sending = asyncio.create_task(group.send())
        await group.until_read_on()
        for start in stock:
            member = await asyncio.to_thread(start, bootstrap, topic, group.processed.append)
            group.stock.append(member)
        await group.until_settled(group.is_shared, "shared, with nothing for stock members")
        await group.until_read_on()
        await group.stop_ours()
        await group.until_settled(group.is_whole, "the stock members'")
        await group.until_read_on()
        await group.start_ours()
        await group.until_settled(group.is_whole, "whole while a stock member leads")
        await group.until_read_on()
        await group.stop_stock()
        await group.until_settled(group.is_shared, "shared again")
        await group.until_read_on()
        group.ending.set()
        await sending
        await group.until_read_on()
        group.check()
        names = [(topic, partition) for partition in PARTITIONS]
        consumer = group.ours[0].consumer
        deadline = time.monotonic() + TIMEOUT_S
        while await consumer.committed(names) != dict.fromkeys(names, group.sent):
            assert time.monotonic() < deadline, await consumer.committed(names)
            await asyncio.sleep(0.02)
