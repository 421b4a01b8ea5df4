"""What a request about a transactional id does: fencing, epochs, the end (KIP-98, 360, 588, 890).

Each function judges one request by the state that it finds, and changes nothing. Rules:

* While the markers of a decided transaction are being written nothing else can be said: None.
* A request names the producer id and the epoch that it believes in. Another id is
  INVALID_PRODUCER_ID_MAPPING, another epoch PRODUCER_FENCED; an epoch that is known to be this
  owner's last one makes it a retry, and the first answer is given again.
* Who asks for an epoch while a transaction is open has that aborted first, and is judged again when
  the markers are written. The abort has the next epoch, so that its markers fence the former owner,
  once (KAFKA-19367): the owner itself may have that one, somebody new gets the one behind it. A
  zombie gets nothing; in Kafka a late InitProducerId of an older epoch aborts what the owner has
  open.
* A fence is one epoch above what clients have, 32767 at most. Then the id is followed by a new one
  in the same step (KAFKA-20090).
* The end of a transaction gives the clients of version 2 the next epoch with the decision, before
  the markers, so that these fence what is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kraftpy.core.transactions.states import (
    EPOCH_MAX,
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    VERSION_0,
    VERSION_2,
    Partition,
    Transaction,
    TransactionState,
    shared,
    shared_partition,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode

_FENCE_EPOCH_MAX = EPOCH_MAX + 1

TakeProducerId = Callable[[], int | None]
"""A producer id that nobody had before; None while there is none at hand."""


class Answer(NamedTuple):
    """What a request hears; id and epoch are those that the producer goes on with."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class Step(NamedTuple):
    """The state that the request leads to, and its answer once that is committed.

    Without one the request is judged again when the markers are written.
    """

    transaction: Transaction
    answer: Answer | None


Verdict: TypeAlias = Answer | Step | None


class Wish(NamedTuple):
    """What InitProducerId asks for; `expected` are the id and epoch that its sender had."""

    timeout_ms: int
    expected: tuple[int, int] | None


_FENCED = Answer(ErrorCode.PRODUCER_FENCED)
_OTHER_ID = Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_INVALID_STATE = Answer(ErrorCode.INVALID_TXN_STATE)
# What Kafka answers for want of an id: every client tries again.
NO_ID_AT_HAND = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


# -- an id and an epoch


def judge_init(
    current: Transaction | None,
    wish: Wish,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Verdict:
    """InitProducerId."""
    if current is None:
        return _first(wish, now_ms, take_producer_id)
    if current.state.is_preparing:
        return None
    expected = wish.expected
    is_owner = expected == (current.producer_id, current.producer_epoch)
    last_epoch = NO_PRODUCER_EPOCH if expected is None else expected[1]
    if current.state is TransactionState.ONGOING:
        if expected is not None and not is_owner:
            return _FENCED
        fenced = fence(current, now_ms, take_producer_id, last_epoch)
        return NO_ID_AT_HAND if fenced is None else Step(fenced, None)
    if expected is None or is_owner:
        return _next_epoch(current, wish, last_epoch, now_ms, take_producer_id)
    if _is_retry(current, *expected):
        return _same_epoch(current, wish, now_ms)
    return _FENCED


def _first(wish: Wish, now_ms: int, take_producer_id: TakeProducerId) -> Verdict:
    producer_id = take_producer_id()
    if producer_id is None:
        return NO_ID_AT_HAND
    transaction = Transaction(
        TransactionState.EMPTY,
        producer_id,
        0,
        NO_PRODUCER_EPOCH,
        NO_PRODUCER_ID,
        NO_PRODUCER_ID,
        shared(wish.timeout_ms),
        NO_PARTITIONS,
        NO_TIMESTAMP,
        now_ms,
        VERSION_0,
    )
    return Step(transaction, Answer(ErrorCode.NONE, producer_id, 0))


def _is_retry(current: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether the present epoch was given out for this one, and the answer got lost."""
    if epoch != current.last_producer_epoch:
        return False
    return producer_id == current.producer_id or (
        producer_id == current.previous_producer_id and epoch >= EPOCH_MAX
    )


def _next_epoch(
    current: Transaction,
    wish: Wish,
    last_epoch: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Verdict:
    producer_id: int | None = current.producer_id
    epoch = current.producer_epoch + 1
    if current.is_exhausted:
        producer_id, epoch = take_producer_id(), 0
        if producer_id is None:
            return NO_ID_AT_HAND
    assert producer_id is not None
    transaction = _emptied(current, wish, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=current.producer_id,
    )
    return Step(transaction, Answer(ErrorCode.NONE, producer_id, epoch))


def _same_epoch(current: Transaction, wish: Wish, now_ms: int) -> Verdict:
    answer = Answer(ErrorCode.NONE, current.producer_id, current.producer_epoch)
    if current.state is TransactionState.EMPTY and current.timeout_ms == wish.timeout_ms:
        return answer
    return Step(_emptied(current, wish, now_ms), answer)


def _emptied(current: Transaction, wish: Wish, now_ms: int) -> Transaction:
    return current._replace(
        state=TransactionState.EMPTY,
        next_producer_id=NO_PRODUCER_ID,
        timeout_ms=shared(wish.timeout_ms),
        partitions=NO_PARTITIONS,
        start_ms=NO_TIMESTAMP,
        update_ms=now_ms,
    )


def fence(
    current: Transaction, now_ms: int, take_producer_id: TakeProducerId, last_epoch: int
) -> Transaction | None:
    """The abort of an open transaction that its owner didn't ask for.

    None if there is no producer id at hand that could follow an exhausted one.
    """
    next_id = take_producer_id() if current.is_exhausted else NO_PRODUCER_ID
    if next_id is None:
        return None
    return current._replace(
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(current.producer_epoch + 1, _FENCE_EPOCH_MAX),
        last_producer_epoch=last_epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=next_id,
        update_ms=now_ms,
    )


# -- partitions


def judge_add(
    current: Transaction | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[Partition],
    version: int,
    now_ms: int,
) -> Verdict:
    """AddPartitionsToTxn of a client of this version."""
    if current is None:
        return _OTHER_ID
    if current.state.is_preparing:
        return None
    if (refused := _judge_owner(current, producer_id, epoch)) is not None:
        return refused
    is_open = current.state is TransactionState.ONGOING
    together = current.partitions.union(map(shared_partition, partitions))
    if is_open and len(together) == len(current.partitions):
        return Answer(ErrorCode.NONE)
    transaction = current._replace(
        state=TransactionState.ONGOING,
        previous_producer_id=current.producer_id,
        partitions=together,
        start_ms=current.start_ms if is_open else now_ms,
        update_ms=now_ms,
        client_version=version,
    )
    return Step(transaction, Answer(ErrorCode.NONE))


def verify(
    current: Transaction | None, producer_id: int, epoch: int, partitions: Iterable[Partition]
) -> list[ErrorCode]:
    """For each of these partitions, whether it is in the producer's transaction (KIP-890)."""
    partitions = list(partitions)
    refused = _OTHER_ID if current is None else _judge_owner(current, producer_id, epoch)
    if refused is not None:
        return [refused.error] * len(partitions)
    assert current is not None
    if current.state.is_preparing:
        return [ErrorCode.CONCURRENT_TRANSACTIONS] * len(partitions)
    return [
        ErrorCode.NONE if each in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for each in partitions
    ]


def _judge_owner(current: Transaction, producer_id: int, epoch: int) -> Answer | None:
    if producer_id != current.producer_id:
        return _OTHER_ID
    return None if epoch == current.producer_epoch else _FENCED


# -- the end


def judge_end(
    current: Transaction | None,
    producer_id: int,
    epoch: int,
    version: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
    *,
    is_commit: bool,
) -> Verdict:
    """EndTxn of a client of this version."""
    if current is None:
        return _OTHER_ID
    if current.state.is_preparing:
        return None
    if version == VERSION_2:
        retried = _judge_retry(current, producer_id, epoch, is_commit=is_commit)
        if retried is not None:
            return retried
    if (refused := _judge_owner(current, producer_id, epoch)) is not None:
        return refused
    if current.state is not TransactionState.ONGOING:
        if version != VERSION_2:
            is_retry = current.state is _complete(is_commit=is_commit)
            return Answer(ErrorCode.NONE) if is_retry else _INVALID_STATE
        if is_commit:
            return _INVALID_STATE
    return _prepare(current, version, now_ms, take_producer_id, is_commit=is_commit)


def _judge_retry(
    current: Transaction, producer_id: int, epoch: int, *, is_commit: bool
) -> Answer | None:
    """Of who names the epoch before the one that the end gave out; None if that isn't it."""
    is_bumped = producer_id == current.producer_id and epoch + 1 == current.producer_epoch
    is_rotated = (
        producer_id == current.previous_producer_id
        and producer_id != current.producer_id
        and epoch == EPOCH_MAX
        and current.producer_epoch == 0
    )
    if not is_bumped and not is_rotated:
        return None
    if current.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return _FENCED  # the owner of that epoch has gone on, or is another one
    if current.state is not _complete(is_commit=is_commit):
        return _INVALID_STATE
    return Answer(ErrorCode.NONE, current.producer_id, current.producer_epoch)


def _prepare(
    current: Transaction,
    version: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
    *,
    is_commit: bool,
) -> Verdict:
    state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
    is_open = current.state is TransactionState.ONGOING
    prepared = current._replace(
        state=state,
        previous_producer_id=current.producer_id,
        start_ms=current.start_ms if is_open else now_ms,
        update_ms=now_ms,
        client_version=version,
    )
    if version != VERSION_2:
        return Step(prepared, Answer(ErrorCode.NONE))
    epoch = current.producer_epoch + 1
    prepared = prepared._replace(
        producer_epoch=min(epoch, _FENCE_EPOCH_MAX), last_producer_epoch=current.producer_epoch
    )
    if not current.is_exhausted:
        return Step(prepared, Answer(ErrorCode.NONE, current.producer_id, epoch))
    next_id = take_producer_id()
    if next_id is None:
        return NO_ID_AT_HAND
    prepared = prepared._replace(next_producer_id=next_id)
    return Step(prepared, Answer(ErrorCode.NONE, next_id, 0))


def _complete(*, is_commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT


def complete(prepared: Transaction, now_ms: int) -> Transaction:
    """What is left of a decided transaction whose markers are all written."""
    done = prepared._replace(
        state=_complete(is_commit=prepared.state is TransactionState.PREPARE_COMMIT),
        previous_producer_id=prepared.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=NO_PARTITIONS,
        update_ms=now_ms,
    )
    if prepared.next_producer_id == NO_PRODUCER_ID:
        return done
    return done._replace(producer_id=prepared.next_producer_id, producer_epoch=0)
