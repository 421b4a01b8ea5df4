"""A consumer in a group: rebalances, errors and leaving at moments that don't suit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group import GroupTimes
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode

from .group_peer import GroupPeer
from .peer import running

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
