"""The records of `__transaction_state`, in Kafka's format: key version 0, value version 1.

A record without a value is a tombstone. The last epoch has no field in Kafka's value, and after a
change of the coordinator nobody there knows a retry from a zombie (KAFKA-20357): here it is a
tagged field of our own, which Kafka's readers skip.

What can't be written can't be ended: the record of a transaction with many partitions has room for
all that its end adds, so that no partition comes in that would make the end larger than a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kraftpy.core.transactions.states import (
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    VERSION_0,
    VERSION_2,
    Partition,
    Transaction,
    TransactionState,
    shared,
    shared_partition,
)
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.extensions import LAST_PRODUCER_EPOCH_TAG, ROOM_TAG
from kraftpy.protocol.messages import TransactionLogKey, TransactionLogValue

# A key's text has a 16-bit length.
TRANSACTIONAL_ID_MAX_BYTES = 32_767

_KEY_VERSION = 0
_VALUE_VERSION = 1
_EPOCH_BYTES = 2
# By so much the end of a transaction may be larger than what is open: an id, an epoch, a version.
_ROOM_BYTES = 24
_SURELY_FIT = 100

PartitionsSchema = TransactionLogValue.PartitionsSchema


class TransactionRecord(NamedTuple):
    """The new state of a transactional id; a tombstone has none."""

    transactional_id: str
    transaction: Transaction | None


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes."""
    transactional_id, transaction = record
    key = encode_versioned("TransactionLogKey", _KEY_VERSION, TransactionLogKey(transactional_id))
    return key, None if transaction is None else _encode_value(transaction)


def _encode_value(transaction: Transaction) -> bytes:
    tags = {}
    if transaction.last_producer_epoch != NO_PRODUCER_EPOCH:
        last_epoch = transaction.last_producer_epoch.to_bytes(_EPOCH_BYTES, "big", signed=True)
        tags[LAST_PRODUCER_EPOCH_TAG] = last_epoch
    is_open = transaction.state is TransactionState.ONGOING
    if is_open and len(transaction.partitions) > _SURELY_FIT:
        tags[ROOM_TAG] = bytes(_ROOM_BYTES)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=(
            None
            if transaction.state is TransactionState.EMPTY
            else [
                PartitionsSchema(topic, indexes)
                for topic, indexes in by_topic(transaction.partitions)
            ]
        ),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
        _tags=tags or None,
    )
    return encode_versioned("TransactionLogValue", _VALUE_VERSION, value)


def by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    """The partitions' indexes by topic, both sorted."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return list(topics.items())


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """The record behind these bytes, None for a kind that is not known here.

    Raises `DecodeError` for bytes that are no such record, and for an id that could not have been.
    """
    if key is None or len(key) < 2:
        raise DecodeError("a record of the transactions topic needs a key with its version")
    if int.from_bytes(key[:2], "big", signed=True) != _KEY_VERSION:
        return None
    _, decoded_key = decode_versioned("TransactionLogKey", key)
    assert isinstance(decoded_key, TransactionLogKey)
    transactional_id = decoded_key.transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    _, decoded = decode_versioned("TransactionLogValue", value)
    assert isinstance(decoded, TransactionLogValue)
    return TransactionRecord(transactional_id, _transaction(transactional_id, decoded))


def _transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise DecodeError(
            f"transactional id {transactional_id!r} can't be in state {value.transaction_status}"
        ) from None
    last_epoch = NO_PRODUCER_EPOCH
    tag = (value._tags or {}).get(LAST_PRODUCER_EPOCH_TAG)
    if tag is not None and len(tag) == _EPOCH_BYTES:
        last_epoch = int.from_bytes(tag, "big", signed=True)
    partitions = NO_PARTITIONS
    if value.transaction_partitions:
        partitions = frozenset(
            shared_partition((each.topic, index))
            for each in value.transaction_partitions
            for index in each.partition_ids
        )
    producer_id = previous_id = value.producer_id
    if value.previous_producer_id != producer_id:  # else it's one number in memory
        previous_id = value.previous_producer_id
    transaction = Transaction(
        state,
        producer_id,
        value.producer_epoch,
        last_epoch,
        previous_id,
        value.next_producer_id,
        shared(value.transaction_timeout_ms),
        partitions,
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        VERSION_2 if value.client_transaction_version >= VERSION_2 else VERSION_0,
    )
    _check(transactional_id, transaction)
    return transaction


def _check(transactional_id: str, transaction: Transaction) -> None:
    """Refuses what no coordinator can have written, before it breaks a rule elsewhere."""
    state = transaction.state
    if state is TransactionState.DEAD:
        raise DecodeError(f"transactional id {transactional_id!r} is dead and has a value")
    if transaction.producer_id < 0 or transaction.producer_epoch < 0:
        raise DecodeError(f"transactional id {transactional_id!r} has no producer")
    if transaction.partitions and state.is_idle:
        raise DecodeError(
            f"transactional id {transactional_id!r} has partitions while it is {state.label}"
        )
    if any(index < 0 for _, index in transaction.partitions):
        raise DecodeError(f"transactional id {transactional_id!r} has a negative partition")
