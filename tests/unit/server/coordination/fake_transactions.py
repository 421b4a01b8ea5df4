"""As much of a broker as a transaction coordinator knows; the test is its leaders."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.transactions import Answer, Wish
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import WriteTxnMarkersRequest
from kraftpy.server.coordination.producer_ids import ProducerIds
from kraftpy.server.coordination.transaction_coordinator import (
    TRANSACTIONS_TOPIC,
    TransactionCoordinator,
)
from tests.unit.core.test_transactions.driver import markers_written
from tests.unit.server.coordination.fake_log import FakeLog

PARTITIONS = 4
ID = "t"
LOCAL, REMOTE = ("a", 0), ("a", 1)


def topic(*leaders: int) -> Any:
    return SimpleNamespace(
        partitions={index: SimpleNamespace(leader=leader) for index, leader in enumerate(leaders)}
    )


class FakeHost:
    """As much of a broker as the coordinator knows; it's the leaders and their connections, too."""

    def __init__(self, **settings: str) -> None:
        self.config = BrokerConfig.from_properties(
            {"node.id": "1", "log.dirs": "/tmp/unused", **settings}
        )
        self.loop = asyncio.get_running_loop()
        self.node_id = 1
        self.in_touch = True
        self.avoided: frozenset[int] = frozenset()
        self.replicas = FakeLog(TRANSACTIONS_TOPIC)
        topics = {"a": topic(1, 2), TRANSACTIONS_TOPIC: topic(*[1] * PARTITIONS)}
        self.metadata: Any = SimpleNamespace(topics=topics)
        self.controller: Any = None
        self.peers: Any = self
        self.closed = False
        self.blocks = 0
        self.block_size = 10
        self.producer_ids = ProducerIds(self._allocate)
        self.written: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.errors: list[Exception | E] = []
        self.ahead_ms = 0
        self.coordinator = TransactionCoordinator(self)

    async def _allocate(self) -> tuple[int, int]:
        await asyncio.sleep(0)
        self.blocks += 1
        return 1000 * self.blocks, self.block_size

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000) + self.ahead_ms

    async def request(self, node_id: int, lane: object, message: Any, *, timeout_ms: int) -> Any:
        self.written.append((node_id, message))
        await asyncio.sleep(0)
        error = self.errors.pop(0) if self.errors else E.NONE
        if isinstance(error, Exception):
            raise error
        return markers_written(message, lambda marker, topic, index: error)

    async def write_markers(self, markers: Any, appended: Any) -> list[dict[str, dict[int, E]]]:
        self.written.append((self.node_id, WriteTxnMarkersRequest(markers)))
        appended()
        await asyncio.sleep(0)
        error = self.errors.pop(0) if self.errors else E.NONE
        said = E.NOT_LEADER_OR_FOLLOWER if isinstance(error, Exception) else error
        return [
            {topic.name: dict.fromkeys(topic.partition_indexes, said) for topic in marker.topics}
            for marker in markers
        ]

    def lead(self) -> None:
        for index in range(PARTITIONS):
            self.replicas.led.setdefault(index, bytearray())
        self.coordinator.refresh()

    # -- what clients do

    async def init(self, name: str = ID, timeout_ms: int = 60_000) -> Answer:
        return await self.coordinator.init_producer_id(name, Wish(timeout_ms, None))

    async def open(self) -> tuple[int, int]:
        answer = await self.init()
        producer = answer.producer_id, answer.producer_epoch
        added = await self.coordinator.add_partitions(ID, producer, [LOCAL, REMOTE], 2)
        assert added.error is E.NONE
        return producer

    def state(self) -> str:
        return self.coordinator.describe(ID).state.label

    async def reach(self, state: str) -> None:
        async with asyncio.timeout(5):
            while self.state() != state:
                await asyncio.sleep(0.001)


def leading(**settings: str) -> FakeHost:
    host = FakeHost(**settings)
    host.lead()
    return host
