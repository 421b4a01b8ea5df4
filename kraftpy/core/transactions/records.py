"""The records of `__transaction_state`, in Kafka's format: key version 0, value version 1.

A record without a value is a tombstone. The last epoch has no field in Kafka's value, and after a
change of the coordinator nobody there knows a retry from a zombie (KAFKA-20357): here it is a
tagged field of our own, which Kafka's readers skip.

What can't be written can't be ended: the record of a transaction with many partitions has room for
all that its end adds, so that no partition comes in that would make the end larger than a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kraftpy.core.transactions.states import (
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    VERSION_0,
    VERSION_2,
    Partition,
    Transaction,
    TransactionState,
    shared,
    shared_partition,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.codec import decode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.extensions import LAST_PRODUCER_EPOCH_TAG, ROOM_TAG
from kraftpy.protocol.messages import TransactionLogKey, TransactionLogValue
from kraftpy.protocol.varint import encode_uvarint

# A key's text has a 16-bit length.
TRANSACTIONAL_ID_MAX_BYTES = 32_767

_KEY_VERSION = 0
_VALUE_VERSION = 1
_EPOCH_BYTES = 2
# By so much the end of a transaction may be larger than what is open: an id, an epoch, a version.
_ROOM_BYTES = 24
_SURELY_FIT = 100

_PREVIOUS_ID_TAG = 0
_NEXT_ID_TAG = 1
_CLIENT_VERSION_TAG = 2

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_KEY_START = struct.Struct(">hh")  # version, length of the id
_VALUE_START = struct.Struct(">hqhib")  # version, producer's id and epoch, timeout, state
_TIMES = struct.Struct(">qq")  # last update, start
_ID_FIELD = struct.Struct(">bbq")  # tag, size, id
_VERSION_FIELD = struct.Struct(">bbh")
_LAST_EPOCH_FIELD = encode_uvarint(LAST_PRODUCER_EPOCH_TAG) + encode_uvarint(_EPOCH_BYTES)
_ROOM_FIELD = encode_uvarint(ROOM_TAG) + encode_uvarint(_ROOM_BYTES) + bytes(_ROOM_BYTES)
_NO_LIST = _NO_TAGS = b"\0"


class TransactionRecord(NamedTuple):
    """The new state of a transactional id; a tombstone has none."""

    transactional_id: str
    transaction: Transaction | None


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes."""
    transactional_id, transaction = record
    text = transactional_id.encode()
    key = _KEY_START.pack(_KEY_VERSION, len(text)) + text
    return key, None if transaction is None else _encode_value(transaction)


def _encode_value(transaction: Transaction) -> bytes:
    # One is written at each step of each transaction: by hand, in a quarter of the codec's time.
    partitions = transaction.partitions
    parts = [
        _VALUE_START.pack(
            _VALUE_VERSION,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
        ),
        _NO_LIST if transaction.state is TransactionState.EMPTY else _encode_partitions(partitions),
        _TIMES.pack(transaction.update_ms, transaction.start_ms),
        b"",
    ]
    tags = 0
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags += 1
        parts.append(_ID_FIELD.pack(_PREVIOUS_ID_TAG, 8, transaction.previous_producer_id))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags += 1
        parts.append(_ID_FIELD.pack(_NEXT_ID_TAG, 8, transaction.next_producer_id))
    if transaction.client_version != VERSION_0:
        tags += 1
        parts.append(_VERSION_FIELD.pack(_CLIENT_VERSION_TAG, 2, transaction.client_version))
    if transaction.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags += 1
        parts.append(_LAST_EPOCH_FIELD + _INT16.pack(transaction.last_producer_epoch))
    if len(partitions) > _SURELY_FIT and transaction.state is TransactionState.ONGOING:
        tags += 1
        parts.append(_ROOM_FIELD)
    parts[3] = encode_uvarint(tags)
    return b"".join(parts)


def _encode_partitions(partitions: frozenset[Partition]) -> bytes:
    topics = by_topic(partitions)
    parts = [encode_uvarint(len(topics) + 1)]
    for topic, indexes in topics:
        text = topic.encode()
        count = len(indexes)
        parts += (
            encode_uvarint(len(text) + 1),
            text,
            encode_uvarint(count + 1),
            _INT32.pack(*indexes) if count == 1 else struct.pack(f">{count}i", *indexes),
            _NO_TAGS,
        )
    return b"".join(parts)


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
