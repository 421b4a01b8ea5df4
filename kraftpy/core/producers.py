"""What one partition remembers of its idempotent and transactional producers.

For each producer id: its epoch, its last five batches (KIP-98 and KIP-185: a producer has at most
five in flight), and the offset at which its open transaction began. `check` answers whether a
producer's batch may be appended; `update` learns from a batch that was appended, on the leader, on
followers and when a log is replayed after a restart. The state is a function of the log: nothing
else may change it, but for `expire`.

The rules are those of Kafka 4 (ProducerAppendInfo, ProducerStateEntry):

* One of the last five batches again: success, with the offsets that it got the first time.
* A batch with the same epoch has to carry on where the last one ended; 2^31-1 is followed by 0.
  Anything else is OUT_OF_ORDER_SEQUENCE_NUMBER, and the client must not take it for a success.
* A batch from before the window that is known to be in the log is DUPLICATE_SEQUENCE_NUMBER, which
  clients take for a success without an offset. Kafka says OUT_OF_ORDER_SEQUENCE_NUMBER here, upon
  which today's clients raise their epoch and write the records a second time.
* What a transaction that has ended wrote is no success of a later one: INVALID_TXN_STATE, where
  Kafka answers with the offsets of then. librdkafka gives a message that an abort purged, though it
  had arrived, and the one after it the same sequence number, and would take that for written.
* A lower epoch is INVALID_PRODUCER_EPOCH; a higher one has to begin with sequence 0.
* A batch without a sequence is a coordinator's, which knows what it writes: only its epoch counts.
* An unknown producer id may begin with any sequence: retention, DeleteRecords or expiry made the
  partition forget it (KIP-360; UNKNOWN_PRODUCER_ID is no longer used).

Batches and markers that are read back from a log are not checked: the leader that wrote them did.

A marker ends the transaction of its epoch or of an earlier one. From version 2 on (KIP-890) its
epoch is the one that follows: equal to the producer's it's a retry (KAFKA-19999), and while a
transaction is open it's the next one's, which isn't to be ended; but the last epoch that there is
has no next one. It comes from a coordinator that is not older than the last one. A marker that
changes nothing needn't be written again.

Transactions: the last stable offset is the high watermark, unless a transaction is open below it
or ended with a marker that is not below it yet; it is never below the log start offset. The high
watermark that counts is the highest that was told of: what was committed stays so. Whoever owns the
files keeps the aborted transactions that `update` returns; fetches with read_committed need them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT
from kraftpy.protocol.records import BatchHeader, EndTxnMarker

DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms
WINDOW_BATCHES = 5
EXPIRED_TOGETHER = 5_000  # whose time is looked at in one go
TRANSACTION_VERSION_2 = 2  # each transaction has an epoch of its own
MAX_EPOCH = 2**15 - 1

_MAX_SEQUENCE = 0x7FFFFFFF
_NONE = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hI")  # version, CRC-32C of what follows
_SNAPSHOT_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
# first offset of the open transaction
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

# base sequence, last sequence, base offset, last offset, max timestamp
_Batch: TypeAlias = tuple[int, int, int, int, int]


class Duplicate(NamedTuple):
    """Where a batch that arrived again was written the first time."""

    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction that left data in this partition and has ended.

    `first_offset` is that of its first record, `last_offset` that of its marker, and
    `last_stable_offset` the one that the partition had right after the marker, replication aside.
    An aborted one is an entry of Kafka's `.txnindex`.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    committed: bool


class ProducerState:
    """One producer: what the log says of it, but for `last_seen_ms`, which is this broker's.

    `coordinator_epoch` is that of its last marker, `txn_first_offset` where its transaction is open
    since, `last_timestamp` that of its last batch; -1 for none.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "evicted_records",
        "last_seen_ms",
        "last_timestamp",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[_Batch] = []  # oldest first
        # How many sequence numbers right before the window are known to be in the log.
        self.evicted_records = 0
        self.coordinator_epoch = _NONE
        self.txn_first_offset = _NONE
        self.last_timestamp = _NONE
        self.last_seen_ms = 0

    @property
    def last_sequence(self) -> int:
        """Of its last batch, -1 if there is none in this epoch."""
        return self.batches[-1][1] if self.batches else _NONE

    def remember(self, epoch: int, batch: _Batch) -> None:
        batches = self.batches
        if epoch != self.epoch:
            self.start_epoch(epoch)
        elif batches:
            if batch[0] != (batches[-1][1] + 1) & _MAX_SEQUENCE:
                # The leader had forgotten this producer and let it begin anywhere: what was
                # written before is no longer one unbroken run of sequence numbers.
                self.start_epoch(epoch)
            elif len(batches) == WINDOW_BATCHES:
                oldest = batches.pop(0)
                self.evicted_records += oldest[3] - oldest[2] + 1
        batches.append(batch)
        self.last_timestamp = batch[4]

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches.clear()
        self.evicted_records = 0


def _check_is_of_this_transaction(
    header: BatchHeader, producer: ProducerState, last_offset: int
) -> None:
    """A transactional batch repeats what isn't above that offset: it has to be in the open one."""
    started = producer.txn_first_offset
    if header.attributes & TRANSACTIONAL_BIT and (started == _NONE or last_offset < started):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} sent sequences {header.base_sequence} to "
            f"{header.last_sequence} again; the transaction that wrote them has ended",
        )


class ProducerStateManager:
    """The producers of one partition; see the module's docstring for the rules.

    `now_ms` is a clock of the broker's that nobody can set. A producer is forgotten when this
    broker has not seen a batch of it for `expiration_ms` and it has no open transaction. Its own
    timestamps do not count: a job that copies old records would lose its state between two batches.
    """

    def __init__(self, *, expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS) -> None:
        self.expiration_ms = expiration_ms
        self._log_start_offset = 0
        self._producers: dict[int, ProducerState] = {}
        self._end_offset = 0
        # First offsets by producer id. The log only grows at its end, so insertion order is
        # offset order and the first entry is the oldest transaction.
        self._open: dict[int, int] = {}
        self._unreplicated: list[CompletedTransaction] = []
        self._high_watermark = 0
        self._to_expire: list[int] = []

    def __len__(self) -> int:
        """How many producer ids are known."""
        return len(self._producers)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._producers

    # -- appending

    def check(self, header: BatchHeader, now_ms: int) -> Duplicate | None:
        """Whether a batch with a producer id may be appended: a client's, or a coordinator's own.

        Returns None if it may, and where it is if it was appended before. Raises `KafkaError`:
        OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH or
        INVALID_TXN_STATE. Changes nothing.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or self._is_expired(producer, now_ms):
            return None
        sequence = header.base_sequence
        if header.producer_epoch == producer.epoch:
            batches = producer.batches
            expected = (batches[-1][1] + 1) & _MAX_SEQUENCE if batches else 0
            if sequence != expected and sequence >= 0:
                return self._find_duplicate(header, producer, expected)
        elif header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} wrote with epoch {producer.epoch} since; "
                f"this batch has epoch {header.producer_epoch}",
            )
        elif sequence > 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence "
                f"{sequence} instead of 0",
            )
        if producer.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction since offset "
                f"{producer.txn_first_offset}; this batch is not part of one",
            )
        return None

    def _find_duplicate(
        self, header: BatchHeader, producer: ProducerState, expected: int
    ) -> Duplicate:
        first, last = header.base_sequence, header.last_sequence
        for base_sequence, last_sequence, base_offset, last_offset, timestamp in producer.batches:
            if base_sequence == first and last_sequence == last:
                _check_is_of_this_transaction(header, producer, last_offset)
                return Duplicate(base_offset, last_offset, timestamp)
        if producer.batches:
            before_window = (producer.batches[0][0] - first) & _MAX_SEQUENCE
            if header.last_offset_delta < before_window <= producer.evicted_records:
                _check_is_of_this_transaction(header, producer, producer.batches[0][2] - 1)
                raise KafkaError(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} wrote sequences {first} to {last} before its "
                    f"last {WINDOW_BATCHES} batches",
                )
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} with epoch {header.producer_epoch} sent sequences "
            f"{first} to {last}; {expected} comes next",
        )

    def check_marker(
        self, producer_id: int, epoch: int, marker: EndTxnMarker, transaction_version: int
    ) -> bool:
        """Whether a coordinator's marker has to be appended; if not, the log has one like it.

        Raises `KafkaError`: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        is_open = producer.txn_first_offset >= 0
        if epoch < producer.epoch or (
            epoch == producer.epoch < MAX_EPOCH
            and is_open
            and transaction_version >= TRANSACTION_VERSION_2
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer.epoch}"
                f"{' and an open transaction' if is_open else ''}; the marker has epoch {epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator with epoch {producer.coordinator_epoch} has written for producer "
                f"{producer_id} since; this one has epoch {marker.coordinator_epoch}",
            )
        return (
            is_open
            or epoch > producer.epoch
            or marker.coordinator_epoch > producer.coordinator_epoch
        )

    def update(
        self, header: BatchHeader, now_ms: int, marker: EndTxnMarker | None = None
    ) -> CompletedTransaction | None:
        """Learns from a batch that is in the log now, at the offsets that `header` says.

        Batches without a producer id teach nothing and need not be given. A control batch comes
        with its marker, or without when it holds none: one that the cleaner has emptied still says
        which epoch its producer had. Returns the transaction that it ended.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        last_offset = header.base_offset + header.last_offset_delta
        attributes = header.attributes
        self._end_offset = last_offset + 1
        if attributes & CONTROL_BIT:
            if marker is not None:
                return self._end_transaction(header, now_ms, marker)
            if not header.records_count:
                self._at_epoch(header, now_ms)
            return None
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerState(header.producer_epoch)
        if header.base_sequence >= 0:
            producer.remember(
                header.producer_epoch,
                (
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    last_offset,
                    header.max_timestamp,
                ),
            )
            producer.last_seen_ms = now_ms
        else:
            self._at_epoch(header, now_ms)
        if attributes & TRANSACTIONAL_BIT and producer.txn_first_offset < 0:
            producer.txn_first_offset = self._open[producer_id] = header.base_offset
        return None

    def _end_transaction(
        self, header: BatchHeader, now_ms: int, marker: EndTxnMarker
    ) -> CompletedTransaction | None:
        producer_id = header.producer_id
        producer = self._at_epoch(header, now_ms)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.txn_first_offset = _NONE
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            # The transaction wrote nothing here; readers need not know that it ended.
            return None
        completed = CompletedTransaction(
            producer_id,
            first_offset,
            header.base_offset,
            next(iter(self._open.values()), header.base_offset + 1),
            marker.committed,
        )
        if completed.last_offset >= self._high_watermark:
            self._unreplicated.append(completed)
        return completed

    def _at_epoch(self, header: BatchHeader, now_ms: int) -> ProducerState:
        """The producer of a batch without a sequence, in the epoch that this says."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = ProducerState(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.start_epoch(header.producer_epoch)
        producer.last_timestamp = header.max_timestamp
        producer.last_seen_ms = now_ms
        return producer

    # -- reading

    def active(self) -> list[tuple[int, ProducerState]]:
        """All producers by their ids; to be read."""
        return list(self._producers.items())

    def epoch_of(self, producer_id: int, now_ms: int) -> int | None:
        """The epoch that it has here; None if it isn't known any more."""
        producer = self._producers.get(producer_id)
        return None if producer is None or self._is_expired(producer, now_ms) else producer.epoch

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open here, in this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.epoch == epoch and producer.txn_first_offset >= 0

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open or whose end is not yet replicated."""
        first_open = next(iter(self._open.values()), None)
        if not self._unreplicated:
            return first_open
        first_unreplicated = min(txn.first_offset for txn in self._unreplicated)
        return first_unreplicated if first_open is None else min(first_open, first_unreplicated)

    def is_hanging(self, before_ms: int) -> bool:
        """Whether the producer of the oldest open transaction last wrote before this, by its own
        time: as Kafka tells partitions with late transactions.
        """
        producer_id = next(iter(self._open), None)
        if producer_id is None:
            return False
        return 0 < self._producers[producer_id].last_timestamp < before_ms

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where, exclusive, a fetch with read_committed may read."""
        if not self._open and not self._unreplicated:
            return high_watermark
        first_unstable = self.first_unstable_offset
        if first_unstable is None:
            return high_watermark
        return min(max(first_unstable, self._log_start_offset), high_watermark)

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Lets the last stable offset pass the transactions whose markers are below."""
        if high_watermark <= self._high_watermark:
            return
        self._high_watermark = high_watermark
        if self._unreplicated:
            self._unreplicated = [
                txn for txn in self._unreplicated if txn.last_offset >= high_watermark
            ]

    @property
    def snapshot_limit(self) -> int | None:
        """The high watermark, if a snapshot from beyond it was loaded that lacks something.

        A snapshot has no transactions that have ended, and those count whose markers are not
        committed. None if there can't be any.
        """
        if self._end_offset <= self._high_watermark or all(
            each.coordinator_epoch == _NONE for each in self._producers.values()
        ):
            return None
        return self._high_watermark

    def open_transactions(self) -> dict[int, int]:
        """Where each open transaction began, by producer id; the oldest first."""
        return dict(self._open)

    # -- forgetting

    def _is_expired(self, producer: ProducerState, now_ms: int) -> bool:
        return (
            now_ms - producer.last_seen_ms >= self.expiration_ms and producer.txn_first_offset < 0
        )

    def expire(self, now_ms: int) -> int:
        """Forgets some of the producers whose time is over; returns how many.

        It has looked at all of them when `is_expiring` is false again.
        """
        if not self._to_expire:
            self._to_expire = list(self._producers)
        expired = 0
        for producer_id in self._to_expire[-EXPIRED_TOGETHER:]:
            producer = self._producers.get(producer_id)
            if producer is not None and self._is_expired(producer, now_ms):
                del self._producers[producer_id]
                expired += 1
        del self._to_expire[-EXPIRED_TOGETHER:]
        return expired

    @property
    def is_expiring(self) -> bool:
        """Whether `expire` has more to look at."""
        return bool(self._to_expire)

    def advance_log_start(self, log_start_offset: int) -> None:
        """Lets the last stable offset pass the transactions that ended below the log's new start.

        Producers stay, whatever became of their batches (KAFKA-7190): a producer that writes
        rarely keeps its protection.
        """
        self._log_start_offset = log_start_offset
        self.advance_high_watermark(log_start_offset)

    def truncate(self, end_offset: int) -> bool:
        """The log was cut so that it ends at `end_offset`. Returns whether the state still holds.

        If it does not, it is empty afterwards, because what a cut batch replaced is not kept: load
        the newest snapshot at or below `end_offset` and update with the batches from there on.
        """
        self._high_watermark = min(self._high_watermark, max(end_offset, 0))
        if self._end_offset <= end_offset:
            return True
        self.clear()
        return False

    def clear(self) -> None:
        """Forgets all producers; they are going to be learned anew, from the log."""
        self._producers.clear()
        self._open.clear()
        self._unreplicated.clear()
        self._end_offset = 0

    # Kafka's `.snapshot` file

    def snapshot(self) -> bytes:
        """The producers in the format of Kafka's `.snapshot` file, version 1.

        A producer has one entry for each batch of its window, the oldest first. Kafka writes the
        last only and keeps the last that it reads, so its tools read this; and a retry of any of
        the five batches is still recognised after a restart.
        """
        parts = []
        for producer_id, producer in self._producers.items():
            rest = (producer.coordinator_epoch, producer.txn_first_offset)
            for _, last_sequence, base_offset, last_offset, timestamp in producer.batches:
                parts.append(
                    _SNAPSHOT_ENTRY.pack(
                        producer_id,
                        producer.epoch,
                        last_sequence,
                        last_offset,
                        last_offset - base_offset,
                        timestamp,
                        *rest,
                    )
                )
            if not producer.batches:
                parts.append(
                    _SNAPSHOT_ENTRY.pack(
                        producer_id, producer.epoch, -1, -1, 0, producer.last_timestamp, *rest
                    )
                )
        entries = _SNAPSHOT_COUNT.pack(len(parts)) + b"".join(parts)
        return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(entries)) + entries

    def load(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Replaces the state by a snapshot of the log up to `end_offset` (the file's name).

        Transactions that have ended are not part of it; see `snapshot_limit`. Raises `DecodeError`
        and changes nothing when the snapshot is damaged.
        """
        producers: dict[int, ProducerState] = {}
        for fields in _read_snapshot(data):
            producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp = fields[:6]
            producer = producers.get(producer_id)
            if producer is None:
                producer = producers[producer_id] = ProducerState(epoch)
            if last_offset >= 0:
                base_sequence = (last_sequence - offset_delta) & _MAX_SEQUENCE
                base_offset = last_offset - offset_delta
                producer.remember(
                    epoch, (base_sequence, last_sequence, base_offset, last_offset, timestamp)
                )
            elif epoch != producer.epoch:
                producer.start_epoch(epoch)
            producer.coordinator_epoch, producer.txn_first_offset = fields[6:]
            producer.last_timestamp = timestamp
            producer.last_seen_ms = now_ms
        self._producers = producers
        self._open = {
            producer_id: producer.txn_first_offset
            for producer_id, producer in sorted(
                producers.items(), key=lambda item: item[1].txn_first_offset
            )
            if producer.txn_first_offset >= 0
        }
        self._unreplicated = []
        self._end_offset = end_offset

    def correct_open(self, first_offsets: Mapping[int, int | None]) -> None:
        """Where transactions begin that a snapshot says are open; None for one that has ended."""
        for producer_id, first_offset in first_offsets.items():
            producer = self._producers[producer_id]
            producer.txn_first_offset = _NONE if first_offset is None else first_offset
            self._open.pop(producer_id)
            if first_offset is not None:
                self._open[producer_id] = first_offset
        self._open = dict(sorted(self._open.items(), key=lambda item: item[1]))


def _read_snapshot(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
    entries_at = _SNAPSHOT_HEADER.size + _SNAPSHOT_COUNT.size
    if len(data) < entries_at:
        raise DecodeError(f"producer snapshot of {len(data)} bytes is cut off")
    version, crc = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise DecodeError(f"producer snapshot has version {version}; {_SNAPSHOT_VERSION} is known")
    view = memoryview(data)
    if crc32c(view[_SNAPSHOT_HEADER.size :]) != crc:
        raise DecodeError("producer snapshot fails its CRC-32C check")
    (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEADER.size)
    if count * _SNAPSHOT_ENTRY.size != len(data) - entries_at:
        raise DecodeError(f"producer snapshot of {len(data)} bytes says it has {count} entries")
    return list(_SNAPSHOT_ENTRY.iter_unpack(view[entries_at:]))
