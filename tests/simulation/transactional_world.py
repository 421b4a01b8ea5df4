"""A run with transactions, and what must be true of them after every event.

* When a transaction is said to be complete, all its markers are committed: it is open nowhere.
* In the second version of the protocol, what a producer wrote in an epoch is committed everywhere
  or aborted everywhere.
* Behind a marker nothing of an older epoch of its producer is written.
* The last stable offset of every replica is what its log says.
* In the end nothing is open, and each transaction is there whole or not at all: what was
  acknowledged is, what nobody committed isn't.

An election that loses committed records (see `invariants`) takes all that with it: from there on
only the rules of replication are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kraftpy.core.replication import Leadership
from kraftpy.core.transactions import VERSION_0, VERSION_2, Transaction, TransactionState
from kraftpy.core.transactions.records import TransactionRecord
from kraftpy.protocol.record_batch import TRANSACTIONAL_BIT
from tests.simulation.log import Batch, SimLog
from tests.simulation.replica import Name, Replica
from tests.simulation.transactions import (
    STATE_PARTITION,
    STATES,
    CoordinatorReplica,
    DataReplica,
    Sent,
    Transactor,
)
from tests.simulation.world import HEALING_MS, Outcome, World, play

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

IDS = 3
_STABLE_CHECKED_EVERY = 8

_Producer = tuple[int, int]


class TransactionInvariants:
    """Told of what coordinators decide and of what partitions commit; raises `Violation`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[Sent] = []
        self.completed = 0
        self.of_version_2: set[int] = set()
        """The ids of producers each of whose transactions has an epoch of its own."""
        self._prepared: dict[str, Transaction] = {}
        self._seen: dict[Name, int] = defaultdict(int)
        self._open: dict[Name, dict[int, int]] = defaultdict(dict)
        """By partition and producer id the epoch of the transaction that is open, as committed."""
        self._epochs: dict[tuple[Name, int], int] = {}
        self._results: dict[_Producer, bool] = {}
        self._moves = 0
        self._was_deposed = False

    @property
    def hold(self) -> bool:
        """Whether nothing was lost that was committed."""
        return not (self.world.invariants.lost or self._was_deposed)

    def leader_of(self, name: Name) -> Broker | None:
        """For clients, as some broker knows it."""
        up = [each for each in self.world.brokers.values() if each.up and each.applied]
        return self.coordinator_for(self.world.rng.choice(up), name) if up else None

    def coordinator_for(self, broker: Broker, name: Name = STATE_PARTITION) -> Broker | None:
        """As this broker knows it."""
        topic = broker.metadata.topics.get(name[0])
        leader = -1 if topic is None else topic.partitions[name[1]].leader
        return self.world.brokers.get(leader)

    def _decided(self, records: Sequence[object]) -> None:
        """A coordinator's write is committed."""
        for record in records:
            assert isinstance(record, TransactionRecord)
            transactional_id, transaction = record
            assert transaction is not None
            if transaction.state.is_preparing:
                self._prepared[transactional_id] = transaction
            elif transaction.state in _COMPLETE:
                self.completed += 1
                self._check_complete(transactional_id)

    def _check_complete(self, transactional_id: str) -> None:
        prepared = self._prepared.get(transactional_id)
        if prepared is None or not self.hold:
            return
        for name in prepared.partitions:
            if self._open[name].get(prepared.producer_id, 1 << 16) <= prepared.producer_epoch:
                self.world.invariants.fail(
                    f"{transactional_id} is complete, and in {name} its transaction of epoch "
                    f"{self._open[name][prepared.producer_id]} is open: {prepared}"
                )

    def refused(self, markers: object, name: Name) -> None:
        """A partition has a higher epoch than a marker."""
        if self.hold:
            self.world.invariants.fail(f"{name} refuses {markers}")

    def watermark_moved(self, replica: Replica) -> None:
        """A leader's: takes in what is committed."""
        name = replica.name
        committed = self.world.invariants.batches[name]
        if replica.leader_epoch < self.world.invariants.oldest_epoch[name]:
            self._was_deposed = True  # and answers what is lost
        if not self.hold:
            return
        for batch in committed[self._seen[name] :]:
            if name == STATE_PARTITION:
                self._decided(batch.values)
            else:
                self._take(name, batch)
        self._seen[name] = len(committed)
        if name == STATE_PARTITION:
            return
        self._moves += 1
        if not self._moves % _STABLE_CHECKED_EVERY:
            self.check_stable(replica)

    def _take(self, name: Name, batch: Batch) -> None:
        header = batch.header
        producer, epoch = header.producer_id, header.producer_epoch
        if not header.attributes & TRANSACTIONAL_BIT:
            return
        if epoch < self._epochs.get((name, producer), -1):
            self.world.invariants.fail(
                f"{batch} of {name} has epoch {epoch} of producer {producer}, and is behind a "
                f"marker of epoch {self._epochs[name, producer]}"
            )
        marker = batch.marker
        if marker is None:
            self._open[name].setdefault(producer, epoch)
            return
        self._epochs[name, producer] = epoch
        if self._open[name].pop(producer, None) is None:
            return
        by_epoch = producer in self.of_version_2
        if by_epoch and self._results.setdefault((producer, epoch), marker.committed) != (
            marker.committed
        ):
            self.world.invariants.fail(
                f"the transaction of producer {producer} that epoch {epoch} ended is committed "
                f"here and aborted there: {name} has {marker}"
            )

    def check_stable(self, replica: Replica) -> None:
        """The last stable offset is a function of the log and the high watermark."""
        log, watermark = replica.log, replica.high_watermark
        log.producers.advance_high_watermark(watermark)
        log.producers.advance_log_start(log.log_start_offset)
        said, is_so = log.producers.last_stable_offset(watermark), stable_offset(log, watermark)
        if said != is_so:
            self.world.invariants.fail(
                f"the last stable offset of {replica} is {said}, and by its log {is_so}, with the "
                f"high watermark {watermark}"
            )

    def nothing_is_open(self) -> bool:
        """Whether every leader can be read to its end."""
        for name in self.world.names():
            leader = self.world.brokers.get(self.world.partition(name).leader)
            replica = None if leader is None else leader.replicas.get(name)
            if replica is None or not isinstance(replica.role, Leadership):
                return False
            if name[0] == World.DATA and replica.log.producers.first_unstable_offset is not None:
                replica.log.producers.advance_high_watermark(replica.high_watermark)
                return False
        return True

    def check_end(self) -> None:
        """Each transaction is there whole or not at all."""
        if not self.hold:
            return
        visible = {name: _visible(self.world.invariants.batches[name]) for name in self._seen}
        for sent in self.sent:
            there = [value in visible.get(name, ()) for name, value in sent.values]
            if any(there) and not all(there):
                self.world.invariants.fail(f"torn: of {sent.values} there is {there}")
            if there and sent.outcome is not None and any(there) != sent.outcome:
                said = "committed" if sent.outcome else "not committed"
                self.world.invariants.fail(f"{sent.values} was {said}, and there is {there}")


_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


def stable_offset(log: SimLog, watermark: int) -> int:
    """The last stable offset, from the records themselves."""
    began: dict[int, int] = {}
    unstable = []
    for batch in log.batches:
        producer = batch.header.producer_id
        if batch.marker is not None:
            first = began.pop(producer, None)
            if first is not None and batch.base_offset >= watermark:
                unstable.append(first)
        elif batch.header.attributes & TRANSACTIONAL_BIT:
            began.setdefault(producer, batch.base_offset)
    first_unstable = min([*unstable, *began.values()], default=watermark)
    return min(max(first_unstable, log.log_start_offset), watermark)


def _visible(batches: Sequence[Batch]) -> set[object]:
    """What a reader of committed records gets of a whole log."""
    found: set[object] = set()
    open_: dict[int, list[object]] = defaultdict(list)
    for batch in batches:
        if batch.marker is not None:
            values = open_.pop(batch.header.producer_id, [])
            if batch.marker.committed:
                found.update(values)
        elif batch.header.attributes & TRANSACTIONAL_BIT:
            open_[batch.header.producer_id] += batch.values
    return found


class TransactionalWorld(World):
    """A world in which producers write in transactions, too."""

    INTERNAL = (World.OFFSETS, STATES)

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.transactions = TransactionInvariants(self)
        super().__init__(seed, trace=trace)

    def replica_of(self, name: Name) -> type[Replica]:
        if name[0] == STATES:
            return CoordinatorReplica
        return DataReplica if name[0] == self.DATA else Replica

    def _use(self, name: Name) -> None:
        if name[0] != STATES:
            super()._use(name)
            return
        for number in range(IDS):
            version = self.rng.choice((VERSION_0, VERSION_2))
            for each in range(2):
                Transactor(self, f"id-{number}", 1000 + 2 * number + each, version).start()

    def _settle(self) -> None:
        checks = self.transactions
        if not checks.hold:
            return
        self.run_until(checks.nothing_is_open, "no transaction is open", HEALING_MS)
        checks.check_end()
        for broker in self.brokers.values():
            for replica in broker.replicas.values():
                if isinstance(replica, DataReplica) and replica.role is not None:
                    checks.check_stable(replica)


def simulate_transactions(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs one seed with transactions."""
    world = TransactionalWorld(seed, trace)
    return play(world, trace)._replace(completed=world.transactions.completed)
