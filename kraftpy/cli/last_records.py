"""Where the last records of partitions begin that a reader is shown.

Offsets don't say it: markers of transactions, what was aborted, and what compaction took away have
offsets, too. So the end is read, and more of what lies before it until there are enough records.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.offsets import Partition

_GROWTH = 4
"""How many times as many offsets are read next: a long stretch without records takes few rounds."""


async def begin_of_last(
    cluster: Cluster,
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    count: int,
    isolation: int,
) -> dict[Partition, int]:
    """The offset of the `count`th last record before the end of each partition.

    The partition's start where there aren't as many.
    """
    begins = dict(ends)
    missing = dict.fromkeys(ends, count) if count else {}
    window = count
    while missing:
        unread = {
            name: (max(starts[name], begins[name] - window), begins[name])
            for name in missing
            if begins[name] > starts[name]
        }
        found = await _shown(cluster, unread, isolation)
        for name, (begin, _) in unread.items():
            offsets = found[name]
            if len(offsets) >= missing[name]:
                begins[name] = offsets[-missing[name]]
                del missing[name]
            else:
                begins[name] = begin
                missing[name] -= len(offsets)
        missing = {name: left for name, left in missing.items() if name in unread}
        window *= _GROWTH
    return begins


async def _shown(
    cluster: Cluster, ranges: Mapping[Partition, tuple[int, int]], isolation: int
) -> dict[Partition, list[int]]:
    """The offsets of the records in each range, as far as retention has left them."""
    found: dict[Partition, list[int]] = {name: [] for name in ranges}
    positions = {name: begin for name, (begin, _) in ranges.items()}
    async with Fetcher(
        cluster, positions, auto_offset_reset="earliest", isolation=isolation, ahead=False
    ) as fetcher:
        while fetcher.positions:
            for fetched in await fetcher.poll():
                name = (fetched.topic, fetched.partition)
                end = ranges[name][1]
                found[name] += [each.offset for each in fetched.records if each.offset < end]
            for name, position in list(fetcher.positions.items()):
                if position >= ranges[name][1]:
                    fetcher.drop(*name)
    return found
