"""Parts of partitions, for the members of a group that outnumber a topic's partitions.

Rules:
* A *slice* is a range of hashes, here one of slots (`key_hash`). A *share* is the slices of one
  partition that a member has.
* The slices of a partition tile it: each slot has one owner.
* The partitions of a topic lie on a *line* in order, 65,536 slots each, of which spans are parts.

Source: seed 001, "Rebalance support for concurrent assignment".
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.client.spans import Spans, join, subtract
from kraftpy.protocol.key_hash import SLOTS, hashes_of, slot_of
from kraftpy.protocol.key_shares import Shares, SlotRanges


def equal_slices(count: int) -> list[SlotRanges]:
    """A partition in as many slices, as equal as slots allow."""
    bounds = [SLOTS * i // count for i in range(count + 1)]
    return [((bounds[i], bounds[i + 1] - 1),) for i in range(count)]


def on_line(shares: Shares, topic: str, numbers: Sequence[int]) -> Spans:
    """Where on a topic's line shares are; `numbers` are its partitions."""
    places = {number: place for place, number in enumerate(numbers)}
    return join(
        (places[number] * SLOTS + first, places[number] * SLOTS + last + 1)
        for (name, number), slots in shares.items()
        if name == topic and number in places
        for first, last in slots
    )


def off_line(spans: Spans, topic: str, numbers: Sequence[int]) -> Shares:
    """The shares that spans of a topic's line are."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for begin, end in spans:
        for place in range(begin // SLOTS, (end - 1) // SLOTS + 1):
            first = max(begin - place * SLOTS, 0)
            last = min(end - place * SLOTS, SLOTS) - 1
            found.setdefault((topic, numbers[place]), []).append((first, last))
    return {name: tuple(slots) for name, slots in found.items()}


def without(shares: Shares, others: Shares) -> Shares:
    """What of these shares isn't in the others."""
    left: Shares = {}
    for name, slots in shares.items():
        rest = subtract(_spans(slots), _spans(others.get(name, ())))
        if rest:
            left[name] = tuple((begin, end - 1) for begin, end in rest)
    return left


def together(shares: Shares, others: Shares) -> Shares:
    """What is in one of them."""
    both: Shares = dict(shares)
    for name, slots in others.items():
        spans = join([*_spans(both.get(name, ())), *_spans(slots)])
        both[name] = tuple((begin, end - 1) for begin, end in spans)
    return both


def _spans(slots: SlotRanges) -> Spans:
    return [(first, last + 1) for first, last in slots]


def hashes_of_slots(slots: SlotRanges) -> Spans:
    """The hashes that slots are."""
    return [(hashes_of(first, last)[0], hashes_of(first, last)[1] + 1) for first, last in slots]


def slots_of_hashes(spans: Spans) -> SlotRanges:
    """The slots that hashes are, which begin and end where slots do."""
    return tuple((slot_of(begin), slot_of(end - 1)) for begin, end in spans)
