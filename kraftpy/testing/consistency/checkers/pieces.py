"""Who owns which part of a partition, and who commits it: `ownership`, by parts.

Rules:

* A partition is cut wherever a slice begins or ends that some member ever had: each of the pieces
  has one owner at a time, as a partition has that isn't shared.
* Members that name no slices have whole partitions. Slices are first and last slots.
* A claim is a commit of each piece that one of its records is in. A piece may be claimed by whoever
  had it last, until another member was given it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kraftpy.testing.consistency.checkers.ownership import OwnershipChecker
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict

SLOTS = 1 << 16
WHOLE = [[0, SLOTS - 1]]
_OBSERVED = frozenset(
    {"assigned", "revoked", "lost", "gone", "frozen", "claim", "commit", "processed"}
)
_PROMISES = frozenset({"double-ownership", "stale-commit", "unowned-processing"})


class PieceChecker:
    """`fenced_after_s` as in `OwnershipChecker`."""

    def __init__(self, fenced_after_s: float) -> None:
        self._operations: list[Operation] = []
        self._bounds: dict[str, set[int]] = {}
        self._owners = OwnershipChecker(fenced_after_s, join_silently=True)

    def observe(self, operation: Operation) -> None:
        if operation.f in _OBSERVED:
            self._operations.append(operation)
            for key, slices in slices_of(operation.value).items():
                bounds = self._bounds.setdefault(key, {0, SLOTS})
                bounds.update(each for first, last in slices for each in (first, last + 1))

    def verdicts(self) -> Iterator[Verdict]:
        cuts = {key: sorted(bounds) for key, bounds in self._bounds.items()}
        for operation in self._operations:
            for each in _by_pieces(operation, cuts):
                self._owners.observe(each)
        for verdict in self._owners.verdicts():
            if verdict.checker in _PROMISES:
                yield verdict


def slices_of(value: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """The slots of each partition that an assignment, or the end of one, is about."""
    found: dict[str, list[list[int]]] = dict.fromkeys(value.get("keys", ()), WHOLE)
    found.update(value.get("slices", {}))
    return found


def _by_pieces(operation: Operation, cuts: Mapping[str, Sequence[int]]) -> Iterator[Operation]:
    value = operation.value
    match operation.f:
        case "assigned" | "revoked" | "lost" | "gone":
            names = [
                name
                for key, slices in slices_of(value).items()
                for name in _pieces(key, cuts[key], slices)
            ]
            yield _like(operation, operation.f, {**value, "keys": names})
        case "claim":
            names = list(
                dict.fromkeys(
                    _piece(key, cuts, slot)
                    for key, records in operation.asked["records"].items()
                    for slot, _ in records
                )
            )
            yield from _commits(operation, names)
        case "commit":
            key = operation.asked["key"]
            yield from _commits(operation, _pieces(key, cuts.get(key, (0, SLOTS)), WHOLE))
        case "processed":
            offsets = {"first": value["first"], "last": value["last"]}
            # Who doesn't say in which slot a record is has the whole partition.
            name = _piece(value["key"], cuts, value.get("slot", 0))
            at = {"group": value["group"], "key": name, **offsets}
            yield _like(operation, "processed", at)
        case _:
            yield operation


def _commits(operation: Operation, names: Iterable[str]) -> Iterator[Operation]:
    group, epoch = operation.asked["group"], operation.asked.get("epoch", -1)
    for name in names:
        asked = {"group": group, "key": name, "offset": 0, "epoch": epoch}
        yield _like(operation, "commit", asked)


def _like(operation: Operation, f: str, value: dict[str, Any]) -> Operation:
    return operation._replace(f=f, asked=value, value=value)


def _pieces(key: str, cuts: Sequence[int], slices: Iterable[Sequence[int]]) -> list[str]:
    return [
        f"{key}/{begin}-{end - 1}"
        for begin, end in pairwise(cuts)
        if any(first <= begin <= last for first, last in slices)
    ]


def _piece(key: str, cuts: Mapping[str, Sequence[int]], slot: int) -> str:
    places = cuts.get(key, (0, SLOTS))
    at = bisect_right(places, slot)
    return f"{key}/{places[at - 1]}-{places[at] - 1}"
