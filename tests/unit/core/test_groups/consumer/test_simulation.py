"""Random lives of consumer groups, with what must hold after every step (KIP-848).

* A partition has one owner at most, as its owners see it: who was told of it and has not given it
  up.
* Epochs never go back: the group's over all coordinators, a member's as it hears of them.
* A coordinator that reads the log, compacted or not, knows the same as one that wrote it.
* A member that heartbeats stays in the group, and a single lost answer does no harm.
* Nobody waits behind a write that takes too long.
* When faults end, the group is stable within a few heartbeats, and all that somebody subscribes to
  is read, by who subscribes to it, in fair shares. Then a failover changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.core.groups.consumer.records import MemberState
from kraftpy.core.groups.consumer.state import ConsumerGroupState
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest

from .world import GROUP, HEARTBEAT_MS, Consumer, Place, World, durable

STEPS = 250
CONSUMERS_MAX = 8


def live(seed: int) -> World:
    """One life: faults, then quiet; checked all the way."""
    world = World(seed)
    for name in ("apples", "beer", "cheese"):
        world.topics.make(name, world.chance.randint(1, 6))
    acts = [act for act, weight in ACTS for _ in range(weight)]
    # Some worlds know little of some faults, so that others come to bear.
    acts = [act for act in acts if world.chance.random() < 0.8 or act in NEEDED]
    for _ in range(STEPS):
        world.chance.choice(acts)(world)
        check(world)
    settle(world)
    check_quiet(world)
    for act in (change_topics, fail_over):
        act(world)
        epoch = 0 if world.group is None else world.group.epoch
        settle(world)
        check_quiet(world)
    assert world.group is None or world.group.epoch == epoch, "a failover is no reason to rebalance"
    world.check_records()
    return world


# -- what happens


def pick(world: World) -> Consumer | None:
    alive = list(world.alive())
    return world.chance.choice(alive) if alive else None


def arrive(world: World) -> None:
    alive = list(world.alive())
    if len(alive) < CONSUMERS_MAX:
        instances = {consumer.instance_id for consumer in alive}
        instance_id = world.chance.choice([None, None, "i-1", "i-2"])
        subscribe(world, world.start(None if instance_id in instances else instance_id))


def subscribe(world: World, consumer: Consumer) -> None:
    choice = world.chance.random()
    consumer.names = consumer.regex = None
    if choice < 0.2:
        consumer.regex = world.chance.choice(["a.*", "(beer|cheese)", ".*e.*"])
    elif choice < 0.3:
        consumer.names = []
    else:
        consumer.names = sorted(world.chance.sample(["apples", "beer", "cheese", "dates"], 2))
    consumer.changed_subscription = True


def resubscribe(world: World) -> None:
    if consumer := pick(world):
        consumer.assignor = world.chance.choice([None, "uniform", "range"])
        subscribe(world, consumer)


def heartbeat(world: World) -> None:
    if consumer := pick(world):
        world.deliver(consumer, lost=False)
        if consumer.token is None:
            world.send(consumer)


def retry(world: World) -> None:
    """A client has waited for its answer long enough."""
    if (consumer := pick(world)) and consumer.token is not None:
        world.send(consumer)


def repeat(world: World) -> None:
    """The same full request comes twice; the first answer is lost."""
    if (consumer := pick(world)) and consumer.token is None:
        consumer.says_all = True
        world.send(consumer)
        world.lose(consumer)
        assert consumer.token is not None
        consumer.token = world.transmit(world.requests[consumer.token])


def hear(world: World) -> None:
    if consumer := pick(world):
        world.deliver(consumer, lost=False)


def lose(world: World) -> None:
    if consumer := pick(world):
        world.deliver(consumer, lost=True)


def revoke(world: World) -> None:
    if consumer := pick(world):
        consumer.revoke()


def die(world: World) -> None:
    if consumer := pick(world):
        consumer.is_alive = False


def leave(world: World) -> None:
    if consumer := pick(world):
        consumer.is_alive = False
        if consumer.epoch > 0:
            # A static member that goes for good, or for a while; it waits for no answer.
            epoch = -1 if consumer.instance_id is None else world.chance.choice([-1, -2])
            world.transmit(
                ConsumerGroupHeartbeatRequest(
                    group_id=GROUP,
                    member_id=consumer.member_id,
                    member_epoch=epoch,
                    instance_id=consumer.instance_id,
                )
            )


def come_back(world: World) -> None:
    """A process starts again with the instance id of one that is gone."""
    alive = {consumer.instance_id for consumer in world.alive()}
    gone = {c.instance_id for c in world.consumers if not c.is_alive and c.instance_id} - alive
    if gone:
        subscribe(world, world.start(world.chance.choice(sorted(gone))))


def land(world: World) -> None:
    if world.in_flight:
        world.land()


def fail(world: World) -> None:
    if world.in_flight:
        world.fail()


def be_late(world: World) -> None:
    if world.in_flight:
        world.be_late()


def fail_over(world: World) -> None:
    world.fail_over()


def compact(world: World) -> None:
    world.log = world.compacted()


def wait(world: World) -> None:
    world.advance(world.chance.choice([1, 500, HEARTBEAT_MS, 4_000]))


def change_topics(world: World) -> None:
    name = world.chance.choice(["apples", "beer", "cheese", "dates"])
    topic = world.topics.find(name)
    if topic is None:
        world.topics.make(name, world.chance.randint(1, 6))
    elif world.chance.random() < 0.5 and topic.partition_count < 8:
        world.topics.grow(name, 1)
    else:
        world.topics.delete(name)


def delete_group(world: World) -> None:
    token = world.token()
    world.carry_out(world.machine.delete_group(token, GROUP, world.now_ms))
    if token in world.replies and world.replies[token] is ErrorCode.NONE:
        assert world.group is None


ACTS: list[tuple[Callable[[World], None], int]] = [
    (arrive, 4),
    (resubscribe, 2),
    (heartbeat, 30),
    (retry, 3),
    (repeat, 3),
    (hear, 20),
    (lose, 4),
    (revoke, 12),
    (die, 1),
    (leave, 1),
    (come_back, 2),
    (land, 30),
    (fail, 3),
    (be_late, 2),
    (fail_over, 2),
    (compact, 2),
    (wait, 5),
    (change_topics, 2),
    (delete_group, 1),
]
NEEDED = {arrive, heartbeat, hear, land}


# -- what holds


def check(world: World) -> None:
    owners: dict[Place, str] = {}
    for consumer in world.alive():
        for place in consumer.owned:
            other = owners.setdefault(place, consumer.member_id)
            assert other == consumer.member_id, f"{place} has two owners"
    if world.chance.random() < 0.1:
        read_back = world.follower()
        assert durable(read_back) == durable(world.machine)
        assert durable(world.reader_of_compacted()) == durable(read_back)
    if world.late:
        assert world.requests.keys() <= world.replies.keys(), "somebody waits behind a late write"
    group = world.group
    if group is None:
        world.group_epoch = 0  # it was deleted
        return
    assert group.epoch >= world.group_epoch, "the group's epoch went back"
    world.group_epoch = group.epoch
    assert group.assignment_epoch <= group.epoch
    assert group.targets.keys() <= group.members.keys()
    assert group.currents.keys() == group.members.keys()
    assert set(group.static_members.values()) == {
        member_id for member_id, metadata in group.members.items() if metadata.instance_id
    }
    held: set[Place] = set()
    for member_id, current in group.currents.items():
        assert current.epoch <= group.assignment_epoch
        for partitions in (current.assigned, current.revoking):
            for topic_id, indexes in partitions.items():
                assert indexes, "an empty topic"
                for index in indexes:
                    assert (topic_id, index) not in held, "two members may own a partition"
                    held.add((topic_id, index))
                    assert group.owner(topic_id, index) == member_id
    assert held == {(t, i) for t, of_topic in group.owners.items() for i in of_topic}
    used = {metadata.topic_regex for metadata in group.members.values()}
    assert group.regexes.keys() == used - {None}


# -- quiet


def settle(world: World) -> None:
    """Faults end: everybody heartbeats as it should, until all has been said."""
    for _ in range(30):
        while world.in_flight:
            world.land()
        for consumer in list(world.alive()):
            world.deliver(consumer, lost=False)
            consumer.revoke()
            if consumer.refused is ErrorCode.UNRELEASED_INSTANCE_ID:
                consumer.refused = None  # it tries again, as whoever starts it would
            if consumer.token is None:
                world.send(consumer)
            while world.in_flight:
                world.land()
            world.deliver(consumer, lost=False)
            check(world)
        world.advance(HEARTBEAT_MS)


def check_quiet(world: World) -> None:
    group = world.group
    alive = list(world.alive())
    if not alive:
        assert group is None or group.state is ConsumerGroupState.EMPTY
        return
    assert group is not None
    assert group.state is ConsumerGroupState.STABLE
    assert group.members.keys() == {consumer.member_id for consumer in alive}
    wanted: dict[str, set[str]] = {}  # topic -> who subscribes to it
    for consumer in alive:
        current = group.current(consumer.member_id)
        assert current.state is MemberState.STABLE
        assert current.epoch == consumer.epoch == group.epoch
        assert consumer.owned == {
            (t, i) for t, indexes in current.assigned.items() for i in indexes
        }
        for name in {*(consumer.names or ()), *world.topics.match(consumer.regex or "")}:
            wanted.setdefault(name, set()).add(consumer.member_id)
    owners = {place: consumer.member_id for consumer in alive for place in consumer.owned}
    for name, topic in world.topics.topics.items():
        for index in range(topic.partition_count):
            owner = owners.pop((topic.topic_id, index), None)
            assert (owner in wanted[name]) if name in wanted else owner is None
    assert not owners, "partitions that are not there are read"
    subscribed = {frozenset(n for n, m in wanted.items() if c.member_id in m) for c in alive}
    if len(subscribed) == 1 and "range" not in {m.server_assignor for m in group.members.values()}:
        shares = [len(consumer.owned) for consumer in alive]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_random_lives(start: int) -> None:
    for seed in range(start, start + 15):
        try:
            live(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
