"""Which fault comes when: a schedule that follows from a seed.

Each fault comes once before any comes again, so that a short run has met them all if it can: first
in the order in which they were asked for, then in any. Now and then two come together that work on
different parts of the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kraftpy.testing.consistency.faults.kinds import FAULTS

TARGETS = ("any", "leader", "controller", "coordinator")
FIRST_AFTER_S = (1.0, 3.0)
DURATION_S = (0.3, 6.0)  # around the session timeout of an ephemeral cluster, 3 s
PAUSE_S = (0.3, 4.0)
_UNTIL_HEALTHY = 0.4
_PAIRED = 0.25


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: `names` together, `seed` for what they choose when they begin.

    It begins `wait_s` after the one before ended, or if `until_healthy` and that takes longer, when
    nothing is left of that.
    """

    names: tuple[str, ...]
    target: str
    seed: int
    wait_s: float
    duration_s: float
    until_healthy: bool


def schedule(seed: int, faults: Sequence[str]) -> Iterator[Planned]:
    """The faults of a run, without end; each of `faults` is a name or several joined by +."""
    rng = random.Random(seed)  # noqa: S311 - has to be repeatable
    waits = FIRST_AFTER_S
    pairs = _pairs(faults)
    for each in _in_turn(rng, faults, pairs):
        yield Planned(
            names=tuple(each.split("+")),
            target=rng.choice(TARGETS),
            seed=rng.randrange(2**32),
            wait_s=rng.uniform(*waits),
            duration_s=rng.uniform(*DURATION_S),
            until_healthy=rng.random() < _UNTIL_HEALTHY,
        )
        waits = PAUSE_S


def _in_turn(rng: random.Random, faults: Sequence[str], pairs: Sequence[str]) -> Iterator[str]:
    turn = list(faults)
    while turn:
        for each in turn:
            yield each
            if pairs and rng.random() < _PAIRED:
                yield rng.choice(pairs)
        turn = rng.sample(turn, len(turn))


def _pairs(faults: Sequence[str]) -> list[str]:
    """Those of the faults that may overlap, two by two, in the order in which they have to begin.

    A user who joins some knows what is wanted, and gets no others.
    """
    if any("+" in each for each in faults):
        return []
    parts = {name: FAULTS[name].part for name in faults}
    return [
        f"{first}+{then}"
        for first, part in parts.items()
        for then, other in parts.items()
        if part is not None and other is not None and part < other
    ]
