"""Members that are leased batches of whole partitions, and what must be true of their leases.

The tables at leaders are `core.leases.claimed`, what members keep is the client's `leases`, and
what they claim lies at the coordinators of `cooperative_world`, whose invariants hold, too.

* One lease per offset: what a table deals, nobody else has of it.
* What a leader has read as claimed, or was told is done, it doesn't deal.
* In the end all is processed, and the stable offset is the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kraftpy.client.leases import LeaseLedger
from kraftpy.client.ledger import WHOLE, Ledger
from kraftpy.client.spans import contains
from kraftpy.core.coordination import Effects
from kraftpy.core.groups import GroupMachine
from kraftpy.core.leases import ClaimedTable, ReadBatch
from kraftpy.core.leases.claimed import Range
from kraftpy.core.replication import Leadership
from kraftpy.protocol.key_hash import HASH_MAX
from tests.simulation.broker import Broker
from tests.simulation.claims import OFFSETS_PARTITION, at_coordinator
from tests.simulation.clients import CLIENT, TIMEOUT_MS
from tests.simulation.cooperative_faults import CooperativeFaults, Resetter
from tests.simulation.cooperative_world import GROUP, CooperativeWorld
from tests.simulation.log import Batch
from tests.simulation.members import Claimer
from tests.simulation.processes import Coordinating
from tests.simulation.replica import Name, Replica
from tests.simulation.world import Outcome, play

MEMBERS = 4
_TICK_MS = 25.0
_RETRY_MS = 40.0
_ASK_TIMEOUT_MS = 600.0


class Answer(NamedTuple):
    """A cooperative fetch's, of one partition."""

    ranges: list[Range]
    batches: list[Batch]
    log_start: int


class LeasedReplica(Coordinating):
    """A partition at one broker; `machine` is the table of its leases while it leads."""

    world: LeasedWorld
    machine: ClaimedTable | None = None
    _number = 0
    _begun = _asking = False

    def resign(self) -> None:
        super().resign()
        self.machine = None
        self._number += 1
        self._begun = self._asking = False

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        role = self.role
        if isinstance(role, Leadership) and role.settled and not self._begun:
            self._begun = True
            self._tick(self._number)

    def _tick(self, number: int) -> None:
        if number != self._number:
            return
        table = self.machine
        if table is not None:
            table.expire(self.world.now_ms)
        if (table is None or table.needs_claims) and not self._asking:
            self._read(number)
        life = self.broker.life
        self.world.schedule.after(_TICK_MS, self.broker.run, life, self._tick, number)

    def _read(self, number: int) -> None:
        world, me = self.world, self.broker
        table, self._asking = self.machine, True
        if table is not None:
            table.ask()
        waits = [True]

        def once(said: Any) -> None:
            if waits and number == self._number:
                waits.clear()
                self._asking = False
                if said is not None:
                    self._learn(*said)

        topic = me.metadata.topics.get(OFFSETS_PARTITION[0])
        target = world.brokers.get(-1 if topic is None else topic.partitions[0].leader)
        if target is not None:
            back = partial(world.network.to_broker, target.id, me, once)
            world.network.to_broker(me.id, target, at_coordinator, target, self._claims, back)
        world.schedule.after(_ASK_TIMEOUT_MS, me.run, me.life, once, None)

    def _claims(self, machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
        name = self.name
        wanted = [(name[0], [name[1]])]
        ((_, (row,)),) = machine.fetch(GROUP, wanted, require_stable=True, asker=None)
        key = (GROUP, *name)
        stable = machine.claims.stable_offset(key)
        if machine.claims.unknown or row[4:] or stable < 0:
            token(None)
        else:
            coverage = machine.claims.coverage(key) or ()
            whole = [each[2:] for each in coverage if each[:2] == (0, HASH_MAX)]
            token((stable, whole))
        return Effects([], [])

    def _learn(self, stable: int, claims: list[Range]) -> None:
        if self.machine is None:
            self.machine = ClaimedTable(stable, claims)
        else:
            self.machine.learn(stable, claims)
        self.world.leased.learned(self.machine, stable, claims)

    def lease(
        self, member: str, offset: int, done: list[Range], answer: Callable[[Answer | None], None]
    ) -> None:
        """A cooperative fetch, without waiting."""
        table, role, world = self.machine, self.role, self.world
        if table is None or not isinstance(role, Leadership) or self.broker.stepped_down:
            answer(None)
            return
        now_ms, upper, start = world.now_ms, role.high_watermark, self.log.log_start_offset
        if done and not table.done(member, done, now_ms):
            world.leased.told(table, done)
        held = table.held(member, offset)
        asked = held[0][0] if held else table.next_available(upper)
        ranges: list[Range] = []
        found: list[Batch] = []
        if asked is not None:
            found = self.log.read(max(asked, start), world.rng.randint(1, 3), upper)
            batches = [ReadBatch(each.base_offset, each.end_offset - 1) for each in found]
            if not batches and asked < start:
                batches = [ReadBatch(asked, start - 1)]
            if held:
                end = max((each.last for each in batches), default=-1)
                ranges = [(first, min(last, end)) for first, last in held if first <= end]
                table.renew(member, ranges, world.lock_ms, now_ms)
            else:
                dealt = table.lease(member, asked, batches, upper, world.lock_ms, now_ms)
                ranges = [each[:2] for each in dealt]
            world.leased.dealt(self, table, member, ranges)
        answer(Answer(ranges, found, start))


class LeaseInvariants:
    """Told of what tables deal and hear; raises `Violation`."""

    def __init__(self, world: LeasedWorld) -> None:
        self._world = world
        self.count = 0
        self._tables: dict[ClaimedTable, tuple[dict[int, tuple[str, int]], set[int]]] = {}

    def _of(self, table: ClaimedTable) -> tuple[dict[int, tuple[str, int]], set[int]]:
        return self._tables.setdefault(table, ({}, set()))

    def dealt(
        self, replica: LeasedReplica, table: ClaimedTable, member: str, ranges: list[Range]
    ) -> None:
        holders, done = self._of(table)
        now_ms = self._world.now_ms
        self.count += bool(ranges)
        for offset in (o for first, last in ranges for o in range(first, last + 1)):
            other, until = holders.get(offset, (member, 0))
            if other != member and until > now_ms:
                self._world.cooperative.fail(f"{replica} deals {offset} to {member} and {other}")
            if offset in done:
                self._world.cooperative.fail(f"{replica} deals {offset} to {member}: it's done")
            holders[offset] = member, now_ms + self._world.lock_ms

    def told(self, table: ClaimedTable, ranges: list[Range]) -> None:
        self._of(table)[1].update(o for first, last in ranges for o in range(first, last + 1))

    def learned(self, table: ClaimedTable, stable: int, claims: list[Range]) -> None:
        self.told(table, [(0, stable - 1), *claims])


class LeasedMember(Claimer):
    """One of a group whose members have all partitions, and ask their leaders for batches."""

    def _forget(self) -> None:
        super()._forget()
        self._asked: dict[Name, object] = {}

    def start(self) -> None:
        super().start()
        self.have({name: list(WHOLE) for name in self.world.data_names})

    def _new_ledger(self) -> Ledger:
        return LeaseLedger(explicit=True)

    def _fetch(self, name: Name, ledger: Ledger) -> None:
        assert isinstance(ledger, LeaseLedger)
        leader = self._readers[name].find_leader()
        if leader is None or name in self._asked:
            return
        world, life, asked = self.world, self.life, object()
        assert isinstance(world, LeasedWorld)
        self._asked[name] = asked
        until_ms, done = world.now_ms + world.lock_ms, ledger.to_tell
        member, offset = f"{self.number}.{life}", ledger.turn().position

        def answered(answer: Answer | None) -> None:
            if self._asked.get(name) is asked and self.ledgers.get(name) is ledger:
                del self._asked[name]
                if answer is None:
                    ledger.answer_lost()
                else:
                    ledger.told(done)
                    self._leased(name, ledger, answer, until_ms)

        def back(answer: Answer | None) -> None:
            world.network.send(leader.id, CLIENT, self.run, life, answered, answer)

        def at_leader(broker: Broker) -> None:
            replica = broker.replicas.get(name)
            if isinstance(replica, LeasedReplica):
                replica.lease(member, offset, done, back)

        world.network.to_broker(CLIENT, leader, at_leader, leader)
        world.schedule.after(TIMEOUT_MS, self.run, life, answered, None)

    def _leased(self, name: Name, ledger: LeaseLedger, answer: Answer, until_ms: int) -> None:
        world = self.world
        if not answer.ranges or world.now_ms >= until_ms or not self.may_hand_out:
            ledger.answer_lost()
            return
        if answer.ranges[0][0] < answer.log_start:
            start = world.log_start(name, answer.log_start)
            world.cooperative.skipped(self, name, WHOLE, start)
        leased = ledger.acquired(answer.ranges, float("inf"))
        if leased is None:
            return
        for batch in answer.batches:
            for offset, value in enumerate(batch.values, batch.base_offset):
                if contains(leased.spans, offset) and ledger.hand_out(0, offset, leased):
                    working_ms = world.rng.expovariate(1 / 60)
                    self.after(working_ms, self._done, name, ledger, offset, value)
        ledger.advance(leased, leased.spans[-1][1])


class _LeasedFaults(CooperativeFaults):
    """Without resets, which a group of members has none of."""

    def __init__(self, world: CooperativeWorld) -> None:
        super().__init__(world)
        self.kinds.remove(self.reset)


class LeasedWorld(CooperativeWorld):
    """A world whose members are leased batches."""

    FAULTS = _LeasedFaults
    groups = (GROUP,)
    may_transact = False

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.leased = LeaseInvariants(self)
        self.lock_ms = 400
        super().__init__(seed, trace=trace)
        self.lock_ms = self.rng.choice([150, 400, 1_000])

    def replica_of(self, name: Name) -> type[Replica]:
        return LeasedReplica if name[0] == self.DATA else super().replica_of(name)

    def _use(self, name: Name) -> None:
        if name == OFFSETS_PARTITION:
            self.claimers += [LeasedMember(self, GROUP, number) for number in range(MEMBERS)]
            self.resetter = Resetter(self, GROUP, 20)
            for each in self.claimers:
                each.start()
            self.cooperative.replay_now_and_then()


def simulate_leased(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs one seed with members that are leased batches."""
    world = LeasedWorld(seed, trace)
    return play(world, trace)._replace(
        claimed=world.cooperative.claimed, cooperative=True, leasing=True
    )
