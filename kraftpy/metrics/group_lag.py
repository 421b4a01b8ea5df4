"""The lag of groups, completed: partitions that their coordinator doesn't lead are asked for.
So it is of share groups, which are as far as what they are done with says (KIP-1226).

A lag is right or isn't there: it is left out while the end of the partition isn't known, and when a
group has committed beyond what was the end a while ago. A topic's sum needs all of its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kraftpy.client.offsets import Partition
    from kraftpy.metrics.collector import Scrape
    from kraftpy.metrics.log_ends import LogEnd

ASK_TIMEOUT_S = 2.0


class Asks(Protocol):
    """`log_ends.LogEnds`, or what stands for it in tests."""

    def ask(
        self, bootstrap: str, wanted: Mapping[Partition, int], timeout_s: float
    ) -> Mapping[Partition, LogEnd]: ...


def unknown_ends(scrape: Scrape) -> dict[Partition, int]:
    """The partitions whose end the coordinator doesn't know, each with the highest committed."""
    wanted: dict[Partition, int] = {}
    for _, topic, rows, _ in scrape.group_offsets:
        for index, offset, lag in rows:
            if lag is None:
                name = (topic, index)
                wanted[name] = max(wanted.get(name, 0), offset)
    for _, topic, index, finished, lag in scrape.share_states:
        if lag is None:
            wanted[topic, index] = max(wanted.get((topic, index), 0), finished)
    return wanted


def complete(
    scrape: Scrape,
    open_asks: Callable[[], Asks],
    bootstrap: str,
    now: float,
    timeout_s: float = ASK_TIMEOUT_S,
) -> None:
    """Fills in what can be known within `timeout_s`.

    `open_asks` gives who is asked, if somebody has to be. `now` (`time.monotonic()`) is after the
    scrape's frames came.
    """
    wanted = unknown_ends(scrape)
    if not wanted:
        return
    ends = open_asks().ask(bootstrap, wanted, min(timeout_s, ASK_TIMEOUT_S))
    found: dict[tuple[str, str], int | None] = {}
    for group_id, topic, rows, _ in scrape.group_offsets:
        for row in rows:
            if row[2] is not None:
                continue
            end = ends.get((topic, row[0]))
            if end is not None:
                row[2] = _lag(end, row[1], now)
            found[group_id, topic] = _sum(found.get((group_id, topic), 0), row[2])
    for state in scrape.share_states:
        end = ends.get((state[1], state[2]))
        if state[4] is None and end is not None:
            state[4] = _lag(end, state[3], now)
    for group_id, _, topics in scrape.groups:
        for row in topics:
            row[2] = _sum(row[2], found.get((group_id, row[0]), 0))


def _sum(one: int | None, other: int | None) -> int | None:
    """None if one of them isn't known."""
    return None if one is None or other is None else one + other


def _lag(end: LogEnd, committed: int, now: float) -> int | None:
    """None if the end is older than the commit and so says nothing."""
    if end.offset >= committed:
        return end.offset - committed
    return 0 if end.asked_at >= now else None
