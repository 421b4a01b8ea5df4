"""Idempotent producers with acks=all, consumers, and members that commit offsets.

Like real ones they never go back to a leader of an older epoch than they have seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kraftpy.core.replication import Leadership, preferred_read_replica
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import BatchHeader
from tests.simulation.log import header_of
from tests.simulation.network import Connection
from tests.simulation.replica import Fetch, Fetched

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.replica import Name
    from tests.simulation.world import World

CLIENT = -1
IN_FLIGHT_MAX = 3
RETRY_MS = 60.0
TIMEOUT_MS = 400.0


class Client:
    """Finds the leader in what a broker knows of the metadata."""

    def __init__(self, world: World, name: Name) -> None:
        self.world = world
        self.name = name
        self.leader_epoch = -1
        self._connection: Connection | None = None

    def connected(self, leader: Broker) -> Connection:
        """The connection that there is, while it holds: no request overtakes another's repeat."""
        if self._connection is None or not self._connection.leads_to(leader):
            self._connection = Connection(self.world.network, leader)
        return self._connection

    def find_leader(self) -> Broker | None:
        up = [broker for broker in self.world.brokers.values() if broker.up and broker.applied]
        if not up:
            return None
        topic = self.world.rng.choice(up).metadata.topics.get(self.name[0])
        if topic is None:
            return None
        state = topic.partitions[self.name[1]]
        if state.leader_epoch < self.leader_epoch or state.leader < 0:
            return None
        self.leader_epoch = state.leader_epoch
        return self.world.brokers[state.leader]


class _Sent(NamedTuple):
    """A batch until it is acknowledged."""

    header: BatchHeader
    values: tuple[object, ...]


class Producer(Client):
    """Has up to three batches in flight, all on one connection, in order.

    When one fails, all that aren't acknowledged are sent again on a new connection.
    """

    def __init__(self, world: World, name: Name, number: int) -> None:
        super().__init__(world, name)
        self.number = number
        self.producer_id = world.new_producer_id()
        self.pending: list[_Sent] = []
        self._sequence = 0
        self._count = 0
        self._leader: Broker | None = None
        self._tries = 0
        self._known = False
        # What was answered last, which comes right before what is pending.
        self._written: tuple[object, ...] = ()

    def start(self) -> None:
        world = self.world
        if world.producing:
            world.schedule.after(
                world.rng.expovariate(1 / world.config.produce_every_ms), self.start
            )
            # A broker takes any sequence number from a producer that it doesn't know (KIP-360): if
            # it refused the first batch and took the second, their order would be lost.
            if len(self.pending) < (IN_FLIGHT_MAX if self._known else 1):
                self._write()

    def _write(self) -> None:
        size = self.world.rng.randint(1, 3)
        values = tuple((self.number, self._count + n) for n in range(size))
        self._count += size
        sent = _Sent(header_of(size, self.producer_id, 0, self._sequence), values)
        self._sequence += size
        self.pending.append(sent)
        if self._connection is not None:
            self._send(sent)
        elif len(self.pending) == 1:
            self._connect(self._tries)

    def _connect(self, tries: int) -> None:
        """Sends all that is pending; tries again later if nobody leads."""
        if tries != self._tries or not self.pending:
            return
        self._leader = self.find_leader()
        if self._leader is None:
            self._try_again()
            return
        self._connection = Connection(self.world.network, self._leader)
        for sent in self.pending:
            self._send(sent)

    def _send(self, sent: _Sent) -> None:
        world, leader, connection, tries = self.world, self._leader, self._connection, self._tries
        assert leader is not None
        assert connection is not None

        def answer(error: ErrorCode, base_offset: int) -> None:
            connection.answer(self._answered, sent, tries, error, base_offset)

        connection.send(leader.produce_arrived, self.name, sent.header, sent.values, answer)
        world.schedule.after(TIMEOUT_MS, self._timed_out, sent, tries)

    def _timed_out(self, sent: _Sent, tries: int) -> None:
        if tries == self._tries and sent in self.pending:
            self._try_again()

    def _try_again(self) -> None:
        self._tries += 1
        self._connection = None
        self.world.schedule.after(RETRY_MS, self._connect, self._tries)

    def _answered(self, sent: _Sent, tries: int, error: ErrorCode, base_offset: int) -> None:
        if sent not in self.pending:
            return
        if error is ErrorCode.NONE:
            self.pending.remove(sent)
            self._known = True
            self._written = sent.values
            self.world.acknowledged += len(sent.values)
            self.world.invariants.was_acknowledged(self.name, base_offset, sent.values)
        elif error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.pending.remove(sent)
            self._written = sent.values
        elif tries == self._tries:
            if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sent is self.pending[0]:
                self._begin_anew(sent)
            self._try_again()

    def _begin_anew(self, sent: _Sent) -> None:
        """The log lacks what was acknowledged before: only after a loss that is documented.

        Or what is sent again was written, and deleted before that was answered: a new leader has
        only what came after it. Or all that was answered is deleted: a leader that began behind it
        doesn't know the producer, and takes what arrives first, be it a later batch (KIP-360).
        """
        invariants = self.world.invariants
        lost = any(value[0] == self.number for value in invariants.lost)  # type: ignore[index]
        deleted = any(
            invariants.was_deleted(self.name, each) for each in (sent.values, self._written)
        )
        if not lost and not deleted:
            invariants.fail(
                f"producer {self.number} is told that {sent.values} of {self.name} is out of order"
            )
        self.pending.clear()
        self.producer_id = self.world.new_producer_id()
        self._sequence = 0
        self._known = False


class Consumer(Client):
    """Reads on from where it is; with a rack from the replica that the leader prefers."""

    def __init__(self, world: World, name: Name, rack: str) -> None:
        super().__init__(world, name)
        self.rack = rack
        self.offset = 0
        self._number = 0

    def start(self) -> None:
        """One fetch; the next one follows its answer, or is made when there is none."""
        world = self.world
        self._number += 1
        number = self._number
        leader = self.find_leader()
        if leader is None:
            world.schedule.after(RETRY_MS, self._again, number)
            return
        source = self._preferred(leader)
        epoch = self.leader_epoch
        fetch = Fetch(CLIENT, -1, epoch, self.offset, -1, -1)

        def answer(fetched: Fetched) -> None:
            world.network.send(
                source.id, CLIENT, self._fetched, fetched, number, source is leader, epoch
            )

        world.network.to_broker(CLIENT, source, source.fetch_arrived, self.name, fetch, answer)
        world.schedule.after(world.config.fetch_wait_ms * 3, self._again, number)

    def _preferred(self, leader: Broker) -> Broker:
        replica = leader.replicas.get(self.name)
        if not self.rack or replica is None or not isinstance(replica.role, Leadership):
            return leader
        racks = {id_: rack_of(id_) for id_ in leader.active}
        found = preferred_read_replica(
            replica.role, racks, rack_of(leader.id), self.rack, self.offset
        )
        return leader if found is None else self.world.brokers[found]

    def _again(self, number: int) -> None:
        if self._number == number:
            self.start()

    def _fetched(self, fetched: Fetched, number: int, from_leader: bool, epoch: int) -> None:
        if number != self._number:
            return
        invariants = self.world.invariants
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self.offset < fetched.log_start_offset:
                self.offset = fetched.log_start_offset
            elif from_leader and epoch >= self.leader_epoch and self.offset > fetched.leader_end:
                if not invariants.lost:
                    invariants.fail(
                        f"a consumer of {self.name} got to {self.offset}, but the leader of epoch "
                        f"{epoch} ends at {fetched.leader_end}"
                    )
                self.offset = 0
            self.rack = ""  # the follower is behind: as KIP-392 has it, ask the leader
        elif fetched.error is ErrorCode.NONE:
            invariants.was_read(self.name, epoch, fetched.batches)
            if fetched.batches:
                self.offset = fetched.batches[-1].end_offset
                self.world.records_read += 1
        delay_ms = RETRY_MS if fetched.error or not fetched.batches else 0.0
        self.world.schedule.after(delay_ms, self._again, number)


class Member(Client):
    """Commits offsets that rise, and asks for the committed one now and then.

    The coordinator is the leader of the partition; like a real one it answers a commit when its
    record is below the high watermark, and reads from what is below it only.
    """

    def __init__(self, world: World, name: Name, number: int) -> None:
        super().__init__(world, name)
        self.number = number
        self.offset = 0
        self.confirmed = -1
        self._attempt = 0

    def start(self) -> None:
        if self.world.producing:
            self.offset += 1
            self._commit()

    def _commit(self) -> None:
        world = self.world
        self._attempt += 1
        attempt, offset = self._attempt, self.offset
        leader = self.find_leader()
        if leader is not None:

            def answer(error: ErrorCode, _: int) -> None:
                world.network.send(leader.id, CLIENT, self._committed, error, offset)

            self.connected(leader).send(
                leader.produce_arrived, self.name, header_of(1), ((self.number, offset),), answer
            )
        world.schedule.after(TIMEOUT_MS, self._again, attempt)

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._commit()

    def _committed(self, error: ErrorCode, offset: int) -> None:
        if offset != self.offset or self.confirmed >= offset:
            return
        if error is ErrorCode.NONE:
            self.confirmed = offset
            self._attempt += 1
            self._ask()
            self.world.schedule.after(self.world.config.produce_every_ms * 2, self.start)
        else:
            self.world.schedule.after(RETRY_MS, self._again, self._attempt)

    def _ask(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            self.world.network.to_broker(
                CLIENT, leader, self._read, leader, self.confirmed, self.leader_epoch
            )

    def _read(self, leader: Broker, confirmed: int, leader_epoch: int) -> None:
        """At the coordinator."""
        replica = leader.replicas.get(self.name)
        if replica is None or leader.stepped_down:
            return
        role = replica.role
        if not isinstance(role, Leadership) or not role.settled:
            return  # COORDINATOR_LOAD_IN_PROGRESS
        if role.leader_epoch < leader_epoch or self.world.invariants.lost:
            return
        found = self._last_committed(replica.log.batches, role.high_watermark)
        if found < confirmed and replica.log.log_start_offset == 0:
            self.world.invariants.fail(
                f"member {self.number} committed {confirmed}, and {replica} says {found}"
            )

    def _last_committed(self, batches: list[Any], watermark: int) -> int:
        for batch in reversed(batches):
            if batch.end_offset <= watermark and batch.values[0][0] == self.number:
                found: int = batch.values[0][1]
                return found
        return -1


def rack_of(broker_id: int) -> str:
    return f"rack {broker_id % 3}"
