"""Anomalies of transactions that append to lists and read them, in the manner of Elle.

A list shows the order of its appends, so reads say who depended on whom (Kingsbury & Alvaro,
"Elle", 2020). Edges between transactions:

* ww: the one's append comes right before the other's in a list
* wr: the other read the one's append as the last of a list
* rw: the one read a list that the other's append came right behind

A cycle of these is an anomaly; its name is that of the weakest isolation that forbids it (Adya): G0
has ww only, G1c ww and wr, G-single one rw, G2 more than one. Beside the cycles: G1a, the read
of an aborted append; G1b, the read of a transaction that was half done; `internal`, the read of
what the reader itself appended and hasn't committed; lists that contradict one another.

Kafka promises less than serializability: `allowed` names what a workload accepts. Where readers
see committed records only, information still can't flow in circles by reads alone (`G1c-wr`):
whoever is read has committed before. A list may be a part of what a partition holds; its name is
the partition's then, with what precedes the first slash of each of its values (`t-0/7`), and what
was drained of the partition in the end is the last read of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kraftpy.testing.consistency.checkers.drained import Drained
from kraftpy.testing.consistency.checkers.graphs import components
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

WW, WR, RW = "ww", "wr", "rw"
_STARTS_MAX = 500
"""From how many edges of one tangle cycles are looked for; one is enough to prove it."""
_STARTS_ALLOWED_MAX = 3
"""The same of an anomaly that is only counted."""

_PROMISES = {
    "G1a": "an aborted append is never read",
    "G1b": "a transaction is read whole or not at all",
    "internal": "nobody reads what it has not committed itself",
    "incompatible-order": "all reads of a list agree on its order",
    "duplicate-elements": "a list holds every append once",
    "G0": "appends of two transactions don't interleave in both orders",
    "G1c": "information doesn't flow in circles",
    "G1c-wr": "information doesn't flow in circles by reads alone",
    "G-single": "what a transaction reads is one consistent picture",
    "G2": "there is an order of the transactions that explains every read",
}

Value = int | str


@dataclass(slots=True)
class _List:
    """One key: who appended what, the longest read (`order`, from `longest`), and all reads."""

    writers: dict[Value, int] = field(default_factory=dict)
    aborted: dict[Value, int] = field(default_factory=dict)
    order: list[Value] = field(default_factory=list)
    longest: int = -1
    reads: list[tuple[int, list[Value]]] = field(default_factory=list)
    """(transaction's line, what it read)"""
    superseded: set[Value] = field(default_factory=set)
    """Values behind which their own transaction appended more."""

    def read(self, line: int, values: list[Value]) -> None:
        self.reads.append((line, values))
        if len(values) > len(self.order):
            self.order, self.longest = values, line


class ListAppendChecker:
    """`allowed`: names of anomalies that are counted and not held against the history."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = allowed
        self._lists: dict[str, _List] = {}
        self._found = {name: Findings() for name in _PROMISES}
        self._edges: dict[int, dict[int, str]] = {}
        self._reads_from: dict[int, set[int]] = {}
        self._drained = Drained()
        self._transactions = 0

    def observe(self, operation: Operation) -> None:
        if operation.f != "txn":
            self._drained.observe(operation)
            return
        self._transactions += 1
        line = operation.line
        last: dict[str, Value] = {}
        own: set[Value] = set()
        for f, key, value in operation.value:
            found = self._lists.setdefault(key, _List())
            if f == "append":
                writers = found.aborted if operation.outcome == "fail" else found.writers
                if value in found.writers or value in found.aborted:
                    summary = (
                        f"{value!r} was appended to {key} twice: a workload's values are unique"
                    )
                    self._found["duplicate-elements"].add(summary, (line,), key)
                writers[value] = line
                if key in last:
                    found.superseded.add(last[key])
                last[key] = value
                own.add(value)
            elif operation.outcome == "ok":
                found.read(line, value)
                for mine in own.intersection(value) if own else ():
                    summary = f"{mine!r} was read from {key} by its own transaction"
                    self._found["internal"].add(summary, (line,), key)

    def verdicts(self) -> Iterator[Verdict]:
        for drain in self._drained.found:
            for key, values in drain.lists().items():
                if key in self._lists:
                    self._lists[key].read(drain.line, values)
        for key, found in self._lists.items():
            self._check_reads(key, found)
            self._draw_edges(found)
        self._find_cycles()
        counts = {"transactions": self._transactions, "lists": len(self._lists)}
        for name, promise in _PROMISES.items():
            findings = self._found[name]
            if name in self._allowed:
                explanation = f"{findings.count} found, which this workload allows"
                yield Verdict(name, True, promise, explanation, {**counts, "found": findings.count})
            else:
                yield findings.verdict(name, promise, "none was found", counts)

    def _check_reads(self, key: str, found: _List) -> None:
        order = found.order
        if len(set(order)) < len(order):
            twice = next(value for i, value in enumerate(order) if value in order[:i])
            writer = found.writers.get(twice, -1)
            summary = f"{twice!r} is in the list {key} twice"
            self._found["duplicate-elements"].add(summary, (writer, found.longest), key)
        for line, read in found.reads:
            if read != order[: len(read)]:
                place = next(i for i, value in enumerate(read) if value != order[i])
                self._found["incompatible-order"].add(
                    f"element {place} of {key} is {read[place]!r} to one and {order[place]!r} to"
                    " another",
                    (found.longest, line),
                    key,
                )
            for value in found.aborted.keys() & set(read) if found.aborted else ():
                summary = f"{value!r} was read from {key}, and its transaction was aborted"
                self._found["G1a"].add(summary, (found.aborted[value], line), key)
            if read and read[-1] in found.superseded:
                writer = found.writers.get(read[-1], found.aborted.get(read[-1], -1))
                if writer != line:
                    summary = f"{read[-1]!r} was read from {key} before its transaction was done"
                    self._found["G1b"].add(summary, (writer, line), key)

    def _draw_edges(self, found: _List) -> None:
        writers = [found.writers.get(value, -1) for value in found.order]
        for before, behind in pairwise(writers):
            self._edge(before, behind, WW)
        for line, read in found.reads:
            if read:
                self._edge(found.writers.get(read[-1], -1), line, WR)
            if len(read) < len(writers):
                self._edge(line, writers[len(read)], RW)

    def _edge(self, before: int, behind: int, kind: str) -> None:
        """Between two transactions the edge that forbids the most is the one that counts."""
        if before < 0 or behind < 0 or before == behind:
            return
        if kind == WR:
            self._reads_from.setdefault(before, set()).add(behind)
        edges = self._edges.setdefault(before, {})
        if edges.get(behind, RW) == RW or kind == WW:
            edges[behind] = kind

    def _find_cycles(self) -> None:
        """The cycles of each tangle, under the name of the least that makes them."""
        for tangle in components({line: edges.keys() for line, edges in self._edges.items()}):
            inside = set(tangle)
            for name, within in (("G0", (WW,)), ("G1c", (WW, WR))):
                graph = self._part(inside, within)
                for part in components(graph):
                    needed = None if name == "G0" else WR
                    self._add_cycle(name, self._shortest(name, set(part), within, needed, within))
            every = (WW, WR, RW)
            self._add_cycle("G-single", self._shortest("G-single", inside, every, RW, (WW, WR)))
            cycle = self._shortest("G2", inside, every, RW, every)
            if cycle and sum(kind == RW for _, kind in self._walk(cycle)) > 1:
                self._add_cycle("G2", cycle)

        for circle in components(self._reads_from):
            line, *_ = circle
            graph = {each: self._reads_from.get(each, ()) for each in circle}
            paths = (_path(graph, behind, line) for behind in graph[line])
            cycle = min(filter(None, paths), key=len)
            told = " -wr-> ".join(f"line {each}" for each in [*cycle, cycle[0]])
            self._found["G1c-wr"].add(told, cycle)

    def _part(self, inside: set[int], kinds: Sequence[str]) -> dict[int, Iterable[int]]:
        return {
            line: [
                behind
                for behind, kind in self._edges.get(line, {}).items()
                if kind in kinds and behind in inside
            ]
            for line in inside
        }

    def _shortest(
        self,
        name: str,
        inside: set[int],
        first: Sequence[str],
        needed: str | None,
        rest: Sequence[str],
    ) -> list[int]:
        """The shortest cycle found: an edge of kind `needed` (None: of `first`), back by `rest`."""
        starts_max = _STARTS_ALLOWED_MAX if name in self._allowed else _STARTS_MAX
        graph = self._part(inside, rest)
        best: list[int] = []
        starts = 0
        for line in sorted(inside):
            for behind, kind in self._edges.get(line, {}).items():
                if behind not in inside or kind not in ((needed,) if needed else first):
                    continue
                starts += 1
                if starts > starts_max:
                    return best
                path = _path(graph, behind, line)
                if path and (not best or len(path) < len(best)):
                    best = path
        return best

    def _walk(self, cycle: list[int]) -> Iterator[tuple[int, str]]:
        """Each transaction of a cycle with the kind of the edge to the next one."""
        for place, line in enumerate(cycle):
            behind = cycle[(place + 1) % len(cycle)]
            yield line, self._edges[line][behind]

    def _add_cycle(self, name: str, cycle: list[int]) -> None:
        if not cycle:
            return
        steps = [f"line {line} -{kind}->" for line, kind in self._walk(cycle)]
        self._found[name].add(" ".join([*steps, f"line {cycle[0]}"]), cycle)


def _path(graph: dict[int, Iterable[int]], start: int, goal: int) -> list[int]:
    """A shortest path, both ends included; empty if there is none."""
    came_from = {start: start}
    queue = deque([start])
    while queue:
        line = queue.popleft()
        if line == goal:
            path = [line]
            while line != start:
                line = came_from[line]
                path.append(line)
            return path[::-1]
        for behind in graph.get(line, ()):
            if behind not in came_from:
                came_from[behind] = line
                queue.append(behind)
    return []
