"""Which kinds of faults came in runs, which didn't though they were asked for, and why.

Rules: a kind has come if a fault was what its name says at least once; one that was left out or
that the time was too short for has not, whatever else was done to the cluster. What a machine
lacks is no kind that could have come, and is told apart.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]

NOT_HEALED = "not healed"
"""What a history calls a cluster that isn't healthy after its faults."""
_TOO_SHORT = "the time was too short"


def came(fault: Mapping[str, Any]) -> bool:
    """Whether a fault of a report was what its name says; older reports say nothing of that."""
    return fault["name"] != NOT_HEALED and fault.get("came", True) is True


def coverage(options: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As JSON, from a history's options and a report's faults.

    `met`: kind -> how often it came; `missed`: those that were asked for and didn't -> why;
    `lacking`: those that this machine hasn't -> why.
    """
    asked = {name for fault in options.get("faults", ()) for name in fault.split("+")}
    met = Counter(fault["name"] for fault in faults if came(fault))
    reasons = {fault["name"]: fault["detail"] for fault in faults if not came(fault)}
    lacking = options.get("left_out")
    return {
        "met": dict(sorted(met.items())),
        "missed": {name: reasons.get(name, _TOO_SHORT) for name in sorted(asked - met.keys())},
        "lacking": dict(lacking) if isinstance(lacking, Mapping) else {},
    }


def never_came(summaries: Sequence[Summary]) -> list[str]:
    """Kinds that were asked for and came in no run."""
    met = {name for each in summaries for name in each["kinds"]["met"]}
    missed = {name for each in summaries for name in each["kinds"]["missed"]}
    return sorted(missed - met)


def least_met_first(faults: Sequence[str], seed: int, earlier: Sequence[Summary]) -> list[str]:
    """The order in which a run is to meet faults: first those that the fewest earlier runs met."""
    runs = Counter(name for each in earlier for name in each["kinds"]["met"])
    shuffled = random.Random(seed).sample(faults, len(faults))  # noqa: S311 - has to be repeatable
    return sorted(shuffled, key=lambda name: runs[name])


def coverage_lines(summaries: Sequence[Summary]) -> list[str]:
    """For each run that had faults what of them it met; then what this machine lacks."""
    lines = []
    for each in summaries:
        met, missed = each["kinds"]["met"], each["kinds"]["missed"]
        if met or missed:
            line = f"{each['workload']} met {len(met)} of {len(met) + len(missed)} kinds of faults"
            lines.append(line + (f", not {_reasons(missed)}" if missed else ""))
    lacking = {name: why for each in summaries for name, why in each["kinds"]["lacking"].items()}
    if lacking:
        lines.append(f"not on this machine: {_reasons(lacking)}")
    return lines


def _reasons(kinds: Mapping[str, str]) -> str:
    """Kinds with the same reason together."""
    names: dict[str, list[str]] = {}
    for name, why in kinds.items():
        names.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(found)} ({why})" for why, found in names.items())
