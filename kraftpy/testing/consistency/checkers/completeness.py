"""Was there something to judge, and was all of it read again in the end?

Rules:

* A promise that nothing put to the test is not kept: it is unknown. So a run is `complete` only if
  something was acknowledged, and if what was acknowledged has an answered read in the final phase:
  every log its drain, every register its fetch or describe. In groups members must have owned
  partitions and processed records as well.
* It is about runs. A history without phases (a part of one, a planted one) is judged as it is.
* It never says that a promise was broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kraftpy.testing.consistency.checkers.registers import register_call
from kraftpy.testing.consistency.history import Fault, Phase
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Verdict

_NAMED_MAX = 5
_ERROR_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a workload changes, what reads that again in the end, and what else has to happen."""

    changes: Sequence[str]
    reads: Sequence[str] = ()
    besides: Sequence[tuple[str, str]] = ()
    """(name of an operation, what to say if it never happened)"""


_WANTED = {
    "queue": _Wanted(["send"], ["drain"]),
    "replicas": _Wanted(["send"], ["drain"]),
    "offsets": _Wanted(["commit"], ["fetch"]),
    "commits": _Wanted(["commit-all"], ["fetch-all"]),
    "groups": _Wanted(
        ["commit"],
        ["fetch"],
        [
            ("assigned", "no member was ever assigned a partition"),
            ("processed", "no member processed anything"),
        ],
    ),
    "metadata": _Wanted(["create", "alter", "delete"], ["describe"]),
    "list-append": _Wanted(["txn"], ["drain"]),
    "transform": _Wanted(["txn"], ["drain"]),
    "bank": _Wanted(["txn"], ["drain"]),
    "cooperative": _Wanted(
        ["claim", "commit"],
        ["progress"],
        [
            ("assigned", "no member was ever assigned a partition"),
            ("processed", "no member processed anything"),
        ],
    ),
    "share": _Wanted(
        ["acknowledge"],
        ["starts"],
        [("lease", "no member was ever leased a record"), ("hold", "no member held on to any")],
    ),
}


class Completeness:
    """`workload` is a name in `WORKLOADS`; feed it everything, faults and phases too."""

    def __init__(self, workload: str) -> None:
        self._wanted = _WANTED[workload]
        self._phases: set[str] = set()
        self._final_ns = NEVER
        self._acknowledged: set[str] = set()
        self._read: set[str] = set()
        self._happened: set[str] = set()
        self._error = ""
        """The first that a final read came to: others may only have run out of time by it."""

    def observe(self, entry: Operation | Fault | Phase) -> None:
        if isinstance(entry, Phase):
            self._phases.add(entry.name)
            if entry.name == "final":
                self._final_ns = entry.time_ns
        elif isinstance(entry, Operation):
            self._observe_operation(entry)

    def _observe_operation(self, operation: Operation) -> None:
        f, ok = operation.f, operation.outcome == "ok"
        if f in self._wanted.changes:
            self._acknowledged.update(_changed(operation))
        elif f in self._wanted.reads and operation.invoked_ns >= self._final_ns:
            if ok:
                self._read.update(_keys(operation))
            self._error = self._error or operation.error
        elif ok and (f != "assigned" or operation.value["keys"]):
            self._happened.add(f)

    def verdicts(self) -> Iterator[Verdict]:
        if not self._phases:
            return
        missing = sorted(self._acknowledged - self._read) if self._wanted.reads else []
        problems = [said for f, said in self._wanted.besides if f not in self._happened]
        if not self._acknowledged:
            problems.append(f"no {' or '.join(self._wanted.changes)} was acknowledged")
        if "final" not in self._phases:
            problems.append("the run ended before its final reads")
        elif missing:
            more = ", ..." if len(missing) > _NAMED_MAX else ""
            problems.append(
                f"in the end no {' or '.join(self._wanted.reads)} was answered for {len(missing)}"
                f" of {len(self._acknowledged)} that had changed: {', '.join(missing[:_NAMED_MAX])}"
                f"{more}{f' ({self._error[:_ERROR_CHARS_MAX]})' if self._error else ''}"
            )
        yield Verdict(
            "complete",
            None if problems else True,
            "what was acknowledged was read again in the end, so that it could be judged",
            f"not enough is known: {'; '.join(problems)}" if problems else "all of it was",
            {"acknowledged keys": len(self._acknowledged), "not read again": len(missing)},
        )


def _changed(operation: Operation) -> Iterator[str]:
    """The keys of which an operation certainly changed something."""
    if operation.f == "send":
        acknowledged = operation.outcome == "ok"
        for key, _, *offset in operation.value:
            if acknowledged or (offset and offset[0] is not None):
                yield key
    elif operation.outcome == "ok":
        yield from _keys(operation)


def _keys(operation: Operation) -> Iterator[str]:
    value: Any = operation.value
    if operation.f == "drain":
        yield from value
    elif operation.f in ("acknowledge", "starts"):
        keys = value["said"].keys() - value["errors"] if "said" in value else value["starts"]
        yield from (f"{value['group']}/{key}" for key in keys)
    elif operation.f == "claim":
        yield from (f"{value['group']}/{key}" for key in value["records"])
    elif operation.f == "progress":
        yield f"{value['group']}/{value['key']}"
    elif operation.f == "txn":
        # A list is a part of what is drained.
        yield from (key.partition("/")[0] for f, key, _ in value if f == "append")
    elif (found := register_call(operation)) is not None:
        yield found[0]
