"""A run with leases, and what must be true of them after every event.

* One lease per offset: what a table deals, nobody else has of it.
* What is finished is never dealt again, unless somebody alters offsets; nor does a later write, or
  a later coordinator, take it back.
* What a member was told is accepted, is accepted in the coordinator's log then.
* No record is delivered more often than it may be. What was released counts, and to one table every
  delivery.
* The start offset never falls, and passes only what is finished.
* A leader's table begins as what was written, and Available what lies between.
* No leader writes when the coordinator has heard of a later one.
* In the end every record is finished.

An election that loses committed records (see `invariants`) takes all that with it: from there on
only the rules of replication are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kraftpy.core.leases import (
    Acknowledgement,
    Acquired,
    Change,
    Demand,
    LeaseLimits,
    RecordState,
    StateBatch,
)
from kraftpy.core.leases.state import StateAnswer
from kraftpy.core.leases.state_records import NO_OFFSET, ShareRecord, Snapshot, Update
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from tests.simulation.clients import CLIENT, RETRY_MS, TIMEOUT_MS, Client
from tests.simulation.leases import (
    FINISHING,
    STATE_PARTITION,
    STATES,
    LeaseReplica,
    StateReplica,
    ask_state,
    config_of,
    is_dead,
    key_of,
    offsets_of,
)
from tests.simulation.network import Connection
from tests.simulation.replica import Name, Replica
from tests.simulation.world import HEALING_MS, Outcome, World, play

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

MEMBERS = 4
POISON = 29
_CRASHED_MS = 150.0
_ALTER_EVERY_MS = 2_500.0


class Written:
    """What the coordinator's log says of a share-partition, offset by offset."""

    def __init__(self) -> None:
        self.state_epoch = -1
        self.leader_epoch = -1
        self.start = NO_OFFSET
        self.cells: dict[int, tuple[int, int]] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Somebody has altered offsets: what was, doesn't count any more."""
        self.cells.clear()
        self.accepted: set[int] = set()
        self.may_be_passed: set[int] = set()
        self.uncertain: set[int] = set()
        self.told: dict[int, int] = {}
        self.released: dict[int, int] = defaultdict(int)

    def is_finished(self, offset: int) -> bool:
        return offset < self.start or self.cells.get(offset, (0, 0))[0] >= 2


class LeaseInvariants:
    """Told of what tables and coordinators do; raises `Violation`."""

    def __init__(self, world: LeasingWorld) -> None:
        self.world = world
        self.dealt = self.accepted = self.alterations = 0
        self._known: dict[Name, Written] = defaultdict(Written)
        self._holders: dict[tuple[Name, int], tuple[Any, str, int]] = {}
        self._counted: dict[tuple[Name, int], tuple[Any, int]] = {}
        """By which table an offset was dealt last, for the how manieth time."""
        self._starts: dict[Name, int] = defaultdict(int)
        self._seen = 0
        self._was_deposed = False

    @property
    def hold(self) -> bool:
        """Whether nothing was lost that was committed."""
        return not (self.world.invariants.lost or self._was_deposed)

    def coordinator_for(self, broker: Broker) -> Broker | None:
        """As this broker knows it."""
        topic = broker.metadata.topics.get(STATES)
        leader = -1 if topic is None else topic.partitions[0].leader
        return self.world.brokers.get(leader)

    def _fail(self, what: str) -> None:
        if self.hold:
            self.world.invariants.fail(what)

    # -- the coordinator's log

    def data_moved(self, replica: Replica) -> None:
        if replica.leader_epoch < self.world.invariants.oldest_epoch[replica.name]:
            self._was_deposed = True

    def state_moved(self, replica: Replica) -> None:
        """Takes in what is committed."""
        self.data_moved(replica)
        committed = self.world.invariants.batches[STATE_PARTITION]
        if not self.hold:
            return
        for batch in committed[self._seen :]:
            for record in batch.values:
                assert isinstance(record, ShareRecord)
                self._take(record)
        self._seen = len(committed)

    def _take(self, record: ShareRecord) -> None:
        key, value = record
        name = (self.world.DATA, key.partition)
        known = self._known[name]
        assert value is not None
        if value.leader_epoch < known.leader_epoch:
            self._fail(f"{name}: {value} comes behind leader epoch {known.leader_epoch}")
        known.leader_epoch = value.leader_epoch
        if isinstance(value, Snapshot):
            self._take_snapshot(name, known, value)
            return
        cells = known.cells
        self._put(cells, value.batches)
        self._pass(name, known, value)

    def _take_snapshot(self, name: Name, known: Written, value: Snapshot) -> None:
        if value.state_epoch > known.state_epoch:
            known.begin_anew()
            known.state_epoch, known.start = value.state_epoch, value.start_offset
            return
        before = dict(known.cells)
        cells = {
            offset: (state, deliveries)
            for first, last, state, deliveries in value.batches
            for offset in range(first, last + 1)
        }
        if value.state_epoch < known.state_epoch:
            self._fail(f"{name}: {value} is of an older state epoch than {known.state_epoch}")
        for offset, (state, deliveries) in before.items():
            if offset >= value.start_offset:
                now = cells.get(offset, (0, 0))
                if (state >= 2 > now[0]) or (now[0] < 2 and deliveries > now[1]):
                    self._fail(f"{name}: {value} takes back {offset}: {state}, {deliveries}")
        known.cells = cells
        self._pass(name, known, value)

    def _put(self, cells: dict[int, tuple[int, int]], batches: Sequence[StateBatch]) -> None:
        for first, last, state, deliveries in batches:
            for offset in range(first, last + 1):
                old_state, old_deliveries = cells.get(offset, (0, 0))
                if state >= 2 or (old_state < 2 and old_deliveries <= deliveries):
                    cells[offset] = (state, deliveries)

    def _pass(self, name: Name, known: Written, value: Update | Snapshot) -> None:
        """The start offset moves on over what is finished."""
        limit = self.world.limits.max_deliveries
        for offset in range(known.start, value.start_offset):
            if not (
                known.is_finished(offset)
                or offset in known.may_be_passed
                or offset < self._starts[name]
                or known.told.get(offset, 0) >= limit
                or self._is_dead(name, offset)
            ):
                self._fail(
                    f"{name}: {value} passes {offset}, which nobody has finished and which was "
                    f"delivered {known.told.get(offset, 0)} times"
                )
        if known.start < value.start_offset:
            known.start = value.start_offset
            known.cells = {each: cell for each, cell in known.cells.items() if each >= known.start}

    def _is_dead(self, name: Name, offset: int) -> bool:
        for batch in self.world.invariants.batches[name]:
            if batch.base_offset <= offset < batch.end_offset:
                return is_dead(batch)
        return False

    # -- tables

    def _is_current(self, replica: LeaseReplica) -> bool:
        known = self._known[replica.name]
        return (
            replica.leader_epoch >= known.leader_epoch and replica.state_epoch == known.state_epoch
        )

    def loaded(self, replica: LeaseReplica, answer: StateAnswer) -> None:
        """A table is what was written, and Available what lies between."""
        table, known = replica.machine, self._known[replica.name]
        assert table is not None
        written = {
            offset: batch.state
            for batch in answer.batches
            for offset in range(batch.first, batch.last + 1)
        }
        for run in table.runs():
            for offset in range(run.first, run.last + 1):
                if run.state != written.get(offset, RecordState.AVAILABLE):
                    self._fail(f"{replica} begins with {run}, and {answer.batches} was written")
        for offset in range(answer.start_offset, table.start_offset):
            if written.get(offset, 0) < 2:
                self._fail(f"{replica} begins at {table.start_offset}, and {offset} isn't done")
        if self._is_current(replica):
            for offset in known.accepted:
                if offset >= table.start_offset and written.get(offset, 0) < 2:
                    self._fail(f"{replica} begins without {offset}, which was accepted")

    def log_started(self, replica: LeaseReplica) -> None:
        name = replica.name
        self._starts[name] = max(self._starts[name], replica.log.log_start_offset)

    def acquired(self, replica: LeaseReplica, member: str, acquired: Sequence[Acquired]) -> None:
        """A member is dealt this."""
        name, table = replica.name, replica.machine
        known, limits = self._known[name], self.world.limits
        is_current = self._is_current(replica)
        for first, last, deliveries in acquired:
            for offset in range(first, last + 1):
                self.dealt += 1
                held = self._holders.get((name, offset))
                if held is not None and held[0] is table and held[2] > self.world.now_ms:
                    self._fail(f"{replica} deals {offset} to {member}, and {held[1]} has it")
                until = self.world.now_ms + limits.lock_ms
                self._holders[name, offset] = (table, member, until)
                if deliveries > limits.max_deliveries:
                    self._fail(f"{replica} delivers {offset} for the {deliveries}th time")
                by, before = self._counted.get((name, offset), (None, 0))
                if by is table and deliveries <= before:
                    self._fail(f"{replica} delivers {offset} for the {deliveries}th time anew")
                self._counted[name, offset] = table, deliveries
                if not is_current:
                    continue
                if offset in known.accepted or (
                    known.is_finished(offset) and offset not in known.uncertain
                ):
                    self._fail(f"{replica} deals {offset} to {member}, which is finished")
                if deliveries <= known.released[offset]:
                    self._fail(
                        f"{replica} delivers {offset} for the {deliveries}th time, and it was "
                        f"released {known.released[offset]} times"
                    )
                known.told[offset] = max(deliveries, known.told.get(offset, 0))

    def said(self, replica: LeaseReplica, said: Sequence[Acknowledgement]) -> None:
        """Members may say so: their acknowledgement was judged."""
        name = replica.name
        if self._is_current(replica):
            self._known[name].may_be_passed.update(offsets_of(said, FINISHING))
        for offset in offsets_of(said, [AcknowledgeType.RENEW]):
            held = self._holders.get((name, offset))
            if held is not None and held[0] is replica.machine:
                until = self.world.now_ms + self.world.limits.lock_ms
                self._holders[name, offset] = (*held[:2], until)

    def gave_up(self, replica: LeaseReplica, change: Change) -> None:
        """A leader doesn't know whether it is written."""
        table, uncertain = replica.machine, self._known[replica.name].uncertain
        assert table is not None
        uncertain.update(range(table.start_offset, change.start_offset))
        for first, last, _, _ in change.batches:
            uncertain.update(range(first, last + 1))

    def answered(self, replica: LeaseReplica, said: Sequence[Acknowledgement]) -> None:
        """A member is told that all is well: what it has accepted is written."""
        known, table = self._known[replica.name], replica.machine
        assert table is not None
        if not self._is_current(replica):
            return
        for offset in offsets_of(said, [AcknowledgeType.ACCEPT]):
            self.accepted += 1
            if offset >= self._starts[replica.name]:
                if not known.is_finished(offset):
                    self._fail(f"{replica} says that {offset} is accepted, and it isn't written")
                known.accepted.add(offset)
        for offset in offsets_of(said, [AcknowledgeType.RELEASE]):
            if offset >= table.start_offset:
                known.released[offset] += 1

    def given_back(self, replica: LeaseReplica, said: Sequence[Acknowledgement]) -> None:
        """What members have released is written: they have it no more."""
        for offset in offsets_of(said, [AcknowledgeType.RELEASE]):
            held = self._holders.get((replica.name, offset))
            if held is not None and held[0] is replica.machine:
                del self._holders[replica.name, offset]

    def closed(self, replica: LeaseReplica, member: str) -> None:
        for place, held in list(self._holders.items()):
            if held[0] is replica.machine and held[1] == member:
                del self._holders[place]

    # -- the end

    def all_finished(self) -> bool:
        """Whether every partition's leader has nothing left to deal."""
        for name in self.world.names():
            if name[0] != self.world.DATA:
                continue
            leader = self.world.brokers.get(self.world.partition(name).leader)
            replica = None if leader is None else leader.replicas.get(name)
            table = replica.machine if isinstance(replica, LeaseReplica) else None
            if table is None or not isinstance(replica, LeaseReplica):
                return False
            if table.start_offset < replica.high_watermark or not self._is_current(replica):
                return False
        return True


class Leaser(Client):
    """A member that reads every partition, and says this and that of what it is dealt."""

    def __init__(self, world: LeasingWorld, names: Sequence[Name], number: int) -> None:
        super().__init__(world, names[0])
        self.world: LeasingWorld = world
        self.names = names
        self.number = number
        self._life = 0

    @property
    def member(self) -> str:
        return f"member {self.number}.{self._life}"

    def start(self) -> None:
        rng = self.world.rng
        self.world.schedule.after(rng.expovariate(1 / 30.0), self._poll)

    def _poll(self) -> None:
        rng = self.world.rng
        self.start()
        self.name = rng.choice(self.names)
        self.leader_epoch = -1
        leader = self.find_leader()
        if leader is None:
            return
        if self.world.leasing_faults and rng.random() < 0.03:
            self._crash(leader)
            return
        demand = Demand(rng.randint(1, 12), rng.choice((0, 3)), rng.random() < 0.5)
        name, member = self.name, self.member

        def at_leader() -> None:
            replica = leader.replicas.get(name)
            if isinstance(replica, LeaseReplica):
                replica.acquire(member, demand, answer)

        def answer(acquired: list[Acquired]) -> None:
            self.world.network.send(leader.id, CLIENT, self._work, leader, name, member, acquired)

        self.world.network.to_broker(CLIENT, leader, at_leader)

    def _crash(self, leader: Broker) -> None:
        """Its connections are closed; brokers hear of it, or not."""
        member = self.member
        self._life += 1
        for name in self.names:

            def at_leader(name: Name = name) -> None:
                replica = leader.replicas.get(name)
                if isinstance(replica, LeaseReplica):
                    replica.close_session(member)

            self.world.network.to_broker(CLIENT, leader, at_leader)

    def _work(self, leader: Broker, name: Name, member: str, acquired: list[Acquired]) -> None:
        rng = self.world.rng
        if member != self.member or not acquired:
            return
        said = [self._judge(each) for each in acquired]
        if self.world.leasing_faults and rng.random() < 0.1:
            said = said[: rng.randint(0, len(said))]  # it stalls, and forgets the rest
        for part in (said[:1], said[1:]) if rng.random() < 0.3 else (said,):
            if part:
                delay_ms = rng.expovariate(1 / 25.0)
                self.world.schedule.after(delay_ms, self._say, leader, name, member, part)

    def _judge(self, acquired: Acquired) -> Acknowledgement:
        rng = self.world.rng
        first, last, _ = acquired
        kinds = (1, 1, 1, 1, 1, 2, 3, 4) if self.world.leasing_faults else (1,)
        types = [
            2 if offset % POISON == 3 else rng.choice(kinds) for offset in range(first, last + 1)
        ]
        if rng.random() < 0.5 and len(set(types)) == 1:
            types = types[:1]
        return Acknowledgement(first, last, types)

    def _say(
        self, leader: Broker, name: Name, member: str, said: Sequence[Acknowledgement]
    ) -> None:
        def at_leader() -> None:
            replica = leader.replicas.get(name)
            if isinstance(replica, LeaseReplica):
                replica.acknowledge(member, said, lambda error: None)

        self.world.network.to_broker(CLIENT, leader, at_leader)


class Alterer(Client):
    """Initializes the share-partition, and now and then sets its start anew."""

    def __init__(self, world: LeasingWorld, name: Name) -> None:
        super().__init__(world, name)
        self.world: LeasingWorld = world
        self.data = name
        self.state_epoch = 0
        self.start_offset = 0
        self._attempt = 0

    def start(self) -> None:
        """Asks until it is done, and some time later for the next state epoch."""
        self.name = STATE_PARTITION
        self.leader_epoch = -1
        self._attempt += 1
        attempt = self._attempt
        leader = self.find_leader()
        epoch, start = self.state_epoch, self.start_offset
        if leader is not None:

            def answer(said: StateAnswer) -> None:
                self.world.network.send(leader.id, CLIENT, self._answered, attempt, said)

            def act(machine: Any, key: Any, token: Any, now_ms: int) -> Any:
                return machine.initialize(token, key, epoch, start, now_ms)

            Connection(self.world.network, leader).send(
                ask_state, leader, act, key_of(self.data), answer
            )
        self.world.schedule.after(TIMEOUT_MS, self._again, attempt)

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self.start()

    def _answered(self, attempt: int, answer: StateAnswer) -> None:
        if attempt != self._attempt:
            return
        if answer.error:
            self.world.schedule.after(RETRY_MS, self._again, attempt)
            return
        self._attempt += 1
        self.world.leasing.alterations += self.state_epoch > 0
        delay_ms = self.world.rng.expovariate(1 / _ALTER_EVERY_MS)
        self.world.schedule.after(delay_ms, self._alter)

    def _alter(self) -> None:
        if not self.world.leasing_faults:
            return
        end = sum(len(batch.values) for batch in self.world.invariants.batches[self.data])
        self.state_epoch += 1
        self.start_offset = self.world.rng.randint(0, end)
        self.start()


class LeasingWorld(World):
    """A world whose data partitions a share group reads."""

    INTERNAL = (STATES,)

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.leasing = LeaseInvariants(self)
        self.leasing_faults = True
        super().__init__(seed, trace=trace)
        self.limits = LeaseLimits(
            self.rng.choice([10, 40]), self.rng.choice([2, 3, 5]), self.rng.choice([150, 400])
        )
        self.state_config = config_of(self.rng)

    def replica_of(self, name: Name) -> type[Replica]:
        return StateReplica if name[0] == STATES else LeaseReplica

    def _use(self, name: Name) -> None:
        names = [each for each in self.names() if each[0] == self.DATA]
        for each in names:
            Alterer(self, each).start()
        for number in range(MEMBERS):
            Leaser(self, names, number).start()

    def _settle(self) -> None:
        self.leasing_faults = False
        if self.leasing.hold:
            limit_ms = 4 * HEALING_MS  # members are few, and some records are dealt one by one
            self.run_until(self.leasing.all_finished, "every record is finished", limit_ms)


def simulate_leases(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs one seed with leases."""
    world = LeasingWorld(seed, trace)
    return play(world, trace)._replace(leased=world.leasing.accepted, leasing=True)
