"""Operations: what was asked and what became of it, paired from the events of a history.

Rules: an operation is known by the line of its invocation, which is what checkers keep of it;
`load` gets the operations of some lines back from the file. What never ended comes at the end, as
info.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.history import Entry, Event, Fault, HistoryError, Phase

NEVER = 2**62
"""The end of an operation that has none."""

_UNDER_WAY_MAX = 1_000_000


class Operation(NamedTuple):
    """`value` is what the end brought, or what was asked if it brought nothing.

    `outcome` is ok, fail or info. `ended_ns` is when that was known; an info may take effect at
    any time after its invocation, whatever `ended_ns` says.
    """

    line: int
    process: int
    f: str
    outcome: str
    invoked_ns: int
    ended_ns: int
    asked: Any
    value: Any
    error: str
    node: str
    client: str


def pair(entries: Iterable[Entry]) -> Iterator[Operation | Fault | Phase]:
    """Operations in the order of their ends. HistoryError for an end without a beginning."""
    under_way: dict[tuple[int, int], Event] = {}
    for entry in entries:
        if not isinstance(entry, Event):
            yield entry
            continue
        line, time_ns, process, op, kind, f, value, error, node, client = entry
        if op < 0:
            yield Operation(
                line, process, f, kind, time_ns, time_ns, value, value, error, node, client
            )
            continue
        if kind == "invoke":
            if (process, op) in under_way:
                raise HistoryError(f"line {line}: operation {op} of process {process} is under way")
            under_way[process, op] = entry
            if len(under_way) > _UNDER_WAY_MAX:
                raise HistoryError(f"line {line}: more than {_UNDER_WAY_MAX} operations under way")
            continue
        begin = under_way.pop((process, op), None)
        if begin is None:
            raise HistoryError(
                f"line {line}: {kind} of operation {op} of process {process}, which isn't under way"
            )
        if begin.f != f or begin.time_ns > time_ns:
            what = f"began as {begin.f}" if begin.f != f else "ends before it begins"
            raise HistoryError(f"line {line}: the operation of line {begin.line} {what}")
        yield Operation(
            begin.line, process, f, kind, begin.time_ns, time_ns,
            begin.value, begin.value if value is None else value,
            error, node or begin.node, begin.client,
        )  # fmt: skip
    for begin in under_way.values():
        yield Operation(
            begin.line, begin.process, begin.f, "info", begin.time_ns, NEVER,
            begin.value, begin.value, "never ended", begin.node, begin.client,
        )  # fmt: skip


def load(entries: Iterable[Entry], lines: Collection[int]) -> dict[int, Operation]:
    """The operations that were invoked in these lines, in a second pass over a history."""
    wanted = set(lines)
    return {
        each.line: each
        for each in pair(entries)
        if isinstance(each, Operation) and each.line in wanted
    }
