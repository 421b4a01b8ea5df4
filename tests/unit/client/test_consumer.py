"""The consumer's own part: what it asks brokers for, and what it tells of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import Generation, GroupMetadata
from kraftpy.client.offsets import EARLIEST, LATEST, OffsetAndMetadata
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey

from .peer import Peer, batch, fetch_response, list_offsets_answer, running

T0 = ("t", 0)
COMMITTED = messages.OffsetCommitResponse
FETCHED = messages.OffsetFetchResponse


def consume(peer: Peer, work: Callable[[Consumer], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with (
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=2000) as cluster,
            Consumer(cluster, **options) as consumer,
        ):
            await work(consumer)

    asyncio.run(run())


@pytest.fixture
def peer() -> Peer:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 0, LATEST: 2})

    def answer(request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        data = b"" if offset else batch(0, b"a") + batch(1, b"never", transactional=True)
        return fetch_response({T0: data}, aborted=[(-1, 1)])

    peer.answers[ApiKey.FETCH] = answer
    return peer


@pytest.mark.parametrize(
    ("level", "number", "expected"),
    [("read_committed", 1, [b"a"]), ("read_uncommitted", 0, [b"a", b"never"])],
)
def test_the_isolation_level_is_that_of_everything_that_is_asked(
    peer: Peer, level: str, number: int, expected: list[bytes]
) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        found: list[Any] = []
        while await consumer.position(T0) < 2:
            found += await consumer.poll(100)
        assert [record.value for record in found] == expected
        await consumer.seek_to(LATEST)
        assert await consumer.position(T0) == 2

    consume(peer, work, auto_offset_reset="earliest", isolation_level=level)
    asked = [*peer.asked(ApiKey.FETCH), *peer.asked(ApiKey.LIST_OFFSETS)]
    assert {request.isolation_level for request in asked} == {number}


def test_an_isolation_level_that_there_is_not_is_refused(peer: Peer) -> None:
    async def nothing(consumer: Consumer) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="isolation_level must be"):
        consume(peer, nothing, isolation_level="committed")


def test_offsets_of_a_transaction_are_committed_as_the_member_that_it_is(peer: Peer) -> None:
    async def work(consumer: Consumer) -> None:
        assert consumer.group_metadata == GroupMetadata("g", Generation())

    consume(peer, work, group_id="g")

    async def alone(consumer: Consumer) -> None:
        with pytest.raises(ValueError, match="needs a group_id"):
            _ = consumer.group_metadata

    consume(peer, alone)


def test_a_text_is_committed_with_an_offset_and_comes_back(peer: Peer) -> None:
    kept: dict[Any, tuple[int, str, int]] = {}

    def commit(request: Any) -> Any:
        (topic,) = request.topics
        for each in topic.partitions:
            kept[topic.name, each.partition_index] = (
                each.committed_offset,
                each.committed_metadata,
                each.committed_leader_epoch,
            )
        rows = [
            COMMITTED.OffsetCommitResponsePartition(p.partition_index) for p in topic.partitions
        ]
        return COMMITTED(topics=[COMMITTED.OffsetCommitResponseTopic(topic.name, rows)])

    def fetch(request: Any) -> Any:
        rows = [
            FETCHED.OffsetFetchResponsePartition(
                partition_index=number,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                metadata=text,
            )
            for (_, number), (offset, text, epoch) in kept.items()
        ]
        return FETCHED(topics=[FETCHED.OffsetFetchResponseTopic(name="t", partitions=rows)])

    def find(request: Any) -> Any:
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=peer.port)

    peer.versions |= {
        ApiKey.FIND_COORDINATOR: (0, 3),
        ApiKey.OFFSET_COMMIT: (2, 9),
        ApiKey.OFFSET_FETCH: (1, 7),
    }
    peer.answers[ApiKey.FIND_COORDINATOR] = find
    peer.answers[ApiKey.OFFSET_COMMIT] = commit
    peer.answers[ApiKey.OFFSET_FETCH] = fetch

    async def work(consumer: Consumer) -> None:
        await consumer.commit({T0: OffsetAndMetadata(2, "état", 1)})
        assert await consumer.committed([T0]) == {T0: 2}
        assert await consumer.committed_with_metadata([T0]) == {T0: OffsetAndMetadata(2, "état", 1)}
        await consumer.commit_async({T0: 3})
        assert await consumer.committed_with_metadata([T0]) == {T0: OffsetAndMetadata(3)}

    consume(peer, work, group_id="g")


def test_a_closed_consumer_neither_commits_nor_ends_a_loop_as_if_nothing_were_left(
    peer: Peer,
) -> None:
    async def work(consumer: Consumer) -> None:
        await consumer.close()
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            await consumer.commit({T0: 3})
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            consumer.commit_async({T0: 3})
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            async for _ in consumer:
                pass

    consume(peer, work, group_id="g")


def test_a_loop_ends_where_it_closes_its_consumer(peer: Peer) -> None:
    seen: list[Any] = []

    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        async for record in consumer:
            seen.append(record.value)
            await consumer.close()

    consume(peer, work, auto_offset_reset="earliest")
    assert seen == [b"a"]
