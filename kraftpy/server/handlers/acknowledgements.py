"""What a Produce waits for before it is answered: the flush, and with acks=-1 the watermark.

The rules are those of `produce`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import perf_counter

from kraftpy.metrics.instruments import Histogram
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ProduceResponse
from kraftpy.server.replication.appended import Appended
from kraftpy.server.replication.partition import Partition

Pending = tuple[Partition, Appended, ProduceResponse.PartitionProduceResponse]


class Waiting:
    """A Produce whose acknowledgements are still due, bounded by its timeout.

    The timeout is told of the partitions that are still due and of no other: a producer without
    idempotence writes twice what it is wrongly told to send again.
    """

    __slots__ = (
        "_acks",
        "_commits",
        "_deposed",
        "_due",
        "_errors",
        "_name_leaders",
        "_response",
        "_started_s",
        "_timer",
        "future",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        response: ProduceResponse,
        acks: int,
        timeout_ms: int,
        name_leaders: Callable[[ProduceResponse], None],
        errors: Counter[int],
        commits: Histogram,
    ) -> None:
        self._commits = commits
        self._started_s = perf_counter()
        self.future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._errors = errors
        self._response = response
        self._acks = acks
        self._name_leaders = name_leaders
        self._deposed = False
        self._due: dict[int, tuple[Partition, ProduceResponse.PartitionProduceResponse]] = {}
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)

    def start(self, pending: list[Pending]) -> None:
        """Waits for the flush, where one is pending, and then with acks=-1 for the watermark."""
        for number, (partition, _, answer) in enumerate(pending):
            self._due[number] = partition, answer
        for number, (partition, appended, _) in enumerate(pending):
            self._wait(number, partition, appended)

    def _wait(self, number: int, partition: Partition, appended: Appended) -> None:
        def reached(error: ErrorCode) -> None:
            self._reached(number, error)

        def flushed(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and self._acks == -1:
                partition.when_committed(appended.end_offset, reached)
            else:
                reached(error)

        if appended.flush_pending:
            partition.when_flushed(appended.end_offset, flushed)
        else:
            partition.when_committed(appended.end_offset, reached)

    def _reached(self, number: int, error: ErrorCode) -> None:
        partition, answer = self._due.pop(number)
        if error is ErrorCode.NONE and self._acks == -1 and partition.acks_all_error:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if error is not ErrorCode.NONE:
            fail(answer, error, None, self._errors)
            self._deposed = self._deposed or error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self._due:
            if self._acks == -1:
                self._commits.observe(perf_counter() - self._started_s)
            # Also when the client left meanwhile: its timeout may be weeks away.
            self._timer.cancel()
            if not self.future.done():
                self._finish()

    def _finish(self) -> None:
        if self._deposed:
            self._name_leaders(self._response)
        self.future.set_result(self._response)

    def _time_out(self) -> None:
        if self.future.done():
            return
        for partition, answer in self._due.values():
            late = self._acks == -1
            error = partition.timeout_error if late else ErrorCode.REQUEST_TIMED_OUT
            fail(answer, error, None, self._errors)
        self._finish()


def fail(
    answer: ProduceResponse.PartitionProduceResponse,
    code: ErrorCode,
    message: str | None,
    errors: Counter[int],
) -> None:
    """Has a partition's answer say so, and counts it."""
    errors[code] += 1
    answer.error_code = code
    answer.base_offset = -1
    answer.error_message = message
