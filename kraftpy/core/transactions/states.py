"""The states of a transactional id, and which may follow which (KIP-98, KIP-890).

`FOLLOWS` is the table; nothing else says what is allowed. `Transaction` is what a coordinator
knows of an id: it never changes, each step makes another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from functools import lru_cache
from types import MappingProxyType

from kraftpy.core.producers import MAX_EPOCH, TRANSACTION_VERSION_2
from kraftpy.frozen import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1

# An epoch that a client may have. One is left above it, with which its last owner can be fenced.
EPOCH_MAX = MAX_EPOCH - 1

# `transaction.version` of clients: whether the end of a transaction gives them a new epoch
# (KIP-890). Level 1 behaves as 0.
VERSION_0 = 0
VERSION_2 = TRANSACTION_VERSION_2

Partition = tuple[str, int]
"""Topic and index."""


class TransactionState(IntEnum):
    """Numbers are those of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # never in a log: the id is forgotten with a tombstone

    @property
    def label(self) -> str:
        """Kafka's name, as its tools show it."""
        return _LABELS[self]

    @property
    def is_preparing(self) -> bool:
        """Whether the result is decided and the markers aren't known to be written."""
        return self in _PREPARING

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return self in _IDLE


_S = TransactionState

_LABELS = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in _S}
_PREPARING = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
_IDLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

BY_LABEL: Mapping[str, TransactionState] = MappingProxyType({_LABELS[state]: state for state in _S})
"""States by the names that tools know them by."""

# With version 2, a transaction that never came to be may be aborted: that gives a new epoch.
FOLLOWS: Mapping[tuple[TransactionState, int], frozenset[TransactionState]] = MappingProxyType(
    {
        (state, version): frozenset(before)
        for version in (VERSION_0, VERSION_2)
        for state, before in {
            _S.EMPTY: _IDLE,
            _S.ONGOING: _IDLE | {_S.ONGOING},
            _S.PREPARE_COMMIT: {_S.ONGOING},
            _S.PREPARE_ABORT: {_S.ONGOING} | (_IDLE if version == VERSION_2 else set()),
            _S.COMPLETE_COMMIT: {_S.PREPARE_COMMIT},
            _S.COMPLETE_ABORT: {_S.PREPARE_ABORT},
            _S.DEAD: _IDLE,
        }.items()
    }
)
"""The states that may be left for a state, by that and the client's version."""


class Cause(Enum):
    """Who wanted the end of a transaction."""

    PRODUCER = "producer"
    TIMEOUT = "timeout"
    FENCE = "fence"  # another producer with its transactional id


NO_PARTITIONS: frozenset[Partition] = frozenset()


@lru_cache(maxsize=10_000)
def shared_partition(partition: Partition) -> Partition:
    """The same partition, once in memory: many transactions write to it."""
    return partition


@lru_cache(maxsize=256)
def shared(timeout_ms: int) -> int:
    """The same number, once in memory: nearly all producers have one of few timeouts."""
    return timeout_ms


class Transaction(NamedTuple):
    """What there is to know of a transactional id; times in milliseconds since 1970.

    `last_producer_epoch` is the epoch that its owner had before this one, -1 if somebody else had
    it: a request that names it is a retry. `previous_producer_id` is the id before the last step,
    `next_producer_id` that after the markers, -1 if it stays.
    """

    state: TransactionState
    producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    previous_producer_id: int
    next_producer_id: int
    timeout_ms: int
    partitions: frozenset[Partition]
    start_ms: int
    update_ms: int
    client_version: int

    @property
    def is_exhausted(self) -> bool:
        """Whether no further epoch may be given out for the producer id."""
        return self.producer_epoch >= EPOCH_MAX


def may_follow(before: Transaction, after: Transaction) -> bool:
    """Whether the table allows this step."""
    return before.state in FOLLOWS[after.state, after.client_version]
