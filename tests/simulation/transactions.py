"""Transactions under a seed: coordinators, partitions that take markers, and producers.

A coordinator is the machine of `core.transactions` on the leader of the one partition of
`transactions`, a partition's leader admits batches by `core.transactions.admission`; around them is
what the server does there, and no rule of its own. Producers are of both versions of the protocol;
two of them share each transactional id. Their offsets in transactions are not simulated, but
for claims (`transacting`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.core.coordination import Effects, Write
from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import Leadership
from kraftpy.core.transactions import (
    VERSION_2,
    Answer,
    Markers,
    TransactionConfig,
    TransactionMachine,
    TransactionMemory,
    Wish,
)
from kraftpy.core.transactions.admission import Admission, NotAdmitted, Token
from kraftpy.core.transactions.markers import MarkerRequest, OwedMarkers
from kraftpy.core.transactions.records import TransactionRecord
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from kraftpy.protocol.records import EndTxnMarker
from tests.simulation.clients import CLIENT, RETRY_MS, TIMEOUT_MS, Client
from tests.simulation.log import header_of, stamped
from tests.simulation.network import Connection
from tests.simulation.processes import OneLog
from tests.simulation.replica import Name, ProduceAnswer, Replica

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

STATES = "transactions"
STATE_PARTITION: Name = (STATES, 0)
TIMEOUT_OF_TRANSACTIONS_MS = 900
_WISH = Wish(TIMEOUT_OF_TRANSACTIONS_MS, None)
_TICK_MS = 25.0
_MARKERS_TIMEOUT_MS = 250.0
_TRIES = 5

Answered = Callable[[Answer | None], None]


class CoordinatorReplica(OneLog):
    """The partition of the coordinators' log at one broker; `machine` while it coordinates."""

    machine: TransactionMachine | None = None

    def resign(self) -> None:
        machine, self.machine = self.machine, None
        super().resign()
        if machine is not None:
            for token, answer in machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms).replies:
                _hear(token, answer)

    def _moved(self) -> None:
        self.world.transactions.watermark_moved(self)

    def _begin(self, role: Leadership) -> None:
        config = TransactionConfig(expiration_ms=1 << 40, wait_ms=100)
        memory = TransactionMemory(1 << 30)
        machine = TransactionMachine(config, self.world.new_producer_id, memory, role.leader_epoch)
        self.machine = machine
        self._owed = OwedMarkers(self._leader_of)
        self._connections: dict[int, Connection] = {}
        for batch in self.log.batches:
            for record in batch.values:
                assert isinstance(record, TransactionRecord)
                machine.load(record)
        self._carry_out(machine.finish_load(self.now_ms))
        self._later(_TICK_MS, self._tick)

    def _tick(self) -> None:
        assert self.machine is not None
        self._later(_TICK_MS, self._tick)
        self._owed.wake()
        self._carry_out(self.machine.handle_timers(self.now_ms))

    def _leader_of(self, partition: Name) -> int | None:
        topic = self.broker.metadata.topics[partition[0]]
        leader = topic.partitions[partition[1]].leader
        return leader if leader >= 0 else None

    def ask(self, act: Callable[[TransactionMachine], Effects[TransactionRecord]]) -> bool:
        """Whether there is a coordinator here."""
        if self.machine is None or self.broker.stepped_down:
            return False
        self._carry_out(act(self.machine))
        return True

    def _carry_out(self, effects: Effects[TransactionRecord]) -> None:
        for write in effects.writes:
            self._write(write)
        for token, answer in effects.replies:
            _hear(token, answer)
        for message in effects.messages:
            assert isinstance(message, Markers)
            # A set of texts has another order in each process; a seed is one run.
            in_order: Any = sorted(message.partitions)
            self._owed.owe(0, message._replace(partitions=in_order), self.now_ms)
        if self.machine is not None:
            for request in self._owed.take(self.now_ms):
                self._send(request)

    def _refuse(self, write: Write[TransactionRecord], error: ErrorCode) -> None:
        assert self.machine is not None
        self._carry_out(self.machine.failed(write, error, self.now_ms))

    # -- markers

    def _send(self, request: MarkerRequest) -> None:
        world, me, life = self.world, self.broker, self.broker.life
        target = world.brokers[request.node_id]
        waits = [True]

        def answered(response: WriteTxnMarkersResponse | None) -> None:
            if waits and self.machine is machine:
                waits.clear()
                self._answered(request, response)

        def answer(response: WriteTxnMarkersResponse) -> None:
            if me.life == life:
                world.network.to_broker(target.id, me, answered, response)

        machine = self.machine
        # In the first version, a marker that comes twice would end the next transaction, too.
        connection = self._connections.get(target.id)
        if connection is None or not connection.leads_to(target):
            connection = Connection(world.network, target, me.id)
            self._connections[target.id] = connection
        connection.send(write_markers, target, request.message(), answer)
        self._later(_MARKERS_TIMEOUT_MS, answered, None)

    def _answered(self, request: MarkerRequest, response: WriteTxnMarkersResponse | None) -> None:
        if response is None:
            self._owed.lost(request, self.now_ms)
            return
        outcome = self._owed.answered(request, response, self.now_ms)
        for debt, name in outcome.refused:
            self.world.transactions.refused(debt.markers, name)
        for debt in outcome.finished:
            markers = debt.markers
            if self.machine is not None:
                producer = markers.producer_id, markers.producer_epoch
                identity = markers.transactional_id
                self._carry_out(self.machine.markers_written(identity, producer, self.now_ms))


def _hear(token: object, answer: object) -> None:
    assert callable(token)
    token(answer)


def write_markers(
    broker: Broker,
    request: WriteTxnMarkersRequest,
    answer: Callable[[WriteTxnMarkersResponse], None],
) -> None:
    """At the leader of partitions: answers when all markers are committed, or refused."""
    results: list[Any] = []
    due = []
    for wanted in request.markers:
        kinds = WriteTxnMarkersResponse
        result = kinds.WritableTxnMarkerResult(producer_id=wanted.producer_id)
        results.append(result)
        for topic in wanted.topics:
            answered = kinds.WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(answered)
            for index in topic.partition_indexes:
                told = kinds.WritableTxnMarkerPartitionResult(partition_index=index)
                answered.partitions.append(told)
                due.append((wanted, (topic.name, index), told))
    left = [len(due)]
    for wanted, name, told in due:
        _write_marker(broker, wanted, name, partial(_told, told, left, results, answer))


def _told(
    told: Any, left: list[int], results: list[Any], answer: Any, error: ErrorCode, _: int
) -> None:
    told.error_code = error
    left[0] -= 1
    if not left[0]:
        answer(WriteTxnMarkersResponse(markers=results))


def _write_marker(broker: Broker, wanted: Any, name: Name, answer: ProduceAnswer) -> None:
    replica = broker.replicas.get(name)
    if isinstance(replica, Admitting):
        marker = EndTxnMarker(wanted.transaction_result, wanted.coordinator_epoch)
        replica.write_marker(
            wanted.producer_id, wanted.producer_epoch, marker, wanted.transaction_version, answer
        )
    else:
        answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


class Admitting(Replica):
    """A partition that takes part in transactions, at one broker."""

    admission = Admission()

    def _lead(self, state: PartitionState) -> None:
        self.admission = Admission()
        super()._lead(state)

    def write_marker(
        self,
        producer_id: int,
        epoch: int,
        marker: EndTxnMarker,
        version: int,
        answer: ProduceAnswer,
    ) -> None:
        """Answers when it is committed."""
        error = self.append_marker(producer_id, epoch, marker, version)
        end_offset = self.log.log_end_offset
        if error:
            answer(error, -1)
        elif self.high_watermark < end_offset:
            self.waiting.append((end_offset, end_offset - 1, answer))
        else:
            answer(ErrorCode.NONE, end_offset - 1)

    def append_marker(
        self, producer_id: int, epoch: int, marker: EndTxnMarker, version: int
    ) -> ErrorCode:
        """Why it isn't taken; NONE also if the log has had it."""
        role, log = self.role, self.log
        if not isinstance(role, Leadership) or self.broker.stepped_down:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if role.acks_all_error:
            return role.acks_all_error
        try:
            needed = log.producers.check_marker(producer_id, epoch, marker, version)
        except KafkaError as error:
            return error.code
        self.admission.ended(producer_id, epoch, version)
        if needed:
            header = header_of(1, producer_id, epoch, -1, CONTROL_BIT | TRANSACTIONAL_BIT)
            self.append(stamped(header, log.log_end_offset, role.leader_epoch), (marker,))
        return ErrorCode.NONE

    def verify(
        self,
        identity: tuple[str, int],
        producer: tuple[int, int],
        then: Callable[[ErrorCode, Token], None],
    ) -> None:
        """Asks the coordinator whether the producer may write here in its transaction."""
        admission = self.admission
        token = admission.ask(*producer, identity[1])
        waits = [True]

        def answered(said: Answer | None) -> None:
            if not waits:
                return
            waits.clear()
            code = ErrorCode.NOT_ENOUGH_REPLICAS if said is None else said.error
            if admission is not self.admission:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if code is ErrorCode.NONE:
                admission.vouch(token)
            then(code, token)
            admission.settle(token)

        world, me, life = self.world, self.broker, self.broker.life
        coordinator = world.transactions.coordinator_for(me)
        question = partial(_verify, identity, producer, self.name)
        if coordinator is not None:

            def tell(said: Answer | None) -> None:
                if me.life == life:
                    world.network.to_broker(coordinator.id, me, answered, said)

            world.network.to_broker(me.id, coordinator, at_coordinator, coordinator, question, tell)
        world.schedule.after(_MARKERS_TIMEOUT_MS, me.run, me.life, answered, None)


class DataReplica(Admitting):
    """A partition that producers write to in transactions, at one broker."""

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        if moved:
            self.world.transactions.watermark_moved(self)

    def produce_in_transaction(
        self,
        identity: tuple[str, int],
        header: BatchHeader,
        values: tuple[object, ...],
        answer: ProduceAnswer,
    ) -> None:
        """`identity`: the transactional id, and the version by which its producer writes."""
        role, producers = self.role, self.log.producers
        if not isinstance(role, Leadership) or self.broker.stepped_down:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        try:
            if producers.check(header, 0) is None:
                self.admission.check(header, producers, 0, named=True)
        except NotAdmitted:
            self._verify_and_produce(identity, header, values, answer)
        except KafkaError as error:
            answer(error.code, -1)
        else:
            self.produce(header, values, answer)

    def _verify_and_produce(
        self,
        identity: tuple[str, int],
        header: BatchHeader,
        values: tuple[object, ...],
        answer: ProduceAnswer,
    ) -> None:
        def verified(code: ErrorCode, token: Token) -> None:
            if code is ErrorCode.NONE:
                try:
                    self.admission.check(header, self.log.producers, 0, named=True, token=token)
                except KafkaError as error:
                    code = error.code
            if code is ErrorCode.NONE:
                self.produce(header, values, answer)
            else:
                answer(code, -1)

        self.verify(identity, (header.producer_id, header.producer_epoch), verified)


Question = Callable[[TransactionMachine, Answered, int], Effects[TransactionRecord]]


def _verify(
    identity: tuple[str, int],
    producer: tuple[int, int],
    name: Name,
    machine: TransactionMachine,
    answer: Answered,
    now_ms: int,
) -> Effects[TransactionRecord]:
    """What a partition's leader asks before a producer's first batch."""
    transactional_id, version = identity
    if version == VERSION_2:
        return machine.add_partitions(
            answer, transactional_id, producer, [name], version, now_ms, from_broker=True
        )
    (error,) = machine.verify(transactional_id, producer, [name])
    answer(Answer(error))
    return Effects([], [])


def at_coordinator(broker: Broker, question: Question, answer: Answered) -> None:
    """A question arrives at a broker that is thought to coordinate."""
    replica = broker.replicas.get(STATE_PARTITION)
    now_ms = broker.world.now_ms
    if not isinstance(replica, CoordinatorReplica) or not replica.ask(
        lambda machine: question(machine, answer, now_ms)
    ):
        answer(Answer(ErrorCode.NOT_COORDINATOR))


class Sent:
    """A transaction as its producer knows it; `outcome` is None while nobody knows."""

    def __init__(self) -> None:
        self.values: list[tuple[Name, object]] = []
        self.outcome: bool | None = False


_Steps = Generator[Callable[[Callable[[Any], None]], None], Any, Any]


class Transactor(Client):
    """One of the producers of a transactional id: it takes it over, again and again."""

    def __init__(self, world: World, transactional_id: str, number: int, version: int) -> None:
        super().__init__(world, STATE_PARTITION)
        self.transactional_id = transactional_id
        self.number = number
        self.version = version
        self._producer = (-1, -1)
        self._sequences: dict[Name, int] = {}
        self._count = 0
        self._asked = 0
        self._steps = self._live()

    def start(self) -> None:
        self._go_on(None)

    def _go_on(self, said: Any) -> None:
        """Takes the next step; each asks one thing, and goes on with the answer or None."""
        try:
            ask = self._steps.send(said)
        except StopIteration:
            return
        self._asked += 1
        number = self._asked

        def answered(said: Any) -> None:
            if number == self._asked:
                self._asked += 1
                self._go_on(said)

        ask(answered)
        self.world.schedule.after(TIMEOUT_MS, answered, None)

    # -- what it does

    def _live(self) -> _Steps:
        world = self.world
        while world.producing:
            yield from self._pause(world.config.produce_every_ms * 4)
            answer = yield from self._coordinator(
                lambda machine, token, now_ms: machine.init_producer_id(
                    token, self.transactional_id, _WISH, now_ms
                )
            )
            if answer is None or answer.error:
                continue
            self._take(answer)
            while world.producing and (yield from self._transact()):
                yield from self._pause(world.config.produce_every_ms)

    def _take(self, answer: Answer) -> None:
        producer = answer.producer_id, answer.producer_epoch
        if producer != self._producer and answer.producer_id >= 0:
            self._producer = producer
            self._sequences.clear()
            if self.version == VERSION_2:
                self.world.transactions.of_version_2.add(answer.producer_id)

    def _transact(self) -> _Steps:
        """Whether it can go on with the next one."""
        world, rng = self.world, self.world.rng
        sent = Sent()
        world.transactions.sent.append(sent)
        names = [name for name in world.names() if name[0] == world.DATA]
        for name in rng.sample(names, rng.randint(1, len(names))):
            if self.version != VERSION_2 and not (yield from self._add(name)):
                return False
            if not (yield from self._produce(sent, name)):
                return False
        is_commit = rng.random() < 0.75
        if is_commit:
            sent.outcome = None
        producer = self._producer
        answer = yield from self._coordinator(
            lambda machine, token, now_ms: machine.end(
                token, self.transactional_id, producer, self.version, now_ms, is_commit=is_commit
            )
        )
        if answer is None or answer.error:
            return False
        if is_commit:
            sent.outcome = True
        if self.version == VERSION_2:
            self._take(answer)
        return True

    def _add(self, name: Name) -> _Steps:
        producer = self._producer
        answer = yield from self._coordinator(
            lambda machine, token, now_ms: machine.add_partitions(
                token, self.transactional_id, producer, [name], self.version, now_ms
            )
        )
        return answer is not None and not answer.error

    def _produce(self, sent: Sent, name: Name) -> _Steps:
        size = self.world.rng.randint(1, 2)
        values = tuple((self.number, self._count + n) for n in range(size))
        self._count += size
        sent.values += [(name, value) for value in values]
        sequence = self._sequences.get(name, 0)
        header = header_of(size, *self._producer, sequence, TRANSACTIONAL_BIT)
        for _ in range(_TRIES):
            error = yield partial(self._send, name, header, values)
            if error is ErrorCode.NONE:
                self._sequences[name] = sequence + size
                return True
            if error is not None and not error.retriable:
                return False
            yield from self._pause(RETRY_MS)
        return False

    def _send(
        self, name: Name, header: BatchHeader, values: Any, answered: Callable[[Any], None]
    ) -> None:
        leader = self.world.transactions.leader_of(name)
        if leader is None:
            return
        network = self.world.network

        def answer(error: ErrorCode, _: int) -> None:
            network.send(leader.id, CLIENT, answered, error)

        identity = self.transactional_id, self.version
        arrived = partial(_produce_arrived, leader, name, identity)
        network.to_broker(CLIENT, leader, arrived, header, values, answer)

    def _coordinator(self, question: Question) -> _Steps:
        """The answer, or None; asked again until time is up, as what may be answered later."""
        answer = None
        for _ in range(_TRIES):
            answer = yield partial(self._ask, question)
            if answer is not None and not answer.error.retriable:
                return answer
            yield from self._pause(RETRY_MS)
        return None

    def _ask(self, question: Question, answered: Callable[[Any], None]) -> None:
        leader = self.find_leader()
        if leader is None:
            return
        network = self.world.network

        def answer(said: Answer | None) -> None:
            network.send(leader.id, CLIENT, answered, said)

        if self.version == VERSION_2:
            network.to_broker(CLIENT, leader, at_coordinator, leader, question, answer)
        else:
            # In the first version, what comes twice would end the next transaction: Kafka's hole.
            self.connected(leader).send(at_coordinator, leader, question, answer)

    def _pause(self, mean_ms: float) -> _Steps:
        schedule = self.world.schedule
        delay_ms = min(self.world.rng.expovariate(1 / mean_ms), TIMEOUT_MS / 2)
        yield lambda answered: schedule.after(delay_ms, answered, None)


def _produce_arrived(
    leader: Broker,
    name: Name,
    identity: tuple[str, int],
    header: BatchHeader,
    values: tuple[object, ...],
    answer: ProduceAnswer,
) -> None:
    replica = leader.replicas.get(name)
    if isinstance(replica, DataReplica):
        replica.produce_in_transaction(identity, header, values, answer)
    else:
        answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
