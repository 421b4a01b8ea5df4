"""Batches and markers of one producer, and what is known after them."""

from __future__ import annotations

from kraftpy.core.producers import CompletedTransaction, ProducerStateManager
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    BatchHeader,
    EndTxnMarker,
    build_batch,
    build_end_txn_marker,
    check_batch,
)

PID = 1000
MAX_SEQUENCE = 2**31 - 1
NOW = 1_700_000_000_000
DAY = 86_400_000

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_DUPLICATE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
ACCEPT = None
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


def batch(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = PID,
    offset: int = 0,
    transactional: bool = False,
    timestamp: int = 77,
) -> BatchHeader:
    data = build_batch(
        [(timestamp, None, None, [])] * count,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return check_batch(data)


def marker(
    offset: int, *, producer_id: int = PID, epoch: int = 0, committed: bool = True, coordinator=0
) -> tuple[BatchHeader, EndTxnMarker]:
    end = EndTxnMarker(committed, coordinator)
    data = build_end_txn_marker(
        end,
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=78,
        base_offset=offset,
    )
    return check_batch(data), end


def end_transaction(state: ProducerStateManager, *args, **kwargs) -> CompletedTransaction | None:
    header, end = marker(*args, **kwargs)
    return state.update(header, NOW, end)


def state_after(*writes: BatchHeader) -> ProducerStateManager:
    state = ProducerStateManager()
    for header in writes:
        state.update(header, NOW)
    return state


def verdict(state: ProducerStateManager, header: BatchHeader, now_ms: int = NOW):
    """None, a Duplicate, or the error code that `check` raises."""
    try:
        return state.check(header, now_ms)
    except KafkaError as error:
        return error.code


def run_of(*sequences: int, count: int = 2, epoch: int = 0) -> list[BatchHeader]:
    """Batches of `count` records at the offsets 100, 110, ... with these sequences."""
    return [
        batch(sequence, count, epoch=epoch, offset=100 + 10 * index, timestamp=index)
        for index, sequence in enumerate(sequences)
    ]


def verdict_on_marker(
    state: ProducerStateManager,
    epoch: int,
    coordinator: int,
    version: int,
    *,
    producer_id: int = PID,
    committed: bool = True,
):
    """Whether it has to be appended, or the error code that `check_marker` raises."""
    try:
        end = EndTxnMarker(committed, coordinator)
        return state.check_marker(producer_id, epoch, end, version)
    except KafkaError as error:
        return error.code
