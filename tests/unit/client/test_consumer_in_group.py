"""A consumer in a group: rebalances, errors and leaving at moments that don't suit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.group import GroupTimes, decode_subscription
from kraftpy.client.offsets import Partition
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.waiting import until

from .group_peer import GroupPeer
from .peer import SILENCE, running

T0, T1 = ("t", 0), ("t", 1)
TIMES = GroupTimes(session_timeout_ms=10_000, heartbeat_interval_ms=20)


@asynccontextmanager
async def consuming(peer: GroupPeer, **options: Any) -> AsyncIterator[Consumer]:
    options = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50} | options
    async with (
        asyncio.timeout(8),
        running(peer),
        Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster,
        Consumer(cluster, group_id="g", times=TIMES, **options) as consumer,
    ):
        yield consumer


async def poll_until(consumer: Consumer, condition: Callable[[], object]) -> None:
    while not condition():
        await consumer.poll(20)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ApiKey.SYNC_GROUP, ErrorCode.ILLEGAL_GENERATION),
        (ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_a_join_that_was_refused_once_and_then_done_counts(
    key: ApiKey, code: ErrorCode
) -> None:
    peer = GroupPeer()
    async with consuming(peer) as consumer:
        consumer.subscribe(["t"])
        await poll_until(consumer, lambda: consumer.assignment)
        peer.codes[key] = [code]
        consumer.subscribe(["t", "u"])
        await consumer.poll(0)
        joining = consumer._joining
        assert joining is not None
        await asyncio.wait([joining])  # The user does something else meanwhile.
        assert peer.codes[key] == []
        await poll_until(consumer, lambda: consumer.assignment == {T0, T1})


class Hindering(RebalanceListener):
    """Raises when first told of partitions that go, or waits until it's cancelled."""

    def __init__(self, *, raises: bool) -> None:
        self.events: list[tuple[str, list[Partition]]] = []
        self._raises = raises
        self._first = True
        self.waits = asyncio.Event()

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        self.events.append(("assigned", list(partitions)))

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        self.events.append(("revoked", list(partitions)))
        if self._first:
            self._first = False
            if self._raises:
                raise ZeroDivisionError
            self.waits.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "cancelled"])
async def test_a_cooperative_rebalance_goes_on_whatever_the_listener_does(raises: bool) -> None:
    peer = GroupPeer()
    peer.topics["t"] = 3
    listener = Hindering(raises=raises)
    async with consuming(peer, assignors=["cooperative-sticky"]) as consumer:
        consumer.subscribe(["t"], listener=listener)
        await poll_until(consumer, lambda: consumer.assignment)
        peer.given = [T0, ("t", 2)]
        peer.codes[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS]
        if raises:
            with pytest.raises(ZeroDivisionError):
                await poll_until(consumer, lambda: False)
        else:
            polling = asyncio.create_task(poll_until(consumer, lambda: False))
            await listener.waits.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        joins = peer.generation
        await poll_until(consumer, lambda: peer.generation > joins)
        (protocol,) = peer.asked(ApiKey.JOIN_GROUP)[-1].protocols
        assert set(decode_subscription(protocol.metadata, None).owned) == {T0, ("t", 2)}
        assert listener.events[:3] == [
            ("assigned", [T0, T1]),
            ("revoked", [T1]),
            ("assigned", [("t", 2)]),
        ]


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS], ids=str
)
async def test_a_commit_that_is_refused_while_joining_says_nothing_more(code: ErrorCode) -> None:
    """The others have joined, and so has this one, but for the answer."""
    peer = GroupPeer()
    async with consuming(peer, assignors=["cooperative-sticky"]) as consumer:
        consumer.subscribe(["t"])
        await poll_until(consumer, lambda: consumer.assignment)
        await consumer.position(T0)
        peer.answers[ApiKey.JOIN_GROUP] = lambda _: SILENCE
        peer.codes[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS]
        joins = len(peer.asked(ApiKey.JOIN_GROUP))
        await poll_until(consumer, lambda: len(peer.asked(ApiKey.JOIN_GROUP)) > joins)
        peer.codes[ApiKey.OFFSET_COMMIT] = [code]
        with pytest.raises(KafkaError):
            await consumer.commit()
        await consumer.poll(0)
        assert consumer.assignment == {T0, T1}
        member = consumer._member
        assert member is not None
        assert not member.needs_join


class Slow(RebalanceListener):
    """Takes as long as the test wants when first told of partitions that go."""

    def __init__(self) -> None:
        self.calls = 0
        self.called, self.go = asyncio.Event(), asyncio.Event()

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        self.calls += 1
        if self.calls == 1:
            self.called.set()
            await self.go.wait()


async def test_who_polls_while_the_consumer_is_closed_joins_nothing() -> None:
    peer, listener = GroupPeer(), Slow()
    async with consuming(peer) as consumer:
        consumer.subscribe(["t"], listener=listener)
        await poll_until(consumer, lambda: consumer.assignment)
        polling = asyncio.create_task(poll_until(consumer, lambda: False))
        closing = asyncio.create_task(consumer.close())
        await listener.called.wait()
        peer.codes[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS]
        beats = len(peer.asked(ApiKey.HEARTBEAT))
        await until(lambda: len(peer.asked(ApiKey.HEARTBEAT)) > beats + 1)
        listener.go.set()
        await closing
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            await polling
        assert (listener.calls, consumer._joining, peer.generation) == (1, None, 1)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_rebalance_under_way_ends_when_the_group_is_left(assignor: str) -> None:
    peer, listener = GroupPeer(), Slow()
    async with consuming(peer, assignors=[assignor]) as consumer:
        consumer.subscribe(["t"], listener=listener)
        await poll_until(consumer, lambda: consumer.assignment)
        peer.given = [T0]
        peer.codes[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS]
        polling = asyncio.create_task(poll_until(consumer, lambda: not consumer.subscription))
        await listener.called.wait()
        await consumer.unsubscribe()
        listener.go.set()
        await polling
        assert (consumer.assignment, consumer._joining) == (frozenset(), None)


async def test_a_listener_that_raises_when_the_group_is_left_keeps_nothing() -> None:
    peer = GroupPeer()
    async with consuming(peer) as consumer:
        consumer.subscribe(["t"], listener=Hindering(raises=True))
        await poll_until(consumer, lambda: consumer.assignment)
        with pytest.raises(ZeroDivisionError):
            await consumer.unsubscribe()
        assert (consumer.assignment, consumer.subscription) == (frozenset(), frozenset())
        assert len(peer.asked(ApiKey.LEAVE_GROUP)) == 1
        consumer.subscribe(["t"])
        await poll_until(consumer, lambda: consumer.assignment)


@pytest.mark.parametrize("cancelled", [False, True], ids=["raises", "cancelled"])
@pytest.mark.parametrize(
    ("most", "commits", "expected"),
    [(1, None, 1), (3, None, 0), (3, {T0: 2}, 2), (3, {}, 3)],
    ids=["one by one", "a poll's", "some committed", "all committed"],
)
async def test_what_was_in_hand_when_an_error_ended_the_block_is_not_committed(
    cancelled: bool, most: int, commits: dict[Partition, int] | None, expected: int
) -> None:
    peer = GroupPeer()

    async def work() -> None:
        async with consuming(peer) as consumer:
            consumer.subscribe(["t"])
            found = []
            while not found or found[-1].offset < (1 if most == 1 else 2):
                found = await consumer.poll(100, max_records=most)
            if commits is not None:
                await consumer.commit(commits or None)
            if cancelled:
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(asyncio.CancelledError if cancelled else ZeroDivisionError):
        await asyncio.create_task(work())
    assert peer.committed.get(T0, 0) == expected


async def test_a_position_that_was_sought_counts_though_an_error_follows() -> None:
    peer = GroupPeer()

    async def work() -> None:
        async with consuming(peer) as consumer:
            consumer.subscribe(["t"])
            async for record in consumer:
                consumer.seek(T0, record.offset + 2)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert peer.committed[T0] == 2


@pytest.mark.parametrize("committed", [False, True])
async def test_a_rewound_partition_goes_on_where_the_group_stands_or_else_it_began(
    committed: bool,
) -> None:
    peer = GroupPeer()
    peer.given = [T0]
    options = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    async with consuming(peer, **options) as consumer:
        consumer.subscribe(["t"])
        await poll_until(consumer, lambda: consumer.assignment)
        assert await consumer.position(T0) == 3
        peer.records[T0] += [b"3", b"4"]
        assert [record.offset for record in await consumer.poll(1000)] == [3, 4]
        if committed:
            await consumer.commit({T0: 4})
        consumer.rewind()
        consumer.rewind()
        assert await consumer.position(T0) == (4 if committed else 3)


async def test_streams_that_ended_leave_no_connections() -> None:
    peer = GroupPeer()
    async with consuming(peer) as consumer:
        opened = []
        for _ in range(3):
            (stream,) = consumer.streams({"t": 1})["t"]
            assert (await anext(stream)).offset == 0
            opened.append(peer.open_connections)
            await consumer.unsubscribe()
            await until(lambda: peer.open_connections < opened[-1])
        assert opened == [opened[0]] * 3


async def test_commits_behind_one_that_is_not_answered_do_not_each_wait_as_long() -> None:
    peer = GroupPeer()
    peer.answers[ApiKey.OFFSET_COMMIT] = lambda _: SILENCE
    async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=300) as cluster:
        consumer = Consumer(cluster, group_id="g")
        commits = [consumer.commit_async({T0: offset}) for offset in range(5)]
        await consumer.close()
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert isinstance(outcomes[0], ConnectionError)
    for outcome in outcomes[2:]:
        assert isinstance(outcome, KafkaError)
        assert outcome.code == ErrorCode.REQUEST_TIMED_OUT
    assert len(peer.asked(ApiKey.OFFSET_COMMIT)) <= 2
