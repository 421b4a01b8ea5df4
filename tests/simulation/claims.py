"""A group coordinator with two logs under a seed: offsets, and the claims beside them.

The coordinator is `GroupMachine` on the leader of the one partition of `offsets`; its claims are in
the twin of that, which the same broker leads or not. Around it is what the server does there
(`coordination.partition`, `coordination.log_beside`), and no rule of its own: outcomes come in the
order of each log, and a log that is lost or left is read anew when it's led here again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kraftpy.core.coordination import Effects, Write
from kraftpy.core.groups import GroupConfig, GroupMachine, GroupMemory
from kraftpy.core.groups import decode_record as decode_offset
from kraftpy.core.groups import encode_record as encode_offset
from kraftpy.core.groups.consumer.topics import Topic
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.pending import TransactionalClaims
from kraftpy.core.groups.individual.places import TWIN, ClaimsLog
from kraftpy.core.groups.individual.records import decode_record as decode_claim
from kraftpy.core.groups.individual.records import encode_record as encode_claim
from kraftpy.core.replication import Following, Leadership
from kraftpy.core.transactions.admission import Token
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import TRANSACTIONAL_BIT
from kraftpy.protocol.records import EndTxnMarker
from tests.simulation.log import Batch, header_of, stamped
from tests.simulation.processes import WRITE_TIMEOUT_MS, Coordinating
from tests.simulation.replica import Name, ProduceAnswer, Replica
from tests.simulation.transactions import Admitting

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cooperative_world import CooperativeWorld

CLAIMS = "claims"
OFFSETS_PARTITION: Name = ("offsets", 0)
CLAIMS_PARTITION: Name = (CLAIMS, 0)
SESSION_MS = 900
REBALANCE_MS = 1_500

_TICK_MS = 25.0
_READING_MS = 15.0
_CONFIG = GroupConfig(group_initial_rebalance_delay_ms=20, group_min_session_timeout_ms=1)

Act = Callable[[GroupMachine, Any, int], Effects[Any]]
"""A request: is given the machine, whom to answer, and the time."""


class KnownTopics:
    """The topics of a run, none of which is made anew."""

    version = 1

    def __init__(self, world: CooperativeWorld) -> None:
        self._topics = {world.DATA: Topic(bytes(15) + b"d", world.config.partitions)}

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def name_of(self, wanted: bytes) -> str | None:
        return next((name for name, each in self._topics.items() if each[0] == wanted), None)

    def match(self, regex: str) -> tuple[str, ...]:
        return ()


def new_machine(world: CooperativeWorld) -> GroupMachine:
    memory = ClaimMemory(1 << 30)
    machine = GroupMachine(_CONFIG, KnownTopics(world), GroupMemory(1 << 40), claim_memory=memory)
    machine.claims.state = ClaimsLog.CLOSED
    return machine


def load_offsets(machine: GroupMachine, values: Iterable[Any], now_ms: int) -> Effects[Any]:
    for key, value in values:
        record = decode_offset(key, value)
        assert record is not None
        machine.load(record)
    return machine.finish_load(now_ms)


def load_claims(machine: GroupMachine, batches: Iterable[Batch], now_ms: int) -> Effects[Any]:
    machine.log_closed(TWIN, now_ms, exists=True)
    for batch in batches:
        producer_id, marker = batch.header.producer_id, batch.marker
        if marker is not None:
            machine.load_claims_marker(producer_id, committed=marker.committed)
            continue
        records = [_claim(*value) for value in batch.values]
        if producer_id >= 0:
            machine.load_pending_claims(producer_id, records)
        else:
            machine.load_claims(records)
    return machine.log_opened(TWIN, now_ms)


def _claim(key: bytes, value: bytes | None) -> Any:
    record = decode_claim(key, value)
    assert record is not None
    return record


class _LogReplica(Replica):
    """A log of the coordinator at one broker, and the coordinator's writes to it under way."""

    number: int
    world: CooperativeWorld

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.writes: list[tuple[int, Write[Any]]] = []
        self._draining = False

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        if moved:
            self.world.cooperative.committed(self)
        role = self.role
        if not isinstance(role, Leadership):
            return
        self.settled(role)
        self._drain()

    def _drain(self) -> None:
        """Tells the coordinator what is committed."""
        coordinator = coordinator_at(self.broker)
        if coordinator is None or self._draining:
            return
        self._draining = True
        while self.writes and self.writes[0][0] <= self.high_watermark:
            _, write = self.writes.pop(0)
            coordinator.outcome(write, ErrorCode.NONE)
        self._draining = False

    def settled(self, role: Leadership) -> None:
        """The log may be ready to be read."""
        raise NotImplementedError

    def write(self, write: Write[Any]) -> ErrorCode:
        """Appends; the coordinator hears of it when it's committed, unless it's refused now."""
        role = self.role
        if not isinstance(role, Leadership):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if role.acks_all_error:
            return role.acks_all_error
        encode: Any = encode_claim if self.number == TWIN else encode_offset
        values = tuple(encode(record) for record in write.records)
        header = header_of(len(values))
        if isinstance(write.records, TransactionalClaims):
            transaction = write.records.transaction
            header = header_of(len(values), *transaction, -1, TRANSACTIONAL_BIT)
        self.writes.append((self.log.log_end_offset + len(values), write))
        self.append(stamped(header, self.log.log_end_offset, role.leader_epoch), values)
        return ErrorCode.NONE

    def committed_batches(self) -> list[Batch]:
        return self.log.read(0, 1 << 30, self.high_watermark)


class ClaimsReplica(_LogReplica, Admitting):
    """The partition of the claims at one broker."""

    number = TWIN

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        if moved:
            self.world.transactions.watermark_moved(self)

    def write_marker(
        self,
        producer_id: int,
        epoch: int,
        marker: EndTxnMarker,
        version: int,
        answer: ProduceAnswer,
    ) -> None:
        """Answers when it has taken effect."""
        coordinator = coordinator_at(self.broker)
        machine = None if coordinator is None else coordinator.machine
        if (
            coordinator is None
            or machine is None
            or coordinator.twin is not self
            or machine.claims.state is not ClaimsLog.OPEN
        ):
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        error = self.append_marker(producer_id, epoch, marker, version)
        if error:
            answer(error, -1)
            return
        ends = [(producer_id, marker.committed)]
        write = machine.markers(lambda code: answer(code, -1), ends, TWIN)
        coordinator.expect(write)
        self.writes.append((self.log.log_end_offset, write))
        self._drain()

    def fetch(self, role: Following) -> None:
        world, broker = self.world, self.broker
        if world.hindered.get(broker.id, 0.0) > world.schedule.now:
            world.schedule.after(100.0, broker.run, broker.life, self.fetch, role)
        else:
            super().fetch(role)

    def settled(self, role: Leadership) -> None:
        coordinator = coordinator_at(self.broker)
        if coordinator is not None:
            coordinator.open_claims()

    def resign(self) -> None:
        super().resign()
        left, self.writes = self.writes, []
        coordinator = coordinator_at(self.broker)
        if coordinator is None:
            return
        if self.world.rng.random() < 0.5:  # Whatever the shell hears of first.
            coordinator.close_claims()
        for _, write in left:
            coordinator.outcome(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        coordinator.close_claims()


class OffsetsReplica(_LogReplica, Coordinating):
    """The partition of the offsets at one broker; `machine` while it coordinates."""

    number = 0
    machine: GroupMachine | None = None
    _reads_claims = False
    _waits_for: int | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: list[Write[Any]] = []
        """To the claims, and the machine is to hear what becomes of them."""

    def resign(self) -> None:
        machine, self.machine = self.machine, None
        self._reads_claims, self.writes = False, []
        self._open.clear()
        super().resign()
        twin = self.broker.replicas.get(CLAIMS_PARTITION)
        if isinstance(twin, ClaimsReplica):
            twin.writes = []  # What comes of them nobody here is told.
        if machine is not None:
            for token, response in machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms).replies:
                hear(token, response)

    def settled(self, role: Leadership) -> None:
        if self.machine is None and role.settled:
            self.machine = new_machine(self.world)
            values = [value for batch in self.committed_batches() for value in batch.values]
            self._carry_out(load_offsets(self.machine, values, self.now_ms))
            self._later(_TICK_MS, self._tick)
            self.open_claims()

    # -- the claims

    @property
    def twin(self) -> ClaimsReplica | None:
        found = self.broker.replicas.get(CLAIMS_PARTITION)
        return found if isinstance(found, ClaimsReplica) and found.leads else None

    def open_claims(self) -> None:
        """Reads the claims if they are led here, once all is committed that the log has now."""
        twin = self.twin
        if self.machine is None or twin is None:
            return
        if not self._reads_claims:
            self._reads_claims = True
            self._waits_for = twin.log.log_end_offset
        if self._waits_for is not None and twin.high_watermark >= self._waits_for:
            self._waits_for = None
            delay_ms = self.world.rng.expovariate(1 / _READING_MS)
            self._later(delay_ms, self._read_claims, twin, twin.leader_epoch)

    def _read_claims(self, twin: ClaimsReplica, epoch: int) -> None:
        if self.machine is not None and twin is self.twin and twin.leader_epoch == epoch:
            self._open.clear()
            self._carry_out(load_claims(self.machine, twin.committed_batches(), self.now_ms))

    def close_claims(self) -> None:
        self._reads_claims = False
        self._open.clear()
        if self.machine is not None:
            self._carry_out(self.machine.log_closed(TWIN, self.now_ms, exists=True))

    # -- carrying out

    def _tick(self) -> None:
        assert self.machine is not None
        self._later(_TICK_MS, self._tick)
        self._carry_out(self.machine.handle_timers(self.now_ms))

    def ask(self, act: Act, token: Callable[[Any], None]) -> None:
        assert self.machine is not None
        self._carry_out(act(self.machine, token, self.now_ms))

    def outcome(self, write: Write[Any], error: ErrorCode) -> None:
        machine = self.machine
        if machine is None:
            return
        if write.log == TWIN:
            if write not in self._open:
                return
            self._open.remove(write)
        if error:
            self._carry_out(machine.failed(write, error, self.now_ms))
        else:
            self._carry_out(machine.committed(write, self.now_ms))

    def _carry_out(self, effects: Effects[Any]) -> None:
        for write in effects.writes:
            self._write(write)
        for token, response in effects.replies:
            hear(token, response)

    def _write(self, write: Write[Any]) -> None:
        if self.machine is None:
            return
        log = self.twin if write.log == TWIN else self
        if write.log == TWIN:
            self.expect(write)
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER if log is None else log.write(write)
        if error:
            self._later(0, self.outcome, write, error)
        else:
            self._later(WRITE_TIMEOUT_MS, self._time_out, write)

    def expect(self, write: Write[Any]) -> None:
        """A write to the claims, of which the machine is to hear."""
        self._open.append(write)

    def _time_out(self, write: Write[Any]) -> None:
        logs = [self, self.twin]
        if any(each is write for log in logs if log is not None for _, each in log.writes):
            assert self.machine is not None
            self._carry_out(self.machine.timed_out(write, self.now_ms))


def hear(token: object, response: object) -> None:
    assert callable(token)
    token(response)


def coordinator_at(broker: Broker) -> OffsetsReplica | None:
    """The coordinator at a broker, if it takes requests."""
    found = broker.replicas.get(OFFSETS_PARTITION)
    return found if isinstance(found, OffsetsReplica) and found.machine is not None else None


def at_coordinator(broker: Broker, act: Act, answer: Callable[[Any], None]) -> None:
    """A request arrives at a broker that is thought to coordinate; None is "try again"."""
    coordinator = coordinator_at(broker)
    if coordinator is None or broker.stepped_down:
        answer(None)
    else:
        coordinator.ask(act, answer)


def commit_in_transaction(
    identity: tuple[str, int],
    producer: tuple[int, int],
    broker: Broker,
    act: Act,
    answer: Callable[[Any], None],
) -> None:
    """A TxnOffsetCommit of claims, which asks the coordinator of transactions first."""
    coordinator = coordinator_at(broker)
    if coordinator is None or broker.stepped_down:
        answer(ErrorCode.NOT_COORDINATOR)
        return
    twin, machine = coordinator.twin, coordinator.machine
    if twin is None:
        coordinator.ask(act, answer)
        return

    def commit(token: Token | None) -> ErrorCode:
        try:
            if twin.admission.admits(producer, twin.log.producers, 0, token):
                coordinator.ask(act, answer)
                return ErrorCode.NONE
        except KafkaError as error:
            return error.code
        return ErrorCode.INVALID_TXN_STATE

    def verified(code: ErrorCode, token: Token) -> None:
        if coordinator.machine is not machine or coordinator.twin is not twin:
            code = ErrorCode.NOT_COORDINATOR
        if code is ErrorCode.NONE:
            code = commit(token)
        if code is not ErrorCode.NONE:
            answer(code)

    code = commit(None)
    if code is ErrorCode.INVALID_TXN_STATE:
        twin.verify(identity, producer, verified)
    elif code is not ErrorCode.NONE:
        answer(code)
