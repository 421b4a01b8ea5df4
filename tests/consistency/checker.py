"""Decides from what a writer knows and what a partition holds whether anything went wrong.

One writer has one partition to itself and writes values that are all different, so everything that
can go wrong shows: `check` names it. It looks at plain data only, so that it can be tested with
anomalies planted on purpose (test_checker.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kraftpy.protocol.records import iter_records, split_batches


class Anomaly(NamedTuple):
    kind: str  # lost, misplaced, duplicate, reordered, invented or gap
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def check(
    sent: Sequence[bytes],
    acknowledged: Mapping[bytes, int],
    log: Iterable[tuple[int, bytes]],
    start: int = 0,
) -> list[Anomaly]:
    """Compare one writer's knowledge with its partition from offset `start` on.

    Args:
        sent: every value, in the order of sending, whatever became of it
        acknowledged: value -> the offset that the broker gave it
        log: (offset, value) in the order in which they are read
    """
    found, places, order = [], {}, {value: position for position, value in enumerate(sent)}
    expected, last = start, -1
    for offset, value in log:
        if offset != expected:
            found.append(Anomaly("gap", f"offset {offset} comes where {expected} should"))
        expected = offset + 1
        if value not in order:
            found.append(Anomaly("invented", f"offset {offset} holds {value[:40]!r}, never sent"))
            continue
        if value in places:
            where = f"offsets {places[value]} and {offset}"
            found.append(Anomaly("duplicate", f"{value[:40]!r} at {where}"))
            continue
        places[value] = offset
        if order[value] < last:
            found.append(Anomaly("reordered", f"{value[:40]!r} at {offset} after a later one"))
        last = max(last, order[value])
    for value, offset in acknowledged.items():
        if offset < start:
            continue
        if value not in places:
            found.append(Anomaly("lost", f"{value[:40]!r}, acknowledged at {offset}"))
        elif places[value] != offset:
            detail = f"{value[:40]!r} is at {places[value]}, acknowledged at {offset}"
            found.append(Anomaly("misplaced", detail))
    return found


def read_segments(segments: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """(offset, value) of raw segment files, given as (base offset, content) in order.

    Every batch's size, magic and CRC is checked on the way: raises DecodeError where one is bad.
    Raises ValueError where a segment's first batch isn't the one that its name promises.
    """
    records: list[tuple[int, bytes]] = []
    for base_offset, content in segments:
        batches = split_batches(content)
        if batches and batches[0][1].base_offset != base_offset:
            raise ValueError(
                f"segment {base_offset} starts with offset {batches[0][1].base_offset}"
            )
        for position, _ in batches:
            records += [(r.offset, bytes(r.value or b"")) for r in iter_records(content, position)]
    return records
