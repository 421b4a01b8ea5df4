"""The share coordinator at its broker: what it keeps, and what of its logs leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.core.coordination import partition_for
from kraftpy.core.leases import state
from kraftpy.core.leases.terms import StateBatch
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.records import read_batch_header
from tests.unit.server.coordination.fake_shares import (
    GROUP,
    KEY,
    PARTITIONS,
    TOPIC_ID,
    FakeHost,
    topic,
)

INDEX = partition_for(KEY.coordinator_key, PARTITIONS)
DONE = StateBatch(0, 4, 2, 1)


def leading(**settings: str) -> FakeHost:
    host = FakeHost(None, **settings)
    host.lead()
    return host


def started(log: bytearray) -> int:
    """Where a log begins."""
    return read_batch_header(bytes(log), 0).base_offset


def reload(host: FakeHost) -> None:
    """Another broker has coordinated it meanwhile."""
    host.replicas.lose(INDEX)
    host.share_coordinator.refresh()
    host.replicas.regain(INDEX)
    host.share_coordinator.refresh()


def kept(host: FakeHost) -> int:
    return sum(len(machine) for _, machine in host.share_coordinator.machines())


async def dropped(host: FakeHost) -> None:
    async with asyncio.timeout(5):
        while kept(host):
            await asyncio.sleep(0)


async def test_trap_13_a_log_is_cut_behind_the_snapshot_that_counts() -> None:
    host = leading(snapshot_update_records_per_snapshot="3")
    coordinator, log = host.share_coordinator, host.replicas.led[INDEX]
    assert await host.initialize() is E.NONE
    for _ in range(3):
        assert await host.write(DONE) is E.NONE
        await coordinator.prune()
        assert started(log) == 0
    host.replicas.holds = True
    writing = asyncio.ensure_future(host.write(StateBatch(5, 5, 2, 1), finished=6))
    async with asyncio.timeout(5):
        while not host.replicas.held:
            await asyncio.sleep(0)
    await coordinator.prune()
    assert started(log) == 0  # the successor isn't committed
    host.replicas.release(0)
    assert await writing is E.NONE
    await coordinator.prune()
    assert started(log) == 4
    host.replicas.holds = False
    reload(host)
    found = await host.persister.read(GROUP, TOPIC_ID, 0, leader_epoch=0)
    assert found == (E.NONE, 0, 0, (StateBatch(0, 5, 2, 1),))


async def test_what_gets_no_writes_does_not_hold_back_the_log(monkeypatch: Any) -> None:
    monkeypatch.setattr(state, "OUTDATED_AFTER_MIN", 10)
    host = leading()
    host.metadata.topics[SHARE_STATE_TOPIC] = topic([1])
    log = host.replicas.led[0]
    await host.initialize(0)
    await host.initialize(1)
    for offset in range(40):
        await host.write(StateBatch(offset, offset, 2, 1), partition=1)
    await host.share_coordinator.prune()
    await asyncio.sleep(0.01)
    assert started(log) == 0
    await host.share_coordinator.prune()
    assert started(log) > 40


async def test_trap_14_a_topic_that_is_deleted_leaves_nothing() -> None:
    host = leading()
    for partition in range(30):
        assert await host.initialize(partition) is E.NONE
    host.metadata.topics_by_id.clear()
    host.share_coordinator.topic_deleted("t")
    host.share_coordinator.topic_deleted("u")
    await dropped(host)
    await host.share_coordinator.stop()


async def test_trap_14_also_when_it_goes_while_nobody_coordinates() -> None:
    host = leading()
    assert await host.initialize() is E.NONE
    host.replicas.lose(INDEX)
    host.share_coordinator.refresh()
    host.metadata.topics_by_id.clear()
    host.replicas.regain(INDEX)
    host.share_coordinator.refresh()
    async with asyncio.timeout(5):
        while len(dict(host.share_coordinator.machines())) < PARTITIONS:
            await asyncio.sleep(0)
    await dropped(host)
