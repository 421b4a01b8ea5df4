"""What a Produce that waits for durability answers, whatever becomes of the wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from kraftpy.metrics.instruments import REQUEST_BUCKETS, Histogram
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ProduceResponse
from kraftpy.server.handlers.acknowledgements import Waiting
from kraftpy.server.replication.appended import Appended
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.waiters import Waiter

WEEKS_MS = 2**31 - 1


class Slow:
    """A partition whose flush and commit are done when the test says so."""

    def __init__(self) -> None:
        self.flush: list[Waiter] = []
        self.commit: list[Waiter] = []
        self.answer = ProduceResponse.PartitionProduceResponse(0, base_offset=7)
        self.acks_all_error = ErrorCode.NONE
        self.timeout_error = ErrorCode.REQUEST_TIMED_OUT

    def when_flushed(self, offset: int, waiter: Waiter) -> None:
        self.flush.append(waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        self.commit.append(waiter)

    def pending(self) -> Any:
        appended = Appended(7, 8, -1, flush_pending=True)
        return cast(Partition, self), appended, self.answer

    @property
    def told(self) -> tuple[int, int]:
        return self.answer.error_code, self.answer.base_offset


asked: list[ProduceResponse] = []


def start(*partitions: Slow, acks: int = 1, timeout_ms: int = WEEKS_MS) -> Waiting:
    waiting = Waiting(
        asyncio.get_running_loop(),
        ProduceResponse(),
        acks,
        timeout_ms,
        asked.append,
        Counter(),
        Histogram(REQUEST_BUCKETS),
    )
    waiting.start([partition.pending() for partition in partitions])
    return waiting


async def test_a_timeout_is_told_only_of_what_is_still_due() -> None:
    done, late = Slow(), Slow()
    waiting = start(done, late, timeout_ms=1)
    done.flush[0](ErrorCode.NONE)
    await waiting.future
    assert done.told == (ErrorCode.NONE, 7)
    assert late.told == (ErrorCode.REQUEST_TIMED_OUT, -1)
    late.flush[0](ErrorCode.NONE)


async def test_acks_all_waits_for_the_flush_and_the_watermark() -> None:
    partition = Slow()
    waiting = start(partition, acks=-1)
    assert partition.commit == []
    partition.flush[0](ErrorCode.NONE)
    assert not waiting.future.done()
    partition.commit[0](ErrorCode.NOT_LEADER_OR_FOLLOWER)
    response = await waiting.future
    assert partition.told == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert asked[-1] is response, "its client should be told who leads"


async def test_acks_all_is_told_of_replicas_that_left_after_the_append() -> None:
    """docs/rules.md, rule 12."""

    partition, late = Slow(), Slow()
    waiting = start(partition, late, acks=-1, timeout_ms=1)
    partition.flush[0](ErrorCode.NONE)
    partition.acks_all_error = ErrorCode.NOT_ENOUGH_REPLICAS
    late.timeout_error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    partition.commit[0](ErrorCode.NONE)
    assert partition.told == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)
    await waiting.future
    assert late.told == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)


async def test_a_client_that_left_leaves_no_timer() -> None:
    partition = Slow()
    waiting = start(partition)
    waiting.future.cancel()
    partition.flush[0](ErrorCode.NONE)
    assert waiting._timer.cancelled()
