"""Streams of kraftpy's own consumer against a real broker: who reads what, and what's committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kraftpy.client import Admin, Cluster, Consumer, ConsumerRecord, RecordStream, TopicFilter
from tests.clients.driver import Driver, numbered
from tests.clients.readers import consuming
from tests.waiting import until

NewTopic = Callable[..., str]


class Worker:
    """A task that reads a stream; it pauses before it's done with a record while `held`."""

    def __init__(self, stream: RecordStream[bytes, bytes]) -> None:
        self.stream = stream
        self.records: list[ConsumerRecord[bytes, bytes]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for record in self.stream:
            self.records.append(record)
            await self.go.wait()


@asynccontextmanager
async def working(*streams: RecordStream[bytes, bytes]) -> AsyncIterator[list[Worker]]:
    workers = [Worker(stream) for stream in streams]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.task.cancel()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)


def all_of(*workers: Worker) -> list[int]:
    return sorted(int(record.value or b"") for each in workers for record in each.records)


async def test_streams_share_a_topic_s_partitions_and_keep_their_order(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=5)
    other = f"{topic}-other"
    reference.create_topic(other, 1, {})
    reference.produce(topic, numbered(100, 5))
    reference.produce(other, numbered(10))
    async with consuming(bootstrap, f"g-{topic}", max_poll_records=7) as consumer:
        streams = consumer.streams({topic: 2, other: 1})
        assert [len(streams[name]) for name in (topic, other)] == [2, 1]
        async with working(*streams[topic], *streams[other]) as (first, second, third):
            await until(lambda: all_of(first, second) == list(range(100)))
            await until(lambda: all_of(third) == list(range(10)))
            numbers = [{number for _, number in each.stream.partitions} for each in (first, second)]
            assert sorted(map(len, numbers)) == [2, 3]
            assert numbers[0] | numbers[1] == set(range(5))
            for worker, own in zip((first, second), numbers, strict=True):
                for number in own:
                    offsets = [r.offset for r in worker.records if r.partition == number]
                    assert offsets == list(range(20))
            with pytest.raises(ValueError, match="the records go to streams"):
                await consumer.poll()
        idle = asyncio.create_task(anext(streams[other][0]))
        await asyncio.sleep(0)
        await consumer.unsubscribe()
        with pytest.raises(StopAsyncIteration):
            await idle


async def test_a_slow_stream_holds_up_no_other_and_keeps_its_record_from_being_committed(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    group = f"g-{topic}"
    reference.produce(topic, numbered(40, 2))
    names = [(topic, 0), (topic, 1)]
    async with (
        consuming(bootstrap, group, auto_commit_interval_ms=20) as consumer,
        working(*consumer.streams({topic: 2})[topic]) as (slow, quick),
    ):
        slow.go.clear()
        await until(lambda: slow.records and len(quick.records) == 20)
        stuck, done = slow.records[0].partition, quick.records[0].partition
        reference.produce(topic, numbered(40, 2))
        await until(lambda: len(quick.records) == 40)
        assert len(slow.records) == 1
        async with asyncio.timeout(20):
            while (await consumer.committed(names)).get((topic, done)) != 40:
                await asyncio.sleep(0.01)
        assert (await consumer.committed(names)).get((topic, stuck), 0) == 0
        await slow.stream.commit()
        assert (await consumer.committed(names))[topic, stuck] == 1
        slow.go.set()
        await until(lambda: len(slow.records) == 40)
        slow.go.clear()
        reference.produce(topic, numbered(2, 2))
        await until(lambda: len(slow.records) == len(quick.records) == 41)
    async with consuming(bootstrap, group) as consumer:
        found = await consumer.committed(names)
        assert found == {(topic, done): 41, (topic, stuck): 40}, "it was in a stream's hands"


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_group_waits_for_what_streams_have_in_their_hands(
    bootstrap: str, reference: Driver, new_topic: NewTopic, assignor: str
) -> None:
    topic = new_topic(partitions=4)
    group = f"g-{topic}"
    reference.produce(topic, numbered(80, 4))
    async with (
        consuming(bootstrap, group, assignors=[assignor]) as a,
        working(*a.streams({topic: 2})[topic]) as (slow, quick),
    ):
        slow.go.clear()
        await until(lambda: slow.records and len(quick.records) == 40)
        async with (
            consuming(bootstrap, group, assignors=[assignor]) as b,
            working(*b.streams({topic: 2})[topic]) as two,
        ):
            streams = a._streams
            assert streams is not None
            # A cooperative member may be asked for partitions that nobody has in hand.
            await until(lambda: streams._dealing or b.assignment)
            stuck = (topic, slow.records[0].partition)
            assert stuck not in b.assignment
            slow.go.set()
            everybody = (slow, quick, *two)
            await until(lambda: len(set(all_of(*everybody))) == 80)
            await until(lambda: [len(each.stream.partitions) for each in everybody] == [1] * 4)
            assert all_of(*everybody) == list(range(80)), "read twice"


async def test_a_filter_s_streams_read_what_comes_and_not_what_it_excludes(
    bootstrap: str, reference: Driver, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    reference.produce(topic, numbered(20, 2))
    wanted = TopicFilter(include=f"{topic}.*", exclude=".*-not")
    async with (
        Cluster(bootstrap) as cluster,
        consuming(bootstrap, f"g-{topic}", metadata_max_age_ms=100) as consumer,
        working(*consumer.streams(wanted, 2)) as workers,
    ):
        await until(lambda: all_of(*workers) == list(range(20)))
        for name in (f"{topic}-new", f"{topic}-not"):
            await Admin(cluster).create_topic(name, partitions=2)
            reference.produce(name, numbered(6, 2))
        await until(lambda: len(all_of(*workers)) == 26)
        assert consumer.subscription == {topic, f"{topic}-new"}
        assert {len(worker.stream.partitions) for worker in workers} == {2}


async def test_what_can_t_be_read_by_streams_is_refused_with_what_to_type() -> None:
    cluster = Cluster("127.0.0.1:1")
    async with Consumer(cluster) as alone:
        with pytest.raises(ValueError, match="needs a group_id"):
            alone.streams({"t": 1})
    async with Consumer(cluster, group_id="g") as consumer:
        with pytest.raises(ValueError, match=r"0 streams read nothing: .* streams\(\{'t': 2\}\)"):
            consumer.streams({"t": 0})
        with pytest.raises(ValueError, match="streams of no topic"):
            consumer.streams({})
        consumer.assign([("t", 0)])
        with pytest.raises(ValueError, match=r"something to read already: unsubscribe\(\) first"):
            consumer.streams({"t": 1})
