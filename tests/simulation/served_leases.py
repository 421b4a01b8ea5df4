"""Leases as brokers serve them, under a seed: on an event loop whose time jumps to what comes next.

What runs is `server.coordination`'s: the tables of leaders, the persister with its lanes, the share
coordinator on its runtime, and the handler of its requests. Around them is what happens to brokers:
they die at any point, of a write above all (before it is in the log, in the log, committed, before
the answer), leaders and coordinators move, and those that were don't hear of it for a while;
requests and answers between brokers get lost, or come late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.leases import Acknowledgement, Change
from kraftpy.core.leases.state import StateAnswer
from kraftpy.core.leases.state_records import decode_record
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import iter_records
from kraftpy.server.coordination.leases import Leases
from kraftpy.server.coordination.led_table import LedTable
from kraftpy.server.coordination.share_coordinator import ShareCoordinator
from kraftpy.server.coordination.share_persister import PersistedState, SharePersister
from kraftpy.server.coordination.share_state_calls import KINDS
from kraftpy.server.handlers.share_state import _serve
from tests.unit.server.coordination import fake_log
from tests.unit.server.coordination.fake_leases import TOPIC_ID, FakePartition

if TYPE_CHECKING:
    from tests.simulation.served_world import ServedWorld

NAME = ("data", 0)
_DIES = 0.004
_LOST = 0.03
_LATE = 0.03
_LATE_S = (0.5, 20.0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing is waited for: when nothing is to be done it is the time of what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            assert timeout is not None, "something is always to come"
            self._now_s += max(timeout, 0.0)
            return select(0)

        selector.select = jump

    def time(self) -> float:
        return self._now_s


def run_virtually(main: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


async def never() -> None:
    """What a broker that is dead goes on with."""
    await asyncio.get_running_loop().create_future()


class Led:
    """A table as the invariants look at it."""

    def __init__(self, table: LedTable) -> None:
        self.name = NAME
        self.machine = table._table
        self.leader_epoch = table._leader_epoch
        self.state_epoch = table._state_epoch
        self.log = table.partition.log
        self._table = table

    def __str__(self) -> str:
        return f"the leader of epoch {self.leader_epoch}"


class WatchedTable(LedTable):
    """Tells the invariants."""

    def __init__(self, host: Any, *more: Any) -> None:
        self.watched: Node = host
        self.said: dict[asyncio.Future[ErrorCode], Sequence[Acknowledgement]] = {}
        super().__init__(host, *more)

    @property
    def _leasing(self) -> Any:
        return self.watched.world.leasing

    def _opened(self, table: Any) -> None:
        super()._opened(table)
        read = self.watched.share_persister.last_read
        if read.start_offset >= 0 and not self.watched.dead:
            self._leasing.loaded(Led(self), read)

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        told = super().acknowledge(member, acknowledgements)
        if isinstance(told, asyncio.Future):
            self._leasing.said(Led(self), acknowledgements)
            self.said[told] = acknowledgements
        elif told is ErrorCode.NONE:
            self._leasing.said(Led(self), acknowledgements)
            self._leasing.answered(Led(self), acknowledgements)
        return told

    def _written(self, change: Change, error: ErrorCode) -> None:
        said = [self.said.pop(each) for each in self._writing[change.number]]
        led, heard = Led(self), not error and not self.watched.dead
        for each in said if heard else ():
            self._leasing.given_back(led, each)
        super()._written(change, error)
        for each in said if heard else ():
            self._leasing.answered(led, each)

    def release(self, member: str) -> None:
        if self._table is not None:
            self._leasing.closed(Led(self), member)
        super().release(member)


class _Persister(SharePersister):
    last_read = StateAnswer(ErrorCode.NONE)

    async def read(self, *key: Any, leader_epoch: int) -> PersistedState:
        self.last_read = await super().read(*key, leader_epoch=leader_epoch)
        return self.last_read


class _Pending(NamedTuple):
    """A batch that isn't committed; `end` is the offset behind it."""

    future: asyncio.Future[int]
    offset: int
    end: int
    batch: bytes


class StateReplica(fake_log.FakeLog):
    """The share coordinator's log at a node."""

    def __init__(self, node: Node) -> None:
        super().__init__(SHARE_STATE_TOPIC)
        self.node = node
        self.pending: list[_Pending] = []

    def begin(self, first: int, batches: Sequence[bytes], epoch: int) -> None:
        """It leads (maybe again), and has these batches, of which the first begins there."""
        self.resign()
        self.led[0], self.ends[0], self.epochs[0] = bytearray(), first, epoch
        for batch in batches:
            self.put(0, batch)

    def resign(self) -> None:
        """It has heard that another one leads."""
        self.led.pop(0, None)
        pending, self.pending = self.pending, []
        for each in pending:
            if not each.future.done():
                each.future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        node = self.node
        future: asyncio.Future[int] = node.loop.create_future()
        if node.dies() or node.dead:
            return future
        if partition not in self.led:
            future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return future
        offset = self.put(partition, batch)
        self.pending.append(_Pending(future, offset, self.ends[partition], batch))
        node.loop.call_later(node.world.latency_s(), self._commit, self.epochs[0])
        node.dies()
        return future

    def _commit(self, epoch: int) -> None:
        """The oldest that isn't is committed, if it is still this node to say so."""
        world = self.node.world
        if self.node.dead or world.state_epoch != epoch or not self.pending:
            return
        oldest = self.pending.pop(0)
        world.commit(oldest.offset, oldest.batch, oldest.end)
        if not self.node.dies():
            oldest.future.set_result(oldest.offset)

    def delete_records_before(self, topic: str, partition: int, offset: int) -> None:
        world = self.node.world
        if not self.node.dead and world.state_epoch == self.epochs.get(0) and 0 in self.led:
            world.log_start = max(world.log_start, min(offset, world.committed_end))


class Node:
    """One life of a broker: as much of it as leases, persister and coordinator know."""

    def __init__(self, world: ServedWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.dead = False
        self.loop = world.loop
        self.config = world.config
        self.avoided: frozenset[int] = frozenset()
        self.controller: Any = None
        self.opener: Any = None
        self.peers: Any = self
        self.state_leader = SimpleNamespace(leader=-1)
        self.state_epoch = -1
        self.metadata: Any = SimpleNamespace(
            topics={SHARE_STATE_TOPIC: SimpleNamespace(partitions={0: self.state_leader})},
            topics_by_id={TOPIC_ID: SimpleNamespace(partitions={0: None})},
            config=lambda kind, name: world.group_configs,
        )
        self.replicas = StateReplica(self)
        self.share_coordinator = ShareCoordinator(self)
        self.share_persister = _Persister(self)
        self.leases = Leases(self)
        self.partition: FakePartition | None = None
        self.partition_epoch = -1

    def now_ms(self) -> int:
        return self.world.now_ms

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    def dies(self) -> bool:
        """Whether it dies at this point."""
        if self.dead or not self.world.faulty or self.world.rng.random() >= _DIES:
            return False
        return self.world.kill(self)

    # -- what it hears

    def hear_of_state(self, leader: int, epoch: int) -> None:
        if self.dead or epoch <= self.state_epoch:
            return
        self.state_epoch, self.state_leader.leader = epoch, leader
        if leader != self.node_id and 0 in self.replicas.led:
            self.replicas.resign()
        self.share_coordinator.refresh()

    def hear_of_data(self, leader: int, epoch: int) -> None:
        if self.dead or epoch <= self.partition_epoch:
            return
        self.partition_epoch = epoch
        if self.partition is not None:
            self.partition.end()
        self.partition = None
        if leader == self.node_id:
            led: Any = FakePartition()
            led.log, led.leader_epoch = self.world.log, epoch
            self.partition = led

    # -- requests to others

    async def request(
        self, node_id: int, lane: object, message: Any, *, timeout_ms: int, version: int | None
    ) -> Any:
        world, rng = self.world, self.world.rng
        await asyncio.sleep(world.latency_s())
        if self.dead:
            await never()
        target = world.nodes[node_id]
        fate = rng.random() if world.faulty else 1.0
        if target.dead or fate < _LOST:
            raise ConnectionLostError("nothing has come there")
        serving = self.loop.create_task(target.serve(message, late=fate < _LOST + _LATE))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await asyncio.shield(serving)
        except TimeoutError:
            raise ConnectionLostError("no answer") from None
        await asyncio.sleep(world.latency_s())
        if self.dead:
            await never()
        if world.faulty and rng.random() < _LOST:
            raise ConnectionLostError("the answer is lost")
        return answer

    async def serve(self, message: Any, *, late: bool) -> Any:
        if late:
            await asyncio.sleep(self.world.rng.uniform(*_LATE_S))
        if self.dead:
            await never()
        ctx: Any = SimpleNamespace(answer_full=False)
        broker: Any = self
        answer = await _serve(KINDS[message.API_KEY], broker, ctx, message)
        if self.dies() or self.dead:
            await never()
        return answer


def records_of(batch: bytes) -> list[Any]:
    """What a batch of the coordinator's log says."""
    found = []
    for record in iter_records(batch, 0):
        decoded = decode_record(bytes(record.key or b""), record.value)
        if decoded is not None:
            found.append(decoded)
    return found
