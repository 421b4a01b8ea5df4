"""Random lives of groups with members of both protocols, which change their protocol on the way.

* A partition has one owner at most, as its owners see it, whatever the group is at the time.
* At rest the log holds a classic group or a consumer group, and a coordinator that reads it knows
  the same as one that wrote it.
* Committed offsets stay.
* When faults end all partitions are read, and a failover then changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.core.groups import Client, Effects
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest

from .world import GROUP, HEARTBEAT_MS, REBALANCE_MS, SESSION_MS, Consumer, Place, World, durable

STEPS = 400
SEASON = 80
TOPICS = {"apples": 5, "beer": 3}
CONSUMERS_MAX = 3
CLASSIC_MAX = 4

SUBSCRIPTION = messages.ConsumerProtocolSubscription
ASSIGNMENT = messages.ConsumerProtocolAssignment


class Classic:
    """A client of the classic protocol, as the Java client does it.

    An eager one gives everything up before it joins. A cooperative one says what it owns, and joins
    once more after it had to give something up. `act_by_ms` is when it has to have made its next
    step after it was told to rejoin: it gives everything up rather than be late.
    """

    def __init__(self, name: str, cooperative: bool) -> None:
        self.name = name
        self.cooperative = cooperative
        self.member_id = ""
        self.generation = -1
        self.step = "join"  # what it sends next: join, sync or heartbeat
        self.assignments: dict[str, bytes] = {}
        self.owned: set[Place] = set()
        self.heard_ms = 0
        self.act_by_ms: int | None = None
        self.token: str | None = None
        self.asked = ""
        self.is_alive = True

    @property
    def protocol(self) -> str:
        return "cooperative-sticky" if self.cooperative else "range"

    def abandon(self) -> None:
        self.owned.clear()
        self.generation = -1
        self.step = "join"
        self.token = None
        self.act_by_ms = None


class Mixed(World):
    """A world with classic clients as well."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for name, count in TOPICS.items():
            self.topics.make(name, count)
        self.cooperative = self.chance.random() < 0.5
        self.classic: list[Classic] = []
        self.replied_ms: dict[str, int] = {}

    def carry_out(self, effects: Effects) -> None:
        super().carry_out(effects)
        for token, _ in effects.replies:
            assert isinstance(token, str)
            self.replied_ms[token] = self.now_ms

    def living(self) -> Iterator[Classic]:
        return (client for client in self.classic if client.is_alive)

    def advance(self, ms: int) -> None:
        later_ms = self.now_ms + ms
        for client in self.living():
            if client.token is not None and client.token not in self.replies:
                client.heard_ms = self.now_ms  # parked: the connection says that all is well
            session_ends = client.generation >= 0 and later_ms >= client.heard_ms + SESSION_MS
            if session_ends or (client.act_by_ms is not None and later_ms >= client.act_by_ms):
                client.abandon()
        super().advance(ms)

    # -- what classic clients do

    def take_step(self, client: Classic) -> None:
        """Takes in the answer if there is one; else sends the next request."""
        if client.token is not None:
            if client.token in self.replies:
                token, client.token = client.token, None
                self.hear_classic(client, token)
            return
        if client.step == "join":
            self.send_join(client)
        elif client.step == "sync":
            self.send_sync(client)
        else:
            self.send_heartbeat(client)

    def send_join(self, client: Classic) -> None:
        if not client.cooperative:
            client.owned.clear()
        owned: dict[str, list[int]] = {}
        for topic_id, index in sorted(client.owned):
            owned.setdefault(self.topics.name_of(topic_id) or "", []).append(index)
        subscription = SUBSCRIPTION(
            topics=sorted(TOPICS),
            owned_partitions=[SUBSCRIPTION.TopicPartition(*each) for each in owned.items()],
        )
        metadata = encode_versioned("ConsumerProtocolSubscription", 1, subscription)
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id,
            protocol_type="consumer",
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(client.protocol, metadata)
            ],
        )
        token = self.ask(client, "join")
        who = Client(9, client.name, "/127.0.0.1")
        self.carry_out(self.machine.join(token, request, who, token, self.now_ms))

    def send_sync(self, client: Classic) -> None:
        kind = messages.SyncGroupRequest.SyncGroupRequestAssignment
        request = messages.SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            protocol_type="consumer",
            protocol_name=client.protocol,
            assignments=[kind(*each) for each in client.assignments.items()],
        )
        token = self.ask(client, "sync")
        self.carry_out(self.machine.sync(token, request, self.now_ms))

    def send_heartbeat(self, client: Classic) -> None:
        request = messages.HeartbeatRequest(GROUP, client.generation, client.member_id)
        error = self.machine.heartbeat(request, self.now_ms)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            client.heard_ms = self.now_ms
        self.judge(client, error)

    def ask(self, client: Classic, what: str) -> str:
        client.token, client.asked, client.act_by_ms = self.token(), what, None
        return client.token

    def hear_classic(self, client: Classic, token: str) -> None:
        reply = self.replies[token]
        error = ErrorCode(reply.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif error is not ErrorCode.NONE:
            self.judge(client, error)
        elif client.asked == "join":
            client.member_id, client.generation = reply.member_id, reply.generation_id
            client.assignments = self.lead(reply) if reply.leader == reply.member_id else {}
            client.step = "sync"
            client.heard_ms = self.replied_ms[token]
            client.act_by_ms = client.heard_ms + REBALANCE_MS // 4
        else:
            client.heard_ms = self.replied_ms[token]
            self.take_over(client, reply.assignment)

    def take_over(self, client: Classic, data: bytes) -> None:
        given: set[Place] = set()
        if data:
            _, decoded = decode_versioned("ConsumerProtocolAssignment", data)
            for row in decoded.assigned_partitions:
                topic = self.topics.find(row.topic)
                assert topic is not None
                given.update((topic.topic_id, index) for index in row.partitions)
        gives_up = client.owned - given
        client.owned = given
        client.step = "heartbeat"
        if gives_up:
            self.rejoin(client)

    def rejoin(self, client: Classic) -> None:
        client.step = "join"
        client.act_by_ms = self.now_ms + REBALANCE_MS // 4

    def judge(self, client: Classic, error: ErrorCode) -> None:
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin(client)
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.abandon()
            client.member_id = ""
        elif error is ErrorCode.ILLEGAL_GENERATION:
            client.abandon()
        else:
            # NONE, or to be tried again.
            assert error in (
                ErrorCode.NONE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.UNKNOWN_SERVER_ERROR,
            ), error

    def lead(self, reply: Any) -> dict[str, bytes]:
        """Shares the partitions out; those that somebody claims do not move to another at once."""
        claims: dict[tuple[str, int], str] = {}
        for member in reply.members:
            _, subscription = decode_versioned("ConsumerProtocolSubscription", member.metadata)
            for row in subscription.owned_partitions:
                claims.update({(row.topic, index): member.member_id for index in row.partitions})
        members = sorted(member.member_id for member in reply.members)
        shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
        places = [(name, index) for name, count in TOPICS.items() for index in range(count)]
        for number, place in enumerate(places):
            owner = members[number % len(members)]
            if claims.get(place, owner) == owner:
                shares[owner].setdefault(place[0], []).append(place[1])
        return {
            member_id: encode_versioned(
                "ConsumerProtocolAssignment",
                1,
                ASSIGNMENT([ASSIGNMENT.TopicPartition(*each) for each in share.items()]),
            )
            for member_id, share in shares.items()
        }

    def leave_classic(self, client: Classic) -> None:
        identity = messages.LeaveGroupRequest.MemberIdentity(client.member_id)
        request = messages.LeaveGroupRequest(group_id=GROUP, members=[identity])
        client.is_alive = False
        self.carry_out(self.machine.leave(self.token(), request, self.now_ms))

    # -- consumers of the new protocol

    def hear(self, consumer: Consumer) -> None:
        if consumer.token is not None and consumer.token in self.replies:
            reply = self.replies[consumer.token]
            if reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND and consumer.epoch > 0:
                # It was silent too long, and the group went on as a classic one.
                consumer.abandon()
                consumer.token = None
        self.deliver(consumer, lost=False)


def act(world: Mixed, *, classic: bool) -> None:
    """One thing happens; members of one protocol come, and those of the other go."""
    chance = world.chance
    modern, old = list(world.alive()), list(world.living())
    everybody: list[Consumer | Classic] = [*modern, *old]
    going: list[Consumer] | list[Classic] = modern if classic else old
    one = chance.choice(everybody) if everybody else None
    roll = chance.random()
    if roll < 0.08 and classic and len(old) < CLASSIC_MAX:
        client = Classic(f"c-{len(world.classic)}", world.cooperative)
        client.heard_ms = world.now_ms
        world.classic.append(client)
    elif roll < 0.08 and not classic and len(modern) < CONSUMERS_MAX:
        consumer = world.start()
        consumer.names = sorted(TOPICS)
        consumer.changed_subscription = True
    elif 0.08 <= roll < 0.14 and going:
        depart(world, chance.choice(going), dies=chance.random() < 0.3)
    elif roll < 0.55 and one is not None:
        step(world, one)
    elif roll < 0.85 and world.in_flight:
        world.land()
    elif roll < 0.87 and world.in_flight and id(world.in_flight[0]) not in world.late:
        world.fail()
    elif roll < 0.88 and world.in_flight:
        world.be_late()
    elif roll < 0.90:
        world.fail_over()
    elif roll < 0.92:
        world.log = world.compacted()
    else:
        world.advance(chance.choice([1, 500, HEARTBEAT_MS, 4_000]))


def step(world: Mixed, one: Consumer | Classic) -> None:
    if isinstance(one, Classic):
        world.take_step(one)
        return
    world.hear(one)
    if world.chance.random() < 0.5:
        one.revoke()
    if one.token is None:
        world.send(one)


def depart(world: Mixed, one: Consumer | Classic, *, dies: bool) -> None:
    if isinstance(one, Classic):
        one.is_alive = False
        if not dies and one.member_id:
            world.leave_classic(one)
        return
    one.is_alive = False
    if not dies and one.epoch > 0:
        world.transmit(
            ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=one.member_id, member_epoch=-1)
        )


def check(world: Mixed) -> None:
    owners: dict[Place, str] = {}
    names = [(consumer.member_id, consumer.owned) for consumer in world.alive()]
    names += [(client.name, client.owned) for client in world.living()]
    for name, owned in names:
        for place in owned:
            other = owners.setdefault(place, name)
            assert other == name, f"{place} is {other}'s and {name}'s"
    if world.in_flight:
        return
    machine = world.machine
    assert not (GROUP in machine._groups and GROUP in machine._consumers.groups)
    if world.chance.random() < 0.1:
        for other_machine in (world.follower(), world.reader_of_compacted()):
            assert durable(other_machine) == durable(machine)
            assert other_machine.describe(GROUP).group_state in (
                ("Dead", "Empty")
                if GROUP in machine._consumers.groups
                else ("Dead", "Empty", "Stable")
            )
    assert machine.fetch(GROUP, None) == COMMITTED


COMMITTED = [("apples", [(0, 7, -1, "")])]


def commit(world: Mixed) -> None:
    request = messages.OffsetCommitRequest
    partition = request.OffsetCommitRequestPartition(0, 7, -1, committed_metadata="")
    topic = request.OffsetCommitRequestTopic(name="apples", partitions=[partition])
    wanted = request(group_id=GROUP, topics=[topic])
    world.carry_out(
        world.machine.commit(world.token(), wanted, lambda topic: range(100), world.now_ms)
    )
    world.land()


def settle(world: Mixed) -> None:
    """Faults end; sessions and rebalances of who is gone run out."""
    for _ in range(60):
        for one in [*world.alive(), *world.living()]:
            for _ in range(3):
                while world.in_flight:
                    world.land()
                if isinstance(one, Consumer):
                    one.revoke()
                step(world, one)
                while world.in_flight:
                    world.land()
                check(world)
        world.advance(HEARTBEAT_MS)


def owned(world: Mixed) -> dict[str, set[Place]]:
    result = {consumer.member_id: set(consumer.owned) for consumer in world.alive()}
    return result | {client.name: set(client.owned) for client in world.living()}


def check_quiet(world: Mixed) -> None:
    parts = owned(world)
    machine = world.machine
    if not parts:
        return
    assert sorted(place for part in parts.values() for place in part) == sorted(
        (topic.topic_id, index)
        for topic in world.topics.topics.values()
        for index in range(topic.partition_count)
    )
    assert (GROUP in machine._consumers.groups) >= any(True for _ in world.alive())


def live(seed: int) -> set[bool]:
    """One life; which kinds of group there were."""
    world = Mixed(seed)
    commit(world)
    kinds: set[bool] = set()
    for number in range(STEPS):
        act(world, classic=number // SEASON % 2 == seed % 2)
        check(world)
        if GROUP in world.machine._groups or GROUP in world.machine._consumers.groups:
            kinds.add(GROUP in world.machine._groups)
    settle(world)
    check_quiet(world)
    before = owned(world)
    world.fail_over()
    settle(world)
    assert owned(world) == before, "a failover is no reason to move partitions"
    world.check_records()
    return kinds


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_lives(start: int) -> None:
    for seed in range(start, start + 10):
        try:
            live(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def upgrade_at_some_moment(seed: int) -> bool:
    """Cooperative members come one by one, and then one of the other protocol; was it let in?"""
    world = Mixed(seed)
    world.cooperative = True
    chance = world.chance
    commit(world)
    for _ in range(chance.randint(20, 200)):
        roll = chance.random()
        old = list(world.living())
        if roll < 0.05 and len(old) < CLASSIC_MAX:
            client = Classic(f"c-{len(old)}", True)
            client.heard_ms = world.now_ms
            world.classic.append(client)
        elif roll < 0.75 and old:
            step(world, chance.choice(old))
        elif roll < 0.95 and world.in_flight:
            world.land()
        else:
            world.advance(chance.choice([1, 500, HEARTBEAT_MS]))
        check(world)
    if chance.random() < 0.5:
        world.fail_over()
    consumer = world.start()
    consumer.names = sorted(TOPICS)
    consumer.changed_subscription = True
    for _ in range(5):
        step(world, consumer)
        while world.in_flight:
            world.land()
        check(world)
    world.check_records()
    return consumer.epoch > 0


def test_upgrades_at_any_moment() -> None:
    """What a member has to give up is its own until it has: nobody knows when that is."""
    let_in = 0
    for seed in range(200):
        try:
            let_in += upgrade_at_some_moment(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
    assert let_in > 100
