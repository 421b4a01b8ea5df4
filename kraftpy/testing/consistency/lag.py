"""How far readers were behind: values that nobody had read yet, and what groups had to process.

Numbers by bucket of a `Timeline`, for the report's plots; they judge nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from kraftpy.testing.consistency.checkers.log_index import ACKNOWLEDGED, Log
from kraftpy.testing.consistency.history import Fault, Phase
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.series import BUCKETS, Timeline


def unread(logs: Iterable[Log], timeline: Timeline) -> dict[str, list[float]]:
    """Of acknowledged values that nobody had read yet: at the end of each bucket how many there
    were, and for how many seconds the oldest of them had waited."""
    change = [0] * (BUCKETS + 1)
    waiting: list[tuple[int, int]] = []
    for log in logs:
        for row, state in enumerate(log.state):
            if state == ACKNOWLEDGED:
                acked, read = log.ended_ns[row], log.read_ns[row]
                if read > acked:
                    waiting.append((acked, read))
    waiting.sort()
    for acked, read in waiting:
        change[timeline.bucket_of(acked)] += 1
        change[BUCKETS if read == NEVER else timeline.bucket_of(read)] -= 1
    counts: list[float] = []
    ages: list[float] = []
    count = oldest = 0
    for bucket in range(BUCKETS):
        count += change[bucket]
        counts.append(count)
        end_ns = timeline.start_ns + timeline.duration_ns * (bucket + 1) // BUCKETS
        while oldest < len(waiting) and waiting[oldest][1] <= end_ns:
            oldest += 1
        since = waiting[oldest][0] if oldest < len(waiting) else end_ns
        ages.append(round(max(0, end_ns - since) / 1e9, 3))
    return {"values": counts, "oldest_s": ages}


class GroupLag:
    """Listens to a history: what was sent, and how far the members of each group were with it."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._sent = array("q"), array("q"), array("q")
        self._processed = array("q"), array("q"), array("q")

    def observe(self, entry: Operation | Fault | Phase) -> None:
        if not isinstance(entry, Operation) or entry.outcome != "ok":
            return
        if entry.f == "send":
            for record in entry.value:
                if len(record) == 3 and record[2] is not None:
                    self._add(self._sent, entry.ended_ns, self._key(record[0]), record[2])
        elif entry.f == "processed":
            value = entry.value
            place = value["group"], self._key(value["key"])
            number = self._places.setdefault(place, len(self._places))
            self._add(self._processed, entry.ended_ns, number, value["last"])

    def _key(self, key: str) -> int:
        return self._keys.setdefault(key, len(self._keys))

    @staticmethod
    def _add(columns: tuple[Any, Any, Any], moment_ns: int, number: int, offset: int) -> None:
        for column, value in zip(columns, (moment_ns, number, offset), strict=True):
            column.append(value)

    def series(self, timeline: Timeline) -> dict[str, list[int]]:
        """Group -> records that were sent and that no member had processed, by bucket."""
        heads = _furthest(self._sent, len(self._keys), timeline)
        behind = _furthest(self._processed, len(self._places), timeline)
        lags: dict[str, list[int]] = {}
        for group in dict.fromkeys(name for name, _ in self._places):
            mine = {key: number for (name, key), number in self._places.items() if name == group}
            lags[group] = [
                sum(
                    max(0, head - (behind[bucket][mine[key]] if key in mine else 0))
                    for key, head in enumerate(heads[bucket])
                )
                for bucket in range(BUCKETS)
            ]
        return lags


def _furthest(
    columns: tuple[Any, Any, Any], count: int, timeline: Timeline
) -> list[tuple[int, ...]]:
    """For each bucket one more than the largest offset so far of each number, 0 for none."""
    by_bucket: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]
    for moment_ns, number, offset in zip(*columns, strict=True):
        by_bucket[timeline.bucket_of(moment_ns)].append((number, offset))
    now = [0] * count
    found = []
    for changes in by_bucket:
        for number, offset in changes:
            now[number] = max(now[number], offset + 1)
        found.append(tuple(now))
    return found
