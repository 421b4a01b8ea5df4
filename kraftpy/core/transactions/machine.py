"""The transaction coordinator of one partition of `__transaction_state`, a deterministic machine.

`core.coordination.machine` is its contract with the shell, `rules` says what a request does. Rules:

* An id has one write in flight at a time. What comes meanwhile waits, at most `QUEUE_MAX`, and is
  judged when it lands: what can be done then is one batch, of which each answer goes out when that
  is committed. So an answer never tells of a state that isn't in the log.
* Markers are asked for when the decision is committed, never before, and the transaction counts as
  ended when all of them have been written: the next transaction's first record may ride in the
  batch that says so.
* While markers are out, clients wait for a while; brokers hear CONCURRENT_TRANSACTIONS at once, as
  others wait behind them.
* A transaction that is open for longer than its timeout is aborted, with an epoch that fences its
  owner. An id that isn't used for `expiration_ms` is forgotten.
* After loading, markers of decided transactions are asked for again, and open ones go on: some in
  each turn, however many there are.
* What nobody asked for and can't be written is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kraftpy.core.coordination import Effects, Outbox, Write, write_error
from kraftpy.core.coordination.deadlines import Deadlines
from kraftpy.core.transactions import rules
from kraftpy.core.transactions.events import tell_fenced, tell_timed_out
from kraftpy.core.transactions.lanes import RETRY_MIN_MS, Batch, Lane, Request
from kraftpy.core.transactions.memory import TransactionMemory, growth_bytes
from kraftpy.core.transactions.records import TransactionRecord
from kraftpy.core.transactions.rules import Answer, Step, TakeProducerId, Verdict, Wish
from kraftpy.core.transactions.states import (
    NO_TIMESTAMP,
    Cause,
    Partition,
    Transaction,
    TransactionState,
)
from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.errors import ErrorCode

QUEUE_MAX = 64

# So much of what is due is done in one go: what is left is due at once.
DUE_TOGETHER = 100

# An InitProducerId that had a transaction aborted waits for that: producers give up much later.
FENCE_WAIT_MS = 5_000

_RETRY_MAX_MS = 1_000

_KNOWN_TO_CLIENTS = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
_CONCURRENT = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
_UNAVAILABLE = Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """`wait_ms`: how long clients wait for markers before they hear that these are still out."""

    expiration_ms: int
    wait_ms: int


class Markers(NamedTuple):
    """A message: the result of a transaction, to be written to all of its partitions.

    The last three are for who counts: when it began and was decided, and who wanted its end, as
    far as this coordinator knows.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: frozenset[Partition]
    start_ms: int = NO_TIMESTAMP
    decided_ms: int = NO_TIMESTAMP
    cause: Cause = Cause.PRODUCER


class TransactionMachine:
    """See the module; `leader_epoch` is the coordinator epoch of its markers."""

    def __init__(
        self,
        config: TransactionConfig,
        take_producer_id: TakeProducerId,
        memory: TransactionMemory,
        leader_epoch: int,
    ) -> None:
        self._config = config
        self._take_producer_id = take_producer_id
        self._memory = memory
        self._memory_bytes = 0
        self._is_loaded = False
        # What was loaded of them isn't seen to yet: timeouts, markers.
        self._unsettled: dict[str, None] = {}
        self._leader_epoch = leader_epoch
        self._transactions: dict[str, Transaction] = {}
        self._lanes: dict[str, Lane] = {}
        self._timeouts: Deadlines[str] = Deadlines()
        self._retries: Deadlines[str] = Deadlines()
        self._waits: Deadlines[tuple[str, Request]] = Deadlines()
        self._out: Outbox[TransactionRecord] = Outbox()

    def __len__(self) -> int:
        """How many transactional ids there are."""
        return len(self._transactions)

    # -- loading

    def load(self, record: TransactionRecord) -> None:
        """Takes in one record of the log, oldest first."""
        self._put(record)
        if record.transaction is None or record.transaction.state.is_idle:
            self._unsettled.pop(record.transactional_id, None)
        else:
            self._unsettled[record.transactional_id] = None

    def finish_load(self, now_ms: int) -> Effects[TransactionRecord]:
        # Not before: a load that is given up gives nothing back.
        self._is_loaded = True
        self._memory.used_bytes += self._memory_bytes
        self._settle_loaded(now_ms)
        return self._out.take()

    def _settle_loaded(self, now_ms: int) -> None:
        """Goes on with some of the transactions that were open or decided in the log."""
        unsettled = self._unsettled
        for _ in range(min(len(unsettled), DUE_TOGETHER)):
            transactional_id, _ = unsettled.popitem()
            transaction = self._transactions[transactional_id]
            self._watch(transactional_id, transaction, now_ms)
            self._send_markers(transactional_id, transaction, Cause.PRODUCER, now_ms)

    # -- requests: each is answered with an `Answer`

    def init_producer_id(
        self, token: object, transactional_id: str, wish: Wish, now_ms: int
    ) -> Effects[TransactionRecord]:
        """InitProducerId 0-5."""

        def judge(current: Transaction | None, now_ms: int) -> Verdict:
            return rules.judge_init(current, wish, now_ms, self._take_producer_id)

        return self._submit(transactional_id, Request(token, judge, FENCE_WAIT_MS), now_ms)

    def add_partitions(
        self,
        token: object,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[Partition],
        version: int,
        now_ms: int,
        *,
        from_broker: bool = False,
    ) -> Effects[TransactionRecord]:
        """AddPartitionsToTxn and AddOffsetsToTxn; `producer` are its id and epoch."""

        def judge(current: Transaction | None, now_ms: int) -> Verdict:
            return rules.judge_add(current, *producer, partitions, version, now_ms)

        wait_ms = 0 if from_broker else self._config.wait_ms
        return self._submit(transactional_id, Request(token, judge, wait_ms), now_ms)

    def end(
        self,
        token: object,
        transactional_id: str,
        producer: tuple[int, int],
        version: int,
        now_ms: int,
        *,
        is_commit: bool,
    ) -> Effects[TransactionRecord]:
        """EndTxn; `producer` are its id and epoch."""

        def judge(current: Transaction | None, now_ms: int) -> Verdict:
            take = self._take_producer_id
            return rules.judge_end(current, *producer, version, now_ms, take, is_commit=is_commit)

        request = Request(token, judge, self._config.wait_ms)
        return self._submit(transactional_id, request, now_ms)

    def verify(
        self, transactional_id: str, producer: tuple[int, int], partitions: Iterable[Partition]
    ) -> list[ErrorCode]:
        """For each of these partitions, whether it is in the producer's transaction."""
        return rules.verify(self.find(transactional_id), *producer, partitions)

    def find(self, transactional_id: str) -> Transaction | None:
        """What is committed of an id."""
        return self._transactions.get(transactional_id)

    def transactional_ids(self) -> Sequence[str]:
        """Every id that there is."""
        return list(self._transactions)

    # -- markers

    def markers_written(
        self, transactional_id: str, producer: tuple[int, int], now_ms: int
    ) -> Effects[TransactionRecord]:
        """All markers of this producer's transaction are in their logs, and committed."""
        transaction = self.find(transactional_id)
        if (
            transaction is not None
            and transaction.state.is_preparing
            and producer == (transaction.producer_id, transaction.producer_epoch)
        ):
            lane = self._lane(transactional_id)
            lane.markers_written = True
            if not lane.is_writing:
                self._advance(transactional_id, lane, now_ms)
        return self._out.take()

    def _send_markers(
        self, transactional_id: str, transaction: Transaction, cause: Cause, now_ms: int
    ) -> None:
        if not transaction.state.is_preparing:
            return
        if not transaction.partitions:
            # Kafka writes the decision and its end in two batches, and may have died in between.
            lane = self._lane(transactional_id)
            lane.markers_written = True
            self._advance(transactional_id, lane, now_ms)
            return
        self._out.send(
            Markers(
                transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                self._leader_epoch,
                transaction.state is TransactionState.PREPARE_COMMIT,
                transaction.client_version,
                transaction.partitions,
                transaction.start_ms,
                transaction.update_ms,
                cause,
            )
        )

    # -- the way of a request

    def _lane(self, transactional_id: str) -> Lane:
        lane = self._lanes.get(transactional_id)
        if lane is None:
            lane = self._lanes[transactional_id] = Lane()
        return lane

    def _submit(
        self, transactional_id: str, request: Request, now_ms: int
    ) -> Effects[TransactionRecord]:
        lane = self._lane(transactional_id)
        if lane.is_overdue:
            self._reply(request, _UNAVAILABLE)
        elif len(lane.waiting) >= QUEUE_MAX:
            self._reply(request, _CONCURRENT)
        else:
            lane.waiting.append(request)
            if not lane.is_writing:
                self._advance(transactional_id, lane, now_ms)
        return self._out.take()

    def _advance(self, transactional_id: str, lane: Lane, now_ms: int) -> None:
        """Judges what waits, and writes what comes of it."""
        batch = Batch(self.find(transactional_id))
        lane.cause = Cause.PRODUCER
        if lane.markers_written:
            assert batch.current is not None
            batch.add(rules.complete(batch.current, now_ms), now_ms)
        waiting, lane.waiting = lane.waiting, []
        waiting.reverse()
        while waiting:
            request = waiting.pop()
            verdict = self._judge(transactional_id, batch, request, now_ms)
            if verdict is None:
                lane.waiting.append(request)
                self._park(transactional_id, request, now_ms)
                continue
            answer = verdict if isinstance(verdict, Answer) else verdict.answer
            if isinstance(verdict, Step):
                if answer is None:
                    assert batch.current is not None
                    tell_fenced(transactional_id, batch.current)
                    lane.cause = Cause.FENCE
                    batch.fencing.append(request)
                    waiting.append(request)  # for the case that nobody has to write a marker
                elif request.token is None:
                    lane.cause = Cause.TIMEOUT
                batch.add(verdict.transaction, now_ms)
            if answer is not None:
                if request.is_parked:
                    self._waits.cancel((transactional_id, request))
                if batch.steps:
                    batch.answers.append((request, answer))
                else:
                    self._reply(request, answer)
        if batch.steps:
            self._write(transactional_id, lane, batch)
        else:
            self._discard_unused(transactional_id)

    def _judge(self, transactional_id: str, batch: Batch, request: Request, now_ms: int) -> Verdict:
        verdict = request.judge(batch.current, now_ms)
        if verdict is None:
            return None if request.wait_ms else _CONCURRENT
        if isinstance(verdict, Step):
            more_bytes = growth_bytes(transactional_id, batch.current, verdict.transaction)
            if not self._memory.has_room(more_bytes, is_new=batch.current is None):
                return _UNAVAILABLE
        return verdict

    def _park(self, transactional_id: str, request: Request, now_ms: int) -> None:
        if not request.is_parked:
            request.is_parked = True
            self._waits.set((transactional_id, request), now_ms + request.wait_ms)

    def _write(self, transactional_id: str, lane: Lane, batch: Batch) -> None:
        lane.is_writing = True
        self._out.write(
            [TransactionRecord(transactional_id, step) for step in batch.steps],
            (transactional_id,),
            lambda now_ms: self._answer(batch),
            lambda error, now_ms: self._refuse(transactional_id, batch, error),
        )

    def _answer(self, batch: Batch) -> None:
        for request, answer in batch.answers:
            self._reply(request, answer)

    def _refuse(self, transactional_id: str, batch: Batch, error: ErrorCode) -> None:
        refusal = Answer(_told(error))
        for request, _ in batch.answers:
            self._reply(request, refusal)
        for request in batch.fencing:
            # It may have been answered with the others, or have waited for too long.
            if request in self._lanes[transactional_id].waiting:
                self._end_wait(transactional_id, request, refusal)

    def _end_wait(self, transactional_id: str, request: Request, answer: Answer) -> None:
        self._waits.cancel((transactional_id, request))
        self._lanes[transactional_id].waiting.remove(request)
        self._reply(request, answer)

    def _reply(self, request: Request, answer: Answer) -> None:
        if request.token is not None:
            self._out.reply(request.token, answer)

    def _discard_unused(self, transactional_id: str) -> None:
        lane = self._lanes.get(transactional_id)
        if lane is not None and lane.is_unused:
            del self._lanes[transactional_id]

    # -- outcomes

    def committed(self, write: Write[TransactionRecord], now_ms: int) -> Effects[TransactionRecord]:
        for record in write.records:
            self._put(record)
        self._out.landed(write)
        if not write.settled:
            write.settled = True
            write.on_committed(now_ms)
        for transactional_id in write.keys:
            lane = self._lanes[transactional_id]
            lane.is_writing = lane.is_overdue = False
            lane.markers_written = False
            lane.retry_ms = RETRY_MIN_MS
            self._retries.cancel(transactional_id)
            self._unsettled.pop(transactional_id, None)
            transaction = self.find(transactional_id)
            if transaction is None:
                self._timeouts.cancel(transactional_id)
            else:
                self._watch(transactional_id, transaction, now_ms)
                self._send_markers(transactional_id, transaction, lane.cause, now_ms)
            if lane.waiting and not lane.is_writing:
                self._advance(transactional_id, lane, now_ms)
            else:
                self._discard_unused(transactional_id)
        return self._out.take()

    def failed(
        self, write: Write[TransactionRecord], error: ErrorCode, now_ms: int
    ) -> Effects[TransactionRecord]:
        self._out.landed(write)
        self._settle(write, error, now_ms)
        for transactional_id in write.keys:
            lane = self._lanes[transactional_id]
            lane.is_writing = lane.is_overdue = False
            if not lane.markers_written:
                transaction = self.find(transactional_id)
                if transaction is not None:
                    self._watch(transactional_id, transaction, now_ms, now_ms + _RETRY_MAX_MS)
                self._advance(transactional_id, lane, now_ms)
                continue
            for request in lane.waiting:
                self._reply(request, Answer(_told(error)))
                self._waits.cancel((transactional_id, request))
            lane.waiting.clear()
            self._retries.set(transactional_id, now_ms + lane.retry_ms)
            lane.retry_ms = min(2 * lane.retry_ms, _RETRY_MAX_MS)
        return self._out.take()

    def timed_out(self, write: Write[TransactionRecord], now_ms: int) -> Effects[TransactionRecord]:
        self._settle(write, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        for transactional_id in write.keys:
            lane = self._lanes[transactional_id]
            lane.is_overdue = True
            for request in list(lane.waiting):
                if request.token is not None:
                    self._end_wait(transactional_id, request, _UNAVAILABLE)
        return self._out.take()

    def _settle(self, write: Write[TransactionRecord], error: ErrorCode, now_ms: int) -> None:
        if not write.settled:
            write.settled = True
            write.on_failed(error, now_ms)

    def _put(self, record: TransactionRecord) -> None:
        transactional_id, transaction = record
        before = self._transactions.get(transactional_id)
        more_bytes = growth_bytes(transactional_id, before, transaction)
        self._memory_bytes += more_bytes
        if self._is_loaded:
            self._memory.used_bytes += more_bytes
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction

    # -- time

    def _watch(
        self,
        transactional_id: str,
        transaction: Transaction,
        now_ms: int,
        not_before_ms: int = 0,
    ) -> None:
        """Sees to it that an open transaction ends with its timeout."""
        if transaction.state is not TransactionState.ONGOING:
            self._timeouts.cancel(transactional_id)
            return
        # The clock of an earlier coordinator may have been ahead.
        start_ms = min(transaction.start_ms, now_ms)
        deadline_ms = max(start_ms + transaction.timeout_ms, not_before_ms)
        self._timeouts.set(transactional_id, deadline_ms)

    def next_deadline(self) -> int | None:
        if self._unsettled:
            return 0
        deadline_ms = self._timeouts.next()
        for each_ms in (self._retries.next(), self._waits.next()):
            if each_ms is not None and (deadline_ms is None or each_ms < deadline_ms):
                deadline_ms = each_ms
        return deadline_ms

    def handle_timers(self, now_ms: int) -> Effects[TransactionRecord]:
        self._settle_loaded(now_ms)
        for _ in range(DUE_TOGETHER):
            if not self._handle_next(now_ms):
                break
        return self._out.take()

    def _handle_next(self, now_ms: int) -> bool:
        """Does what is due next; whether there was anything."""
        if (waited := self._waits.pop_due(now_ms)) is not None:
            transactional_id, request = waited
            self._end_wait(transactional_id, request, _CONCURRENT)
            self._discard_unused(transactional_id)
        elif (to_retry := self._retries.pop_due(now_ms)) is not None:
            lane = self._lanes[to_retry]
            if not lane.is_writing:
                self._advance(to_retry, lane, now_ms)
        elif (overdue := self._timeouts.pop_due(now_ms)) is not None:
            self._abort_overdue(overdue, now_ms)
        else:
            return False
        return True

    def _abort_overdue(self, transactional_id: str, now_ms: int) -> None:
        overdue = self._transactions[transactional_id]

        def judge(current: Transaction | None, now_ms: int) -> Verdict:
            if current is not overdue:
                return Answer(ErrorCode.NONE)  # it went on, or has ended
            take, last_epoch = self._take_producer_id, overdue.producer_epoch
            fenced = rules.fence(overdue, now_ms, take, last_epoch)
            if fenced is None:
                self._timeouts.set(transactional_id, now_ms + _RETRY_MAX_MS)
                return rules.NO_ID_AT_HAND
            tell_timed_out(transactional_id, overdue)
            return Step(fenced, Answer(ErrorCode.NONE))

        lane = self._lane(transactional_id)
        lane.waiting.append(Request(None, judge, 0))
        if not lane.is_writing:
            self._advance(transactional_id, lane, now_ms)

    def shift_deadlines(self, delta_ms: int) -> None:
        for deadlines in (self._timeouts, self._retries, self._waits):
            deadlines.shift(delta_ms)

    def expire(
        self, transactional_ids: Iterable[str], now_ms: int
    ) -> tuple[int, Effects[TransactionRecord]]:
        """Forgets those of these ids that nobody used for long; how many, and what to write."""
        expired = [each for each in transactional_ids if self._is_expired(each, now_ms)]
        for transactional_id in expired:
            self._lane(transactional_id).is_writing = True
        if expired:
            self._out.write(
                [TransactionRecord(each, None) for each in expired],
                tuple(expired),
                lambda now_ms: None,
                lambda error, now_ms: None,
            )
        return len(expired), self._out.take()

    def _is_expired(self, transactional_id: str, now_ms: int) -> bool:
        transaction = self.find(transactional_id)
        return (
            transaction is not None
            and transactional_id not in self._lanes
            and transaction.state.is_idle
            and now_ms - transaction.update_ms >= self._config.expiration_ms
        )

    # -- the end

    def close(self, error: ErrorCode, now_ms: int) -> Effects[TransactionRecord]:
        for write in self._out.all_in_flight():
            self._settle(write, error, now_ms)
        for lane in self._lanes.values():
            for request in lane.waiting:
                self._reply(request, Answer(_told(error)))
        self._lanes.clear()
        self._memory.used_bytes -= self._memory_bytes
        return self._out.take()._replace(writes=[], messages=[])


def _told(error: ErrorCode) -> ErrorCode:
    """What clients hear of a write that failed, as Kafka tells them."""
    told = write_error(error)
    return told if told in _KNOWN_TO_CLIENTS else ErrorCode.UNKNOWN_SERVER_ERROR
