"""A scripted broker that coordinates transactions and leads the partitions of their records.

It does what it is asked as KIP-98, 360 and 890 say it, and as Apache Kafka 4.4 was seen to, unless
`fault` says of a request what goes wrong with it. So a test can say what a client must have made
sure of, whatever went wrong: `committed` is what readers of committed records find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import BatchHeader, iter_records, read_batch_header

from .peer import HANG_UP, Peer

Partition = tuple[str, int]

VERSIONS = {
    ApiKey.FIND_COORDINATOR: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.END_TXN: (0, 5),
    ApiKey.PRODUCE: (3, 12),
}
TRANSACTIONAL = (*VERSIONS, ApiKey.METADATA)

PID = 4000
_COMPLETE = {True: "CompleteCommit", False: "CompleteAbort"}


class Fault(Enum):
    """What becomes of a request."""

    LOST = "the connection ends before it is carried out"
    UNANSWERED = "the connection ends behind it"
    LATE = "the connection ends, and it is carried out behind some that come later"


@dataclass
class Run:
    """One transaction as its coordinator sees it; `committed` is None while it is open."""

    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    committed: bool | None = None


@dataclass
class Entry:
    """A transactional id; `busy` is how many requests come before its markers are written."""

    producer_id: int = PID
    epoch: int = 0
    last_epoch: int = -1
    state: str = "Empty"
    partitions: set[Partition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    run: Run = field(default_factory=Run)
    busy: int = 0


@dataclass
class Written:
    """What a partition has of a producer: the epoch, and its batches by their first sequence."""

    epoch: int
    next_sequence: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


class TransactionPeer(Peer):
    """A `Peer` with transactions, of the second version of their protocol or of the first.

    `fault` is asked about each request: an error code is answered in its place. `busy` says for how
    many requests a transaction is being ended. `late_by` is behind how many a late one comes.
    """

    def __init__(self, topics: dict[str, int], *, second_version: bool = True) -> None:
        super().__init__(topics)
        self.versions |= VERSIONS
        self.features = {"transaction.version": 2 if second_version else 0}
        self.ids: dict[str, Entry] = {}
        self.log: dict[Partition, list[tuple[bytes | None, Run]]] = {}
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self.fault: Callable[[ApiKey, Any], Fault | ErrorCode | None] = lambda key, request: None
        self.busy: Callable[[], int] = lambda: 0
        self.late_by: Callable[[], int] = lambda: 2
        self._producers: dict[tuple[Partition, int], Written] = {}
        self._late: list[tuple[int, int, Any]] = []
        self._version = 0

    def fail(self, key: ApiKey, *faults: Fault | ErrorCode | None) -> None:
        """Gives the next requests of a kind these faults, the last one for good if it is not None.

        What was said of other kinds stays.
        """
        left, before = list(faults), self.fault

        def fault(asked: ApiKey, request: Any) -> Fault | ErrorCode | None:
            if asked != key or not left:
                return before(asked, request)
            return left.pop(0) if len(left) > 1 or left[0] is None else left[0]

        self.fault = fault

    def committed(self) -> list[bytes | None]:
        """What readers of committed records find of all partitions, those of each in order."""
        return [value for log in self.log.values() for value, run in log if run.committed is True]

    def open_runs(self) -> int:
        """How many transactions hold up readers of committed records."""
        runs = {id(run): run for log in self.log.values() for _, run in log}
        return sum(run.committed is None for run in runs.values())

    # -- what goes wrong

    def _default(self, request: Any) -> Any:
        key, version, _ = self.requests[-1]
        if key not in TRANSACTIONAL:
            return super()._default(request)
        due = [each for each in self._late if each[0] <= 0]
        self._late = [(left - 1, v, late) for left, v, late in self._late if left > 0]
        for _, late_version, late in due:
            self._carry_out(late_version, late)
        fault = self.fault(key, request)
        if isinstance(fault, ErrorCode):
            return self._refused(key, request, fault)
        if fault is Fault.LOST:
            return HANG_UP
        if fault is Fault.LATE:
            self._late.append((self.late_by(), version, request))
            return HANG_UP
        answer = self._carry_out(version, request)
        return HANG_UP if fault is Fault.UNANSWERED else answer

    def _carry_out(self, version: int, request: Any) -> Any:
        self._version = version
        return super()._default(request)

    def _refused(self, key: ApiKey, request: Any, code: ErrorCode) -> Any:
        match key:
            case ApiKey.PRODUCE:
                return self.produce_response(request, lambda *_: (code, None))
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                return self._added(request, code)
            case ApiKey.TXN_OFFSET_COMMIT:
                return self._offsets_committed(request, code)
            case ApiKey.FIND_COORDINATOR:
                return messages.FindCoordinatorResponse(error_code=code)
            case ApiKey.INIT_PRODUCER_ID:
                return messages.InitProducerIdResponse(error_code=code)
            case ApiKey.ADD_OFFSETS_TO_TXN:
                return messages.AddOffsetsToTxnResponse(error_code=code)
            case ApiKey.END_TXN:
                return messages.EndTxnResponse(error_code=code)
        raise AssertionError(f"{key.name} has no error of its own")

    # -- the coordinator

    def _find_coordinator(self, request: Any) -> Any:
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port)

    def _init_producer_id(self, request: Any) -> Any:
        entry = self.ids.get(request.transactional_id)
        kinds = messages.InitProducerIdResponse
        if entry is None:
            entry = self.ids[request.transactional_id] = Entry()
            return kinds(producer_id=entry.producer_id, producer_epoch=entry.epoch)
        named = request.producer_id >= 0
        if named and request.producer_id != entry.producer_id:
            return kinds(error_code=ErrorCode.PRODUCER_FENCED)
        if self._is_busy(entry):
            return kinds(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        if entry.state == "Ongoing":
            entry.last_epoch, entry.epoch = entry.epoch, entry.epoch + 1
            self._complete(entry, committed=False)
            return kinds(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        if not named or request.producer_epoch == entry.epoch:
            entry.last_epoch = entry.epoch if named else -1
            entry.epoch += 1
        elif request.producer_epoch != entry.last_epoch:
            return kinds(error_code=ErrorCode.PRODUCER_FENCED)
        entry.state = "Empty"
        return kinds(producer_id=entry.producer_id, producer_epoch=entry.epoch)

    def _is_busy(self, entry: Entry) -> bool:
        entry.busy -= 1
        return entry.busy >= 0

    def _complete(self, entry: Entry, *, committed: bool) -> None:
        entry.run.committed = committed
        if committed:
            self.group_offsets |= entry.run.offsets
        entry.state = _COMPLETE[committed]
        entry.partitions.clear()
        entry.groups.clear()
        entry.run = Run()
        entry.busy = self.busy()

    def _join(self, transactional_id: str, producer: tuple[int, int]) -> Entry | ErrorCode:
        """The transaction that this producer has open, begun if it has none."""
        entry = self.ids.get(transactional_id)
        if entry is None or entry.producer_id != producer[0]:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != producer[1]:
            return ErrorCode.PRODUCER_FENCED
        if self._is_busy(entry):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        entry.state = "Ongoing"
        return entry

    def _add_partitions_to_txn(self, request: Any) -> Any:
        entry = self._join(
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        )
        if isinstance(entry, ErrorCode):
            return self._added(request, entry)
        for topic in request.v3_and_below_topics:
            entry.partitions |= {(topic.name, number) for number in topic.partitions}
        return self._added(request, ErrorCode.NONE)

    def _added(self, request: Any, code: ErrorCode) -> Any:
        kinds = messages.AddPartitionsToTxnResponse
        return kinds(
            results_by_topic_v3_and_below=[
                kinds.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        kinds.AddPartitionsToTxnPartitionResult(number, code)
                        for number in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _add_offsets_to_txn(self, request: Any) -> Any:
        producer = (request.producer_id, request.producer_epoch)
        entry = self._join(request.transactional_id, producer)
        if isinstance(entry, ErrorCode):
            return messages.AddOffsetsToTxnResponse(error_code=entry)
        entry.groups.add(request.group_id)
        return messages.AddOffsetsToTxnResponse()

    def _end_txn(self, request: Any) -> Any:
        kinds = messages.EndTxnResponse
        entry = self.ids.get(request.transactional_id)
        if entry is None or entry.producer_id != request.producer_id:
            return kinds(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        second = self._version >= 5
        same = entry.state == _COMPLETE[request.committed]
        complete = entry.state in _COMPLETE.values()
        again = second and complete and request.producer_epoch == entry.epoch - 1
        if not again and request.producer_epoch != entry.epoch:
            return kinds(error_code=ErrorCode.PRODUCER_FENCED)
        if self._is_busy(entry):
            return kinds(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        if again or (not second and entry.state != "Ongoing"):
            if not same:
                return kinds(error_code=ErrorCode.INVALID_TXN_STATE)
        elif entry.state != "Ongoing" and request.committed:
            return kinds(error_code=ErrorCode.INVALID_TXN_STATE)
        else:
            if second:
                entry.last_epoch, entry.epoch = entry.epoch, entry.epoch + 1
            self._complete(entry, committed=request.committed)
        if second:
            return kinds(producer_id=entry.producer_id, producer_epoch=entry.epoch)
        return kinds()

    # -- the group's coordinator

    def _txn_offset_commit(self, request: Any) -> Any:
        entry = self._join_implicitly(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            lambda entry: request.group_id in entry.groups,
            self._version >= 5,
        )
        if isinstance(entry, ErrorCode):
            return self._offsets_committed(request, entry)
        entry.groups.add(request.group_id)
        for topic in request.topics:
            for each in topic.partitions:
                name = (request.group_id, topic.name, each.partition_index)
                entry.run.offsets[name] = each.committed_offset
        return self._offsets_committed(request, ErrorCode.NONE)

    def _join_implicitly(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        has_joined: Callable[[Entry], bool],
        may_join: bool,
    ) -> Entry | ErrorCode:
        """The transaction that a write is part of, as its partition's leader finds it."""
        entry = self.ids.get(transactional_id)
        if entry is not None and producer[1] < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if entry is not None and entry.state == "Ongoing" and has_joined(entry):
            return entry
        if not may_join:
            told = self._version >= 11  # of Produce; TxnOffsetCommit never comes here with that
            return ErrorCode.TRANSACTION_ABORTABLE if told else ErrorCode.INVALID_TXN_STATE
        return self._join(transactional_id, producer)

    def _offsets_committed(self, request: Any, code: ErrorCode) -> Any:
        kinds = messages.TxnOffsetCommitResponse
        return kinds(
            topics=[
                kinds.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        kinds.TxnOffsetCommitResponsePartition(each.partition_index, code)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    # -- the partitions' leader

    def _produce(self, request: Any) -> Any:
        version = self._version

        def judge(topic: str, number: int, data: bytes) -> tuple[int, int | None]:
            return self._append(request.transactional_id, (topic, number), data, version)

        return self.produce_response(request, judge)

    def _append(
        self, transactional_id: str, name: Partition, data: bytes, version: int
    ) -> tuple[int, int | None]:
        header = read_batch_header(data)
        assert header.is_transactional
        entry = self._join_implicitly(
            transactional_id,
            (header.producer_id, header.producer_epoch),
            lambda entry: name in entry.partitions,
            version >= 12,
        )
        if isinstance(entry, ErrorCode):
            return entry, None
        entry.partitions.add(name)
        return self._append_next(entry, name, header, data)

    def _append_next(
        self, entry: Entry, name: Partition, header: BatchHeader, data: bytes
    ) -> tuple[int, int | None]:
        """Appends the batch that comes next by its sequence; one that is there stays as it is."""
        written = self._producers.get((name, header.producer_id))
        if written is None or written.epoch != header.producer_epoch:
            written = Written(header.producer_epoch)
        if header.base_sequence in written.offsets:
            return ErrorCode.NONE, written.offsets[header.base_sequence]
        if header.base_sequence != written.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        log = self.log.setdefault(name, [])
        written.offsets[header.base_sequence] = len(log)
        written.next_sequence += header.records_count
        self._producers[name, header.producer_id] = written
        log += [(record.value, entry.run) for record in iter_records(data)]
        return ErrorCode.NONE, written.offsets[header.base_sequence]


def refused_once(*codes: ErrorCode) -> Sequence[ErrorCode | None]:
    """These errors one after the other, and then none: for `TransactionPeer.fail`."""
    return (*codes, None)
