"""One partition at one broker: what the server does around `core.replication`.

It executes what the rules decide, in the order that the package's docstring names, and keeps no
rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kraftpy.core.metadata import PartitionState
from kraftpy.core.metadata.partition_changes import rules_of
from kraftpy.core.replication import Following, IsrProposal, Leadership, epochs
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import BatchHeader
from tests.simulation.log import Batch, SimLog, stamped

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

Name = tuple[str, int]
BATCHES_PER_FETCH = 4


class Fetch(NamedTuple):
    """A follower's or (replica_id -1) a consumer's question to one partition."""

    replica_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """The answer; `leader_end` goes with OFFSET_OUT_OF_RANGE."""

    error: ErrorCode
    batches: tuple[Batch, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None
    leader_end: int = -1


FetchAnswer = Callable[[Fetched], None]
ProduceAnswer = Callable[[ErrorCode, int], None]


class Replica:
    """`role` is None while the partition has no leader that is known here.

    `damaged`: its disk has harmed it, so that it is to begin anew.
    """

    def __init__(self, broker: Broker, name: Name, log: SimLog, high_watermark: int) -> None:
        self.broker = broker
        self.world = broker.world
        self.name = name
        self.log = log
        self.role: Leadership | Following | None = None
        self.leader_epoch = -1
        self.damaged = False
        self.high_watermark = high_watermark
        self.waiting: list[tuple[int, int, ProduceAnswer]] = []  # end and base offset
        self.parked: list[tuple[Fetch, FetchAnswer, float]] = []
        self.fetch_number = 0

    @property
    def leads(self) -> bool:
        return isinstance(self.role, Leadership)

    # -- roles

    def follow_metadata(self, state: PartitionState) -> None:
        """Takes the role that the metadata gives this broker."""
        broker, role = self.broker, self.role
        if state.leader_epoch == self.leader_epoch:
            if isinstance(role, Leadership):
                moved = role.update(
                    state, self._min_isr(state), self.log.log_end_offset, self.world.now_ms
                )
                self._after_change(moved)
            return
        self.resign()
        self.leader_epoch = state.leader_epoch
        if state.leader == broker.id:
            self._lead(state)
        elif state.leader >= 0:
            self.role = Following(state, self.log, self.high_watermark)
            self.high_watermark = self.role.high_watermark
            self.world.schedule.after(0, broker.run, broker.life, self.fetch, self.role)

    def resign(self) -> None:
        """Ends every wait: somebody else may lead from now on."""
        if self.role is not None:
            self.high_watermark = self.role.high_watermark
        self.role = None
        waiting, self.waiting = self.waiting, []
        for _, _, answer in waiting:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        self.wake()

    def _lead(self, state: PartitionState) -> None:
        log = self.log
        self.world.invariants.becomes_leader(self, state)
        log.leader_epochs.assign(state.leader_epoch, log.log_end_offset)
        self.role = Leadership(
            self.broker.id,
            state,
            epoch_start_offset=log.log_end_offset,
            high_watermark=self.high_watermark,
            min_isr=self._min_isr(state),
            lag_max_ms=self.world.config.lag_max_ms,
            active=self.broker.active,
            now_ms=self.world.now_ms,
        )
        if self.world.config.flush_each:
            log.flush()
        self._after_change(self.role.advance(log.log_end_offset))

    def _min_isr(self, state: PartitionState) -> int:
        return min(rules_of(self.broker.metadata, self.name[0]).min_isr, len(state.replicas))

    # -- leading

    def produce(
        self, header: BatchHeader, values: tuple[object, ...], answer: ProduceAnswer
    ) -> None:
        """acks=all."""
        role = self.role
        if not isinstance(role, Leadership) or self.broker.stepped_down:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        if role.acks_all_error:
            answer(role.acks_all_error, -1)
            return
        log = self.log
        try:
            duplicate = log.producers.check(header, 0) if header.producer_id >= 0 else None
        except KafkaError as error:
            answer(error.code, -1)
            return
        if duplicate is not None:
            base_offset, end_offset = duplicate.base_offset, duplicate.last_offset + 1
        else:
            base_offset = log.log_end_offset
            self.append(stamped(header, base_offset, role.leader_epoch), values)
            end_offset = log.log_end_offset
            self.world.invariants.was_written(self, log.batches[-1])
        if role.high_watermark < end_offset:
            self.waiting.append((end_offset, base_offset, answer))
        else:
            answer(ErrorCode.NONE, base_offset)

    def append(self, header: BatchHeader, values: tuple[object, ...]) -> None:
        """As leader."""
        role, log = self.role, self.log
        assert isinstance(role, Leadership)
        log.append(Batch(header, values))
        if self.world.config.flush_each:
            self.world.schedule.after(
                self.world.config.flush_ms, self.broker.run, self.broker.life,
                self._flushed, role, log.log_end_offset,
            )  # fmt: skip
        else:
            self._after_change(role.advance(log.log_end_offset))
        self.wake(followers_only=True)

    def _flushed(self, role: Leadership, end_offset: int) -> None:
        if self.role is role:
            self.log.durable_end = max(self.log.durable_end, end_offset)
            self._after_change(role.advance(self.log.durable_end))

    def _after_change(self, moved: bool) -> None:
        role = self.role
        assert isinstance(role, Leadership)
        if moved:
            self.high_watermark = role.high_watermark
            self.world.invariants.watermark_moved(self, role.high_watermark)
            still = []
            for end_offset, base_offset, answer in self.waiting:
                if end_offset <= role.high_watermark:
                    answer(ErrorCode.NONE, base_offset)
                else:
                    still.append((end_offset, base_offset, answer))
            self.waiting = still
            self.wake()
        if role.expansion_due:
            self.propose()

    def propose(self) -> None:
        """Asks for the change of the ISR that is due, if one is."""
        role = self.role
        if isinstance(role, Leadership):
            moved, proposal = role.propose(self.world.now_ms, self.log.log_end_offset)
            if proposal is not None:
                self.broker.alter_partition(self, role, proposal)
            self._after_change(moved)

    def proposal_answered(
        self, role: Leadership, proposal: IsrProposal, error: ErrorCode | None
    ) -> None:
        if self.role is role:
            if error is None:
                role.unanswered(proposal, self.world.now_ms)
            else:
                role.answered(proposal, error, self.world.now_ms)

    def fetch_arrived(self, fetch: Fetch, answer: FetchAnswer) -> None:
        """A Fetch of a follower or a consumer; waits for records if there are none."""
        answered = self._answer(fetch, arrived=True)
        if answered is None:
            deadline = self.world.schedule.now + self.world.config.fetch_wait_ms
            self.parked.append((fetch, answer, deadline))
            self.world.schedule.after(
                self.world.config.fetch_wait_ms, self.broker.run, self.broker.life, self._expire
            )
        else:
            answer(answered)

    def _answer(self, fetch: Fetch, *, arrived: bool = False, last: bool = False) -> Fetched | None:
        """None when it may wait for more."""
        role, log = self.role, self.log
        if role is None or self.broker.stepped_down:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = fetch.replica_id >= 0
        if follower and isinstance(role, Leadership):
            error = role.check_fetch(fetch.replica_id, fetch.broker_epoch, fetch.leader_epoch)
        elif follower:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            error = epochs.check_leader_epoch(fetch.leader_epoch, role.leader_epoch)
        if error:
            return Fetched(error)
        try:
            diverging = epochs.divergence(log, fetch.offset, fetch.last_fetched_epoch)
        except KafkaError as failure:
            return self._out_of_range(failure.code)
        if diverging is not None:
            return Fetched(
                ErrorCode.NONE, diverging=diverging, log_start_offset=log.log_start_offset
            )
        if not log.log_start_offset <= fetch.offset <= log.log_end_offset:
            return self._out_of_range(ErrorCode.OFFSET_OUT_OF_RANGE)
        upper_offset = log.log_end_offset if follower else role.high_watermark
        if arrived and follower and isinstance(role, Leadership):
            moved = role.fetched(
                fetch.replica_id, fetch.broker_epoch, fetch.offset, fetch.log_start_offset,
                log.log_end_offset, self.world.now_ms,
            )  # fmt: skip
            self._after_change(moved)
        batches = log.read(fetch.offset, BATCHES_PER_FETCH, upper_offset)
        if not batches and not last:
            return None
        return Fetched(ErrorCode.NONE, tuple(batches), role.high_watermark, log.log_start_offset)

    def _out_of_range(self, error: ErrorCode) -> Fetched:
        log = self.log
        return Fetched(error, log_start_offset=log.log_start_offset, leader_end=log.log_end_offset)

    def wake(self, *, followers_only: bool = False) -> None:
        """Looks again at the fetches that wait."""
        parked, self.parked = self.parked, []
        for fetch, answer, deadline in parked:
            answered = None
            if fetch.replica_id >= 0 or not followers_only:
                answered = self._answer(fetch)
            if answered is None:
                self.parked.append((fetch, answer, deadline))
            else:
                answer(answered)

    def _expire(self) -> None:
        now = self.world.schedule.now
        due = [each for each in self.parked if each[2] <= now]
        self.parked = [each for each in self.parked if each[2] > now]
        for fetch, answer, _ in due:
            answer(self._answer(fetch, last=True) or Fetched(ErrorCode.NONE))

    # -- following

    def fetch(self, role: Following) -> None:
        """Asks the leader for what comes next; again after a while if no answer comes."""
        if self.role is not role:
            return
        self.fetch_number += 1
        offset, last_fetched_epoch = role.fetch_position(self.log)
        fetch = Fetch(
            self.broker.id, self.broker.epoch, role.leader_epoch, offset, last_fetched_epoch,
            self.log.log_start_offset,
        )  # fmt: skip
        broker, world = self.broker, self.world
        target = world.brokers.get(role.leader)
        number, life = self.fetch_number, broker.life

        def answer(fetched: Fetched) -> None:
            if broker.life == life:
                world.network.to_broker(role.leader, broker, self._fetched, fetch, fetched, number)

        if target is not None:
            world.network.to_broker(
                broker.id, target, target.fetch_arrived, self.name, fetch, answer
            )
        world.schedule.after(
            world.config.fetch_wait_ms * 2, broker.run, life, self._retry, role, number
        )

    def _retry(self, role: Following, number: int) -> None:
        if self.fetch_number == number:
            self.fetch(role)

    def _fetched(self, fetch: Fetch, fetched: Fetched, number: int) -> None:
        log, role = self.log, self.role
        if not isinstance(role, Following):
            return
        if not role.accepts(log, fetch.leader_epoch, fetch.offset):
            return
        delay_ms = 0.0
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._cut(role, role.restart(log, fetched.log_start_offset, fetched.leader_end))
        elif fetched.error:
            delay_ms = self.world.config.fetch_wait_ms / 2
        elif fetched.diverging is not None:
            self._cut(role, role.truncation(log, *fetched.diverging, fetched.log_start_offset))
        else:
            if fetched.batches and log.log_end_offset == log.log_start_offset:
                # The leader's log may start inside a batch (DeleteRecords); it sends all of it.
                base_offset = fetched.batches[0].base_offset
                if base_offset < log.log_end_offset:
                    log.truncate_fully_and_start_at(base_offset)
            for batch in fetched.batches:
                # A batch around the fetch offset comes as a whole, and is at our end as well.
                if batch.base_offset < log.log_end_offset:
                    self.world.invariants.fail(f"{self} is sent {batch} at {log.log_end_offset}")
                self._take(batch)
            if self.world.config.flush_each:
                delay_ms = self.world.config.flush_ms if fetched.batches else 0.0
                log.flush()
            if role.appended(log, fetched.high_watermark):
                self.high_watermark = role.high_watermark
                self.world.invariants.follower_moved(self)
                self.wake()
            log.advance_log_start(role.log_start(log, fetched.log_start_offset))
        if self.fetch_number == number:
            self.fetch_number += 1
            self.world.schedule.after(
                delay_ms, self.broker.run, self.broker.life, self._retry, role, self.fetch_number
            )

    def _take(self, batch: Batch) -> None:
        if batch.base_offset > self.log.log_end_offset:
            self.log.truncate_fully_and_start_at(batch.base_offset)
        self.log.append(batch)

    def _cut(self, role: Following, cut: object) -> None:
        if cut is None:
            return
        offset, fully = cut  # type: ignore[misc]
        if fully:
            self.log.truncate_fully_and_start_at(offset)
        else:
            self.log.truncate_to(offset)
        role.truncated(self.log)
        self.high_watermark = role.high_watermark
        self.broker.disk.lower_watermark(self.name)
        self.world.invariants.was_cut(self)

    def __str__(self) -> str:
        return f"{self.name[0]}-{self.name[1]} at broker {self.broker.id}"
