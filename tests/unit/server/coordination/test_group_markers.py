"""Markers on their way through a group coordinator: their place among the writes of a partition."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.core.coordination import partition_for
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.server.replication.markers import Marker
from tests.unit.server.coordination.fake_groups import PARTITIONS, FakeHost, errors

INDEX = partition_for("g", PARTITIONS)
A, B = 7, 8  # producers


async def serving() -> FakeHost:
    host = FakeHost()
    host.lead(INDEX)
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    return host


def commit_in(host: FakeHost, producer_id: int, offset: int) -> Any:
    kinds = messages.TxnOffsetCommitRequest
    return host.groups.commit_in_transaction(
        5,
        kinds(
            "x",
            "g",
            producer_id,
            0,
            topics=[
                kinds.TxnOffsetCommitRequestTopic(
                    "t", [kinds.TxnOffsetCommitRequestPartition(0, offset)]
                )
            ],
        ),
    )


def marker(producer_id: int, *, committed: bool = True, epoch: int = 0) -> Marker:
    return Marker(producer_id, epoch, EndTxnMarker(committed, 0), 0)


def write(host: FakeHost, *markers: Marker) -> list[Any]:
    return host.groups.write_markers(OFFSETS_TOPIC, INDEX, markers)


async def test_a_marker_moves_what_is_pending() -> None:
    host = await serving()
    assert errors(commit_in(host, A, 5)) == [0]
    assert host.offset() is None
    (answer,) = write(host, marker(A))
    assert await answer is ErrorCode.NONE
    assert host.offset() == 5


async def test_each_marker_is_told_of_itself() -> None:
    host = await serving()
    commit_in(host, A, 5)
    commit_in(host, B, 6)
    fenced, first, second = write(host, marker(A, epoch=-1), marker(A, committed=False), marker(B))
    assert fenced is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await first is await second is ErrorCode.NONE
    assert host.offset() == 6


async def test_a_marker_waits_for_the_writes_before_it() -> None:
    """Also when the log tells of its end first, and when it wasn't written again."""
    host = await serving()
    host.replicas.holds = True
    commit = commit_in(host, A, 5)
    answers = write(host, marker(A)) + write(host, marker(A))
    late = host.commit(9)
    for number in (2, 1, 3):
        host.replicas.release(number)
        await asyncio.sleep(0)
    assert not any(each.done() for each in answers)
    assert host.offset() is None
    host.replicas.release(0)
    assert errors(await commit) == errors(await late) == [0]
    assert [await each for each in answers] == [ErrorCode.NONE] * 2
    assert host.offset() == 9
    assert len(host.replicas.markers) == 1


async def test_a_marker_that_is_not_written_again_waits_for_nothing_else() -> None:
    host = await serving()
    commit_in(host, A, 5)
    for _ in range(3):
        (answer,) = write(host, marker(A))
        assert await answer is ErrorCode.NONE
    assert host.offset() == 5
    assert errors(host.commit(6)) == [0]


async def test_a_marker_whose_append_failed() -> None:
    host = await serving()
    commit_in(host, A, 5)
    host.replicas.holds = True
    (answer,) = write(host, marker(A))
    host.replicas.held[0][0].set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert await answer is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert host.offset() is None


async def test_whoever_does_not_coordinate_a_partition_takes_no_marker() -> None:
    host = await serving()
    refused = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert host.groups.write_markers(OFFSETS_TOPIC, INDEX + 1, [marker(A)]) == refused
    host.replicas.unsettled = []
    host.replicas.epochs[INDEX] = 1  # led anew, and not loaded yet
    host.groups.refresh()
    assert write(host, marker(A)) == refused
    assert not host.replicas.markers


async def test_markers_under_way_end_with_the_leadership() -> None:
    host = await serving()
    commit_in(host, A, 5)
    host.replicas.holds = True
    (answer,) = write(host, marker(A))
    host.replicas.led.clear()
    host.groups.refresh()
    assert await answer is ErrorCode.NOT_LEADER_OR_FOLLOWER
