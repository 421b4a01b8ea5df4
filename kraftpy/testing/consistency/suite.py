"""Which checkers judge which workload, and the one pass that feeds them.

A workload is a module that yields operations for clients to carry out and record; to the checkers
it is a name in the header of a history. `WORKLOADS` says what its history is judged by; to add a
workload is to add its operations to `shapes` and its checkers here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kraftpy.testing.consistency.checkers.answers import AnswerChecker
from kraftpy.testing.consistency.checkers.bank import SumChecker
from kraftpy.testing.consistency.checkers.completeness import Completeness
from kraftpy.testing.consistency.checkers.leases import LeaseChecker
from kraftpy.testing.consistency.checkers.list_append import ListAppendChecker
from kraftpy.testing.consistency.checkers.ownership import OwnershipChecker
from kraftpy.testing.consistency.checkers.pieces import PieceChecker
from kraftpy.testing.consistency.checkers.queue import QueueChecker
from kraftpy.testing.consistency.checkers.register_checker import RegisterChecker
from kraftpy.testing.consistency.checkers.replicas import ReplicaChecker
from kraftpy.testing.consistency.checkers.rest import RestChecker
from kraftpy.testing.consistency.checkers.shares import SharesChecker
from kraftpy.testing.consistency.checkers.torn import TornChecker
from kraftpy.testing.consistency.checkers.transformed import TransformedChecker
from kraftpy.testing.consistency.checkers.whole import WholeChecker
from kraftpy.testing.consistency.history import (
    Fault,
    Header,
    HistoryError,
    HistoryReader,
    Phase,
)
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.verdicts import Checker, Verdict

Options = Mapping[str, Any]


def _queue(options: Options) -> Sequence[Checker]:
    return [QueueChecker(idempotence=options.get("idempotence") is True)]


def _replicas(options: Options) -> Sequence[Checker]:
    return [
        *_queue(options),
        AnswerChecker(),
        ReplicaChecker(expected=options.get("inspected") is True),
    ]


def _offsets(_: Options) -> Sequence[Checker]:
    return [RegisterChecker(offsets=True)]


def _commits(options: Options) -> Sequence[Checker]:
    return [TornChecker(), *_offsets(options)]


def _groups(options: Options) -> Sequence[Checker]:
    return [
        OwnershipChecker(_fenced_after_s(options)),
        RestChecker(expected=options.get("rests") is True),
        *_offsets(options),
    ]


def _fenced_after_s(options: Options) -> float:
    # A heartbeat may be that much older than what a member notes next.
    return (_whole(options, "session_timeout_ms") - _whole(options, "heartbeat_ms")) / 1000


def _whole(options: Options, name: str) -> int:
    value = options.get(name)
    return value if type(value) is int else 0


def _metadata(_: Options) -> Sequence[Checker]:
    return [RegisterChecker(offsets=False)]


def _list_append(options: Options) -> Sequence[Checker]:
    return [ListAppendChecker(_names(options, "allowed")), WholeChecker()]


def _transform(options: Options) -> Sequence[Checker]:
    return [TransformedChecker(_names(options, "groups")), WholeChecker()]


def _bank(_: Options) -> Sequence[Checker]:
    return [SumChecker(), WholeChecker()]


def _cooperative(options: Options) -> Sequence[Checker]:
    return [
        PieceChecker(_fenced_after_s(options)),
        SharesChecker(),
        RestChecker(expected=options.get("rests") is True, shared=True),
    ]


def _share(options: Options) -> Sequence[Checker]:
    limits = options.get("limits")
    known = limits if isinstance(limits, Mapping) else {}
    return [LeaseChecker(known, _whole(options, "lock_ms"))]


def _names(options: Options, name: str) -> Sequence[str]:
    value = options.get(name)
    if not isinstance(value, (list, dict)):
        return []
    return [each for each in value if type(each) is str]


WORKLOADS: dict[str, Callable[[Options], Sequence[Checker]]] = {
    "queue": _queue,
    "replicas": _replicas,
    "offsets": _offsets,
    "commits": _commits,
    "groups": _groups,
    "metadata": _metadata,
    "list-append": _list_append,
    "transform": _transform,
    "bank": _bank,
    "cooperative": _cooperative,
    "share": _share,
}


class Listener(Protocol):
    """Sees everything that the checkers see, and faults and phases."""

    def observe(self, entry: Operation | Fault | Phase) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the checkers of a history say. `valid` is None if nothing is wrong, not all known."""

    header: Header
    verdicts: Sequence[Verdict]
    operations: int
    torn_lines: int

    @property
    def valid(self) -> bool | None:
        found = [verdict.valid for verdict in self.verdicts]
        if False in found:
            return False
        return None if None in found or not self.operations else True


def checkers_for(header: Header) -> Sequence[Checker]:
    """Raises HistoryError for a workload that isn't known."""
    make = WORKLOADS.get(header.workload)
    if make is None:
        raise HistoryError(
            f"no workload is called {header.workload!r}; there are {', '.join(WORKLOADS)}"
        )
    return make(header.options)


def check(
    history: HistoryReader,
    *,
    checkers: Sequence[Checker] | None = None,
    listeners: Iterable[Listener] = (),
) -> Outcome:
    """Judges a history by the checkers of its workload, and whether a run's is complete.

    Raises HistoryError, OSError.
    """
    if checkers is None:
        checkers = checkers_for(history.header)
    completeness = Completeness(history.header.workload)
    observers = [checker.observe for checker in checkers]
    listening = [completeness.observe, *(listener.observe for listener in listeners)]
    operations = 0
    for entry in pair(history):
        for listen in listening:
            listen(entry)
        if isinstance(entry, Operation):
            operations += 1
            for observe in observers:
                observe(entry)
    verdicts = [verdict for checker in checkers for verdict in checker.verdicts()]
    verdicts += completeness.verdicts()
    return Outcome(history.header, verdicts, operations, history.torn_lines)
