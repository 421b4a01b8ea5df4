"""As much of a broker as a share coordinator and the way to it know; the test is the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.server.coordination.share_coordinator import ShareCoordinator
from kraftpy.server.coordination.share_persister import SharePersister
from tests.unit.server.coordination.fake_log import FakeLog

PARTITIONS = 4
GROUP = "g"
TOPIC_ID = bytes(range(16))
KEY = ShareKey(GROUP, TOPIC_ID, 0)


def topic(leaders: list[int]) -> Any:
    return SimpleNamespace(
        partitions={index: SimpleNamespace(leader=leader) for index, leader in enumerate(leaders)}
    )


class FakeHost:
    """Broker 1, which leads all of the state topic unless `leaders` says otherwise.

    `asked` has the requests to others, which get what is in `said`: an answer or what to raise.
    """

    def __init__(self, leaders: list[int] | None = None, **settings: str) -> None:
        self.config = BrokerConfig.from_properties(
            {
                "node.id": "1",
                "log.dirs": "/tmp/unused",
                **{f"share.coordinator.{key.replace('_', '.')}": settings[key] for key in settings},
            }
        )
        self.loop = asyncio.get_running_loop()
        self.node_id = 1
        self.avoided: frozenset[int] = frozenset()
        self.replicas = FakeLog(SHARE_STATE_TOPIC)
        self.ahead_ms = 0
        self.metadata: Any = SimpleNamespace(
            topics={SHARE_STATE_TOPIC: topic(leaders or [1] * PARTITIONS)},
            topics_by_id={TOPIC_ID: topic([0] * 200)},
        )
        self.controller: Any = None
        self.peers: Any = self
        self.asked: list[tuple[int, Any, int | None]] = []
        self.said: list[Any] = []
        self.share_coordinator = ShareCoordinator(self)
        self.persister = SharePersister(self)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000) + self.ahead_ms

    async def request(
        self, node_id: int, lane: object, message: Any, *, timeout_ms: int, version: int | None
    ) -> Any:
        self.asked.append((node_id, message, version))
        said = self.said.pop(0)
        await asyncio.sleep(0)
        if isinstance(said, Exception):
            raise said
        return said

    def lead(self) -> None:
        for index in range(PARTITIONS):
            self.replicas.led.setdefault(index, bytearray())
        self.share_coordinator.refresh()

    async def initialize(self, partition: int = 0, state_epoch: int = 0) -> E:
        return await self.persister.initialize(
            GROUP, TOPIC_ID, partition, state_epoch=state_epoch, start_offset=-1
        )

    async def write(
        self, *batches: Any, partition: int = 0, start: int = 0, finished: int = 0, leader: int = 0
    ) -> E:
        return await self.persister.write(
            GROUP,
            TOPIC_ID,
            partition,
            state_epoch=0,
            leader_epoch=leader,
            start_offset=start,
            finished_count=finished,
            batches=batches,
        )
