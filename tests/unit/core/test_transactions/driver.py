"""A transaction machine with its log in memory: the test decides when a write commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kraftpy.core.coordination import Effects, Write
from kraftpy.core.transactions import (
    Answer,
    Markers,
    Partition,
    Transaction,
    TransactionCodec,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    Wish,
)
from kraftpy.core.transactions.records import TransactionRecord
from kraftpy.core.transactions.states import may_follow
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

ID = "t"
TIMEOUT_MS = 60_000
WAIT_MS = 100
EXPIRATION_MS = 7 * 86_400_000
P0: Partition = ("a", 0)
P1: Partition = ("a", 1)
P2: Partition = ("b", 0)


def markers_written(
    request: WriteTxnMarkersRequest, error_of: Callable[[Any, str, int], ErrorCode]
) -> WriteTxnMarkersResponse:
    """A leader's answer, given what it says of a marker in a partition."""
    kinds = WriteTxnMarkersResponse
    return kinds(
        markers=[
            kinds.WritableTxnMarkerResult(
                marker.producer_id,
                [
                    kinds.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            kinds.WritableTxnMarkerPartitionResult(
                                index, error_of(marker, topic.name, index)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


class Driver:
    """`commits`: writes commit as soon as they are made; markers are written when the test says."""

    def __init__(
        self,
        *,
        commits: bool = True,
        first_producer_id: int = 1000,
        limit_bytes: int = 1 << 30,
        now_ms: int = 1_000_000,
    ) -> None:
        self.config = TransactionConfig(EXPIRATION_MS, WAIT_MS)
        self.memory = TransactionMemory(limit_bytes)
        self.next_producer_id: int | None = first_producer_id
        self.leader_epoch = 0
        self.machine = self._new_machine()
        self.machine.finish_load(now_ms)
        self.commits = commits
        self.now_ms = now_ms
        self.log: list[TransactionRecord] = []
        self.batches: list[bytes] = []
        self.in_flight: list[Write[TransactionRecord]] = []
        self.replies: dict[str, Answer] = {}
        self.markers: list[Markers] = []
        self._tokens = 0

    def _new_machine(self) -> TransactionMachine:
        return TransactionMachine(
            self.config, self.take_producer_id, self.memory, self.leader_epoch
        )

    def take_producer_id(self) -> int | None:
        if self.next_producer_id is None:
            return None
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def carry_out(self, effects: Effects[TransactionRecord]) -> None:
        for token, reply in effects.replies:
            assert isinstance(token, str)
            assert isinstance(reply, Answer)
            assert token not in self.replies, f"{token} is answered twice"
            self.replies[token] = reply
        for message in effects.messages:
            assert isinstance(message, Markers)
            self._check_committed(message)
            self.markers.append(message)
        for write in effects.writes:
            self.in_flight.append(write)
        if self.commits:
            while self.in_flight:
                self.commit()

    def _check_committed(self, message: Markers) -> None:
        """Markers are asked for of what the log says, and of nothing else."""
        last = next(r for r in reversed(self.log) if r.transactional_id == message.transactional_id)
        assert last.transaction is not None
        assert last.transaction.state.is_preparing
        assert last.transaction.partitions == message.partitions

    def commit(self, number: int = 0) -> None:
        """A write of those in flight is below the high watermark."""
        write = self.in_flight.pop(number)
        self.append(write)
        self.carry_out(self.machine.committed(write, self.now_ms))

    def append(self, write: Write[TransactionRecord]) -> None:
        """A write is in the log; whoever made it may not know."""
        self.batches.append(TransactionCodec().encode(write, self.now_ms))
        for record in write.records:
            before = self.last(record.transactional_id)
            if before is not None and record.transaction is not None:
                assert may_follow(before, record.transaction)
            self.log.append(record)

    def fail(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS, number: int = 0) -> None:
        write = self.in_flight.pop(number)
        self.carry_out(self.machine.failed(write, error, self.now_ms))

    def time_out(self, number: int = 0) -> None:
        """Nobody waits for the write any more; it is in flight still."""
        write = self.in_flight[number]
        self.carry_out(self.machine.timed_out(write, self.now_ms))

    def last(self, transactional_id: str = ID) -> Transaction | None:
        """What the log says of the id."""
        for record in reversed(self.log):
            if record.transactional_id == transactional_id:
                return record.transaction
        return None

    def advance(self, ms: int) -> None:
        """Time passes, and whatever falls due meanwhile is done when it is due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.machine.next_deadline()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.machine.handle_timers(self.now_ms))
        self.now_ms = end_ms

    def move(self) -> None:
        """The coordinator goes, with what it was told, and another reads the log."""
        self.carry_out_last(self.machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms))
        self.in_flight.clear()
        self.markers.clear()
        self.leader_epoch += 1
        self.machine = self._new_machine()
        for record in self.log:
            self.machine.load(record)
        self.carry_out(self.machine.finish_load(self.now_ms))

    def carry_out_last(self, effects: Effects[TransactionRecord]) -> None:
        assert not effects.writes
        assert not effects.messages
        self.carry_out(effects)

    # -- requests: each gives its token

    def _next(self) -> str:
        self._tokens += 1
        return f"request {self._tokens}"

    def init(
        self,
        expected: tuple[int, int] | None = None,
        *,
        key: str = ID,
        timeout_ms: int = TIMEOUT_MS,
    ) -> str:
        token = self._next()
        wish = Wish(timeout_ms, expected)
        self.carry_out(self.machine.init_producer_id(token, key, wish, self.now_ms))
        return token

    def add(
        self,
        producer: tuple[int, int],
        *partitions: Partition,
        version: int = 0,
        key: str = ID,
        from_broker: bool = False,
    ) -> str:
        token = self._next()
        effects = self.machine.add_partitions(
            token, key, producer, partitions, version, self.now_ms, from_broker=from_broker
        )
        self.carry_out(effects)
        return token

    def end(
        self, producer: tuple[int, int], *, commit: bool = True, version: int = 0, key: str = ID
    ) -> str:
        token = self._next()
        effects = self.machine.end(token, key, producer, version, self.now_ms, is_commit=commit)
        self.carry_out(effects)
        return token

    def write_markers(self, *markers: Markers) -> None:
        """These markers, or all that are out, have been written."""
        if not markers:
            markers, self.markers = tuple(self.markers), []
        for each in markers:
            producer = each.producer_id, each.producer_epoch
            effects = self.machine.markers_written(each.transactional_id, producer, self.now_ms)
            self.carry_out(effects)

    # -- longer stories

    def error(self, token: str) -> ErrorCode:
        return self.replies[token].error

    def producer(self, token: str) -> tuple[int, int]:
        """The id and epoch that a request was answered with."""
        answer = self.replies[token]
        assert answer.error is ErrorCode.NONE, answer
        return answer.producer_id, answer.producer_epoch

    def state(self, key: str = ID) -> str:
        transaction = self.machine.find(key)
        return "" if transaction is None else transaction.state.label

    def opened(
        self, *partitions: Partition, version: int = 0, epoch: int = 0, key: str = ID
    ) -> tuple[int, int]:
        """A producer with an open transaction, with this epoch."""
        producer = self.producer(self.init(key=key))
        if epoch:
            producer = self.raise_epoch(epoch, key=key)
        assert self.error(self.add(producer, *(partitions or (P0,)), version=version, key=key)) is (
            ErrorCode.NONE
        )
        return producer

    def raise_epoch(self, epoch: int, key: str = ID) -> tuple[int, int]:
        """As if the id had been through so many epochs."""
        known = self.machine.find(key)
        assert known is not None
        record = TransactionRecord(key, known._replace(producer_epoch=epoch))
        self.log.append(record)
        self.machine._put(record)
        return known.producer_id, epoch


def labels(driver: Driver, key: str = ID) -> list[str]:
    """The states that the log has of an id, in order."""
    return [
        record.transaction.state.label if record.transaction else "tombstone"
        for record in driver.log
        if record.transactional_id == key
    ]


def unused(*_: object) -> None:
    """Nothing."""
