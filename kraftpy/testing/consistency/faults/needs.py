"""What this machine has for faults, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.testing.consistency.faults.ground import Need
from kraftpy.testing.consistency.faults.kinds import FAULTS


def kinds(faults: Iterable[str]) -> list[str]:
    """The names of all kinds among faults, of which some may be joined by +."""
    return sorted({name for each in faults for name in each.split("+")})


def lacking(names: Iterable[str]) -> dict[str, str]:
    """Those of these kinds that can't be had here: why, and what to do. It tries them out."""
    needed: dict[Need, str] = {}
    found = {}
    for name in names:
        need = FAULTS[name].need
        if need is None:
            continue
        if need not in needed:
            needed[need] = need.missing()
        if needed[need]:
            found[name] = needed[need]
    return found


def cluster_options(names: Iterable[str]) -> dict[str, bool]:
    """What a `Cluster` has to be told so that these kinds can happen to it."""
    needs = [FAULTS[name].need for name in names]
    return {need.option: True for need in needs if need is not None}
