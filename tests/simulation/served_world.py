"""A run with leases as brokers serve them: members, what happens to brokers, and the end.

What must be true after every event is what `leasing_world` says of leases: one lease per offset,
what is finished isn't dealt again nor taken back, what a member was told is accepted is written,
deliveries count and have a limit, the start offset never falls and passes only what is finished, a
table begins as what was written and Available what lies between, and nobody writes for a leader of
the past. In the end all is finished, and stays so when all leaders have moved once more.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from kraftpy.core.config import BrokerConfig
from kraftpy.core.leases import Acknowledgement, Acquired, Demand
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_batch
from kraftpy.server.coordination import leases as leases_module
from tests.simulation.invariants import Violation
from tests.simulation.leases import STATE_PARTITION
from tests.simulation.leasing_world import LeaseInvariants
from tests.simulation.served_leases import (
    NAME,
    Led,
    Node,
    WatchedTable,
    records_of,
    run_virtually,
)
from tests.unit.server.coordination.fake_leases import GROUP, TOPIC_ID, FakeLog

NODES = (1, 2, 3)
MEMBERS = 4
LOAD_S = 40.0
HEAL_S = 90.0
RECORDS_MAX = 400
_LOCK_MS = 1_000
_ROUNDED = 1e-6
_ACCEPT, _RELEASE, _REJECT, _RENEW = 1, 2, 3, 4
_FAULTY = (_ACCEPT, _ACCEPT, _ACCEPT, _ACCEPT, _RELEASE, _REJECT, _RENEW)


class Served(NamedTuple):
    """What a run was like."""

    seed: int
    violation: str | None
    accepted: int
    dealt: int
    moved: int
    killed: int
    committed: int


class _Committed(NamedTuple):
    offset: int
    batch: bytes
    end: int


class ServedWorld:
    """What is true of the cluster, whoever knows it."""

    DATA = NAME[0]

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"served {seed}")
        self.loop: asyncio.AbstractEventLoop
        self.faulty = True
        self.moved = self.killed = 0
        self.violation: str | None = None
        self.invariants: Any = SimpleNamespace(
            lost=False,
            batches=defaultdict(list),
            oldest_epoch=defaultdict(int),
            fail=self._fail,
        )
        any_world: Any = self
        self.leasing = LeaseInvariants(any_world)
        self.group_configs = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(self.rng.choice((2, 3, 5))),
            "share.partition.max.record.locks": "100",
        }
        snapshots = self.rng.choice((3, 20, 500))
        self.config = BrokerConfig.from_properties(
            {
                "node.id": "1",
                "log.dirs": "/tmp/unused",
                "group.share.min.record.lock.duration.ms": str(_LOCK_MS),
                "group.share.record.lock.duration.ms": str(_LOCK_MS),
                "share.coordinator.snapshot.update.records.per.snapshot": str(snapshots),
                "share.coordinator.cold.partition.snapshot.interval.ms": "3000",
            }
        )
        self.committed: list[_Committed] = []
        self.log_start = 0
        self.state_epoch = self.data_epoch = -1
        self.log = FakeLog()

    def _fail(self, what: str) -> None:
        if self.violation is None:
            self.violation = what
        raise Violation(what)

    @property
    def now_ms(self) -> int:
        # A time that stands still may not stand just below what somebody waits for.
        return int(self.loop.time() * 1000 + _ROUNDED)

    @property
    def committed_end(self) -> int:
        return self.committed[-1].end if self.committed else 0

    def latency_s(self) -> float:
        return self.rng.expovariate(200)

    def commit(self, offset: int, batch: bytes, end: int) -> None:
        self.committed.append(_Committed(offset, batch, end))
        self.invariants.batches[STATE_PARTITION].append(SimpleNamespace(values=records_of(batch)))
        self.leasing.state_moved(SimpleNamespace(name=STATE_PARTITION, leader_epoch=0))  # type: ignore[arg-type]

    # -- who leads

    def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.nodes = {each: Node(self, each) for each in NODES}
        self.limits = self.nodes[1].leases.settings(GROUP).limits
        self.state_node = self.data_node = self.nodes[self.rng.choice(NODES)]
        self.move_state()
        self.move_data()

    def _next(self, before: Node) -> Node:
        alive = [each for each in self.nodes.values() if not each.dead]
        others = [each for each in alive if each is not before]
        return self.rng.choice(others if others and self.rng.random() < 0.9 else alive)

    def move_state(self) -> None:
        """Another node coordinates, with some of what wasn't committed."""
        before, after = self.state_node, self._next(self.state_node)
        pending = before.replicas.pending
        for each in pending[: self.rng.randint(0, len(pending))]:
            self.commit(each.offset, each.batch, each.end)
        self.state_epoch += 1
        self.moved += 1
        self.state_node = after
        kept = [each for each in self.committed if each.end > self.log_start]
        first = kept[0].offset if kept else self.committed_end
        after.replicas.begin(first, [each.batch for each in kept], self.state_epoch)
        self._tell("hear_of_state", after.node_id, self.state_epoch)

    def move_data(self) -> None:
        """Another node leads the data."""
        self.data_node = self._next(self.data_node)
        self.data_epoch += 1
        self.moved += 1
        self._tell("hear_of_data", self.data_node.node_id, self.data_epoch)

    def _tell(self, what: str, leader: int, epoch: int) -> None:
        for node in self.nodes.values():
            late_s = 0.0 if node.node_id == leader else self.rng.expovariate(3)
            self.loop.call_later(late_s, getattr(node, what), leader, epoch)

    def kill(self, node: Node) -> bool:
        """With -9, if two others are there; whether it did."""
        if sum(not each.dead for each in self.nodes.values()) < len(NODES):
            return False
        node.dead = True
        self.killed += 1
        self.loop.call_later(self.rng.uniform(0.2, 1.5), self._follow, node)
        self.loop.call_later(self.rng.uniform(0.5, 4.0), self._restart, node)
        return True

    def _follow(self, dead: Node) -> None:
        if self.state_node is dead:
            self.move_state()
        if self.data_node is dead:
            self.move_data()

    def _restart(self, dead: Node) -> None:
        if dead in (self.state_node, self.data_node):
            self._follow(dead)
        node = self.nodes[dead.node_id] = Node(self, dead.node_id)
        node.hear_of_state(self.state_node.node_id, self.state_epoch)
        node.hear_of_data(self.data_node.node_id, self.data_epoch)


async def _have_the_state_kept(world: ServedWorld) -> None:
    """As the group's coordinator does."""
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    while error:
        await asyncio.sleep(world.latency_s())
        node = world.rng.choice([each for each in world.nodes.values() if not each.dead])
        try:
            async with asyncio.timeout(5):
                error = await node.share_persister.initialize(
                    GROUP, TOPIC_ID, 0, state_epoch=0, start_offset=-1
                )
        except TimeoutError:
            continue


async def _produce(world: ServedWorld) -> None:
    while world.faulty and world.log.log_end_offset < RECORDS_MAX:
        await asyncio.sleep(world.rng.expovariate(8))
        world.log.append(build_batch([(1, None, b"v", [])] * world.rng.randint(1, 8)))
        for node in world.nodes.values():
            if node.partition is not None:
                node.partition.fetches.wake(node.partition)


async def _break(world: ServedWorld) -> None:
    rng = world.rng
    while True:
        await asyncio.sleep(rng.expovariate(1.5))
        if not world.faulty:
            return
        match rng.randrange(5):
            case 0:
                world.kill(world.state_node)
            case 1:
                world.kill(world.data_node)
            case 2 if not world.state_node.dead:
                world.move_state()
            case 3 if not world.data_node.dead:
                world.move_data()
            case 4 if not world.state_node.dead:
                await world.state_node.share_coordinator.prune()


class Member:
    """Asks whoever leads, as far as it knows, and says this and that of what it gets."""

    def __init__(self, world: ServedWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.links = 0
        self.link: tuple[Node, str] | None = None

    async def run(self) -> None:
        world, rng = self.world, self.world.rng
        while True:
            await asyncio.sleep(rng.expovariate(15))
            leading = [
                each
                for each in world.nodes.values()
                if each.partition is not None and not each.dead
            ]
            if leading:
                node = rng.choice(leading)
                if self.link is None or self.link[0] is not node or rng.random() < 0.02:
                    self._connect(node)
                await self._fetch(node)

    def _connect(self, node: Node) -> None:
        """The one before is closed, which its broker hears of."""
        if self.link is not None:
            before, name = self.link
            self.world.loop.call_later(
                self.world.latency_s(), before.leases.connection_closed, name
            )
        self.links += 1
        self.link = node, f"{self.number}.{self.links}"

    async def _fetch(self, node: Node) -> None:
        assert self.link is not None
        world, rng, (_, name) = self.world, self.world.rng, self.link
        await asyncio.sleep(world.latency_s())
        if node.dead or node.partition is None:
            return
        leases = node.leases
        try:
            session = leases.sessions.find(GROUP, name)
        except KafkaError:
            session = leases.begin(GROUP, name, [(TOPIC_ID, 0)], name)
        table = leases.table(GROUP, node.partition)  # type: ignore[arg-type]
        session.leased_from[table] = None
        demand = Demand(rng.randint(1, 30), rng.choice((0, 3)), rng.random() < 0.5)
        dealt = table.deal(name, demand, 1 << 20, min_one=True)
        assert isinstance(table, WatchedTable)
        world.leasing.acquired(Led(table), name, dealt.acquired)  # type: ignore[arg-type]
        await asyncio.sleep(world.latency_s())
        if not dealt.acquired or (world.faulty and rng.random() < 0.05):
            return  # nothing, or it is forgotten
        await asyncio.sleep(rng.expovariate(20) if rng.random() < 0.95 else _LOCK_MS / 900)
        await self._say(node, name, dealt.acquired)

    async def _say(self, node: Node, name: str, acquired: list[Acquired]) -> None:
        if node.dead or node.partition is None:
            return
        table = node.leases.open_table(GROUP, node.partition)  # type: ignore[arg-type]
        if table is None:
            return
        said = [self._judge(first, last) for first, last, _ in acquired]
        told = table.acknowledge(name, said)
        if isinstance(told, asyncio.Future) and self.world.rng.random() < 0.8:
            await asyncio.wait([told], timeout=1.0)

    def _judge(self, first: int, last: int) -> Acknowledgement:
        rng = self.world.rng
        kinds = _FAULTY if self.world.faulty else (_ACCEPT,)
        return Acknowledgement(first, last, [rng.choice(kinds) for _ in range(first, last + 1)])


async def _until_finished(world: ServedWorld) -> None:
    """Until the leader has nothing left; else that is a violation."""
    deadline_s = world.loop.time() + HEAL_S
    while world.loop.time() < deadline_s:
        await asyncio.sleep(0.2)
        partition: Any = world.data_node.partition
        table = None if partition is None else world.data_node.leases.open_table(GROUP, partition)
        leased = None if table is None else table._table
        if leased is not None and leased.start_offset >= world.log.log_end_offset:
            return
    world._fail("not every record is finished in the end")


async def _play(world: ServedWorld) -> None:
    world.begin()
    world.loop.set_exception_handler(lambda _, context: _note(world, context.get("exception")))
    begun = [_have_the_state_kept(world), _produce(world), _break(world)]
    tasks = [world.loop.create_task(each) for each in begun]
    tasks += [world.loop.create_task(Member(world, each).run()) for each in range(MEMBERS)]
    for task in tasks:
        task.add_done_callback(lambda task: _note(world, task.exception()))
    deadline_s = world.loop.time() + LOAD_S
    while world.loop.time() < deadline_s and world.violation is None:
        await asyncio.sleep(0.5)
    world.faulty = False
    await asyncio.sleep(5.0)  # all that has died is back
    for _ in range(2):
        if world.violation is None:
            await _until_finished(world)
            world.move_state()
            world.move_data()
            await asyncio.sleep(2.0)


def _note(world: ServedWorld, error: BaseException | None) -> None:
    if error is not None and world.violation is None:
        at = traceback.extract_tb(error.__traceback__)[-1]
        world.violation = f"{type(error).__name__} in {at.name}: {error}"


def simulate_served(seed: int) -> Served:
    """Runs one seed."""
    world = ServedWorld(seed)

    async def main() -> None:
        try:
            await _play(world)
        except Violation as error:
            _note(world, error)
        finally:
            world.loop.set_exception_handler(lambda *_: None)

    with patch.object(leases_module, "LedTable", WatchedTable):
        run_virtually(main())
    leasing = world.leasing
    return Served(
        seed,
        world.violation,
        leasing.accepted,
        leasing.dealt,
        world.moved,
        world.killed,
        len(world.committed),
    )
