"""Which fault comes when: a schedule that follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TARGETS = ("any", "leader", "controller", "coordinator")
FIRST_AFTER_S = (1.0, 3.0)
DURATION_S = (0.3, 6.0)  # around the session timeout of an ephemeral cluster, 3 s
PAUSE_S = (0.3, 4.0)
_UNTIL_HEALTHY = 0.4


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
    """The faults of a run, without end; each of `faults` is a name or several joined by +.

    Each comes once before any comes again, so that a short run has met them all if it can.
    """
    rng = random.Random(seed)  # noqa: S311 - has to be repeatable
    waits = FIRST_AFTER_S
    while faults:
        for each in rng.sample(faults, len(faults)):
            yield Planned(
                names=tuple(each.split("+")),
                target=rng.choice(TARGETS),
                seed=rng.randrange(2**32),
                wait_s=rng.uniform(*waits),
                duration_s=rng.uniform(*DURATION_S),
                until_healthy=rng.random() < _UNTIL_HEALTHY,
            )
            waits = PAUSE_S
