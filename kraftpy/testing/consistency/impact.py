"""What clients felt of each fault: what failed meanwhile, what was slow, when nothing succeeded.

Rules: what waits for data by design is left out (see `series`). A silence is a time in which no
operation ended well; it belongs to the faults that it touches, and the one that follows from a
fault may outlast it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.history import Fault
from kraftpy.testing.consistency.operations import NEVER
from kraftpy.testing.consistency.series import Timeline

_NS = 1e9


class Stretch(NamedTuple):
    """A fault from beginning to end, in ns; one that nobody ended lasts as long as the run.

    `came` is whether it was what its name says; `detail` what it was, or why it wasn't.
    """

    name: str
    start_ns: int
    end_ns: int
    targets: tuple[str, ...]
    detail: str
    came: bool


def stretches(timeline: Timeline) -> list[Stretch]:
    """The faults of a run in the order of their beginnings."""
    found = []
    begun = {}
    for fault in timeline.faults:
        if fault.phase == "start":
            begun[fault.id] = fault
            continue
        start = fault if fault.phase == "point" else begun.pop(fault.id, fault)
        found.append((start, fault))
    # A run that broke off in the middle of a fault didn't see it to its end.
    unended_ns = timeline.start_ns + timeline.duration_ns
    found += [(fault, fault._replace(time_ns=unended_ns)) for fault in begun.values()]
    made = [
        Stretch(start.name, start.time_ns, end.time_ns, start.targets, *_what_happened(start, end))
        for start, end in found
    ]
    return sorted(made, key=lambda each: each[1:3])


def _what_happened(start: Fault, end: Fault) -> tuple[str, bool]:
    """`detail` and `came` of a stretch."""
    if end.phase == "void":
        return f"left out: {end.detail}", False
    said = (start.detail, end.detail if end is not start else "")
    return "; ".join(dict.fromkeys(filter(None, said))), True


def impact(timeline: Timeline) -> dict[str, Any]:
    """As JSON: the longest silence of the load, and `faults`: what clients felt of each one."""
    calls = sorted(timeline.calls())
    begins = [invoked for invoked, _, _ in calls]
    successes = sorted(ended for _, ended, code in calls if code == 0 and ended != NEVER)
    load = _load(timeline)
    return {
        "silence_s": round(_silence(successes, *load) / _NS, 3),
        "faults": [_felt(each, calls, begins, successes, timeline) for each in stretches(timeline)],
    }


def _load(timeline: Timeline) -> tuple[int, int]:
    """When the load began and when it was over; the whole run if it doesn't say."""
    moments = {phase.name: phase.time_ns for phase in timeline.phases}
    start_ns = moments.get("load", timeline.start_ns)
    end_ns = moments.get("heal", moments.get("final", timeline.start_ns + timeline.duration_ns))
    return start_ns, end_ns


def _felt(
    fault: Stretch,
    calls: list[tuple[int, int, int]],
    begins: list[int],
    successes: list[int],
    timeline: Timeline,
) -> dict[str, Any]:
    first, last = bisect_left(begins, fault.start_ns), bisect_left(begins, fault.end_ns)
    outcomes = [0, 0, 0]
    slowest_ns = 0
    for invoked, ended, code in calls[first:last]:
        outcomes[code] += 1
        if code == 0:
            slowest_ns = max(slowest_ns, ended - invoked)
    ok, info, fail = outcomes
    return {
        "name": fault.name,
        "start_s": round((fault.start_ns - timeline.start_ns) / _NS, 6),
        "end_s": round((fault.end_ns - timeline.start_ns) / _NS, 6),
        "targets": list(fault.targets),
        "detail": fault.detail,
        "came": fault.came,
        "ok": ok,
        "info": info,
        "fail": fail,
        "slowest_ms": round(slowest_ns / 1e6, 3),
        "silence_s": round(_silence(successes, fault.start_ns, fault.end_ns) / _NS, 3),
    }


def _silence(successes: list[int], start_ns: int, end_ns: int) -> int:
    """The longest time without a success that touches these moments; 0 if there was none at all."""
    if not successes:
        return 0
    first = max(0, bisect_left(successes, start_ns) - 1)
    last = bisect_right(successes, end_ns) + 1
    return max((after - before for before, after in pairwise(successes[first:last])), default=0)
