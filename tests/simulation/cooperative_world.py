"""A run with members that share partitions, and what must be true of claims after every event.

* Claims and the stable offset are within what members have processed, or somebody passed over.
* What was answered as claimed is covered until somebody resets it: in memory, and by whoever reads
  both logs after a crash now, whatever they have of what is under way.
* The stable offset falls only by a plain commit.
* What the coordinator knows is what a replay of its two logs gives.
* When an offset is set back, no claim from before is left.
* No tombstone is committed of a claim that the committed stable offset hasn't passed, and that is
  in no other claim, but by a reset.
* The shares that a leader deals out tile the partitions, but for what owners have yet to give up.
* While members are handed records, each hash has one who may be.
* The records of a key are handed out in their order, the first time. What a leader said is deleted
  was passed over, and may come again: a follower that hasn't heard of it may lead, and has it yet.
* Claims in transactions are those of `pending_claims`.
* In the end all is processed, and the stable offset is the end.

An election that loses committed records (see `invariants`) takes all that with it: from there on
only the rules of replication are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kraftpy.client.assignor import Assignor, Subscription
from kraftpy.client.ledger import Claim
from kraftpy.client.shares import on_line
from kraftpy.client.sharing import sharing_of
from kraftpy.client.spans import Spans, contains, intersect, join, size
from kraftpy.core.groups import GroupMachine
from kraftpy.core.groups import decode_record as decode_offset
from kraftpy.core.groups.individual.places import ClaimsLog
from kraftpy.core.groups.individual.records import decode_record as decode_claim
from kraftpy.core.groups.records import OffsetRecord
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, key_hash
from kraftpy.protocol.key_shares import Shares
from tests.simulation.claims import (
    CLAIMS,
    CLAIMS_PARTITION,
    OFFSETS_PARTITION,
    ClaimsReplica,
    OffsetsReplica,
    coordinator_at,
    load_claims,
    load_offsets,
    new_machine,
)
from tests.simulation.cooperative_faults import RESET, CooperativeFaults, Resetter
from tests.simulation.log import Batch
from tests.simulation.members import Alone, Claimer, Shared
from tests.simulation.pending_claims import PendingClaims
from tests.simulation.replica import Name, Replica
from tests.simulation.transacting import Transacting
from tests.simulation.transactional_world import TransactionInvariants
from tests.simulation.transactions import STATE_PARTITION, STATES, CoordinatorReplica
from tests.simulation.world import HEALING_MS, Outcome, World, play

GROUP, ALONE = "shared", "alone"
KEYS = 5
ASSIGNORS = ("range", "roundrobin", "kraftpy-cooperative-sticky", "kraftpy-colocate")
_REPLAYED_EVERY_MS = 200.0

Place = tuple[str, Name]
"""A group and a partition."""


class _Record(NamedTuple):
    value: object
    hash: int


def key_of(value: Any) -> bytes:
    """The key of a producer's record."""
    number, count = value
    return b"%d-%d" % (number, count % KEYS)


@lru_cache(1 << 16)
def hash_of(value: Any) -> int:
    return key_hash(key_of(value), 0)


class CooperativeInvariants:
    """Told of what is handed out, processed, answered and committed; raises `Violation`."""

    def __init__(self, world: CooperativeWorld) -> None:
        self.world = world
        self.claimed = 0
        """Claims that are committed."""
        self.apart = 0
        """How often another broker was seen to lead the claims than the offsets."""
        self.resets = 0
        self.replays = 0
        self._was_deposed = False
        self._records: dict[Name, list[_Record]] = defaultdict(list)
        self._handed: dict[str, set[object]] = defaultdict(set)
        self._processed: dict[str, set[object]] = defaultdict(set)
        """With what somebody passed over who reset the offset, or was told that it's deleted."""
        self._first: dict[tuple[str, bytes], tuple[int, object]] = {}
        self._answered: dict[Place, set[object]] = defaultdict(set)
        self._resetting: dict[Place, list[GroupMachine]] = defaultdict(list)
        self._stable: dict[Place, int] = {}
        self._resets_seen: set[str] = set()
        self._claims: dict[Place, dict[tuple[int, int, int], int]] = defaultdict(dict)
        self._seen: dict[Name, int] = defaultdict(int)
        self.pending = PendingClaims(self)

    def fail(self, what: str) -> None:
        if self.hold:
            self.world.invariants.fail(what)

    @property
    def hold(self) -> bool:
        """Whether nothing was lost that was committed."""
        return not (self.world.invariants.lost or self._was_deposed)

    def _committed_records(self, name: Name) -> list[_Record]:
        """What a partition has, by offset."""
        found, batches = self._records[name], self.world.invariants.batches[name]
        for batch in batches[self._seen[name] :]:
            found += [_Record(value, hash_of(value)) for value in batch.values]
        self._seen[name] = len(batches)
        return found

    def _among(self, name: Name, first: int, end: int) -> Iterator[tuple[int, _Record]]:
        """The committed records at these offsets that can still be read."""
        records = self._committed_records(name)
        for offset in range(max(first, self.world.log_start(name)), min(end, len(records))):
            yield offset, records[offset]

    # -- members

    def handed_out(self, member: Claimer, name: Name, offset: int, value: object) -> None:
        group_id, hash_ = member.group_id, hash_of(value)
        self.pending.check_handed_out((group_id, name), hash_, offset)
        for other in self.world.claimers:
            if other is not member and other.group_id == group_id and other.owns(name, hash_):
                self.fail(
                    f"member {member.number} is handed offset {offset} of {name}, and member "
                    f"{other.number} has its hash, too"
                )
        handed, processed = self._handed[group_id], self._processed[group_id]
        if value in handed or value in processed:
            return
        handed.add(value)
        key = group_id, key_of(value)
        before, other_value = self._first.get(key, (-1, None))
        if offset < before:
            self.fail(
                f"{value} at offset {offset} of {name} is handed out for the first time, and "
                f"{other_value} of its key was before, from offset {before}"
            )
        self._first[key] = offset, value

    def processed(self, member: Claimer, value: object) -> None:
        self._processed[member.group_id].add(value)

    def skipped(self, member: Claimer, name: Name, slices: Spans, log_start: int) -> None:
        """A member is told that there is nothing below an offset any more, and goes on there.

        Deletions are no part of what replicas agree on: each has a log start of its own, and one
        that lags behind comes to lead. Until the member's claim is committed, what it passed over
        comes again with all the rest above the stable offset, as after any crash.
        """
        deleted = self._committed_records(name)[:log_start]
        self._processed[member.group_id].update(
            record.value for record in deleted if contains(slices, record.hash)
        )

    def answered(self, group_id: str, name: Name, claims: Iterable[Claim]) -> None:
        """The coordinator says that this is claimed."""
        place = group_id, name
        if not self._is_resetting(place):
            self._answered[place] |= self.values_of(place, claims)

    def values_of(self, place: Place, claims: Iterable[Claim]) -> set[object]:
        """The records that are claimed."""
        return {
            record.value
            for low, high, first, last in claims
            for _, record in self._among(place[1], first, last + 1)
            if low <= record.hash <= high
        }

    def values_below_stable(self, place: Place) -> set[object]:
        """The records that the committed stable offset has passed."""
        among = self._among(place[1], 0, self._stable.get(place, 0))
        return {record.value for _, record in among}

    def counts(self, place: Place, claims: Iterable[Claim]) -> None:
        """A transaction is committed that has claimed this."""
        group_id, name = place
        for low, high, first, last in claims:
            self.claimed += 1
            self._check_processed(place, first, last + 1, low, high, "a transaction's claim")
        self.answered(group_id, name, claims)

    def begin_reset(self, place: Place, machine: GroupMachine) -> None:
        """A plain commit from outside has arrived: claims may be dropped from here on."""
        self._resetting[place].append(machine)
        self._answered[place].clear()

    def end_reset(self, place: Place, machine: GroupMachine) -> None:
        """It is answered."""
        if machine in self._resetting[place]:
            self._resetting[place].remove(machine)

    @property
    def is_resetting(self) -> bool:
        """Whether any offset may be reset yet."""
        return any(self._is_resetting(place) for place in self._resetting)

    def _is_resetting(self, place: Place) -> bool:
        there = [coordinator_at(broker) for broker in self.world.brokers.values()]
        machines = [at.machine for at in there if at is not None]
        left = [each for each in self._resetting[place] if each in machines]
        self._resetting[place] = left
        return bool(left)

    def divided(
        self, assignor: Assignor, members: Mapping[str, Subscription], shares: Mapping[str, Shares]
    ) -> None:
        """A leader deals shares out."""
        numbers = [number for _, number in self.world.data_names]
        given = [on_line(each, self.world.DATA, numbers) for each in shares.values()]
        listed: dict[str, Spans] = {}
        if assignor.cooperative:
            listed = {
                member: on_line(sharing_of(each).owned, self.world.DATA, numbers)
                for member, each in members.items()
            }
        whole = [(0, SLOTS * len(numbers))]
        if sum(map(size, given)) != size(join(piece for each in given for piece in each)):
            self.fail(f"{assignor.name} gives a slot to two members: {shares}")
        if join(piece for each in (*given, *listed.values()) for piece in each) != whole:
            self.fail(f"{assignor.name} gives not all away: {shares}")
        for member, spans in zip(shares, given, strict=True):
            for other, its in listed.items():
                if other != member and intersect(spans, its):
                    self.fail(f"{assignor.name} gives {member} what {other} has: {shares}")

    # -- the coordinator's logs

    def committed(self, replica: Replica) -> None:
        """A leader's watermark moved: takes in what is committed now.

        Offsets come first: what follows on one may be committed before its leader gets here.
        """
        if replica.leader_epoch < self.world.invariants.oldest_epoch[replica.name]:
            self._was_deposed = True
        if not self.hold:
            return
        for name, take in (
            (OFFSETS_PARTITION, self._take_offsets),
            (CLAIMS_PARTITION, self._take_claims),
        ):
            committed = self.world.invariants.batches[name]
            seen, self._seen[name] = self._seen[name], len(committed)
            for batch in committed[seen:]:
                take(batch)

    def _take_offsets(self, batch: Batch) -> None:
        values: Iterable[Any] = batch.values
        for key, value in values:
            record = decode_offset(key, value)
            if not isinstance(record, OffsetRecord) or record.committed is None:
                continue
            name = record.topic, record.partition
            place = record.group_id, name
            before = self._stable.get(place, -1)
            offset, metadata = record.committed.offset, record.committed.metadata
            self._stable[place] = offset
            if metadata.startswith(RESET) and metadata not in self._resets_seen:
                self._resets_seen.add(metadata)
                self._passed(place, offset)
                above = [key for key, last in self._claims[place].items() if last >= offset]
                if above and offset < before:
                    self.fail(f"{place} is set back to {offset}, and there are claims yet: {above}")
            elif offset < before:
                self.fail(f"the stable offset of {place} falls from {before} to {offset}")
            elif before >= 0:
                self._check_processed(place, before, offset, 0, HASH_MAX, "the stable offset")
            else:  # The group begins at the log's start.
                self._passed(place, min(offset, self.world.log_start(name)))

    def _passed(self, place: Place, offset: int) -> None:
        """An offset was set: nobody need process what is below, also if it's deleted."""
        group_id, name = place
        below = self._committed_records(name)[:offset]
        self._processed[group_id].update(record.value for record in below)

    def _take_claims(self, batch: Batch) -> None:
        if batch.marker is not None:
            self.pending.end(batch.header.producer_id, committed=batch.marker.committed)
            return
        values: Iterable[Any] = batch.values
        gone: list[tuple[Place, tuple[int, int, int], int]] = []
        for key, value in values:
            record = decode_claim(key, value)
            assert record is not None
            if record.transaction is not None:
                self.pending.take(record)
                continue
            place = record.group_id, (record.topic, record.partition)
            claim_key = record.low, record.high, record.first
            known = self._claims[place]
            if record.state is None:
                last = known.pop(claim_key, None)
                if last is not None:
                    gone.append((place, claim_key, last))
                continue
            self.claimed += 1
            known[claim_key] = record.state.last
            end = record.state.last + 1
            self._check_processed(place, record.first, end, record.low, record.high, "a claim")
        for each in gone:
            self.check_passed(*each)

    def check_passed(self, place: Place, claim_key: tuple[int, int, int], last: int) -> None:
        """A tombstone is committed: the stable offset or other claims have to say the same."""
        low, high, first = claim_key
        if place[0] == GROUP and self._stable.get(place, -1) <= last:
            left = join(
                (begin, its_last + 1)
                for (its_low, its_high, begin), its_last in self._claims[place].items()
                if (its_low, its_high) == (low, high)
            )
            above = [(max(first, self._stable.get(place, 0)), last + 1)]
            if intersect(left, above) != above:
                self.fail(
                    f"a tombstone of the claim {first}-{last} of {place} is committed, and "
                    f"the stable offset is {self._stable.get(place)}"
                )

    def _check_processed(
        self, place: Place, first: int, end: int, low: int, high: int, what: str
    ) -> None:
        group_id, name = place
        processed = self._processed[group_id]
        for offset, record in self._among(name, first, end):
            if low <= record.hash <= high and record.value not in processed:
                self.fail(
                    f"{what} of {group_id} on {name}, {first}-{end - 1}, is committed, and nobody "
                    f"has processed {record.value} at offset {offset}"
                )

    # -- replays

    def replay_now_and_then(self) -> None:
        world = self.world
        world.schedule.after(
            world.rng.expovariate(1 / _REPLAYED_EVERY_MS), self.replay_now_and_then
        )
        logs = map(world.partition, (OFFSETS_PARTITION, CLAIMS_PARTITION))
        self.apart += len({each.leader for each in logs} - {-1}) > 1
        if self.hold:
            self._replay(tails=True)
            self._compare()

    def _replay(self, *, tails: bool) -> GroupMachine:
        """Who takes over now, and may have some of what is under way."""
        machine = new_machine(self.world)
        offsets, claims = [
            self._batches(name, tails=tails) for name in (OFFSETS_PARTITION, CLAIMS_PARTITION)
        ]
        values = [value for batch in offsets for value in batch.values]
        load_offsets(machine, values, self.world.now_ms)
        load_claims(machine, claims, self.world.now_ms)
        self.replays += 1
        if tails:
            for place in self._places():
                self._check_replayed(machine, place)
        return machine

    def _places(self) -> list[Place]:
        return [
            (group_id, name) for group_id in self.world.groups for name in self.world.data_names
        ]

    def _batches(self, name: Name, *, tails: bool) -> list[Batch]:
        """What a log has, and with `tails` some of what its leader has not committed yet."""
        committed = self.world.invariants.batches[name]
        batches = list(committed)
        leader = self.world.brokers.get(self.world.partition(name).leader)
        if tails and leader is not None:
            end_offset = committed[-1].end_offset if committed else 0
            log = self.world.log_of(leader.id, name)
            tail = log.read(end_offset, 1 << 30, log.log_end_offset)
            batches += tail[: self.world.rng.randint(0, len(tail))]
        return batches

    def _done(self, machine: GroupMachine, place: Place) -> set[object]:
        """The records that a machine takes for done."""
        group_id, name = place
        key = (group_id, *name)
        stable = machine.claims.stable_offset(key)
        found = {record.value for _, record in self._among(name, 0, stable)}
        for low, high, first, last in machine.claims.coverage(key) or ():
            for _, record in self._among(name, first, last + 1):
                if low <= record.hash <= high:
                    found.add(record.value)
        return found

    def _check_replayed(self, machine: GroupMachine, place: Place) -> None:
        group_id, name = place
        done = self._done(machine, place)
        there = {record.value for _, record in self._among(name, 0, 1 << 62)}
        if lost := (self._answered[place] & there) - done:
            self.fail(f"{place}: answered as claimed, and who takes over lacks {lost}")
        # An offset that somebody sets and that isn't committed yet passes over records, too.
        if group_id == GROUP and (more := done - self._processed[group_id]):
            self.fail(f"{place}: who takes over has as done what nobody processed: {more}")

    def _compare(self) -> None:
        """What the coordinator knows is what its logs say."""
        for broker in self.world.brokers.values():
            at = coordinator_at(broker)
            if at is None or at.machine is None or at.twin is None:
                continue
            if at.machine.claims.state is not ClaimsLog.OPEN:
                continue
            if any(
                each.high_watermark != _end(self.world.invariants.batches[each.name])
                for each in (at, at.twin)
            ):
                continue
            replayed = self._replay(tails=False)
            for place in self._places():
                key = (place[0], *place[1])
                stable = [m.claims.stable_offset(key) for m in (at.machine, replayed)]
                done = [self._done(m, place) for m in (at.machine, replayed)]
                if stable[0] != stable[1] or done[0] != done[1]:
                    self.fail(
                        f"{place}: the coordinator at broker {broker.id} knows {stable[0]}, its "
                        f"logs say {stable[1]}; they differ in {done[0] ^ done[1]}"
                    )

    # -- the end

    @property
    def progress(self) -> int:
        """How far all stable offsets are, in all."""
        return sum(self._stable.values())

    def all_done(self) -> bool:
        if not self.pending.are_over:
            return False
        for group_id, name in self._places():
            end_offset = _end(self.world.invariants.batches[name])
            if self._stable.get((group_id, name), -1) != end_offset:
                return False
        return True

    def check_end(self) -> None:
        if not self.hold:
            return
        for group_id, name in self._places():
            self._check_processed((group_id, name), 0, 1 << 62, 0, HASH_MAX, "the end")


def _end(batches: list[Any]) -> int:
    end_offset: int = batches[-1].end_offset if batches else 0
    return end_offset


class CooperativeWorld(World):
    """A world in which members share partitions."""

    FAULTS = CooperativeFaults
    groups: tuple[str, ...] = (GROUP, ALONE)
    may_transact = True

    late_until = 0.0
    """When what brokers were sent that stood still has arrived, be it that nobody waits for it."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.cooperative = CooperativeInvariants(self)
        self.transactions = TransactionInvariants(self)
        self.claimers: list[Claimer] = []
        # Half of the seeds that are played have transactions, and the others are quicker.
        self._transacts = self.may_transact and bool(seed & 4)
        if self._transacts:
            self.INTERNAL = (*World.INTERNAL, STATES)
        self._log_starts: dict[Name, int] = {}
        self.hindered: dict[int, float] = {}
        """Until when brokers come no further with the claims."""
        super().__init__(seed, trace=trace)

    hash_of = staticmethod(hash_of)

    @property
    def data_names(self) -> list[Name]:
        return [(self.DATA, number) for number in range(self.config.partitions)]

    def end_of(self, name: Name) -> int:
        """Up to where a partition is committed."""
        return _end(self.invariants.batches[name])

    def log_start(self, name: Name, told: int = 0) -> int:
        """What anybody has seen to be the first offset; `told` is what a leader says."""
        starts = [self.log_of(each, name).log_start_offset for each in self.brokers]
        self._log_starts[name] = max(self._log_starts.get(name, 0), told, *starts)
        return self._log_starts[name]

    def replica_of(self, name: Name) -> type[Replica]:
        if name == CLAIMS_PARTITION:
            return ClaimsReplica
        if name == STATE_PARTITION:
            return CoordinatorReplica
        return OffsetsReplica if name == OFFSETS_PARTITION else Replica

    def start(self) -> None:
        super().start()
        topic = {
            "name": CLAIMS,
            "topic_id": bytes(12) + (99).to_bytes(4, "big"),
            "partitions": -1,
            "replication_factor": -1,
            "configs": {"unclean.leader.election.enable": "false"},
            "twin_of": OFFSETS_PARTITION[0],
        }
        answer = self.quorum.ask({"type": "create_topics", "seed": 0, "topics": [topic]})
        assert all(not item["error"] for item in answer.value["topics"]), answer

    def _use(self, name: Name) -> None:
        if name != OFFSETS_PARTITION:
            return
        assignor = self.rng.choice(ASSIGNORS)
        for number in range(self.rng.randint(2, 4)):
            kind = Transacting if self._transacts and number % 2 else Shared
            self.claimers.append(kind(self, GROUP, number, assignor))
        bounds = [0, HASH_MAX // 3, HASH_MAX + 1]
        for number in range(2):
            low, high = bounds[number], bounds[number + 1] - 1
            self.claimers.append(Alone(self, ALONE, 10 + number, low, high))
        self.resetter = Resetter(self, ALONE, 20)
        for each in self.claimers:
            each.start()
        self.cooperative.replay_now_and_then()

    def _settle(self) -> None:
        checks = self.cooperative
        if not checks.hold:
            return
        logs = [
            broker.replicas.get(name)
            for broker in self.brokers.values()
            for name in (OFFSETS_PARTITION, CLAIMS_PARTITION)
        ]
        if any(log is not None and log.damaged for log in logs):
            # With as many in-sync replicas as there are, none can be given up to begin anew, and
            # damaged ones hand the lead to each other: an administrator has to ask for fewer.
            self.set_config(OFFSETS_PARTITION[0], "min.insync.replicas", "1")
        self.run_until(
            lambda: (
                self.schedule.now > self.late_until
                and not self.resetter.asking
                and not checks.is_resetting
            ),
            "every reset is answered",
            HEALING_MS,
        )
        for each in self.claimers:
            if isinstance(each, Alone):  # Who reset the offset starts them again.
                each.crash()
                each.start()
        while not self._is_settled():
            self._go_on()
        checks.check_end()

    def _is_settled(self) -> bool:
        return self.cooperative.all_done() or not self.cooperative.hold

    def _go_on(self) -> None:
        """As much as members may have to do, some of it is done after such a time."""
        before = self.cooperative.progress
        self.run_until(
            lambda: self._is_settled() or self.cooperative.progress > before,
            "more is claimed",
            HEALING_MS,
        )


def simulate_cooperative(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs one seed with members that share partitions."""
    world = CooperativeWorld(seed, trace)
    return play(world, trace)._replace(claimed=world.cooperative.claimed, cooperative=True)
