"""What is done to a cluster: a schedule that follows from a seed, and the doing of it.

A fault is begun, lasts, and is ended; then comes a pause that is often too short for everything to
be in sync again. Which node a name like "leader" stands for is decided when the fault begins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kraftpy.testing import Cluster

DURATION_S = (0.2, 6.0)  # around the session timeout of an ephemeral cluster, 3 s
PAUSE_S = (0.1, 4.0)
TARGETS = ("any", "any", "leader", "controller")
HEALTHY_TIMEOUT_S = 60.0

# Kind of fault -> how often, relative to the others.
KINDS = {
    "kill": 5,
    "kill two": 1,
    "kill all": 1,
    "stop": 2,
    "pause": 4,
    "pause two": 1,
    "pause one, kill another": 1,
    "cut": 2,
    "cut one way": 2,
    "cut hard": 1,
    "isolate": 3,
    "isolate hard": 1,
}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `turn` picks the nodes that come after the target."""

    kind: str
    target: str
    turn: int
    duration_s: float
    pause_s: float
    until_healthy: bool

    def __str__(self) -> str:
        then = "until healthy" if self.until_healthy else f"{self.pause_s:.1f} s"
        return f"{self.kind} ({self.target}, {self.turn}) for {self.duration_s:.1f} s, then {then}"


def schedule(seed: int) -> Iterator[Fault]:
    """The faults of a round, without end."""
    rng = random.Random(seed)
    kinds, weights = list(KINDS), list(KINDS.values())
    while True:
        yield Fault(
            kind=rng.choices(kinds, weights)[0],
            target=rng.choice(TARGETS),
            turn=rng.randrange(6),
            duration_s=rng.uniform(*DURATION_S),
            pause_s=rng.uniform(*PAUSE_S),
            until_healthy=rng.random() < 0.4,
        )


def inflict(cluster: Cluster, fault: Fault, topic: str, say: Say) -> None:
    """Begin the fault, let it last, end it, pause. Raises ClusterError."""
    first, second, _ = victims(cluster, fault, topic)
    say(f"{fault.kind}: {_names(fault.kind, first, second)} for {fault.duration_s:.1f} s")
    end = _begin(cluster, fault.kind, first, second)
    time.sleep(fault.duration_s)
    end()
    say("ended")
    if fault.until_healthy:
        cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        say("healthy")
    else:
        time.sleep(fault.pause_s)


def victims(cluster: Cluster, fault: Fault, topic: str) -> list[int]:
    """All nodes, the target first."""
    found = None
    if fault.target == "leader":
        found = cluster.leader_of(topic)
    elif fault.target == "controller":
        found = cluster.controller()
    order = sorted(cluster.nodes)
    order = order[fault.turn % 3 :] + order[: fault.turn % 3]
    if fault.turn >= 3:
        order.reverse()
    return [found, *(i for i in order if i != found)] if found is not None else order


def _names(kind: str, first: int, second: int) -> str:
    two = "two" in kind or "another" in kind or kind.startswith("cut")
    return "all" if "all" in kind else f"{first} and {second}" if two else str(first)


def _begin(cluster: Cluster, kind: str, first: int, second: int) -> Callable[[], None]:
    """Begin a fault; returns what ends it."""
    everyone = sorted(cluster.nodes)
    match kind:
        case "kill" | "kill two" | "kill all":
            dead = {"kill": [first], "kill two": [first, second], "kill all": everyone}[kind]
            for node in dead:
                cluster.kill(node)
            return lambda: cluster.restart(*dead)
        case "stop":
            cluster.stop(first)
            return lambda: cluster.restart(first)
        case "pause" | "pause two":
            still = [first] if kind == "pause" else [first, second]
            for node in still:
                cluster.pause(node)

            def resume() -> None:
                for node in still:
                    cluster.resume(node)

            return resume
        case "pause one, kill another":
            cluster.pause(first)
            cluster.kill(second)

            def end() -> None:
                cluster.resume(first)
                cluster.restart(second)

            return end
        case "cut" | "cut one way" | "cut hard":
            cluster.partition(first, second, one_way="way" in kind, close="hard" in kind)
        case "isolate" | "isolate hard":
            cluster.isolate(first, close="hard" in kind)
        case _:
            raise ValueError(kind)
    return cluster.heal
