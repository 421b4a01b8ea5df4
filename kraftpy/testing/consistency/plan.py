"""What a run is to do, whether that can be done here, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.faults import FAULTS, kinds
from kraftpy.testing.consistency.workloads import PLAYS
from kraftpy.testing.networks.choice import PROXIES, Choice

LATE = "late-frames"
"""The fault that has to read what clients send."""


class RunError(Exception):
    """The run could not be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run; `again` is the command line that does it once more.

    Without `bootstrap` a cluster of `nodes` is started, a secured one if `secure`. `rate` is
    operations per second of all workers together. `faults` are names of `FAULTS`, some joined by +;
    `left_out` says of those that were wanted and can't be had here why. Workers take the `roles` in
    turn, by default those of the workload's cast.
    """

    workload: str
    folder: Path
    faults: Sequence[str] = ()
    time_limit_s: float = 60.0
    rate: float = 100.0
    concurrency: int = 8
    seed: int = 0
    nodes: int = 3
    bootstrap: str = ""
    secure: bool = False
    clients: Sequence[str] = ()
    roles: Sequence[str] = ()
    network: Choice = PROXIES
    left_out: Mapping[str, str] = field(default_factory=dict)
    again: Sequence[str] = ()

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"


@dataclass(slots=True)
class Result:
    """What happened besides what the history says; final workers count like all others.

    `faults` that came are counted by name, `void` has those that came to nothing, with the reasons;
    `crashed` workers did so on purpose, `dead` ones didn't, and those
    that were `killed` hung. `unhealthy` says why the cluster didn't heal, empty if it did.
    `kept` is where what the nodes had on disk was copied to, if it was.
    """

    faults: dict[str, int] = field(default_factory=dict)
    void: list[str] = field(default_factory=list)
    crashed: int = 0
    dead: int = 0
    killed: int = 0
    unhealthy: str = ""
    kept: Path | None = None


def check_plan(plan: Plan) -> None:
    """Raises RunError if it can't be run."""
    if plan.workload not in PLAYS:
        raise RunError(f"no workload is called {plan.workload!r}; there are {', '.join(PLAYS)}")
    for name in kinds(plan.faults):
        if name not in FAULTS:
            raise RunError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
        if FAULTS[name].calm and any(name in each and name != each for each in plan.faults):
            raise RunError(f"{name} is alone: it can't be joined with others")
        if plan.nodes < FAULTS[name].nodes:
            raise RunError(f"{name} takes {FAULTS[name].nodes} nodes at least")
    if plan.faults and plan.bootstrap:
        raise RunError("faults are for clusters that this command starts: leave --bootstrap out")
    _check_security(plan)
    there = clients.available()
    missing = [each for each in plan.clients if each not in there]
    if unknown := set(missing) - clients.LIBRARIES.keys():
        known = ", ".join(clients.LIBRARIES)
        raise RunError(f"no client is called {min(unknown)!r}; there are {known}")
    play = PLAYS[plan.workload]
    if strange := set(plan.roles) - {part.role for part in play.cast}:
        known = ", ".join(dict.fromkeys(part.role for part in play.cast))
        raise RunError(f"{plan.workload} has no role {min(strange)!r}; it has {known}")
    able = play.final.clients
    if not missing and not play.members and not set(plan.clients or there) & set(able):
        raise RunError(f"{plan.workload} needs one of {', '.join(able)} among its clients")
    if missing:
        wanted = "; ".join(clients.LIBRARIES[each].how for each in missing)
        raise RunError(f"{', '.join(missing)} can't be had here: {wanted}")


def _check_security(plan: Plan) -> None:
    if not plan.secure:
        return
    if plan.bootstrap:
        raise RunError("--secure is for clusters that this command starts: give --command-config")
    if LATE in kinds(plan.faults):
        raise RunError(f"{LATE} can't be had with --secure: what clients send is encrypted")
    if plan.network != PROXIES:
        raise RunError("--secure takes --network proxy: the certificate is for 127.0.0.1")
