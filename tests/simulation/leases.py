"""Leases under a seed: tables at the leaders of partitions, and the coordinator that keeps them.

A table is that of `core.leases` on the leader of a partition, its coordinator the machine on the
leader of the one partition of `share_state`; around them is what the server does there, and no rule
of its own. A leader reads before it deals, writes what a table has to write, again and again until
it hears of it or gives up, and answers an acknowledgement when that is written. One that is refused
for its epoch reads anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kraftpy.core.coordination import Effects, Write
from kraftpy.core.leases import Acknowledgement, Acquired, Change, Demand, LeaseTable, ReadBatch
from kraftpy.core.leases.state import ShareStateConfig, ShareStateMachine, StateAnswer, StateWrite
from kraftpy.core.leases.state_memory import ShareMemory
from kraftpy.core.leases.state_records import ShareKey, ShareRecord
from kraftpy.core.replication import Leadership
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode
from tests.simulation.log import Batch
from tests.simulation.processes import Coordinating, OneLog
from tests.simulation.replica import Name

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.leasing_world import LeasingWorld

STATES = "share_state"
STATE_PARTITION: Name = (STATES, 0)
GROUP = "group"

_TICK_MS = 25.0
_RETRY_MS = 40.0
_ASK_TIMEOUT_MS = 600.0
_TRIES_MAX = 4
_READ_BATCHES = 6

Answered = Callable[[StateAnswer | None], None]
Act = Callable[[ShareStateMachine, ShareKey, Any, int], Effects[ShareRecord]]
"""A request: is given the machine, the share-partition, whom to answer, and the time."""


def key_of(name: Name) -> ShareKey:
    return ShareKey(GROUP, bytes(15) + b"d", name[1])


def is_dead(batch: Batch) -> bool:
    """Whether a batch counts as a marker, or as aborted: the same at every replica."""
    count: int = batch.values[0][1]  # type: ignore[index]
    return count % 11 == 5


class StateReplica(OneLog):
    """The partition of the coordinator's log at one broker; `machine` while it coordinates."""

    world: LeasingWorld
    machine: ShareStateMachine | None = None

    def resign(self) -> None:
        machine, self.machine = self.machine, None
        super().resign()
        if machine is not None:
            _hear(machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms))

    def _moved(self) -> None:
        self.world.leasing.state_moved(self)

    def _begin(self, role: Leadership) -> None:
        self.machine = machine = ShareStateMachine(self.world.state_config, ShareMemory(1 << 30))
        for batch in self.log.batches:
            for offset, record in enumerate(batch.values, batch.base_offset):
                assert isinstance(record, ShareRecord)
                machine.load(record, offset)
        self._carry_out(machine.finish_load(self.now_ms))
        self._later(_TICK_MS, self._tick)

    def _tick(self) -> None:
        assert self.machine is not None
        self._later(_TICK_MS, self._tick)
        self._carry_out(self.machine.handle_timers(self.now_ms))
        if self.world.rng.random() < 0.05:
            self._prune()

    def _prune(self) -> None:
        """Cuts off what isn't needed, as `prune.interval.ms` has it."""
        assert self.machine is not None
        needed_from = self.machine.needed_from()
        batch = self.log.batch_before(needed_from)
        # A batch that begins below may have the first record that is needed.
        if batch is not None and batch.end_offset <= min(needed_from, self.high_watermark):
            self.log.advance_log_start(batch.end_offset)

    def ask(self, act: Act, key: ShareKey, answer: Answered) -> None:
        """A request of a leader, or of who alters offsets."""
        if self.machine is None or self.broker.stepped_down:
            answer(StateAnswer(ErrorCode.NOT_COORDINATOR))
        else:
            self._carry_out(act(self.machine, key, answer, self.now_ms))

    def _carry_out(self, effects: Effects[ShareRecord]) -> None:
        for write in effects.writes:
            self._write(write)
        _hear(effects)

    def _refuse(self, write: Write[ShareRecord], error: ErrorCode) -> None:
        self._later(0.0, self._fail, write, error)

    def _fail(self, write: Write[ShareRecord], error: ErrorCode) -> None:
        assert self.machine is not None
        self._carry_out(self.machine.failed(write, error, self.now_ms))


def _hear(effects: Effects[ShareRecord]) -> None:
    for token, answer in effects.replies:
        assert callable(token)
        token(answer)


def ask_state(broker: Broker, act: Act, key: ShareKey, answer: Answered) -> None:
    """At the broker that is taken for the coordinator."""
    replica = broker.replicas.get(STATE_PARTITION)
    if isinstance(replica, StateReplica):
        replica.ask(act, key, answer)
    else:
        answer(StateAnswer(ErrorCode.NOT_COORDINATOR))


class Said(NamedTuple):
    """An acknowledgement that waits for its write; `answer` hears of it."""

    acknowledgements: Sequence[Acknowledgement]
    answer: Callable[[ErrorCode], None]


class LeaseReplica(Coordinating):
    """A partition at one broker; `machine` is the table of its leases while it leads."""

    world: LeasingWorld
    machine: LeaseTable | None = None
    state_epoch = -1
    _reading = 0
    _has_read = False

    def resign(self) -> None:
        super().resign()
        self._reading += 1
        self._has_read = False
        self._drop(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _drop(self, error: ErrorCode) -> None:
        if self.machine is not None:
            self.machine = None
            waiting, self._waiting = self._waiting, {}
            for said in waiting.values():
                for each in said:
                    each.answer(error)

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        if moved:
            self.world.leasing.data_moved(self)
        role = self.role
        if isinstance(role, Leadership) and role.settled and not self._has_read:
            self._has_read = True
            self._read(self._reading)

    # -- the state

    def _ask(self, act: Act, answered: Answered) -> None:
        """Asks the coordinator as this broker knows it; None is no answer in time."""
        world, me, life = self.world, self.broker, self.broker.life
        target = world.leasing.coordinator_for(me)
        waits = [True]

        def once(answer: StateAnswer | None) -> None:
            if waits and me.life == life:
                waits.clear()
                answered(answer)

        if target is not None:
            # It may come late, and twice: what a closed connection has brought is carried out, too.
            answer = partial(world.network.to_broker, target.id, me, once)
            world.network.to_broker(
                me.id, target, ask_state, target, act, key_of(self.name), answer
            )
        world.schedule.after(_ASK_TIMEOUT_MS, me.run, life, once, None)

    def _read(self, number: int) -> None:
        """Until there is an answer; `number` is this reading's."""
        epoch = self.leader_epoch

        def answered(answer: StateAnswer | None) -> None:
            if number != self._reading:
                return
            if answer is None or answer.error:
                again = partial(self._again, number)
                self.world.schedule.after(_RETRY_MS, self.broker.run, self.broker.life, again)
                return
            self._begin(answer)

        self._ask(lambda machine, key, token, now: machine.read(token, key, epoch, now), answered)

    def _again(self, number: int) -> None:
        if number == self._reading and isinstance(self.role, Leadership):
            self._read(number)

    def _begin(self, answer: StateAnswer) -> None:
        self.machine = LeaseTable(self.world.limits, answer.start_offset, answer.batches)
        self.state_epoch = answer.state_epoch
        self._waiting: dict[int, list[Said]] = {}
        self._said: list[Said] = []
        self.world.leasing.loaded(self, answer)
        self._later(_TICK_MS, self._tick)

    def _tick(self) -> None:
        table = self.machine
        assert table is not None
        table.expire(self.now_ms)
        self._flush()
        if not self._waiting and not table.runs() and self.world.rng.random() < 0.02:
            self._read_anew()  # the group is empty, as far as this leader knows
        else:
            self._later(_TICK_MS, self._tick)

    def _read_anew(self) -> None:
        self._drop(ErrorCode.FENCED_STATE_EPOCH)
        self._reading += 1
        self._read(self._reading)

    def _flush(self) -> None:
        """Writes what there is to write."""
        table = self.machine
        assert table is not None
        said, self._said = self._said, []
        change = table.take_change()
        if change is None:  # all of it lies below the start, or was renewed
            self._tell(said, ErrorCode.NONE)
            return
        self._waiting[change.number] = said
        self._write(table, change, 0)

    def _write(self, table: LeaseTable, change: Change, tries: int) -> None:
        if self.machine is not table:
            return
        epochs = self.state_epoch, self.leader_epoch
        write = StateWrite(*epochs, *change[1:])

        def answered(answer: StateAnswer | None) -> None:
            if self.machine is not table:
                return
            if answer is not None and not answer.error:
                table.committed(change.number)
                self._tell(self._waiting.pop(change.number), ErrorCode.NONE)
            elif answer is not None and answer.error in _REFUSED:
                self._read_anew()
            elif tries == _TRIES_MAX:
                self.world.leasing.gave_up(self, change)
                table.failed(change.number, self.now_ms)
                self._tell(self._waiting.pop(change.number), ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                self._later(_RETRY_MS, self._write, table, change, tries + 1)

        self._ask(lambda machine, key, token, now: machine.write(token, key, write, now), answered)

    def _tell(self, said: Sequence[Said], error: ErrorCode) -> None:
        for each in said:
            if not error:
                self.world.leasing.given_back(self, each.acknowledgements)
                self.world.leasing.answered(self, each.acknowledgements)
            each.answer(error)

    # -- members

    def acquire(
        self, member: str, demand: Demand, answer: Callable[[list[Acquired]], None]
    ) -> None:
        """ShareFetch, without waiting."""
        table, role = self.machine, self.role
        if table is None or not isinstance(role, Leadership) or self.broker.stepped_down:
            answer([])
            return
        table.advance_log_start(self.log.log_start_offset)
        self.world.leasing.log_started(self)
        asked = table.next_available(role.high_watermark)
        acquired: list[Acquired] = []
        if asked is not None:
            found = self.log.read(asked, _READ_BATCHES, role.high_watermark)
            batches = [
                ReadBatch(each.base_offset, each.end_offset - 1, is_dead(each)) for each in found
            ]
            acquired = table.acquire(
                member, asked, batches, role.high_watermark, demand, self.now_ms
            )
            self.world.leasing.acquired(self, member, acquired)
            self._flush()
        answer(acquired)

    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        answer: Callable[[ErrorCode], None],
    ) -> None:
        """ShareAcknowledge."""
        table = self.machine
        if table is None or self.broker.stepped_down:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        error = table.acknowledge(member, acknowledgements, self.now_ms)
        if error:
            answer(error)
            return
        self.world.leasing.said(self, acknowledgements)
        self._said.append(Said(acknowledgements, answer))
        self._flush()

    def close_session(self, member: str) -> None:
        """The member's connection is gone."""
        if self.machine is not None:
            self.world.leasing.closed(self, member)
            self.machine.close_session(member)
            self._flush()


_REFUSED = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.INVALID_REQUEST,
)

FINISHING = (AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)


def offsets_of(acknowledgements: Sequence[Acknowledgement], kinds: Sequence[int]) -> list[int]:
    """The offsets of which something of these kinds is said."""
    return [
        offset
        for first, last, types in acknowledgements
        for offset in range(first, last + 1)
        if types[offset - first if len(types) > 1 else 0] in kinds
    ]


def config_of(rng: Any) -> ShareStateConfig:
    """Snapshots after few updates or after many, and soon."""
    return ShareStateConfig(rng.choice([3, 20, 500]), rng.choice([200, 1_000]))
