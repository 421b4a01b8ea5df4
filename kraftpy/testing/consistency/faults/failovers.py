"""Failovers that come at the worst time: in the middle of another one, or of a change of the ISR.

Each is a schedule in which one rule of replication is all that saves acknowledged records. Kills
and cuts at random hit such a moment, of milliseconds, once in hours. Slow and silent links make it
long enough to act in it; what is done then are the kills and crashes of the other faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from kraftpy.frozen import NamedTuple
from kraftpy.testing.cluster import Cluster
from kraftpy.testing.consistency.faults import membership
from kraftpy.testing.consistency.faults.ground import OFFSETS_TOPIC, Act, Ground, LeftOut

_SLOW_MS = (150, 300)
_VERY_SLOW_MS = 400
_FIRST_WRITE_S = 3.0
_WARM_UP_S = 1.0
_FETCH_TIMEOUT_S = 4.0
_MARGIN_S = 0.25
_ELECTION_TIMEOUT_S = 10.0
_UNANSWERED_S = 1.0  # well before a follower that isn't heard leaves the ISR
_LAG_TIMEOUT_S = 8.0
_CATCH_UP_S = 1.2  # well before the leader's session with the controller ends
_NEXT_FETCH_S = 0.1
_ARRIVAL_S = 0.4
_POLL_S = 0.005

_NOT_IN_SYNC = LeftOut("not all replicas are in sync")
_NOBODY_LEADS = LeftOut("nobody leads what is written")

_Partition = tuple[str, int]


class _Scene(NamedTuple):
    """A partition that is written to, who leads it, who will after it, and who also has it."""

    partition: _Partition
    leader: int
    successor: int
    others: list[int]

    @property
    def name(self) -> str:
        return f"{self.partition[0]}-{self.partition[1]}"


def successors(ground: Ground) -> Act:
    """A leader is killed, and its successor as soon as the other follower has heard of that.

    That follower has said to the first leader that it has what clients sent last, so it is
    acknowledged, and never got the answer: its high watermark is behind. It hears who leads now,
    and has not fetched from there when that is gone as well. It leads in the end, and has to have
    all that was acknowledged: nothing may be cut off because of a watermark (KIP-101).

    Where there is no topic under load, it is the leader of the quorum.
    """
    cluster = ground.cluster
    victims: list[int] = []

    def kill(node: int) -> None:
        cluster.kill(node)
        victims.append(node)

    def begin() -> str:
        if not ground.all_in_sync():
            return _NOT_IN_SYNC
        delay_ms = ground.rng.randrange(*_SLOW_MS)
        if not ground.topics:
            return _kill_controllers(cluster, delay_ms, kill)
        scene = _scene(ground)
        if scene is None:
            return _NOBODY_LEADS
        _lose_the_last_word(cluster, scene, delay_ms)
        kill(scene.leader)
        # What the successor sends comes too late; an election of a controller is to be quick.
        _next_leader(cluster.controller, scene.leader)
        _slow_down(cluster, [scene.successor, *scene.others], _VERY_SLOW_MS)
        told = partial(cluster.agreed_leader, *scene.partition, among=scene.others)
        second = _next_leader(told, scene.leader)
        if second is None:
            return LeftOut(f"{scene.leader} led {scene.name}, and nobody does after it")
        kill(second)
        return f"{scene.leader}, which led {scene.name}, and then {second}"

    def end() -> None:
        cluster.heal()
        cluster.restart(*victims)

    return Act(sorted(cluster.nodes), "a leader killed, and then its successor", begin, end)


def _kill_controllers(cluster: Cluster, delay_ms: int, kill: Callable[[int], None]) -> str:
    _slow_down(cluster, sorted(cluster.nodes), delay_ms)
    time.sleep(_WARM_UP_S)
    first = cluster.controller()
    if first is None:
        return _NOBODY_LEADS
    kill(first)
    second = _next_leader(cluster.controller, first)
    if second is None:
        return LeftOut(f"{first} led the quorum, and nobody does after it")
    kill(second)
    return f"{first}, which led the quorum, and then {second}"


def _lose_the_last_word(cluster: Cluster, scene: _Scene, delay_ms: int) -> None:
    """Has followers say that they got what was sent last, and not hear what that commits."""
    for each in scene.others:
        cluster.slow(scene.leader, each, delay_ms=delay_ms)
    time.sleep(_WARM_UP_S)

    def size_bytes() -> int:
        return sum(_size_bytes(cluster, each, scene.partition) for each in scene.others)

    before = size_bytes()
    _wait_until(lambda: size_bytes() > before, _FETCH_TIMEOUT_S)
    # The next fetch, which says so, is on its way. What is said to it is lost.
    for each in scene.others:
        cluster.partition(scene.leader, each, one_way=True)
    time.sleep(delay_ms / 1000 + _MARGIN_S)
    for each in scene.others:
        cluster.partition(scene.leader, each, close=True)


def unanswered(ground: Ground) -> Act:
    """A leader is killed that has passed on what clients sent, and has not answered them.

    A follower isn't heard, so nothing is committed, while the successor-to-be has all of it.
    Clients send it again, and have to be recognized by a leader that never saw them (KIP-98).
    """
    return _not_committed(ground, lambda scene: scene.others, "that has not answered")


def unheard(ground: Ground) -> Act:
    """A leader is killed whose successor has not got what it was sent last.

    The successor-to-be isn't heard, so nothing is committed, and it never gets what the others
    have. Whoever was told that something is written must not have been: a transaction's
    coordinator of its markers, for one.
    """
    return _not_committed(
        ground, lambda scene: [scene.successor], "whose successor lacks something"
    )


def _not_committed(ground: Ground, silent: Callable[[_Scene], Sequence[int]], what: str) -> Act:
    """A leader that doesn't hear these followers, and so commits nothing, and is killed."""
    cluster = ground.cluster
    dead: list[int] = []

    def begin() -> str:
        if not ground.all_in_sync():
            return _NOT_IN_SYNC
        scene = _scene(ground)
        if scene is None:
            return _NOBODY_LEADS
        for each in silent(scene):
            cluster.partition(each, scene.leader, one_way=True)
        time.sleep(_UNANSWERED_S)
        cluster.kill(scene.leader)
        dead.append(scene.leader)
        cluster.heal()
        return f"{scene.leader}, which led {scene.name}"

    def end() -> None:
        cluster.heal()
        cluster.restart(*dead)

    return Act(sorted(cluster.nodes), f"a leader killed {what}", begin, end)


def _scene(ground: Ground) -> _Scene | None:
    """One whose leader isn't the controller, if there is one: a failover takes longer with both."""
    cluster = ground.cluster
    controller = cluster.controller()
    scenes = []
    loaded = ground.topics.keys()
    _wait_until(lambda: any(topic in loaded for topic, _ in _written(ground)), _FIRST_WRITE_S)
    partitions = _partitions(ground)
    for partition in ground.rng.sample(partitions, len(partitions)):
        leader = cluster.agreed_leader(*partition)
        successor, *others = (each for each in cluster.replicas_of(*partition) if each != leader)
        if leader is not None and others:
            scenes.append(_Scene(partition, leader, successor, others))
    return min(scenes, key=lambda each: each.leader == controller, default=None)


def _partitions(ground: Ground) -> list[_Partition]:
    """Those of the workload that are written to; a workload of commits writes to others."""
    topics = [each for each in _written(ground) if each[0] != OFFSETS_TOPIC]
    return topics or _written(ground)


def _written(ground: Ground) -> list[_Partition]:
    cluster = ground.cluster
    return [
        each
        for each in cluster.partitions_of(OFFSETS_TOPIC, *ground.topics)
        if any(_size_bytes(cluster, node, each) for node in cluster.nodes)
    ]


def _slow_down(cluster: Cluster, nodes: Sequence[int], delay_ms: int) -> None:
    for place, one in enumerate(nodes):
        for other in nodes[place + 1 :]:
            cluster.slow(one, other, delay_ms=delay_ms)


def _next_leader(find: Callable[[], int | None], former: int) -> int | None:
    """Who `find` finds to lead after `former`, at once when it does."""
    deadline = time.monotonic() + _ELECTION_TIMEOUT_S
    while (leader := find()) in (None, former):
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    return leader


def late_expansion(ground: Ground) -> Act:
    """A leader's proposal to take a follower into the ISR arrives when that has crashed since.

    The follower lagged and has caught up, and the proposal is on its way. The follower crashes,
    loses what it had not fsynced, and is back under its id, unfenced. Then the proposal arrives,
    and the leader dies. The replica that was proposed is no more: only the broker epoch tells
    (KIP-903). A leader has one proposal on its way at a time, so it names the partitions in which
    the follower caught up first, those with few records.
    """
    cluster = ground.cluster
    dead: list[int] = []

    def begin() -> str:
        if not ground.all_in_sync():
            return _NOT_IN_SYNC
        cast = _cast(ground)
        if cast is None:
            return LeftOut("nothing is written, or its replicas stay in their order")
        partition, leader, follower, controller = cast
        # It leaves the ISR of what is written meanwhile; with idle partitions it stays in sync.
        cluster.partition(leader, follower)
        if not _wait_until(lambda: follower not in cluster.in_sync(*partition), _LAG_TIMEOUT_S):
            return LeftOut(f"{follower} stays in sync without {leader}: nothing is written")
        cluster.heal()
        cluster.partition(leader, controller, one_way=True)
        _wait_for_catch_up(cluster, leader, follower, partition)
        dead.append(follower)
        lost = cluster.crash(follower)
        # It may not catch up again before the leader is dead.
        cluster.partition(leader, follower, one_way=True)
        cluster.restart(follower)
        dead[:] = [leader]
        cluster.kill(leader)
        cluster.heal()
        time.sleep(_ARRIVAL_S)
        return f"{leader} proposed {follower} to {controller}; {follower} crashed: {lost}"

    def end() -> None:
        cluster.heal()
        cluster.restart(*dead)

    return Act(sorted(cluster.nodes), "an ISR change that comes too late", begin, end)


def _wait_for_catch_up(cluster: Cluster, leader: int, follower: int, partition: _Partition) -> None:
    """Until the follower has what the leader has, and has said so by its next fetch."""
    both = leader, follower
    _wait_until(
        lambda: len({_size_bytes(cluster, each, partition) for each in both}) == 1, _CATCH_UP_S
    )
    time.sleep(_NEXT_FETCH_S)


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came to hold in time."""
    deadline = time.monotonic() + timeout_s
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return holds


def _size_bytes(cluster: Cluster, node: int, partition: _Partition) -> int:
    folder = cluster.nodes[node].log_dir / f"{partition[0]}-{partition[1]}"
    return sum(path.stat().st_size for path in folder.glob("*.log"))


class _Cast(NamedTuple):
    """Who leads a partition and proposes, who is proposed, and who decides on it, three nodes."""

    partition: _Partition
    leader: int
    follower: int
    controller: int


def _cast(ground: Ground) -> _Cast | None:
    """Roles for all that is written and that both have: the follower is to lead after the leader.

    The first of the ISR is elected, so replicas are put in that order.
    """
    cluster = ground.cluster
    _wait_until(lambda: bool(_written(ground)), _FIRST_WRITE_S)
    controller, partitions = cluster.controller(), _written(ground)
    if controller is None or not partitions:
        return None
    partition = ground.rng.choice(partitions)
    able = [each for each in cluster.replicas_of(*partition) if each != controller]
    if len(able) < 2:
        return None
    leader, follower = ground.rng.sample(able, 2)
    orders = {}
    for each in partitions:
        replicas = cluster.replicas_of(*each)
        if {leader, follower} <= set(replicas):
            rest = [node for node in replicas if node not in (leader, follower)]
            orders[each] = (leader, follower, *rest)
    if not membership.put_in_order(cluster, orders):
        return None
    in_order = _wait_until(
        lambda: (
            all(cluster.replicas_of(*each) == order for each, order in orders.items())
            and all(cluster.agreed_leader(*each) == leader for each in orders)
        ),
        _ELECTION_TIMEOUT_S,
    )
    return _Cast(partition, leader, follower, controller) if in_order else None
