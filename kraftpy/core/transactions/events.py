"""What the transaction coordinator tells of itself (`kraftpy.events`)."""

from __future__ import annotations

import logging

from kraftpy.core.transactions.states import Transaction
from kraftpy.events import emit

log = logging.getLogger(__name__)


def tell_timed_out(transactional_id: str, transaction: Transaction) -> None:
    """A transaction was open for longer than its timeout."""
    emit(
        log,
        logging.WARNING,
        "transaction-timed-out",
        transactional_id=transactional_id,
        producer=transaction.producer_id,
        epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        partitions=len(transaction.partitions),
    )


def tell_fenced(transactional_id: str, transaction: Transaction) -> None:
    """Another producer with the same id has come while a transaction was open."""
    emit(
        log,
        logging.INFO,
        "transaction-fenced",
        transactional_id=transactional_id,
        producer=transaction.producer_id,
        epoch=transaction.producer_epoch,
        partitions=len(transaction.partitions),
    )


def tell_late(transactional_id: str, transaction: Transaction, now_ms: int) -> None:
    """A transaction should be over by its timeout, and isn't."""
    emit(
        log,
        logging.WARNING,
        "transaction-late",
        transactional_id=transactional_id,
        producer=transaction.producer_id,
        epoch=transaction.producer_epoch,
        state=transaction.state.label,
        seconds=(now_ms - transaction.start_ms) / 1000,
        timeout_ms=transaction.timeout_ms,
        partitions=len(transaction.partitions),
    )
