"""A group whose assignor goes by leaders, when these move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group import GroupTimes
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey

from .group_peer import CoordinatorPeer
from .peer import SILENCE, running


class MovingLeaders(CoordinatorPeer):
    """One broker that answers for several, of which each leads some of four partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"t": 4}
        self.leaders = [1, 1, 1, 1]
        self.others = ["z"]
        self.versions |= {ApiKey.OFFSET_FETCH: (1, 7)}
        self.answers[ApiKey.FETCH] = lambda _: SILENCE
        self.answers[ApiKey.LIST_OFFSETS] = lambda _: SILENCE
        self.answers[ApiKey.OFFSET_FETCH] = lambda _: SILENCE

    def _metadata(self, request: Any, code: int = 0) -> Any:
        answer = super()._metadata(request)
        kinds = messages.MetadataResponse
        answer.brokers = [
            kinds.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=self.port)
            for node_id in (1, 2)
        ]
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_id = self.leaders[partition.partition_index]
                partition.leader_epoch = -1
        return answer

    @property
    def joins(self) -> int:
        return self.generation


@pytest.mark.parametrize(
    ("assignor", "leaders", "joins"),
    [
        ("kraftpy-broker-range", [2, 1, 1, 1], 2),  # 0 lies behind the others now
        ("kraftpy-broker-range", [1, 1, 2, 2], 1),  # all lie as they did
        ("kraftpy-broker-range", [-1, 1, 1, 1], 1),  # 0 will be led by somebody soon
        ("range", [2, 1, 1, 1], 1),
    ],
)
def test_a_group_joins_again_when_that_divides_it_otherwise(
    assignor: str, leaders: list[int], joins: int
) -> None:
    peer = MovingLeaders()
    times = GroupTimes(heartbeat_interval_ms=20)

    async def run() -> None:
        async with (
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=2000) as cluster,
            Consumer(cluster, group_id="g", assignors=[assignor], times=times) as consumer,
        ):
            consumer.subscribe(["t"])
            while not consumer.assignment:
                await consumer.poll(10)
            peer.leaders = leaders
            asked = len(peer.asked(ApiKey.METADATA))

            async def looked() -> bool:
                await consumer.poll(10)
                beats = len(peer.asked(ApiKey.HEARTBEAT))
                return len(peer.asked(ApiKey.METADATA)) > asked + 2 or beats > 20

            async with asyncio.timeout(10):
                while not await looked() or peer.joins < joins:
                    pass
            assert peer.joins == joins

    asyncio.run(run())
