"""How the state of share groups gets to its coordinators, here and elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.leases.terms import StateBatch
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol import messages as m
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.server.coordination import share_persister
from kraftpy.server.coordination.share_state_calls import StateSummary
from tests.unit.server.coordination.fake_shares import (
    GROUP,
    PARTITIONS,
    TOPIC_ID,
    FakeHost,
    topic,
)

DONE = StateBatch(0, 4, 2, 1)
LATER = StateBatch(5, 9, 2, 1)


def leading() -> FakeHost:
    host = FakeHost()
    host.lead()
    return host


def written(message: m.WriteShareGroupStateRequest, error: E = E.NONE) -> Any:
    kinds = m.WriteShareGroupStateResponse
    return kinds(
        [
            kinds.WriteStateResult(
                each.topic_id, [kinds.PartitionResult(p.partition, error) for p in each.partitions]
            )
            for each in message.topics
        ]
    )


class Elsewhere(FakeHost):
    """All of it is led by broker 2, whose answer is `error`, or what is in `said`."""

    def __init__(self) -> None:
        super().__init__([2] * PARTITIONS)
        self.error = E.NONE

    async def request(
        self, node_id: int, lane: object, message: Any, *, timeout_ms: int, version: int | None
    ) -> Any:
        if not self.said:
            self.said.append(written(message, self.error))
        return await super().request(node_id, lane, message, timeout_ms=timeout_ms, version=version)


async def test_what_is_kept_here_can_be_read_and_deleted() -> None:
    host = leading()
    persister = host.persister
    assert await host.write(DONE) is E.INVALID_REQUEST
    assert await host.initialize() is E.NONE
    assert await host.write(DONE, LATER, start=2, finished=8) is E.NONE
    kept = await persister.read(GROUP, TOPIC_ID, 0, leader_epoch=3)
    assert kept == (E.NONE, 0, 2, (StateBatch(2, 9, 2, 1),))
    assert await host.write(leader=2) is E.FENCED_LEADER_EPOCH
    assert await persister.summary(GROUP, TOPIC_ID, 0) == StateSummary(E.NONE, 0, 3, 2, 8)
    assert await host.initialize(state_epoch=1) is E.NONE
    assert await host.write(leader=3) is E.FENCED_STATE_EPOCH
    assert await persister.delete(GROUP, TOPIC_ID, 0) is E.NONE
    assert (await persister.read(GROUP, TOPIC_ID, 0, leader_epoch=3)).error is E.INVALID_REQUEST
    assert await persister.summary(GROUP, TOPIC_ID, 0) == StateSummary(E.NONE, 0, 0, -1, -1)


async def test_nothing_is_kept_of_a_partition_that_is_not_there() -> None:
    host = leading()
    gone, other = bytes(16), host.persister
    errors = [
        await other.initialize(GROUP, gone, 0, state_epoch=0, start_offset=0),
        (await other.read(GROUP, gone, 0, leader_epoch=0)).error,
    ]
    assert errors == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert await other.delete(GROUP, gone, 0) is E.NONE
    assert not any(host.replicas.led.values())


async def test_a_turns_writes_to_a_state_partition_are_one_batch() -> None:
    host = leading()
    host.metadata.topics[SHARE_STATE_TOPIC] = topic([1])
    await asyncio.gather(*(host.initialize(partition) for partition in range(50)))
    _, end = host.replicas.read_batches(SHARE_STATE_TOPIC, 0, 0, 1)
    assert end == 50


async def test_a_turns_calls_for_a_broker_are_one_request() -> None:
    host = Elsewhere()
    errors = await asyncio.gather(*(host.write(DONE, partition=index) for index in range(20)))
    assert errors == [E.NONE] * 20
    ((node_id, message, version),) = host.asked
    assert (node_id, version, message.group_id) == (2, 1, GROUP)
    assert [each.partition for each in message.topics[0].partitions] == list(range(20))


async def test_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_persister, "REQUEST_MAX", 8)
    monkeypatch.setattr(share_persister, "REQUEST_BATCHES_MAX", 10)
    host = Elsewhere()
    errors = await asyncio.gather(
        *(host.write(DONE, partition=index) for index in range(20)),
        *(host.write(*[DONE] * 7, partition=index) for index in range(20, 23)),
    )
    assert list(errors) == [E.NONE] * 23
    sizes = [len(message.topics[0].partitions) for _, message, _ in host.asked]
    assert sizes == [8, 8, 4, 1, 1, 1]


async def test_writes_that_wait_become_one() -> None:
    host = Elsewhere()
    first = asyncio.ensure_future(host.write(DONE, start=2, finished=3))
    while not host.asked:
        await asyncio.sleep(0)
    errors = await asyncio.gather(
        first, host.write(LATER, start=7, finished=3), host.write(finished=4, start=-1)
    )
    assert list(errors) == [E.NONE] * 3
    (_, message, _) = host.asked[1]
    (part,) = message.topics[0].partitions
    batch = m.WriteShareGroupStateRequest.StateBatch(*LATER)
    assert (part.start_offset, part.delivery_complete_count) == (7, 4)
    assert part.state_batches == [batch]
    assert len(host.asked) == 2


async def test_writes_of_other_epochs_stay_apart() -> None:
    host = Elsewhere()
    errors = await asyncio.gather(host.write(DONE, leader=3), host.write(LATER, leader=4))
    assert list(errors) == [E.NONE] * 2
    assert [message.topics[0].partitions[0].leader_epoch for _, message, _ in host.asked] == [3, 4]


@pytest.mark.parametrize(
    "passing",
    [
        ConnectionLostError("gone"),
        KafkaError(E.UNSUPPORTED_VERSION),
        m.WriteShareGroupStateResponse(),
    ],
)
async def test_what_may_pass_is_tried_again(passing: Any) -> None:
    host = Elsewhere()
    host.said.append(passing)
    assert await host.write(DONE) is E.NONE
    assert len(host.asked) == 2


async def test_it_goes_where_the_coordinator_has_moved() -> None:
    host = Elsewhere()
    host.error = E.NOT_COORDINATOR
    writing = asyncio.ensure_future(host.write(DONE))
    while not host.asked:
        await asyncio.sleep(0)
    host.metadata.topics[SHARE_STATE_TOPIC] = topic([-1] * PARTITIONS)
    await asyncio.sleep(0.03)
    host.metadata.topics[SHARE_STATE_TOPIC] = topic([1] * PARTITIONS)
    host.lead()
    assert await writing is E.INVALID_REQUEST  # of this broker, at which nothing is initialized


async def test_a_topic_that_the_coordinator_has_not_heard_of_may_come() -> None:
    host = Elsewhere()
    host.error = E.UNKNOWN_TOPIC_OR_PARTITION
    writing = asyncio.ensure_future(host.write(DONE))
    while len(host.asked) < 2:
        await asyncio.sleep(0.005)
    host.metadata.topics_by_id.clear()
    assert await writing is E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("error", [E.FENCED_LEADER_EPOCH, E.FENCED_STATE_EPOCH, E.INVALID_REQUEST])
async def test_all_else_is_the_answer(error: E) -> None:
    host = Elsewhere()
    host.error = error
    assert await host.write(DONE) is error
    assert len(host.asked) == 1


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_persister, "CALL_TIMEOUT_S", 0.05)
    host = Elsewhere()
    host.error = E.COORDINATOR_NOT_AVAILABLE
    assert await host.write(DONE) is E.REQUEST_TIMED_OUT
    async with asyncio.timeout(10):
        while host.persister.waiting:  # nobody writes any more what nobody waits for
            await asyncio.sleep(0.005)
    monkeypatch.undo()
    host.error = E.NONE
    asked = len(host.asked)
    assert await host.write(LATER) is E.NONE
    assert len(host.asked) == asked + 1


async def test_who_waits_when_the_broker_stops_is_told() -> None:
    host = Elsewhere()
    host.error = E.COORDINATOR_NOT_AVAILABLE
    waiting = [asyncio.ensure_future(host.write(DONE)) for _ in range(2)]
    while not host.asked:
        await asyncio.sleep(0)
    await host.persister.close()
    assert [await each for each in waiting] == [E.COORDINATOR_NOT_AVAILABLE] * 2
    assert await host.initialize() is E.COORDINATOR_NOT_AVAILABLE
