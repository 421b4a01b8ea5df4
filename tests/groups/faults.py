"""What is done to groups and to the cluster: a schedule that follows from a seed, and the doing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kraftpy.testing import Cluster
from tests.groups.party import Party
from tests.groups.wire import coordinator_of

DURATION_S = (0.0, 6.0)  # around the session timeout of an ephemeral cluster's brokers, 3 s
PAUSE_S = (0.0, 4.0)

# Kind of fault -> how often, relative to the others.
MEMBERS = {"kill": 4, "leave": 3, "join": 2}
FREEZE = {"freeze": 2}
BROKERS = {"kill coordinator": 4, "pause coordinator": 2, "kill all brokers": 1}
ALWAYS = ("kill coordinator", "kill", "leave", "join", "freeze")
FREEZE_MARGIN_S = 1.5  # beyond the session timeout: others have the partitions by then

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `meanwhile` is what members do while a broker is away."""

    kind: str
    meanwhile: str
    turn: int
    duration_s: float
    pause_s: float


def schedule(seed: int, count: int) -> list[Fault]:
    """The faults of a run: those that are always there first of all, in any order."""
    rng = random.Random(seed)
    everything = MEMBERS | FREEZE | BROKERS
    kinds = [*ALWAYS, *rng.choices(list(everything), list(everything.values()), k=count)][:count]
    rng.shuffle(kinds)
    return [
        Fault(
            kind,
            rng.choices([*MEMBERS, ""], [*MEMBERS.values(), 3])[0],
            rng.randrange(1 << 30),
            rng.uniform(*DURATION_S),
            rng.uniform(*PAUSE_S),
        )
        for kind in kinds
    ]


def inflict(cluster: Cluster, parties: Sequence[Party], fault: Fault, say: Say) -> None:
    """Begin a fault, let it last, end it, pause. Raises ClusterError."""
    rng = random.Random(fault.turn)
    if fault.kind in MEMBERS:
        _disturb(parties, fault.kind, rng, cluster.bootstrap, say)
    elif fault.kind in FREEZE:
        _freeze(parties, rng, say)
    else:
        victim = coordinator_of(cluster, rng.choice(parties).name)
        end = _begin(cluster, fault.kind, victim, say)
        if fault.meanwhile:
            time.sleep(fault.duration_s * rng.random())
            _disturb(parties, fault.meanwhile, rng, cluster.bootstrap, say)
        time.sleep(fault.duration_s)
        end()
        say("ended")
    time.sleep(fault.pause_s)


def _disturb(
    parties: Sequence[Party], kind: str, rng: random.Random, bootstrap: str, say: Say
) -> None:
    """In each group someone dies and is replaced, leaves, or joins; never is nobody left."""
    for party in parties:
        if kind == "join" and party.members < party.size:
            party.start_one(bootstrap)
            say(f"{party.name}: someone joins")
        elif kind == "leave":
            say(f"{party.name}: {party.let_one_leave(rng)} leaves")
            if party.members == 0:
                party.start_one(bootstrap)
        else:
            say(f"{party.name}: {party.kill_one(rng)} is killed and replaced")
            party.start_one(bootstrap)


def _freeze(parties: Sequence[Party], rng: random.Random, say: Say) -> None:
    """In each group someone stands still until it was thrown out, and then goes on unaware."""
    frozen = [party.freeze_one(rng) for party in parties]
    say(f"{'; '.join(host.names for host in frozen)} frozen")
    time.sleep(max(p.times.session_timeout_ms for p in parties) / 1000 + FREEZE_MARGIN_S)
    for host in frozen:
        host.thaw()
    say("thawed")


def _begin(cluster: Cluster, kind: str, coordinator: int | None, say: Say) -> Callable[[], None]:
    """Begin a fault of brokers; returns what ends it."""
    victim = coordinator if coordinator is not None else min(cluster.nodes)
    if kind == "pause coordinator":
        say(f"pause broker {victim}")
        cluster.pause(victim)
        return lambda: cluster.resume(victim)
    dead = [victim] if kind == "kill coordinator" else sorted(cluster.nodes)
    say(f"kill brokers {dead}")
    for node in dead:
        cluster.kill(node)
    return lambda: cluster.restart(*dead)
