"""Whether commits of many partitions were atomic, durable and never went back: from plain data.

Every commit of a group sets all its partitions to the commit's number, and numbers only grow. So a
read that shows two numbers is a mixture of two commits, and every read has to show what was
acknowledged before it began or something newer. Tested with planted violations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NOTHING = -1
"""The offset of a partition without a committed one."""


@dataclass
class Commit:
    """A commit; `acknowledged_s` is None if its outcome is unknown. Times are of one clock."""

    number: int
    sent_s: float
    acknowledged_s: float | None = None


class Read(NamedTuple):
    """What one OffsetFetch of all partitions showed: the set of their offsets."""

    offsets: frozenset[int]
    began_s: float
    ended_s: float
    broker: int


@dataclass
class History:
    """All that a group's writer and its readers know; both in the order in which they ended."""

    group: str
    commits: list[Commit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


def check(history: History) -> list[str]:
    """One line for each violation.

    mixture: a read shows parts of two commits
    invented: a read shows what nobody had sent by then
    lost: a read is older than what was acknowledged before it began
    back: a read is older than what another one had shown before it began
    """
    found = []
    for read in history.reads:
        if len(read.offsets) != 1:
            found.append(_line("mixture", history, read, f"of {sorted(read.offsets)[:5]}"))
    whole = [read for read in history.reads if len(read.offsets) == 1]
    acknowledged = [
        (commit.acknowledged_s, commit.number)
        for commit in history.commits
        if commit.acknowledged_s is not None
    ]
    seen = [(read.ended_s, max(read.offsets)) for read in whole]
    sent_s = {commit.number: commit.sent_s for commit in history.commits}
    least_acknowledged = _Newest(acknowledged)
    least_seen = _Newest(seen)
    for read in sorted(whole, key=lambda read: read.began_s):
        (offset,) = read.offsets
        if offset != NOTHING and sent_s.get(offset, read.ended_s) >= read.ended_s:
            found.append(_line("invented", history, read, f"of {offset}"))
        if offset < (newest := least_acknowledged.before(read.began_s)):
            found.append(_line("lost", history, read, f"of {offset}, {newest} was acknowledged"))
        if offset < (newest := least_seen.before(read.began_s)):
            found.append(_line("back", history, read, f"of {offset}, {newest} was read before"))
    return found


class _Newest:
    """The largest number up to a time; asked for times that never go back."""

    def __init__(self, numbers: Iterable[tuple[float, int]]) -> None:
        self._left = sorted(numbers, reverse=True)
        self._newest = NOTHING

    def before(self, time_s: float) -> int:
        while self._left and self._left[-1][0] < time_s:
            self._newest = max(self._newest, self._left.pop()[1])
        return self._newest


def _line(kind: str, history: History, read: Read, detail: str) -> str:
    return f"{kind}: {history.group} read at broker {read.broker}, {read.began_s:.3f} s: {detail}"
