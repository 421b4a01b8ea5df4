"""Members that claim what they have done of slices: of a group, and alone with slices by hand.

What they own, hand out, claim and say to each other is decided by the client's own parts (`ledger`,
the assignors, `handover`, what members write into their metadata). What is around these is that of
`client.group` and `client.consumer`, on simulated connections: a member stands still, dies without
a word, and comes again as another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.client.assignor import Subscription
from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.group import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kraftpy.client.handover import hand_over
from kraftpy.client.ledger import Claim, Dues, Lane, Ledger
from kraftpy.client.shares import hashes_of_slots, slots_of_hashes
from kraftpy.client.spans import Spans, contains, subtract
from kraftpy.core.coordination import Effects
from kraftpy.core.groups import Client as GroupClient
from kraftpy.core.groups import GroupMachine
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import (
    EXPECTED_OFFSET_TAG,
    LAST_STABLE_OFFSET_TAG,
    SLICES_TAG,
    decode_int64,
    encode_int64,
    encode_slices,
)
from kraftpy.protocol.key_shares import Shares, ShareSubscription
from tests.simulation.claims import (
    OFFSETS_PARTITION,
    REBALANCE_MS,
    SESSION_MS,
    Act,
    at_coordinator,
)
from tests.simulation.clients import CLIENT, RETRY_MS, TIMEOUT_MS, Client
from tests.simulation.network import Connection
from tests.simulation.processes import Process
from tests.simulation.replica import Fetch, Fetched, Name

if TYPE_CHECKING:
    from tests.simulation.cooperative_world import CooperativeWorld

_HEARTBEAT_MS = 150.0
_POLL_MS = 40.0
_COMMIT_MS = 120.0
_JOIN_TIMEOUT_MS = REBALANCE_MS + 500.0
_CLIENT = GroupClient(3, "c", "/127.0.0.1")
_OUTDATED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
DONE = (ErrorCode.NONE, ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD)
"""What claims are answered that count, or needn't."""


class Claimer(Client, Process):
    """Reads slices of partitions, has records done out of order, and claims what is done."""

    def __init__(self, world: CooperativeWorld, group_id: str, number: int) -> None:
        Client.__init__(self, world, OFFSETS_PARTITION)
        Process.__init__(self)
        self.world: CooperativeWorld = world
        self.group_id = group_id
        self.number = number
        self._readers = {name: Client(world, name) for name in world.data_names}
        self._forget()

    def _forget(self) -> None:
        """All that a process knows."""
        self.member_id, self.generation = "", -1
        self.slices: dict[Name, Spans] = {}
        self.ledgers: dict[Name, Ledger] = {}
        self.unlocated: set[Name] = set()
        self._connection: Connection | None = None
        self._committing = False

    # -- lives

    def start(self) -> None:
        self.life += 1
        self._forget()
        self.after(_POLL_MS, self._poll)
        self.after(_COMMIT_MS, self._commit_now_and_then)

    def crash(self) -> None:
        self.life += 1
        self.paused_until = 0.0

    def after(self, delay_ms: float, function: Callable[..., None], *args: Any) -> None:
        delay_ms *= self.world.rng.uniform(0.7, 1.3)
        self.world.schedule.after(delay_ms, self.run, self.life, function, *args)

    # -- the coordinator

    def ask(
        self,
        act: Act,
        answered: Callable[[Any], None],
        timeout_ms: float = TIMEOUT_MS,
        at: Callable[..., None] = at_coordinator,
    ) -> None:
        """Hears the answer, or None: nobody coordinates there, or time is up."""
        waits = [True]

        def once(said: Any) -> None:
            if waits:
                waits.clear()
                answered(said)

        def over() -> None:
            if waits:
                self._connection = None
                once(None)

        leader, life = self.find_leader(), self.life
        if leader is None:
            self.after(RETRY_MS, once, None)
            return
        connection = self.connected(leader)
        connection.send(
            at,
            leader,
            act,
            lambda said: connection.answer(self.run, life, once, said),
        )
        self.world.schedule.after(timeout_ms, self.run, life, over)

    def commit(
        self,
        name: Name,
        offset: int,
        tags: dict[int, bytes] | None,
        answered: Callable[[ErrorCode | None, int], None],
        noted: Callable[[ErrorCode], None] = lambda _: None,
        metadata: str = "",
        arrived: Callable[[GroupMachine], None] = lambda _: None,
    ) -> None:
        """An OffsetCommit of one partition.

        `arrived` and `noted` are called at the coordinator, when it is asked and when it answers.
        """
        kinds = messages.OffsetCommitRequest
        partition = kinds.OffsetCommitRequestPartition(
            partition_index=name[1],
            committed_offset=offset,
            committed_leader_epoch=0,
            committed_metadata=metadata,
            _tags=tags,
        )
        request = kinds(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[kinds.OffsetCommitRequestTopic(name=name[0], partitions=[partition])],
        )
        partitions = range(self.world.config.partitions)

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            def reply(response: Any) -> None:
                noted(ErrorCode(response.topics[0].partitions[0].error_code))
                token(response)

            arrived(machine)
            return machine.commit(reply, request, lambda _: partitions, now_ms)

        def heard(response: Any) -> None:
            if response is None:
                answered(None, -1)
                return
            (found,) = response.topics[0].partitions
            stable = (found._tags or {}).get(LAST_STABLE_OFFSET_TAG)
            code = ErrorCode(found.error_code)
            answered(code, -1 if stable is None else decode_int64(stable))

        self.ask(act, heard)

    # -- where to begin

    def _new_ledger(self) -> Ledger:
        return Ledger(explicit=True)

    def locate(self) -> None:
        for name in sorted(self.unlocated):
            slices = self.slices[name]

            def read(
                machine: GroupMachine, token: Any, now_ms: int, name: Name = name
            ) -> Effects[Any]:
                key = (self.group_id, *name)
                ((_, (row,)),) = machine.fetch(
                    self.group_id,
                    [(name[0], [name[1]])],
                    require_stable=True,
                    asker=self.member_id or None,
                )
                if machine.claims.unknown or row[4:]:
                    token(None)
                else:
                    coverage = machine.claims.coverage(key)
                    claims = [Claim(*each) for each in coverage or ()]
                    token((machine.claims.stable_offset(key), claims))
                return Effects([], [])

            def found(said: Any, name: Name = name, slices: Spans = slices) -> None:
                if said is None or self.slices.get(name) is not slices:
                    return
                if name not in self.unlocated:
                    return
                stable, claims = said
                if stable < 0:
                    tags = {EXPECTED_OFFSET_TAG: encode_int64(-1)}
                    start = self.world.log_start(name)
                    self.commit(name, start, tags, lambda *_: None)
                    return  # And asks again, whoever was first.
                ledger = self.ledgers.setdefault(name, self._new_ledger())
                ledger.add(subtract(slices, ledger.slices), stable, claims)
                self.unlocated.discard(name)

            self.ask(read, found)

    def have(self, slices: dict[Name, Spans]) -> None:
        """Reads these from now on."""
        self.slices = slices
        for name in [each for each in self.ledgers if each not in slices]:
            del self.ledgers[name]
        self.unlocated &= slices.keys()
        for name, wanted in slices.items():
            ledger = self.ledgers.get(name)
            if ledger is not None:
                ledger.remove(subtract(ledger.slices, wanted))
                ledger.rewind()
                if not ledger.slices:
                    del self.ledgers[name]
                    ledger = None
            if ledger is None or subtract(wanted, ledger.slices):
                self.unlocated.add(name)

    # -- records

    @property
    def may_hand_out(self) -> bool:
        return self.up

    def _poll(self) -> None:
        self.after(_POLL_MS, self._poll)
        self.locate()
        for name in sorted(self.ledgers):
            if name not in self.unlocated and self.may_hand_out:
                self._fetch(name, self.ledgers[name])

    def _fetch(self, name: Name, ledger: Ledger) -> None:
        reader = self._readers[name]
        leader = reader.find_leader()
        if leader is None:
            return
        lane = ledger.turn()
        epoch, life = reader.leader_epoch, self.life
        network = self.world.network

        def answer(fetched: Fetched) -> None:
            network.send(
                leader.id, CLIENT, self.run, life, self._fetched, name, ledger, lane, fetched
            )

        fetch = Fetch(CLIENT, -1, epoch, lane.position, -1, -1)
        network.to_broker(CLIENT, leader, leader.fetch_arrived, name, fetch, answer)

    def _fetched(self, name: Name, ledger: Ledger, lane: Lane, fetched: Fetched) -> None:
        if self.ledgers.get(name) is not ledger or not self.may_hand_out:
            return
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if lane.position < fetched.log_start_offset:
                log_start = self.world.log_start(name, fetched.log_start_offset)
                self.world.cooperative.skipped(self, name, ledger.slices, log_start)
                ledger.skip_to(log_start, log_start)
            return
        if fetched.error or not fetched.batches:
            return
        readers = ledger.readers(lane)
        end = ledger.fetched(lane, fetched.batches[-1].end_offset, fetched.high_watermark)
        for batch in fetched.batches:
            for offset, value in enumerate(batch.values, batch.base_offset):
                wanted = lane.position <= offset < end
                if wanted and ledger.hand_out(self.world.hash_of(value), offset, readers):
                    self.world.cooperative.handed_out(self, name, offset, value)
                    working_ms = self.world.rng.expovariate(1 / 60)
                    self.after(working_ms, self._done, name, ledger, offset, value)
        ledger.advance(readers, end)

    def _done(self, name: Name, ledger: Ledger, offset: int, value: object) -> None:
        self.world.cooperative.processed(self, value)
        if self.ledgers.get(name) is ledger:
            ledger.done(offset)

    def owns(self, name: Name, hash_: int) -> bool:
        """Whether it may hand out records with this hash."""
        return self.may_hand_out and contains(self.slices.get(name, []), hash_)

    # -- claims

    def _commit_now_and_then(self) -> None:
        self.after(_COMMIT_MS, self._commit_now_and_then)
        if not self._committing:
            self.commit_done(lambda: None)

    def commit_done(self, then: Callable[[], None]) -> None:
        """Claims what is done; `then` comes when that is answered, or given up."""
        dues = {name: ledger.dues() for name, ledger in self.ledgers.items()}
        dues = {name: each for name, each in dues.items() if each.accounts}
        left = [len(dues) + 1]
        self._committing = True

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                self._committing = False
                then()

        for name, each in sorted(dues.items()):
            self._claim(name, each, self.ledgers[name], ended)
        ended()

    def _claim(self, name: Name, dues: Dues, ledger: Ledger, ended: Callable[[], None]) -> None:
        def answered(code: ErrorCode | None, stable: int) -> None:
            if code in DONE:
                ledger.answered(dues, stable)
            elif code is not None:
                self.refused(code)
            ended()

        def noted(code: ErrorCode) -> None:
            if code in DONE:
                self.world.cooperative.answered(self.group_id, name, claims_of(dues))

        self.commit(name, -1, {SLICES_TAG: encode_dues(dues)}, answered, noted)

    def refused(self, code: ErrorCode) -> None:
        """The coordinator has something against a claim."""


def encode_dues(dues: Dues) -> bytes:
    """The tag of a commit that claims these."""
    return encode_slices(
        sorted((low, end - 1, due.ranges) for due in dues.accounts for low, end in due.slices)
    )


def claims_of(dues: Dues) -> list[Claim]:
    return [
        Claim(low, end - 1, first, last)
        for due in dues.accounts
        for low, end in due.slices
        for first, last in due.ranges
    ]


class Alone(Claimer):
    """One that has slices by hand; nobody tells it of a reset before it is started again."""

    def __init__(
        self, world: CooperativeWorld, group_id: str, number: int, low: int, high: int
    ) -> None:
        self._mine: Spans = [(low, high + 1)]
        super().__init__(world, group_id, number)

    def start(self) -> None:
        super().start()
        self.have({name: list(self._mine) for name in self.world.data_names})


class Shared(Claimer):
    """A member of a group that shares partitions."""

    def __init__(self, world: CooperativeWorld, group_id: str, number: int, assignor: str) -> None:
        self.assignor = ASSIGNORS[assignor]
        super().__init__(world, group_id, number)

    def _forget(self) -> None:
        super()._forget()
        self.needs_join = True
        self.joining = False
        self.heard_at = float("-inf")
        self.had_generation = -1

    def start(self) -> None:
        super().start()
        self.after(_HEARTBEAT_MS, self._beat)

    @property
    def may_hand_out(self) -> bool:
        return self.up and self.world.schedule.now - self.heard_at < SESSION_MS

    @property
    def slots(self) -> Shares:
        return {name: slots_of_hashes(slices) for name, slices in self.slices.items()}

    def _poll(self) -> None:
        if self.needs_join and not self.joining:
            self._join()
        super()._poll()

    # -- membership

    def refused(self, code: ErrorCode) -> None:
        if code in _OUTDATED:
            self._lost(code)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True

    def _lost(self, code: ErrorCode) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.generation, self.needs_join = -1, True
        self.have({})

    def _beat(self) -> None:
        self.after(_HEARTBEAT_MS, self._beat)
        if self.generation < 0 or self.joining:
            return
        asked_at = self.world.schedule.now
        generation = self.generation
        request = messages.HeartbeatRequest(
            group_id=self.group_id, generation_id=generation, member_id=self.member_id
        )

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            token(machine.heartbeat(request, now_ms))
            return Effects([], [])

        def heard(code: ErrorCode | None) -> None:
            if code is None or self.joining or self.generation != generation:
                return
            if code is ErrorCode.NONE:
                self.heard_at = max(self.heard_at, asked_at)
            else:
                self.refused(code)

        self.ask(act, heard)

    def _join(self) -> None:
        self.needs_join, self.joining = False, True
        self.commit_done(self._give_up_and_join)

    def _give_up_and_join(self) -> None:
        if not self.assignor.cooperative:
            self.have({})
        self._send_join()

    def _send_join(self) -> None:
        kinds = messages.JoinGroupRequest
        owned = self.slots
        sharing = ShareSubscription(True, f"host-{self.number % 2}", owned)
        metadata = encode_subscription(
            [self.world.DATA],
            owned,
            self.generation,
            self.assignor.user_data(sorted(owned), self.generation, sharing),
        )
        request = kinds(
            group_id=self.group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[kinds.JoinGroupRequestProtocol(self.assignor.name, metadata)],
        )
        uuid = f"{self.number}-{self.life}-{self.world.events}"

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            return machine.join(token, request, _CLIENT, uuid, now_ms)

        self.ask(act, self._joined, _JOIN_TIMEOUT_MS)

    def _joined(self, joined: Any) -> None:
        code = None if joined is None else ErrorCode(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            self._send_join()
        elif code is not ErrorCode.NONE:
            self._again(code)
        else:
            self.member_id, self.generation = joined.member_id, joined.generation_id
            assignments = {}
            if joined.leader == joined.member_id:
                assignments = self._divide(joined)
            self._sync(joined, assignments)

    def _again(self, code: ErrorCode | None) -> None:
        if code in _OUTDATED:
            self._lost(code)
        self.needs_join = False
        self.after(RETRY_MS, self._send_join)

    def _divide(self, joined: Any) -> dict[str, bytes]:
        members: dict[str, Subscription] = {
            each.member_id: decode_subscription(bytes(each.metadata), None)
            for each in joined.members
        }
        numbers = {number: 0 for _, number in self.world.data_names}
        shares = self.assignor.share({self.world.DATA: numbers}, members, {self.world.DATA})
        self.world.cooperative.divided(self.assignor, members, shares)
        return {member: encode_assignment(each) for member, each in shares.items()}

    def _sync(self, joined: Any, assignments: dict[str, bytes]) -> None:
        kinds = messages.SyncGroupRequest
        request = kinds(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                kinds.SyncGroupRequestAssignment(member, assignment)
                for member, assignment in assignments.items()
            ],
        )
        asked_at = self.world.schedule.now

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            return machine.sync(token, request, now_ms)

        def synced(response: Any) -> None:
            code = None if response is None else ErrorCode(response.error_code)
            if code is not ErrorCode.NONE:
                self._again(code)
                return
            self.heard_at = max(self.heard_at, asked_at)
            self.joining = False
            self._take_over(decode_assignment(bytes(response.assignment)))

        self.ask(act, synced, _JOIN_TIMEOUT_MS)

    def _take_over(self, shares: Shares) -> None:
        change = hand_over(self.slots, shares)

        def committed() -> None:
            self.needs_join = self.needs_join or bool(change.revoked)

        if change.revoked:
            self.commit_done(committed)
        self.have({name: hashes_of_slots(slots) for name, slots in shares.items()})

    def leave(self) -> None:
        """Says so and goes, with what is done claimed."""
        request = messages.LeaveGroupRequest(
            group_id=self.group_id,
            members=[messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)],
        )

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            return machine.leave(token, request, now_ms)

        def committed() -> None:
            self.have({})
            self.ask(act, lambda _: self.crash())

        self.joining = True  # Neither beats nor joins any more.
        self.commit_done(committed)
