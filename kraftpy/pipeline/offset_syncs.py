"""Which offset of a copy stands for one of its source: pairs that a mirror has seen.

    <checkpoint>/syncs/<topic>.json      {partition: [[source, target, dense], ...]}

Between two cycles nothing is under way: every record from the source's offset on is, or will be, in
the copy at the target's offset or behind it. Rules (rule 343):

* An offset is translated to one that has no record before it which the group hasn't read: some may
  come again, none is left out.
* It is exact behind what was copied last, and where each record is as far from the pair before
  here as there: where nothing is missing in the source (by compaction, transactions) and nothing is
  twice or from somebody else in the copy. Elsewhere it is that of the pair before.
* A partition keeps some dozens of pairs: of older ones every second goes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kraftpy.frozen import NamedTuple
from kraftpy.pipeline.mirrored import unreadable, write_json
from kraftpy.spark.positions import Offsets, Partition

_KEPT: Final = 64


class Sync(NamedTuple):
    """An offset of the source and the one of the copy that stands for it.

    `dense`: so it is for each offset since the pair before; of the first pair, that nothing before
    it was copied.
    """

    source: int
    target: int
    dense: bool


Syncs = dict[Partition, list[Sync]]
"""By partition of the source, in rising order."""


def translated(syncs: Sequence[Sync], offset: int) -> int | None:
    """Where a group goes on in the copy that is at this offset of the source.

    None if that isn't known: it is before all that was seen.
    """
    if not syncs:
        return None
    place = bisect_right([each.source for each in syncs], offset) - 1
    if place < 0:
        return syncs[0].target if syncs[0].dense else None
    here = syncs[place]
    if place + 1 < len(syncs) and syncs[place + 1].dense:
        return here.target + offset - here.source
    return here.target


def extended(
    syncs: Sequence[Sync], source: int, target: int, *, all_there: bool, markers: int
) -> list[Sync]:
    """The pairs with one more.

    `all_there`: the source had a record at each offset since the last pair. `markers`: so many
    offsets at the end of the copy may be those of transactions.
    """
    if not syncs:
        return [Sync(source, target, False)]
    last = syncs[-1]
    if source <= last.source:
        return list(syncs)
    more = (target - last.target) - (source - last.source)
    return _thinned([*syncs, Sync(source, target, all_there and 0 <= more <= markers)])


def _thinned(syncs: list[Sync]) -> list[Sync]:
    if len(syncs) <= _KEPT:
        return syncs
    half = _KEPT // 2
    kept = [syncs[0]]
    # Over a marker in between, what is translated comes out too low, which is allowed.
    for gone, each in zip(syncs[1:half:2], syncs[2 : half + 1 : 2], strict=True):
        kept.append(each._replace(dense=gone.dense and each.dense))
    return kept + syncs[half + 1 :]


class SyncStore:
    """The pairs of a mirror, in its checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / "syncs"

    def read(self, topics: Sequence[str]) -> Syncs:
        """The pairs of some topics. Raises CheckpointError, OSError."""
        found: Syncs = {}
        for topic in topics:
            path = self._path(topic)
            try:
                for number, pairs in json.loads(path.read_bytes()).items():
                    made = [Sync(int(a), int(b), bool(dense)) for a, b, dense in pairs]
                    found[topic, int(number)] = made
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, AttributeError) as error:
                raise unreadable(path, error) from error
        return found

    def write(self, before: Syncs, now: Syncs) -> None:
        """Writes what has changed, durably. Raises OSError."""
        changed = {name[0] for name, pairs in now.items() if before.get(name) != pairs}
        for topic in sorted(changed):
            table = {str(name[1]): pairs for name, pairs in now.items() if name[0] == topic}
            write_json(self._path(topic), table)

    def _path(self, topic: str) -> Path:
        return self._folder / f"{topic}.json"


def begun(syncs: Syncs, starts: Offsets, ends: Mapping[Partition, int]) -> Syncs:
    """The pairs with one for each partition that is new: where source and copy are before."""
    return syncs | {name: [Sync(starts[name], ends[name], True)] for name in starts}


def advanced(
    syncs: Syncs,
    sources: Mapping[Partition, int],
    targets: Mapping[Partition, int],
    *,
    rows: int,
    markers: int,
) -> Syncs:
    """The pairs after a cycle that has copied so many rows, and where both sides are then."""
    known = {name: syncs[name][-1].source for name in sources if syncs.get(name)}
    offsets = sum(max(0, sources[name] - at) for name, at in known.items())
    all_there = offsets == rows and len(known) == len(sources)
    return syncs | {
        name: extended(
            syncs.get(name, []), sources[name], targets[name], all_there=all_there, markers=markers
        )
        for name in sources
    }
