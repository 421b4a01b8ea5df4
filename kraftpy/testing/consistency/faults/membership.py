"""Replicas that move from broker to broker under load, brokers that leave and brokers that come."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

from kraftpy.client.cluster import Cluster as Connections
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.cluster import Cluster
from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.faults.ground import Act, Ground, LeftOut

_TIMEOUT_MS = 8_000
_DRAIN_S = 15.0
_POLL_S = 0.1
_FEWER = 0.5
_MOVED = 0.6

_Moves = Mapping[PartitionName, Sequence[int]]
_Troubles = (ConnectionError, KafkaError, TimeoutError)


def reassign(cluster: Cluster, topics: Mapping[str, int], rng: random.Random) -> str:
    """Gives every partition of the topics a new list of replicas; in words, what came of it.

    Without topics under load it is all partitions that there are just now. The moves go on for a
    while.
    """
    nodes = sorted(cluster.nodes)
    moves = {}
    try:
        for name in asyncio.run(_assignments(cluster, list(topics))):
            # One fewer than all, and then all again, so that data has to be copied.
            count = max(2, len(nodes) - 1) if rng.random() < _FEWER else len(nodes)
            moves[name] = rng.sample(nodes, count)
        moving = asyncio.run(_move(cluster, moves))
    except _Troubles as error:
        return LeftOut(f"replicas of {len(moves)} partitions can't be moved: {error}")
    if not moving:
        return LeftOut(f"nothing is moved: of {len(moves)} partitions none may or is still there")
    return f"replicas of {moving} partitions moved, preferred leaders elected"


def put_in_order(cluster: Cluster, orders: Mapping[tuple[str, int], Sequence[int]]) -> bool:
    """Gives partitions their replicas in another order, and has the first lead; whether asked.

    The order and the leaders show soon.
    """
    try:
        asyncio.run(_move(cluster, {PartitionName(*each): to for each, to in orders.items()}))
    except _Troubles:
        return False
    return True


def decommission(ground: Ground) -> Act:
    """A broker without replicas is stopped and unregistered; it comes back and gets them again."""
    cluster, (victim,) = ground.cluster, ground.victims(1)
    before: dict[PartitionName, Sequence[int]] = {}

    def begin() -> str:
        try:
            before.update(asyncio.run(_drain(cluster, victim)))
        except _Troubles as error:
            return LeftOut(f"it could not be freed of its replicas: {error}")
        cluster.stop(victim)
        try:
            asyncio.run(_unregister(cluster, victim))
        except _Troubles as error:
            return LeftOut(
                f"freed of {len(before)} replicas and stopped; not unregistered: {error}"
            )
        return f"freed of {len(before)} replicas, stopped, unregistered"

    def end() -> None:
        if not cluster.nodes[victim].running:
            cluster.restart(victim)
        _try_to_move(cluster, before)

    return Act([victim], "decommissioned", begin, end)


def add_broker(ground: Ground) -> Act:
    """A broker with a new id comes, gets replicas, and is decommissioned again."""
    cluster, topics, rng = ground.cluster, ground.topics, ground.rng
    added: list[int] = []
    before: dict[PartitionName, Sequence[int]] = {}

    def begin() -> str:
        added.append(cluster.add())
        try:
            there = asyncio.run(_assignments(cluster, list(topics)))
            some = {name: nodes for name, nodes in there.items() if rng.random() < _MOVED}
            chosen = some or there
            moves = {name: _with(added[0], nodes, rng) for name, nodes in chosen.items()}
            before.update(chosen)
            moving = asyncio.run(_move(cluster, moves))
        except _Troubles as error:
            return LeftOut(f"broker {added[0]} is there and gets no replicas: {error}")
        if not moving:
            return LeftOut(f"broker {added[0]} is there and gets no replicas: no topic stays")
        return f"broker {added[0]} gets replicas of {moving} partitions"

    def end() -> None:
        if not added:
            return
        _try_to_move(cluster, before)
        try:
            asyncio.run(_drain(cluster, added[0]))
        except _Troubles:
            return  # it stays, with its replicas
        cluster.remove(added[0])
        try:
            asyncio.run(_unregister(cluster, added[0]))
        except _Troubles:
            return  # it stays known, and fenced

    return Act([], "a broker with a new id", begin, end)


def _with(broker: int, nodes: Sequence[int], rng: random.Random) -> Sequence[int]:
    """Replicas among which the broker takes somebody's place."""
    place = rng.randrange(len(nodes))
    return [*nodes[:place], broker, *nodes[place + 1 :]]


def _try_to_move(cluster: Cluster, moves: _Moves) -> None:
    """Moves what can be moved: a cluster that can't yet does without, and is healthy as it is."""
    if moves:
        try:
            asyncio.run(_move(cluster, moves))
        except _Troubles:
            return


async def _move(cluster: Cluster, moves: _Moves) -> int:
    """Begins to move, and elects preferred leaders; how many partitions do.

    Topics that are gone don't count.
    """
    async with Connections(cluster.bootstrap, security=secured.own()) as connections:
        admin = ClusterAdmin(connections, timeout_ms=_TIMEOUT_MS)
        refused = await admin.alter_reassignments(moves)
        await admin.elect_leaders(PREFERRED_ELECTION)
        return sum(error is None for error in refused.values())


async def _assignments(
    cluster: Cluster, topics: Sequence[str]
) -> dict[PartitionName, Sequence[int]]:
    async with Connections(cluster.bootstrap, security=secured.own()) as connections:
        admin = ClusterAdmin(connections, timeout_ms=_TIMEOUT_MS)
        there = await admin.describe_partitions(topics)
        return {name: partition.replicas for name, partition in there.items()}


async def _drain(cluster: Cluster, broker: int) -> dict[PartitionName, Sequence[int]]:
    """Moves all replicas away from a broker, and waits until they are; who had them before.

    Another broker takes each over, or with none left, nobody does.
    """
    before: dict[PartitionName, Sequence[int]] = {}
    deadline = time.monotonic() + _DRAIN_S
    async with Connections(cluster.bootstrap, security=secured.own()) as connections:
        admin = ClusterAdmin(connections, timeout_ms=_TIMEOUT_MS)
        while True:
            there = await admin.describe_partitions()
            on_it = {name: each.replicas for name, each in there.items() if broker in each.replicas}
            if not on_it:
                return before
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(on_it)} partitions are still on it after {_DRAIN_S:g} s")
            moving = await admin.list_reassignments()
            moves = {
                name: _without(broker, nodes, sorted(cluster.nodes))
                for name, nodes in on_it.items()
                if name not in moving or broker in moving[name].target
            }
            before = {name: on_it[name] for name in moves} | before
            if moves:
                await admin.alter_reassignments(moves)
            await asyncio.sleep(_POLL_S)


def _without(broker: int, nodes: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
    others = [each for each in everyone if each not in nodes]
    return [each for each in nodes if each != broker] + others[:1]


async def _unregister(cluster: Cluster, broker: int) -> None:
    async with Connections(cluster.bootstrap, security=secured.own()) as connections:
        await ClusterAdmin(connections, timeout_ms=_TIMEOUT_MS).unregister_broker(broker)
