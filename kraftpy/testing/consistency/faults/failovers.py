"""Failovers that come at the worst time: in the middle of another one, or of a change of the ISR.

Each is a schedule in which one rule of replication is all that saves acknowledged records.  Kills
and cuts at random hit such a moment, of milliseconds, once in hours.  Slow and silent links make it
long enough to act in it; what is done then are the kills and crashes of the other faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from kraftpy.testing.cluster import Cluster
from kraftpy.testing.consistency.faults.ground import OFFSETS_TOPIC, Act, Ground

_SLOW_MS = (100, 250)
_WARM_UP_S = 1.5
_ELECTION_TIMEOUT_S = 8.0
_LAG_TIMEOUT_S = 8.0
_CATCH_UP_S = 1.2  # well before the leader's session with the controller ends
_NEXT_FETCH_S = 0.1
_ARRIVAL_S = 0.4
_POLL_S = 0.005

_Partition = tuple[str, int]


def successors(ground: Ground) -> Act:
    """A leader is killed, and its successor as soon as all others have heard of that.

    With slow links, and a follower to which the leader's last words don't get through, that
    follower's high watermark is behind what was acknowledged, it hasn't fetched from the new leader
    when that is gone as well, and what clients sent last has arrived everywhere without having been
    answered.  Whoever leads in the end has to have all that was acknowledged, and to know what was
    sent: nothing may be cut off because of a watermark (KIP-101), and a retry is recognized by a
    leader that never saw the producer (KIP-98).
    """
    cluster = ground.cluster
    victims: list[int] = []

    def begin() -> str:
        if not ground.all_in_sync():
            return "left out: not all replicas are in sync"
        partition, agreed = _leadership(ground)
        led = "the quorum" if partition is None else f"{partition[0]}-{partition[1]}"
        _slow_down(cluster, ground.rng.randrange(*_SLOW_MS))
        time.sleep(_WARM_UP_S)
        first = agreed()
        if first is None:
            return f"nobody leads {led}"
        if partition is not None:
            # The first of the other replicas follows it, as long as that is in the ISR.
            _, *last = (each for each in cluster.replicas_of(*partition) if each != first)
            for each in last:
                cluster.partition(first, each, close=True)  # what was on its way is lost
        cluster.kill(first)
        victims.append(first)
        second = _next_leader(agreed, first)
        if second is None:
            return f"{first}, which led {led}; nobody does after it"
        cluster.kill(second)
        victims.append(second)
        return f"{first}, which led {led}, and then {second}"

    def end() -> None:
        cluster.heal()
        cluster.restart(*victims)

    return Act(sorted(cluster.nodes), "a leader killed, and then its successor", begin, end)


def _leadership(ground: Ground) -> tuple[_Partition | None, Callable[[], int | None]]:
    """What is led, and what finds its leader: a partition, or the quorum if there is none."""
    partitions = _partitions(ground)
    if not partitions:
        return None, ground.cluster.controller
    partition = ground.rng.choice(partitions)
    return partition, partial(ground.cluster.agreed_leader, *partition)


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


def _slow_down(cluster: Cluster, delay_ms: int) -> None:
    nodes = sorted(cluster.nodes)
    for place, one in enumerate(nodes):
        for other in nodes[place + 1 :]:
            cluster.slow(one, other, delay_ms=delay_ms)


def _next_leader(agreed: Callable[[], int | None], former: int) -> int | None:
    _wait_until(lambda: agreed() not in (None, former), _ELECTION_TIMEOUT_S)
    leader = agreed()
    return leader if leader != former else None


def late_expansion(ground: Ground) -> Act:
    """A leader's proposal to take a follower into the ISR arrives when that has crashed since.

    The follower lagged and has caught up, and the proposal is on its way.  The follower crashes,
    loses what it had not fsynced, and is back under its id, unfenced.  Then the proposal arrives,
    and the leader dies.  The replica that was proposed is no more: only the broker epoch tells
    (KIP-903).  A leader has one proposal on its way at a time, so it names the partitions in which
    the follower caught up first, those with few records.
    """
    cluster = ground.cluster
    dead: list[int] = []

    def begin() -> str:
        if not ground.all_in_sync():
            return "left out: not all replicas are in sync"
        cast = _cast(ground)
        if cast is None:
            return "left out: the controller leads all that is written to"
        partition, leader, follower, controller = cast
        # It leaves the ISR of what is written meanwhile; with idle partitions it stays in sync.
        cluster.partition(leader, follower)
        if not _wait_until(lambda: follower not in cluster.in_sync(*partition), _LAG_TIMEOUT_S):
            return f"{follower} stays in sync without {leader}: nothing is written"
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


def _cast(ground: Ground) -> tuple[_Partition, int, int, int] | None:
    """A partition and who proposes, who is proposed, and who decides on it, three nodes."""
    cluster = ground.cluster
    controller = cluster.controller()
    casts: list[tuple[bool, tuple[_Partition, int, int, int]]] = []
    partitions = _written(ground)
    for topic, index in ground.rng.sample(partitions, len(partitions)):
        leader = cluster.leader_of(topic, index)
        if leader is None:
            continue
        followers = [each for each in cluster.replicas_of(topic, index) if each != leader]
        for place, follower in enumerate(followers):
            if controller not in (None, leader, follower):
                # The first of the ISR is elected when the leader is gone.
                casts.append((place > 0, ((topic, index), leader, follower, controller)))
    return min(casts, key=lambda each: each[0])[1] if casts else None
