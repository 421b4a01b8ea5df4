"""A broker that leads a topic: its replicas and their logs are real, the quorum is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import PartitionState
from kraftpy.core.metadata.commands import AlterPartition
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.replication.replicas import ReplicaManager
from kraftpy.storage.log import Log
from tests.unit.storage.support import SMALL, TOPIC_ID, Store

LEADER, FOLLOWER, EPOCH, BROKER_EPOCH = 1, 2, 5, 9
DEADLINE_S = 10.0
NOW_MS = 1_700_000_000_000


class Broker:
    """Broker 1, which leads all of a topic; what it proposes is never answered."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id, self.broker_epoch = LEADER, 1
        self.config = BrokerConfig.from_properties({})
        self.flusher = store.flusher
        self.logs: Any = self
        self.controller: Any = self
        self.proposed: asyncio.Queue[AlterPartition] = asyncio.Queue()
        self.opener: Any = self
        self.topic_config = SMALL
        self._store = store
        self.replicas = ReplicaManager(self)  # type: ignore[arg-type]

    def get_or_create(self, topic: str, index: int, topic_id: bytes, config: object) -> Log:
        return self._store.log(partition=index)

    def checkpointed_high_watermark(self, log: Log) -> int:
        return 0

    def take_failed(self) -> list[Log]:
        return []

    def now_ms(self) -> int:
        return NOW_MS

    def missing_partition_error(self, topic: str, index: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def propose(self, command: AlterPartition, timeout_ms: int) -> tuple[int, Any]:
        self.proposed.put_nowait(command)
        return await self.loop.create_future()

    def lead(self, *isr: int, count: int = 1, epoch: int = EPOCH) -> None:
        state = PartitionState(
            LEADER, epoch, epoch, (LEADER, FOLLOWER), isr, directories=(TOPIC_ID, TOPIC_ID)
        )
        topic = SimpleNamespace(
            name="t", id=TOPIC_ID, partitions=dict.fromkeys(range(count), state)
        )
        self.topics = {"t": topic}
        self.replicas.apply_topic(topic, lambda name: self.topic_config)  # type: ignore[arg-type]

    def alive(self, node_id: int, epoch: int) -> None:
        broker = SimpleNamespace(active=True, epoch=epoch)
        self.replicas.broker_changed(node_id, broker)  # type: ignore[arg-type]


Test = Callable[[Broker], Awaitable[None]]


def run_scripted(store: Store, test: Test) -> None:
    """Runs a test with a broker on the store."""

    async def main() -> None:
        broker = Broker(store)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await test(broker)
        finally:
            broker.replicas.close()

    asyncio.run(main())
