"""Members that commit by hand: nothing is claimed that they haven't, and holes hold nothing up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.producer import Producer
from kraftpy.protocol.key_hash import key_hash
from kraftpy.testing import Broker

from .test_sharing import Group, NewTopic, Reader, group_on

INTERVAL_MS = 50


class Committer(Reader):
    """Commits whatever it was handed; the others never commit anything."""

    async def _read(self) -> None:
        while True:
            records = await self.consumer.poll(100, max_records=10)
            for record in records:
                self.handed(record)
            if records:
                self.finish(records)
                await self.consumer.commit()

    def finish(self, records: Sequence[ConsumerRecord]) -> None:
        pass


class OutOfOrder(Committer):
    def finish(self, records: Sequence[ConsumerRecord]) -> None:
        for record in reversed(records):
            self.consumer.done(record)


@pytest.fixture
def shared(new_topic: NewTopic) -> str:
    return new_topic(accept_range_fetch="true")


def keys_of(reader: Reader, topic: str, count: int) -> list[bytes]:
    """Keys of the slices that a member has."""
    slices = reader.consumer.shares[topic, 0]
    found: list[bytes] = []
    number = 0
    while len(found) < count:
        key = b"%d" % number
        if any(low <= key_hash(key, 0) <= high for low, high in slices):
            found.append(key)
        number += 1
    return found


async def send(cluster: Cluster, topic: str, keys: Sequence[bytes]) -> None:
    async with Producer(cluster) as producer:
        for key in keys:
            await producer.send(topic, b"", key=key, partition=0)
        await producer.flush()


async def two_members(group: Group, **more: Any) -> tuple[Reader, Reader]:
    """One that commits, and one that doesn't, each with half of the keys."""
    options: dict[str, Any] = {
        "assignors": ["kraftpy-cooperative-sticky"],
        "enable_auto_commit": False,
        "auto_commit_interval_ms": INTERVAL_MS,
        **more,
    }
    one = await group.start(OutOfOrder if more.get("explicit_done") else Committer, **options)
    two = await group.start(Reader, **options)
    await group.until_shared(one, two)
    return one, two


@pytest.mark.parametrize("explicit", [False, True])
async def test_who_has_nothing_to_commit_holds_nothing_up(
    broker: Broker, shared: str, explicit: bool
) -> None:
    async with group_on(broker, shared) as (group, cluster):
        one, two = await two_members(group, explicit_done=explicit)
        keys = keys_of(one, shared, 20)
        for end in (60, 120):
            await send(cluster, shared, keys * 3)
            await group.until_committed(end)
        assert len(one.records) == 120
        assert not two.records


@pytest.mark.parametrize("explicit", [False, True])
async def test_what_nobody_has_committed_comes_again(
    broker: Broker, shared: str, explicit: bool
) -> None:
    async with group_on(broker, shared) as (group, cluster):
        one, two = await two_members(group, explicit_done=explicit)
        ours, theirs = keys_of(one, shared, 20), keys_of(two, shared, 2)
        await send(cluster, shared, [*ours, *theirs, *ours])
        await group.until_committed(20)
        await group.until(lambda: len(two.records) == 2)
        if explicit:
            for record in two.records:
                two.consumer.done(record)
        name = shared, 0
        for _ in range(10):
            await asyncio.sleep(INTERVAL_MS / 1000)
            assert await two.consumer.committed([name]) == {name: 20}
            for claim in (await two.consumer.committed_ranges([name]))[name]:
                for record in two.records:
                    is_its = claim.low <= key_hash(record.key, record.offset) <= claim.high
                    assert not (is_its and claim.first <= record.offset <= claim.last)
        await two.stop()
        group.readers.remove(two)
        member = two.consumer._member
        assert member is not None
        await member._stop_heart()
        await group.until_committed(42)
        again = [record.offset for record in one.records if record.key in theirs]
        assert again == [record.offset for record in two.records] == [20, 21]
        assert len(one.records) == 42


async def test_what_was_committed_of_the_whole_partition_is_known(
    broker: Broker, shared: str
) -> None:
    """Its slice began with what it had read, and it has nothing more to commit."""
    async with group_on(broker, shared) as (group, cluster):
        options: dict[str, Any] = {
            "assignors": ["kraftpy-cooperative-sticky"],
            "enable_auto_commit": False,
            "auto_commit_interval_ms": INTERVAL_MS,
        }
        one = await group.start(Committer, **options)
        await group.until_shared(one)
        await send(cluster, shared, [b"%d" % number for number in range(40)])
        await group.until_committed(40)
        two = await group.start(Committer, **options)
        await group.until_shared(one, two)
        await send(cluster, shared, keys_of(two, shared, 20))
        await group.until_committed(60)
        assert len(one.records) == 40
        assert len(two.records) == 20
