"""What must hold after every event, whatever went wrong (docs/rules.md, "Invariants").

The simulation knows what nobody in it knows: all that was ever below the high watermark of a
leader. That is committed, and

* Leader Completeness: who becomes leader has all of it;
* Leader Candidate Completeness: so has every member of the controller's ISR and ELR, unless it died
  and lost records, which the controller learns when its next life registers;
* Log Matching: below its own high watermark every replica has it and nothing else;
* Replication Quorum Superset: while a leader's high watermark may move, the replicas that it waits
  for include the controller's ISR and ELR;
* Unclean Exclusion: who registers without a clean-shutdown marker is in no ISR and no ELR;
* Consistent Read: what a consumer reads, from any replica, is it;
* an acknowledged record is in it, where the producer was told, once and in its producer's order. A
  replica whose log begins behind what a producer wrote doesn't know of it (rule 26): it takes what
  is sent again, and what is in the log from there on is once and in order;
* one leader per epoch, and Metadata Log Matching: brokers that applied the same index agree.

Two kinds of elections may lose records, as documented: that of a last known leader which lost what
wasn't synced (no replica is known to have more), and an unclean one where it is allowed. Then what
the new leader has becomes what is committed, and what it lacks is counted in `losses`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata import (
    NO_LEADER,
    MetadataState,
    PartitionChanged,
    PartitionState,
    Result,
)
from kraftpy.core.metadata.partition_changes import rules_of
from kraftpy.core.replication import Leadership
from kraftpy.protocol.errors import ErrorCode
from tests.simulation.log import Batch, SimLog, _base_offset_of

if TYPE_CHECKING:
    from tests.simulation.replica import Name, Replica
    from tests.simulation.world import World


class Violation(AssertionError):
    """An invariant doesn't hold."""


def brief(state: PartitionState) -> str:
    """A partition's state for people."""
    parts = [f"leader {state.leader}, leader epoch {state.leader_epoch}"]
    parts += [f"partition epoch {state.partition_epoch}", f"replicas {state.replicas}"]
    parts += [f"ISR {state.isr}", f"ELR {state.elr}", f"last known {state.last_known_elr}"]
    return ", ".join(parts) + f", adding {state.adding}, removing {state.removing}"


def has(log: SimLog, batch: Batch) -> bool:
    """Whether the log has exactly this batch, or had it before its start moved on."""
    return log.log_start_offset >= batch.end_offset or log.batch_before(batch.end_offset) is batch


class Invariants:
    """Called by all parts of the simulation; raises `Violation`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: dict[Name, list[Batch]] = defaultdict(list)  # what is committed
        self.acknowledged: dict[object, tuple[Name, int]] = {}
        self.lost: set[object] = set()
        self.written_anew: set[Batch] = set()
        self.losses = 0
        self.irregular_elections = 0
        # Leaders of older epochs don't know of the last election that could lose records.
        self.oldest_epoch: dict[Name, int] = defaultdict(int)
        self._leaders: dict[tuple[Name, int], tuple[int, int]] = {}
        # Broker and partition to the broker epoch in which records were lost.
        self._lost_in: dict[tuple[int, Name], int] = {}
        self._lost_since_in_sync: set[tuple[int, Name]] = set()

    def fail(self, what: str) -> None:
        raise Violation(what)

    # -- the metadata

    def all_partitions(self, state: MetadataState) -> list[Any]:
        """What brokers that applied the same index must agree on."""
        found: list[Any] = [
            each for topic in state.sorted_topics() for each in topic.partitions.values()
        ]
        return found + [state.brokers[id_] for id_ in sorted(state.brokers)]

    def metadata_applied(self, broker_id: int, metadata: MetadataState) -> None:
        if self.all_partitions(metadata) != self.world.quorum.partitions_at[metadata.applied_index]:
            self.fail(
                f"Metadata Log Matching: broker {broker_id} has another state at index "
                f"{metadata.applied_index}"
            )

    def committed(self, command: dict[str, Any], result: Result) -> None:
        """A command of the metadata log was carried out."""
        state = self.world.quorum.state
        if command["type"] == "register_broker" and result.error is ErrorCode.NONE:
            self._check_unclean_exclusion(state, command)
        for change in result.changes:
            if isinstance(change, PartitionChanged) and change.old is not None:
                name = (change.topic.name, change.index)
                old, new = change.old, change.new
                if new.leader not in (old.leader, NO_LEADER, *old.isr, *old.elr) and (
                    command["type"] != "alter_partition"  # which makes the ISR as well
                ):
                    self._irregular_election(name, old, new, command)
                joined = command["type"] == "alter_partition" and set(new.isr) - set(old.isr)
                for id_ in joined or ():
                    if self._lost_in.get((id_, name)) != state.brokers[id_].epoch:
                        self._lost_since_in_sync.discard((id_, name))
                self.check_candidates(name)
                self.check_superset(name)

    def _check_unclean_exclusion(self, state: MetadataState, command: dict[str, Any]) -> None:
        id_ = command["broker_id"]
        if command["previous_broker_epoch"] >= 0:
            return
        if state.brokers[id_].epoch != state.applied_index:
            return  # the same life asked again
        for topic in state.topics.values():
            for index, partition in topic.partitions.items():
                if id_ in partition.isr or id_ in partition.elr:
                    self.fail(
                        f"Unclean Exclusion: broker {id_} registers after an unclean stop and is "
                        f"still in the ISR or ELR of {topic.name}-{index}: {brief(partition)}"
                    )

    def _irregular_election(
        self, name: Name, old: PartitionState, new: PartitionState, command: dict[str, Any]
    ) -> None:
        unclean = rules_of(self.world.quorum.state, name[0]).unclean or (
            command["type"] == "elect_leaders" and command["election_type"] == 1
        )
        self.irregular_elections += 1
        log = self.world.log_of(new.leader, name)
        committed = self.batches[name]
        keep = len(committed)
        while keep and not has(log, committed[keep - 1]):
            keep -= 1
        if keep < len(committed):
            if not unclean and (new.leader, name) not in self._lost_since_in_sync:
                self.fail(
                    f"Leader Completeness: the last known leader {new.leader} of {name} lost "
                    f"nothing, but lacks {committed[keep]}: {brief(old)} -> {brief(new)}"
                )
            for batch in committed[keep:]:
                self.losses += len(batch.values)
                self.lost.update(batch.values)
            del committed[keep:]
        # It may know of records as committed that an election before this one gave up.
        end_offset = committed[-1].end_offset if committed else 0
        committed += log.read(end_offset, 1 << 30, self.world.watermark_of(new.leader, name))
        self.oldest_epoch[name] = new.leader_epoch

    def may_have_lost(self, broker_id: int, names: list[Name]) -> None:
        """The broker is down, and records of these partitions are gone from its disk."""
        known = self.world.quorum.state.brokers.get(broker_id)
        for name in names:
            self._lost_in[broker_id, name] = -1 if known is None else known.epoch
            self._lost_since_in_sync.add((broker_id, name))

    def begins_anew(self, broker_id: int, name: Name) -> None:
        """A damaged replica is dropped, which an unclean election may have chosen meanwhile."""
        partition = self.world.partition(name)
        if partition.leader != broker_id or partition.leader_epoch != self.oldest_epoch[name]:
            return
        for batch in self.batches.pop(name, []):
            self.losses += len(batch.values)
            self.lost.update(batch.values)

    def check_candidates(self, name: Name) -> None:
        """Leader Candidate Completeness."""
        committed = self.batches[name]
        if not committed:
            return
        state = self.world.quorum.state
        partition = self.world.partition(name)
        for id_ in (*partition.isr, *partition.elr):
            known = state.brokers.get(id_)
            if known is not None and self._lost_in.get((id_, name)) == known.epoch:
                continue
            if not has(self.world.log_of(id_, name), committed[-1]):
                self.fail(
                    f"Leader Candidate Completeness: broker {id_} may lead {name} but lacks "
                    f"{committed[-1]}: {brief(partition)}"
                )

    def check_superset(self, name: Name) -> None:
        """Replication Quorum Superset."""
        partition = self.world.partition(name)
        broker = self.world.brokers.get(partition.leader)
        replica = None if broker is None else broker.replicas.get(name)
        role = None if replica is None else replica.role
        if (
            isinstance(role, Leadership)
            and role.leader_epoch == partition.leader_epoch
            and len(role.isr) >= role.min_isr
            and not role.state.elr
            and not role.maximal_isr.issuperset((*partition.isr, *partition.elr))
        ):
            self.fail(
                f"Replication Quorum Superset: the leader of {name} waits for "
                f"{sorted(role.maximal_isr)} but the controller has {brief(partition)}"
            )

    # -- replicas

    def becomes_leader(self, replica: Replica, state: PartitionState) -> None:
        name, broker = replica.name, replica.broker
        me = (broker.id, broker.life)
        if self._leaders.setdefault((name, state.leader_epoch), me) != me:
            self.fail(f"{replica} leads epoch {state.leader_epoch}, as another one does or did")
        committed = self.batches[name]
        if (
            committed
            and state.leader_epoch >= self.oldest_epoch[name]
            and state.leader_epoch == self.world.partition(name).leader_epoch
            and not has(replica.log, committed[-1])
        ):
            self.fail(
                f"Leader Completeness: {replica} leads without {committed[-1]}: {brief(state)}"
            )

    def watermark_moved(self, replica: Replica, watermark: int) -> None:
        """A leader's. What is below is committed from now on."""
        name, log = replica.name, replica.log
        committed = self.batches[name]
        end_offset = committed[-1].end_offset if committed else 0
        if replica.leader_epoch < self.oldest_epoch[name]:
            for batch in log.read(end_offset, 1 << 30, watermark):
                self.lost.update(batch.values)
            return
        if watermark <= end_offset:
            self._check_prefix(replica, watermark)
            return
        if committed and not has(log, committed[-1]):
            self.fail(f"Log Matching: {replica} commits past {committed[-1]} without having it")
        committed += log.read(max(end_offset, log.log_start_offset), 1 << 30, watermark)
        if committed[-1].end_offset != watermark:
            self.fail(f"the high watermark {watermark} of {replica} isn't between batches")
        self.check_candidates(name)
        self.check_superset(name)

    def follower_moved(self, replica: Replica) -> None:
        self._check_prefix(replica, replica.high_watermark)

    def was_cut(self, replica: Replica) -> None:
        self.check_candidates(replica.name)

    def _check_prefix(self, replica: Replica, watermark: int) -> None:
        """Log Matching, given that it held before."""
        if watermark <= replica.log.log_start_offset:
            return
        if replica.leader_epoch < self.oldest_epoch[replica.name]:
            return
        batch = replica.log.batch_before(watermark)
        if batch is not self._batch_at(replica.name, watermark - 1):
            self.fail(f"Log Matching: {replica} has {batch} below its high watermark {watermark}")

    def _batch_at(self, name: Name, offset: int) -> Batch | None:
        committed = self.batches[name]
        index = bisect_right(committed, offset, key=_base_offset_of) - 1
        if index >= 0 and offset < committed[index].end_offset:
            return committed[index]
        return None

    # -- clients

    def was_written(self, replica: Replica, batch: Batch) -> None:
        """A leader took these records from a producer; maybe not for the first time."""
        begin = replica.log.batches[0].base_offset
        if not begin:
            return
        earlier = [each for each in self.batches[replica.name] if each.values == batch.values]
        if earlier and earlier[-1].base_offset < begin:
            self.written_anew.add(batch)

    def was_read(self, name: Name, leader_epoch: int, batches: tuple[Batch, ...]) -> None:
        """A consumer got these."""
        if leader_epoch < self.oldest_epoch[name]:
            return
        for batch in batches:
            if self._batch_at(name, batch.base_offset) is not batch and not self.lost.issuperset(
                batch.values
            ):
                self.fail(f"Consistent Read: a consumer of {name} got {batch}, not committed")

    def was_deleted(self, name: Name, values: tuple[object, ...]) -> bool:
        """Whether these records were committed, and a log begins behind them."""
        ends = [batch.end_offset for batch in self.batches[name] if batch.values == values]
        logs = [self.world.log_of(each, name) for each in self.world.brokers]
        return any(log.log_start_offset >= end for log in logs for end in ends)

    def was_acknowledged(self, name: Name, base_offset: int, values: tuple[object, ...]) -> None:
        """A producer was told that its records are at this offset and after it."""
        if not self.lost.isdisjoint(values):
            return
        batch = self._batch_at(name, base_offset)
        if batch is None or batch.base_offset != base_offset or batch.values != values:
            self.fail(
                f"{values} were acknowledged at offset {base_offset} of {name}; {batch} is there"
            )
        for number, value in enumerate(values):
            self.acknowledged[value] = (name, base_offset + number)

    def check_end(self) -> None:
        """All is healed and quiet: every log is the same, and has what was acknowledged once."""
        for name in self.world.names():
            partition = self.world.partition(name)
            logs = [self.world.log_of(id_, name) for id_ in partition.replicas]
            for log in logs:
                if log.log_end_offset != logs[0].log_end_offset or not all(
                    has(log, batch) for batch in self.batches[name]
                ):
                    self.fail(
                        f"the logs of {name} differ in the end: {[each.batches for each in logs]}"
                    )
            seen: dict[object, int] = {}
            newest: dict[tuple[int, int], int] = {}
            for batch in logs[0].batches:
                is_anew = batch in self.written_anew
                for place, value in enumerate(batch.values):
                    if batch.header.base_sequence < 0:
                        continue  # a coordinator's
                    number, count = value  # type: ignore[misc]
                    producer = batch.header.producer_id, number
                    if is_anew:
                        newest.pop(producer, None)
                    elif value in seen:
                        self.fail(f"{value} is in {name} twice: at {seen[value]} and in {batch}")
                    seen[value] = batch.base_offset + place
                    if count < newest.get(producer, -1):
                        self.fail(
                            f"{value} is in {name} after a newer one of its producer: {batch}"
                        )
                    newest[producer] = count
            start_offset = max(each.log_start_offset for each in logs)
            for value, (where, offset) in self.acknowledged.items():
                if where != name or value in self.lost or offset < start_offset:
                    continue
                if seen.get(value) != offset:
                    self.fail(f"{value} was acknowledged at {offset} of {name} and is gone")
