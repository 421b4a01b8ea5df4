"""The faults that there are, and how each is begun and ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kraftpy.testing.cluster import Cluster
from kraftpy.testing.consistency.faults import (
    clients,
    clocks,
    failovers,
    late,
    membership,
    storage,
)
from kraftpy.testing.consistency.faults.ground import Act, Ground, Kind, LeftOut, Need, Part

_SLOW_MS = (20, 400)
_CRASHES = Need("crashes", lambda: "")


def _nothing() -> None:
    """What needs no end."""


def _majority(ground: Ground) -> int:
    return len(ground.cluster.nodes) // 2 + 1


def _kill(ground: Ground, count: int) -> Act:
    cluster, victims = ground.cluster, ground.victims(count)

    def begin() -> str | None:
        running = [node for node in victims if cluster.nodes[node].running]
        for node in running:
            cluster.kill(node)
        return None if running else LeftOut("all of them were down")

    return Act(victims, "SIGKILL", begin, lambda: cluster.restart(*victims))


def _of_the_coordinator(fault: Callable[[Ground], Act], ground: Ground) -> Act:
    """The same, of the node whose groups are in use."""
    ground.target = "coordinator"
    return fault(ground)


def _stop(ground: Ground) -> Act:
    cluster, (victim,) = ground.cluster, ground.victims(1)
    return Act([victim], "SIGTERM", lambda: cluster.stop(victim), lambda: cluster.restart(victim))


def _pause(ground: Ground, count: int) -> Act:
    cluster, victims = ground.cluster, ground.victims(count)

    def begin() -> None:
        for node in victims:
            cluster.pause(node)

    def end() -> None:
        for node in victims:
            if cluster.nodes[node].paused:
                cluster.resume(node)

    return Act(victims, "SIGSTOP", begin, end)


def _rolling_restart(ground: Ground) -> Act:
    cluster, nodes = ground.cluster, ground.victims(len(ground.cluster.nodes))

    def begin() -> None:
        for node in nodes:
            cluster.restart(node)

    return Act(nodes, "stopped and started one after the other", begin, _nothing)


def _isolate(ground: Ground, *, close: bool) -> Act:
    cluster, (victim,) = ground.cluster, ground.victims(1)
    how = "reset" if close else "silent"
    begin = partial(cluster.isolate, victim, close=close)
    return Act([victim], f"cut off from all others, {how}", begin, cluster.heal)


def _cut(cluster: Cluster, pairs: Sequence[tuple[int, int]], *, one_way: bool) -> None:
    for one, other in pairs:
        cluster.partition(one, other, one_way=one_way)


def _one_way(ground: Ground) -> Act:
    cluster = ground.cluster
    victim, *others = ground.victims(len(cluster.nodes))
    sends = ground.rng.random() < 0.5
    pairs = [(victim, other) if sends else (other, victim) for other in others]
    detail = "half open: " + ("nothing of it arrives" if sends else "nothing arrives at it")
    return Act([victim], detail, partial(_cut, cluster, pairs, one_way=True), cluster.heal)


def _halves(ground: Ground) -> Act:
    cluster = ground.cluster
    nodes = ground.victims(len(cluster.nodes))
    size = (len(nodes) - 1) // 2
    pairs = [(one, other) for one in nodes[:size] for other in nodes[size:]]
    begin = partial(_cut, cluster, pairs, one_way=False)
    return Act(nodes[:size], "a minority cut off from the majority", begin, cluster.heal)


def _bridge(ground: Ground) -> Act:
    cluster = ground.cluster
    bridge, *rest = ground.victims(len(cluster.nodes))
    half = len(rest) // 2
    pairs = [(one, other) for one in rest[:half] for other in rest[half:]]
    begin = partial(_cut, cluster, pairs, one_way=False)
    return Act(rest, f"two sides that only {bridge} reaches both", begin, cluster.heal)


def _pair(ground: Ground, *, close: bool) -> Act:
    cluster = ground.cluster
    one, other = ground.victims(2)
    begin = partial(cluster.partition, one, other, one_way=not close, close=close)
    detail = "their link reset" if close else "nothing that the first sends arrives at the second"
    return Act([one, other], detail, begin, cluster.heal)


def _ring(ground: Ground) -> Act:
    cluster = ground.cluster
    nodes = ground.victims(len(cluster.nodes))
    count = len(nodes)
    pairs = [
        (sender, nodes[(place + step) % count])
        for place, sender in enumerate(nodes)
        for step in range(2, count)
    ]
    begin = partial(_cut, cluster, pairs, one_way=True)
    return Act(nodes, "a ring: each is heard by the next one only", begin, cluster.heal)


def _slow(ground: Ground) -> Act:
    cluster = ground.cluster
    victim, *others = ground.victims(len(cluster.nodes))
    delay_ms = ground.rng.randrange(*_SLOW_MS)

    def begin() -> None:
        for other in others:
            cluster.slow(victim, other, delay_ms=delay_ms)

    return Act([victim], f"its links take {delay_ms} ms each way", begin, cluster.heal)


def _lose_tail(ground: Ground) -> Act:
    cluster, (victim,) = ground.cluster, ground.victims(1)

    def begin() -> str:
        in_sync = ground.all_in_sync()
        if cluster.nodes[victim].running:
            cluster.kill(victim)
        if not in_sync:
            return LeftOut("nothing is taken: not all replicas are in sync")
        return storage.lose_tail(cluster.nodes[victim].log_dir, ground.rng)

    return Act([victim], "SIGKILL", begin, lambda: cluster.restart(victim))


def _lose_unsynced(ground: Ground) -> Act:
    cluster, (victim,) = ground.cluster, ground.victims(1)

    def begin() -> str | None:
        if ground.all_in_sync():
            return cluster.crash(victim)
        cluster.kill(victim)
        return LeftOut("nothing is taken: not all replicas are in sync")

    return Act([victim], "SIGKILL", begin, lambda: cluster.restart(victim))


def _reassign(ground: Ground) -> Act:
    begin = partial(membership.reassign, ground.cluster, ground.topics, ground.rng)
    return Act(sorted(ground.cluster.nodes), "replicas are moved", begin, _nothing)


FAULTS: dict[str, Kind] = {
    "kill": Kind("kill -9 of one node", partial(_kill, count=1), part=Part.PROCESSES),
    "kill-majority": Kind(
        "kill -9 of a majority",
        lambda ground: _kill(ground, _majority(ground)),
        part=Part.PROCESSES,
    ),
    "kill-all": Kind(
        "kill -9 of all nodes",
        lambda ground: _kill(ground, len(ground.cluster.nodes)),
        part=Part.PROCESSES,
    ),
    "kill-coordinator": Kind(
        "kill -9 of the node that coordinates the groups in use",
        partial(_of_the_coordinator, partial(_kill, count=1)),
        part=Part.PROCESSES,
    ),
    "move-coordinator": Kind(
        "kill -9 of the node that coordinates groups to which nothing else happens",
        partial(_of_the_coordinator, partial(_kill, count=1)),
        calm=True,
    ),
    "stop": Kind("one node stopped in order", _stop, part=Part.PROCESSES),
    "rolling-restart": Kind("all nodes stopped and started, one by one", _rolling_restart, 2),
    "pause": Kind("SIGSTOP of one node", partial(_pause, count=1), part=Part.PROCESSES),
    "pause-majority": Kind(
        "SIGSTOP of a majority",
        lambda ground: _pause(ground, _majority(ground)),
        part=Part.PROCESSES,
    ),
    "pause-coordinator": Kind(
        "SIGSTOP of the node that coordinates the groups in use",
        partial(_of_the_coordinator, partial(_pause, count=1)),
        part=Part.PROCESSES,
    ),
    "partition": Kind(
        "one node cut off from the others, silently", partial(_isolate, close=False), 2, Part.LINKS
    ),
    "partition-reset": Kind(
        "one node cut off, its connections reset", partial(_isolate, close=True), 2, Part.LINKS
    ),
    "partition-one-way": Kind(
        "one node whose links are half open: in one direction nothing arrives",
        _one_way,
        2,
        Part.LINKS,
    ),
    "partition-majority": Kind("a minority cut off from a majority", _halves, 3, Part.LINKS),
    "partition-bridge": Kind("two sides that only one node reaches both", _bridge, 3, Part.LINKS),
    "partition-ring": Kind("every node is heard by one neighbour only", _ring, 3, Part.LINKS),
    "partition-pair-one-way": Kind(
        "two nodes, of which one isn't heard by the other",
        partial(_pair, close=False),
        2,
        Part.LINKS,
    ),
    "partition-pair-reset": Kind(
        "two nodes cut off from each other, their connections reset",
        partial(_pair, close=True),
        2,
        Part.LINKS,
    ),
    "slow": Kind("one node's links take 20 to 400 ms each way", _slow, 2, Part.LINKS),
    "lose-tail": Kind(
        "kill -9 of one node whose logs lose their newest bytes", _lose_tail, 3, Part.PROCESSES
    ),
    "reassign": Kind(
        "replicas moved and preferred leaders elected", _reassign, 2, part=Part.REPLICAS
    ),
    "decommission": Kind(
        "one broker freed of its replicas, stopped and unregistered; it comes back",
        membership.decommission,
        3,
    ),
    "add-broker": Kind(
        "one broker more, which gets replicas and is decommissioned again",
        membership.add_broker,
        2,
    ),
    "clock-forward": Kind(
        "one node's wall clock set forward, by half a second or by days",
        partial(clocks.jump, forward=True),
        part=Part.CLOCKS,
        need=clocks.NEED,
    ),
    "clock-back": Kind(
        "one node's wall clock set back, by half a second or by days",
        partial(clocks.jump, forward=False),
        part=Part.CLOCKS,
        need=clocks.NEED,
    ),
    "clock-drift": Kind(
        "one node's wall clock goes 2 to 20 % too fast or too slow",
        clocks.drift,
        part=Part.CLOCKS,
        need=clocks.NEED,
    ),
    "lose-unsynced": Kind(
        "kill -9 of one node whose files lose all that was not fsynced",
        _lose_unsynced,
        3,
        need=_CRASHES,
    ),
    "bit-flip": Kind(
        "kill -9 of one node, and a bit flipped in a closed segment of each of its logs",
        storage.bit_flip,
        3,
    ),
    "disk-full": Kind(
        "one node's disk has no room left", storage.disk_full, need=storage.NEEDS_DISKS
    ),
    "successors": Kind(
        "kill -9 of a leader and of its successor, over slow links", failovers.successors, 3
    ),
    "unanswered": Kind(
        "kill -9 of a leader that has passed on what it was sent, and not answered",
        failovers.unanswered,
        3,
    ),
    "unheard": Kind(
        "kill -9 of a leader whose successor has not got what it was sent last",
        failovers.unheard,
        3,
    ),
    "kill-client": Kind(
        "kill -9 of a client's process, which is replaced", clients.kill, part=Part.CLIENTS
    ),
    "leave-client": Kind(
        "a client that is told to finish, and comes back later", clients.leave, part=Part.CLIENTS
    ),
    "freeze-client": Kind(
        "SIGSTOP of a client's process for longer than a group waits for a member",
        clients.freeze,
        part=Part.CLIENTS,
        least_s=clients.FREEZE_S,
    ),
    "late-frames": Kind(
        "EndTxn and Produce that arrive seconds late, after they were sent again",
        late.late_frames,
        part=Part.CLIENTS,
    ),
    "hijack": Kind(
        "a transactional id that two producers have",
        late.hijack,
        part=Part.CLIENTS,
        least_s=late.HIJACKED_S,
    ),
    "late-expansion": Kind(
        "an ISR change that is decided when its replica has crashed, and the leader is dead",
        failovers.late_expansion,
        3,
        need=_CRASHES,
    ),
}
