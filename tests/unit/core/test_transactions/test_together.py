"""Coordinator, markers and partitions together: a transaction has one result, everywhere.

Producers of version 2 (KIP-890), their zombies and late requests; a coordinator that moves, whose
writes fail or are in doubt; marker requests that get lost, come twice or late. The partitions here
are the rules for producers' epochs and nothing else. What must hold after every step:

* No part of a transaction is committed in one partition and aborted in another.
* When the log says that a transaction has ended, every partition that it names has its marker.
* What a client was told is so: all of it committed, or all of it aborted.
* In the end nothing is left open: no reader with read_committed waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kraftpy.core.transactions import Markers, Partition
from kraftpy.core.transactions.markers import MarkerRequest, OwedMarkers
from kraftpy.core.transactions.states import EPOCH_MAX
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from .driver import ID, P0, P1, P2, TIMEOUT_MS, Driver, markers_written

Producer = tuple[int, int]

PARTITIONS = (P0, P1, P2)
OWNER = 0
LEADER = 1
PICK = st.integers(0, 9)


class Log:
    """One partition: of each producer id its epoch, whether a transaction is open, the coordinator
    that wrote last, and what became of its batches.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.coordinators: dict[int, int] = {}
        self.open: set[Producer] = set()
        self.results: dict[Producer, bool] = {}
        self.asking: dict[str, Producer] = {}  # tokens

    def epoch(self, producer_id: int) -> int:
        return self.epochs.get(producer_id, -1)

    def append(self, producer: Producer) -> None:
        """A batch that was admitted."""
        assert producer[1] >= self.epoch(producer[0])
        assert producer not in self.results, "behind the marker that ended it"
        self.epochs[producer[0]] = producer[1]
        self.open.add(producer)

    def mark(self, producer_id: int, epoch: int, coordinator: int, is_commit: bool) -> E:
        open_here = {each for each in self.open if each[0] == producer_id}
        if epoch < self.epoch(producer_id) or (epoch == self.epoch(producer_id) and open_here):
            return E.INVALID_PRODUCER_EPOCH
        if coordinator < self.coordinators.get(producer_id, -1):
            return E.TRANSACTION_COORDINATOR_FENCED
        self.epochs[producer_id] = epoch
        self.coordinators[producer_id] = coordinator
        for each in open_here:
            self.results[each] = is_commit
        self.open -= open_here
        for token, (asked_id, asked_epoch) in list(self.asking.items()):
            if asked_id == producer_id and asked_epoch < epoch:
                del self.asking[token]
        return E.NONE


class Together(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(commits=False)
        self.owed = OwedMarkers(lambda partition: LEADER)
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.requests: list[MarkerRequest] = []
        self.late: list[WriteTxnMarkersRequest] = []
        self.producers: list[Producer] = []
        self.waiting: dict[str, Callable[[str], None]] = {}
        self.told: dict[Producer, bool] = {}
        self.seen = 0

    def some(self, pick: int) -> Producer:
        """The newest producer most of the time."""
        return self.producers[-1 - max(0, pick - 6) % len(self.producers)]

    # -- producers

    @rule()
    def arrive(self) -> None:
        def began(token: str) -> None:
            if self.driver.error(token) is E.NONE:
                self.producers.append(self.driver.producer(token))

        self.waiting[self.driver.init()] = began

    @rule(pick=PICK, partition=st.sampled_from(PARTITIONS))
    def produce(self, pick: int, partition: Partition) -> None:
        if not self.producers:
            return
        producer, log = self.some(pick), self.logs[partition]
        if producer[1] < log.epoch(producer[0]):
            return  # INVALID_PRODUCER_EPOCH
        if producer in log.open:
            return

        def admitted(token: str) -> None:
            is_valid = log.asking.pop(token, None) is not None
            if is_valid and self.driver.error(token) is E.NONE:
                log.append(producer)

        token = self.driver.add(producer, partition, version=2, from_broker=True)
        log.asking[token] = producer
        self.waiting[token] = admitted

    @rule(pick=PICK, is_commit=st.booleans())
    def end(self, pick: int, is_commit: bool) -> None:
        if not self.producers:
            return
        producer = self.some(pick)

        def ended(token: str) -> None:
            if self.driver.error(token) is E.NONE:
                assert self.told.setdefault(producer, is_commit) is is_commit
                self.producers.append(self.driver.producer(token))

        self.waiting[self.driver.end(producer, commit=is_commit, version=2)] = ended

    # -- what happens to the coordinator

    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        if self.driver.in_flight:
            self.driver.commit(pick % len(self.driver.in_flight))

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        if self.driver.in_flight:
            self.driver.fail(number=pick % len(self.driver.in_flight))

    @rule(pick=PICK)
    def time_out(self, pick: int) -> None:
        if self.driver.in_flight:
            self.driver.time_out(pick % len(self.driver.in_flight))

    @rule(wrote=PICK)
    def move(self, wrote: int) -> None:
        for write in self.driver.in_flight[: wrote % (len(self.driver.in_flight) + 1)]:
            self.driver.append(write)
        self.owed.drop(OWNER)
        self.driver.move()

    @rule(ms=st.sampled_from([10, 200, TIMEOUT_MS]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule()
    def age(self) -> None:
        """The producer is near the end of its epochs, as if it had been busy elsewhere."""
        known = self.driver.machine.find(ID)
        if known is None or ID in self.driver.machine._lanes or not known.state.is_idle:
            return
        if known.producer_epoch < EPOCH_MAX - 1:
            self.producers.append(self.driver.raise_epoch(EPOCH_MAX - 1))

    # -- markers on their way

    @rule()
    def send(self) -> None:
        self.requests += self.owed.take(self.driver.now_ms)
        self.finish([each.markers for each in self.owed.take_finished()])

    @rule(pick=PICK, fate=st.sampled_from(["answered", "answered", "lost", "unanswered", "late"]))
    def deliver(self, pick: int, fate: str) -> None:
        if not self.requests:
            return
        request = self.requests.pop(pick % len(self.requests))
        if fate == "late":
            self.late.append(request.message())
        if fate in ("lost", "late"):
            self.owed.lost(request, self.driver.now_ms)
            return
        response = self.carry_out(request.message())
        if fate == "unanswered":
            self.owed.lost(request, self.driver.now_ms)
            return
        outcome = self.owed.answered(request, response, self.driver.now_ms)
        self.finish([each.markers for each in outcome.finished])

    @rule(pick=PICK)
    def deliver_late(self, pick: int) -> None:
        if self.late:
            self.carry_out(self.late.pop(pick % len(self.late)))

    def carry_out(self, message: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return markers_written(
            message,
            lambda marker, topic, index: self.logs[topic, index].mark(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.transaction_result,
            ),
        )

    def finish(self, finished: list[Markers]) -> None:
        for each in finished:
            self.driver.write_markers(each)

    # -- what must hold

    @invariant()
    def messages_and_answers_get_through(self) -> None:
        """No rule: what the machine said in this step reaches whom it is for."""
        while self.driver.markers:
            self.owed.owe(OWNER, self.driver.markers.pop(0), self.driver.now_ms)
        for token, heard in list(self.waiting.items()):
            if token in self.driver.replies:
                del self.waiting[token]
                heard(token)

    @invariant()
    def a_transaction_has_one_result(self) -> None:
        results: dict[Producer, bool] = dict(self.told)
        for log in self.logs.values():
            for producer, is_commit in log.results.items():
                assert results.setdefault(producer, is_commit) is is_commit, producer

    @invariant()
    def what_has_ended_is_over_everywhere(self) -> None:
        prepared = None
        for record in self.driver.log:
            transaction = record.transaction
            assert transaction is not None
            if transaction.state.is_preparing:
                prepared = transaction
            elif prepared is not None:
                for partition in prepared.partitions:
                    for producer_id, epoch in self.logs[partition].open:
                        assert producer_id != prepared.producer_id or (
                            epoch >= prepared.producer_epoch
                        )
                prepared = None

    def teardown(self) -> None:
        driver = self.driver
        while driver.in_flight:
            driver.commit()
        driver.commits = True
        self.messages_and_answers_get_through()
        for _ in range(20):
            driver.advance(TIMEOUT_MS)
            self.messages_and_answers_get_through()
            self.requests += self.owed.take(driver.now_ms)
            while self.requests:
                self.deliver(0, "answered")
            self.finish([each.markers for each in self.owed.take_finished()])
            self.messages_and_answers_get_through()
        self.a_transaction_has_one_result()
        assert len(self.owed) == 0
        assert not self.waiting
        for log in self.logs.values():
            assert not log.open, "a reader waits for ever"


TestTogether = Together.TestCase
TestTogether.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
