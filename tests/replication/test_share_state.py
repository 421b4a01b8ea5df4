"""The state of share groups on three nodes: what was answered stays, and old leaders are fenced.

A persister of the tests' own asks the nodes' share coordinators as those of brokers do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.core.coordination import partition_for
from kraftpy.core.leases.share_state import Summary
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.leases.terms import StateBatch
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.server.coordination.peers import Peers
from kraftpy.server.coordination.share_persister import SharePersister
from kraftpy.testing import Cluster
from tests.server.share_state import Share
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import connect, leader_of

GROUP = "g"
PARTITIONS = 6
SETTINGS: dict[str, Any] = {
    "share_coordinator_state_topic_num_partitions": 3,
    "share_coordinator_snapshot_update_records_per_snapshot": 5,
    "share_coordinator_state_topic_prune_interval_ms": 200,
    "log_flush_start_offset_checkpoint_interval_ms": 200,
}


@pytest.fixture(scope="module")
def three() -> Any:
    with Cluster(3, **SETTINGS) as cluster:
        yield cluster


class Outside:
    """As much of a broker as a persister knows: one beside the cluster, which leads nothing."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id = -1
        self.config = BrokerConfig.from_properties({"node.id": "9", "log.dirs": "/tmp/unused"})
        self.metadata: Any = SimpleNamespace(topics={}, topics_by_id={})
        self.dialer: Any = self
        self.share_coordinator: Any = self
        self.peers = Peers(self)
        self.topic_id = b""
        self._cluster = cluster
        self._topic = topic

    async def open(self, node_id: int, **options: Any) -> Connection:
        node = self._cluster.nodes[node_id]
        return await Connection.open(node.host, node.port, **options)

    async def index_of(self, key: str) -> int:
        if SHARE_STATE_TOPIC not in self.metadata.topics:
            raise KafkaError(E.COORDINATOR_NOT_AVAILABLE)
        return partition_for(key, len(self.metadata.topics[SHARE_STATE_TOPIC].partitions))

    async def follow(self) -> None:
        """Follows the metadata, by whichever node there is."""
        while True:
            for node_id in self._cluster.nodes:
                with contextlib.suppress(ConnectionLostError, KafkaError):
                    connection = await self.open(node_id, timeout_ms=2_000)
                    try:
                        while True:
                            await self._ask(connection)
                            await asyncio.sleep(0.02)
                    finally:
                        await connection.close()
            await asyncio.sleep(0.02)

    async def _ask(self, connection: Connection) -> None:
        names = [SHARE_STATE_TOPIC, self._topic]
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = m.MetadataRequest(wanted, allow_auto_topic_creation=False)
        for topic in (await connection.request(request, timeout_ms=2_000)).topics:
            if topic.error_code:
                if topic.name == self._topic:
                    self.metadata.topics_by_id.clear()
                continue
            found = SimpleNamespace(
                partitions={
                    each.partition_index: SimpleNamespace(leader=each.leader_id)
                    for each in topic.partitions
                }
            )
            self.metadata.topics[topic.name] = found
            if topic.name == self._topic:
                self.topic_id = topic.topic_id
                self.metadata.topics_by_id[topic.topic_id] = found


class Asking:
    """What a leader of this epoch asks for."""

    def __init__(self, persister: SharePersister, topic_id: bytes) -> None:
        self.persister = persister
        self.topic_id = topic_id

    async def initialize(self, partition: int) -> E:
        return await self.persister.initialize(
            GROUP, self.topic_id, partition, state_epoch=0, start_offset=0
        )

    async def accept(self, partition: int, offset: int, leader_epoch: int = 0) -> E:
        return await self.persister.write(
            GROUP,
            self.topic_id,
            partition,
            state_epoch=0,
            leader_epoch=leader_epoch,
            start_offset=0,
            finished_count=offset + 1,
            batches=[StateBatch(offset, offset, 2, 1)],
        )

    async def read(self, partition: int, leader_epoch: int = 0) -> tuple[Any, ...]:
        return await self.persister.read(GROUP, self.topic_id, partition, leader_epoch=leader_epoch)


def delete(cluster: Cluster, topic: str) -> None:
    """Deletes the topic, and with it what holds back the logs of other tests."""
    with connect(cluster, 1) as wire:
        request = m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        wire.call(ApiKey.DELETE_TOPICS, 5, request)


@asynccontextmanager
async def asking(cluster: Cluster, topic: str) -> AsyncIterator[Asking]:
    with connect(cluster, 1) as wire:  # who looks for a coordinator has the topic made
        assert Share(wire, bytes(range(16))).find().error_code in (
            E.NONE,
            E.COORDINATOR_NOT_AVAILABLE,
        )
    outside = Outside(cluster, topic)
    following = outside.loop.create_task(outside.follow())
    persister = SharePersister(outside)
    try:
        async with asyncio.timeout(20):
            while len(outside.metadata.topics) < 2:
                await asyncio.sleep(0.02)
        yield Asking(persister, outside.topic_id)
    finally:
        await persister.close()
        await outside.peers.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        delete(cluster, topic)


async def test_what_was_accepted_stays_when_a_share_coordinator_is_killed(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    everything = range(PARTITIONS)
    async with asking(three, new_topic(three, partitions=PARTITIONS)) as leader:
        assert {await leader.initialize(each) for each in everything} == {E.NONE}
        accepted = dict.fromkeys(everything, 0)
        stopped = False

        async def go_on(partition: int) -> None:
            while not stopped:
                assert await leader.accept(partition, accepted[partition]) is E.NONE
                accepted[partition] += 1

        writing = [asyncio.ensure_future(go_on(each)) for each in everything]
        victim = await asyncio.to_thread(leader_of, three, SHARE_STATE_TOPIC, 0)
        before = dict(accepted)
        await asyncio.to_thread(three.kill, victim)
        async with asyncio.timeout(20):
            while any(accepted[each] < before[each] + 7 for each in everything):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(three.restart, victim)
        await asyncio.to_thread(three.wait_healthy)
        stopped = True
        await asyncio.gather(*writing)
        for each in everything:
            last = accepted[each] - 1
            assert await leader.read(each) == (E.NONE, 0, 0, (StateBatch(0, last, 2, 1),))


async def test_trap_8_an_old_leader_is_fenced_by_the_next_coordinator_too(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    async with asking(three, new_topic(three)) as leader:
        assert await leader.accept(0, 0) is E.INVALID_REQUEST  # it isn't initialized
        assert await leader.initialize(0) is E.NONE
        assert await leader.accept(0, 0, leader_epoch=3) is E.NONE
        assert (await leader.read(0, leader_epoch=4))[0] is E.NONE
        key = ShareKey(GROUP, leader.topic_id, 0).coordinator_key
        victim = await asyncio.to_thread(leader_of, three, SHARE_STATE_TOPIC, partition_for(key, 3))
        await asyncio.to_thread(three.kill, victim)
        assert await leader.accept(0, 1, leader_epoch=3) is E.FENCED_LEADER_EPOCH
        assert (await leader.read(0, leader_epoch=3))[0] is E.FENCED_LEADER_EPOCH
        assert await leader.accept(0, 1, leader_epoch=4) is E.NONE
        await asyncio.to_thread(three.restart, victim)
        await asyncio.to_thread(three.wait_healthy)


def log_starts(cluster: Cluster) -> dict[int, int]:
    """Where the logs of the state topic begin on each node, added up."""
    found = {}
    for node_id, node in cluster.nodes.items():
        path = Path(node.log_dir) / "log-start-offset-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        parts = (line.split() for line in lines)
        found[node_id] = sum(int(start) for name, _, start in parts if name == SHARE_STATE_TOPIC)
    return found


async def test_trap_13_pruned_logs_have_all_that_counts_after_a_restart_of_all(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    async with asking(three, new_topic(three, partitions=PARTITIONS)) as leader:
        before = log_starts(three)
        for each in range(PARTITIONS):
            assert await leader.initialize(each) is E.NONE
            for offset in range(14):
                assert await leader.accept(each, offset) is E.NONE
        wanted = "the heads of the logs have gone on all nodes"
        moved = lambda: all(start > before[n] for n, start in log_starts(three).items())  # noqa: E731
        await asyncio.to_thread(wait_until, moved, wanted)
        for node in list(three.nodes):
            await asyncio.to_thread(three.kill, node)
        await asyncio.to_thread(three.restart, *three.nodes)
        await asyncio.to_thread(three.wait_healthy)
        for each in range(PARTITIONS):
            assert await leader.read(each) == (E.NONE, 0, 0, (StateBatch(0, 13, 2, 1),))


async def test_trap_14_a_deleted_topic_leaves_no_state(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    name = new_topic(three)
    async with asking(three, name) as leader:
        assert await leader.initialize(0) is E.NONE
        summary = leader.persister.summary
        assert (await summary(GROUP, leader.topic_id, 0))[1:] == Summary(0, -1, 0, 0)
        await asyncio.to_thread(delete, three, name)
        async with asyncio.timeout(20):
            while (await summary(GROUP, leader.topic_id, 0))[1:] != (0, 0, -1, -1):
                await asyncio.sleep(0.02)
        assert (await leader.read(0))[0] is E.UNKNOWN_TOPIC_OR_PARTITION
