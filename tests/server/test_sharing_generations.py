"""Members that share, while one generation follows another: what is under way belongs to one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kraftpy.client import consumer_shares
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.coordinator import Coordinator
from kraftpy.client.group import Member
from kraftpy.client.offsets import Partition
from kraftpy.protocol import messages
from kraftpy.testing import Broker
from tests.waiting import TIMEOUT_S, until

from .test_sharing import TIMES, NewTopic, group_on, send

TOPIC = 2
OPTIONS: dict[str, Any] = {
    "assignors": ["kraftpy-cooperative-sticky"],
    "auto_offset_reset": "earliest",
    "times": TIMES,
}


class Losses(RebalanceListener):
    def __init__(self) -> None:
        self.lost_partitions: list[Partition] = []

    async def lost(self, partitions: Sequence[Partition]) -> None:
        self.lost_partitions += partitions


@pytest.fixture
def shared(new_topic: NewTopic) -> str:
    return new_topic(accept_range_fetch="true")


async def poll_until(
    consumer: Consumer, condition: Callable[[], object], most: int = 500
) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            found += await consumer.poll(20, max_records=most)
    return found


async def test_a_former_generation_s_first_offset_loses_nothing(
    broker: Broker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit comes late, and is refused; the member goes on as who it is by then."""
    topic, other = new_topic(accept_range_fetch="true"), new_topic(accept_range_fetch="true")
    commit, asked, may_go_on = consumer_shares.compare_and_commit, asyncio.Event(), asyncio.Event()

    async def commit_late(*args: Any, **options: Any) -> bool:
        asked.set()
        await may_go_on.wait()
        return await commit(*args, **options)

    monkeypatch.setattr(consumer_shares, "compare_and_commit", commit_late)
    options = {**OPTIONS, "group_id": topic, "explicit_done": True}
    listener = Losses()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(broker.bootstrap))
        one = await stack.enter_async_context(Consumer(cluster, **options))
        two = await stack.enter_async_context(Consumer(cluster, **options))
        one.subscribe([topic], listener=listener)
        await poll_until(one, asked.is_set)
        first = one.generation.id
        two.subscribe([other])
        polling = asyncio.create_task(poll_until(two, lambda: two.assignment))
        await poll_until(one, lambda: one.generation.id > first)
        await polling
        may_go_on.set()
        name = topic, 0
        await poll_until(one, lambda: listener.lost_partitions or name in one._reading.positions)
        assert not listener.lost_partitions


async def test_who_has_joined_since_the_last_poll_commits_when_it_is_closed(
    broker: Broker, shared: str
) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(broker.bootstrap))
        await send(cluster, shared, range(100))
        options = {**OPTIONS, "group_id": shared, "auto_commit_interval_ms": 60_000}
        one = await stack.enter_async_context(Consumer(cluster, **options))
        two = await stack.enter_async_context(Consumer(cluster, **options))
        one.subscribe([shared])
        found: list[ConsumerRecord] = []
        while not found:
            found += await one.poll(20, max_records=10)
        two.subscribe([shared])
        polling = asyncio.create_task(poll_until(two, lambda: two.generation.id > 0))
        member = one._member
        assert member is not None
        await until(lambda: member.needs_join)
        found += await poll_until(one, lambda: one._joining is not None, 1)
        assert one._joining is not None
        await until(one._joining.done)
        assert member.generation.id > one.generation.id
        await one.close()
        await polling
        assert await two.committed([(shared, 0)]) == {(shared, 0): len(found)}


@pytest.mark.parametrize("leave", ["close", "unsubscribe"])
async def test_what_was_committed_without_waiting_counts_when_the_member_leaves(
    broker: Broker, shared: str, leave: str
) -> None:
    async with Cluster(broker.bootstrap) as cluster:
        await send(cluster, shared, range(100))
        options = {**OPTIONS, "group_id": shared, "enable_auto_commit": False}
        async with Consumer(cluster, **options) as one:
            one.subscribe([shared])
            commits: list[asyncio.Task[None]] = []
            while len(commits) < 5:
                if await one.poll(20, max_records=1):
                    commits.append(one.commit_async())
            await getattr(one, leave)()
            await asyncio.gather(*commits)
        assert await Coordinator(cluster, shared).committed([(shared, 0)]) == {(shared, 0): 5}


async def test_who_learns_that_it_was_replaced_hands_out_nothing_more(
    broker: Broker, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the poll is at when it hears of that."""
    async with Cluster(broker.bootstrap) as cluster:
        await send(cluster, shared, range(100))
        async with Consumer(cluster, group_id=shared, **OPTIONS) as one:
            one.subscribe([shared])
            while not await one.poll(20, max_records=1):
                pass
            member = one._member
            assert member is not None

            async def look(self: Member) -> None:
                monkeypatch.undo()
                kinds = messages.LeaveGroupRequest
                request = kinds(shared, members=[kinds.MemberIdentity(one.generation.member_id)])
                await Coordinator(cluster, shared).ask(request)
                await until(lambda: member.lost)

            monkeypatch.setattr(Member, "look_at_features", look)
            one._look_at = 0.0
            assert one._reading, "there are records to hand out"
            assert not await one.poll(0)


async def test_at_the_log_s_end_nobody_skips_what_came_before_the_others(
    broker: Broker, shared: str
) -> None:
    """Nothing is committed when a partition is cut that a member has begun to read."""
    options = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    async with group_on(broker, shared) as (group, cluster):
        one = await group.start(assignors=OPTIONS["assignors"], **options)
        await group.until(lambda: (shared, 0) in one.consumer._reading.positions)
        await send(cluster, shared, range(50))
        await group.until(lambda: len(one.records) == 50)
        one.consumer.pause([(shared, 0)])
        await send(cluster, shared, range(50, 100))
        two = await group.start(assignors=OPTIONS["assignors"], **options)
        await group.until_shared(one, two)
        await group.until(lambda: (shared, 0) in two.consumer._reading.positions)
        one.consumer.resume([(shared, 0)])
        await one.consumer.commit()
        await group.until(lambda: len({record.offset for _, record in group.seen}) == 100)


async def test_members_read_on_when_their_topic_allows_no_slices_any_more(
    broker: Broker, shared: str
) -> None:
    """Until the group's leader has seen that and divides it anew, all of it is sent to all."""
    async with group_on(broker, shared) as (group, cluster):
        options = {"assignors": OPTIONS["assignors"], "metadata_max_age_ms": 2000}
        readers = [await group.start(**options) for _ in range(2)]
        await group.until_shared(*readers)
        await send(cluster, shared, range(100))
        await group.until_committed(100)
        kinds = messages.IncrementalAlterConfigsRequest
        config = kinds.AlterableConfig("accept.range.fetch", 0, "false")
        answer = await cluster.request(kinds([kinds.AlterConfigsResource(TOPIC, shared, [config])]))
        assert not answer.responses[0].error_code
        await send(cluster, shared, range(100, 200))
        await group.until_committed(200)
        await group.until(lambda: {len(each.consumer.shares) for each in readers} == {0, 1})
        await send(cluster, shared, range(200, 300))
        await group.until_committed(300)
        group.check(300)
