"""Produce 0-11 (KIP-98, KIP-467 record errors): the hot path.

Versions 0-2 are advertised (an old librdkafka otherwise sends uncompressed without a word,
protocol.md) and answered with UNSUPPORTED_VERSION per partition. acks: 0 gets no answer (an error
closes the connection, as the client can't learn of it otherwise), 1 answers after the local append,
-1 after the high watermark passed; either waits for the flush that the topic's policy asks for.

The request's records are views of the receive buffer, so every append happens before this handler
returns; only acknowledgements wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kraftpy.core.metadata.records import INTERNAL_TOPICS
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import ProduceRequest, ProduceResponse
from kraftpy.protocol.records import CorruptBatch
from kraftpy.server.dispatch import RequestContext, handles
from kraftpy.server.partition import Appended, Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

OLDEST_SUPPORTED_VERSION = 3
FIRST_VERSION_WITH_ZSTD = 7

PartitionResponse = ProduceResponse.PartitionProduceResponse
TopicResponse = ProduceResponse.TopicProduceResponse


class _Waiting:
    """A Produce whose acknowledgements are still due: counts them down, bounded by the timeout."""

    __slots__ = ("_left", "_open", "_response", "_timer", "future")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, response: ProduceResponse, timeout_ms: int
    ) -> None:
        self.future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._response = response
        self._left = 0
        self._open: list[ProduceResponse.PartitionProduceResponse] = []
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)

    def add(
        self,
        partition: Partition,
        appended: Appended,
        answer: ProduceResponse.PartitionProduceResponse,
        acks: int,
    ) -> None:
        waits = []
        if appended.flush_pending:
            waits.append(partition.when_flushed)
        if acks == -1:
            waits.append(partition.when_committed)
        self._left += len(waits)
        self._open.append(answer)

        def reached(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE and answer in self._open:
                answer.error_code, answer.base_offset = error, -1
            self._left -= 1
            self.finish_if_done()

        for wait in waits:
            wait(appended.end_offset, reached)

    def finish_if_done(self) -> None:
        if self._left == 0 and not self.future.done():
            self._timer.cancel()
            self.future.set_result(self._response)

    def _time_out(self) -> None:
        if self.future.done():
            return
        for answer in self._open:
            if answer.error_code == ErrorCode.NONE:
                answer.error_code, answer.base_offset = ErrorCode.REQUEST_TIMED_OUT, -1
        self.future.set_result(self._response)


@handles(ApiKey.PRODUCE, concurrent=True)
def produce(
    broker: Broker, ctx: RequestContext, request: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Appends each partition's batch and answers as `acks` says."""
    acks = request.acks
    response = ProduceResponse()
    pending: list[tuple[Partition, Appended, ProduceResponse.PartitionProduceResponse]] = []
    refused = _refusal(ctx, request)
    for topic_data in request.topic_data:
        answers = []
        for data in topic_data.partition_data:
            answer = PartitionResponse(data.index)
            answers.append(answer)
            if refused is not None:
                _fail(answer, *refused)
                continue
            partition = broker.replicas.get(topic_data.name, data.index)
            if topic_data.name in INTERNAL_TOPICS:
                _fail(
                    answer,
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{topic_data.name} belongs to the broker; clients can't write to it",
                )
            elif partition is None:
                _fail(answer, broker.missing_partition_error(topic_data.name, data.index), None)
            else:
                appended = _append(broker, partition, data.records, answer, ctx.api_version)
                if appended is not None and (
                    appended.flush_pending
                    or (acks == -1 and partition.high_watermark < appended.end_offset)
                ):
                    pending.append((partition, appended, answer))
        response.responses.append(TopicResponse(topic_data.name, partition_responses=answers))
    if acks == 0:
        _raise_if_failed(response)
        return None
    if not pending:
        return response
    waiting = _Waiting(broker.loop, response, request.timeout_ms)
    for partition, appended, answer in pending:
        waiting.add(partition, appended, answer, acks)
    waiting.finish_if_done()
    return waiting.future


def _refusal(ctx: RequestContext, request: ProduceRequest) -> tuple[ErrorCode, str] | None:
    """Why the request as a whole can't be taken."""
    if ctx.api_version < OLDEST_SUPPORTED_VERSION:
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            "message formats before record batches (Kafka 0.11) are not written here",
        )
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1"
    return None


def _append(
    broker: Broker,
    partition: Partition,
    records: memoryview | None,
    answer: ProduceResponse.PartitionProduceResponse,
    api_version: int,
) -> Appended | None:
    """One partition's append; errors go into `answer`."""
    answer.log_start_offset = partition.log.log_start_offset
    try:
        if not records:
            raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch for the partition")
        appended = partition.append(
            records, broker.now_ms(), allow_zstd=api_version >= FIRST_VERSION_WITH_ZSTD
        )
    except KafkaError as error:
        _fail(answer, error.code, error.message)
        return None
    except CorruptBatch as error:
        _fail(answer, error.code, str(error))
        return None
    except DecodeError as error:
        _fail(answer, ErrorCode.CORRUPT_MESSAGE, str(error))
        return None
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    return appended


def _fail(
    answer: ProduceResponse.PartitionProduceResponse, code: ErrorCode, message: str | None
) -> None:
    answer.error_code = code
    answer.base_offset = -1
    answer.error_message = message


def _raise_if_failed(response: ProduceResponse) -> None:
    """acks=0: the only way to tell the producer of an error is to hang up (as Kafka does)."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise KafkaError(
                    ErrorCode(answer.error_code), f"{topic.name}-{answer.index} with acks=0"
                )
