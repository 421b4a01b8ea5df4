"""Sets of numbers as spans: begin and end, of which the end isn't part.

Spans ascend, and neither overlap nor touch. What is given as pieces needn't.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Spans = list[tuple[int, int]]

INFINITY = 1 << 64
"""Above every offset and every hash."""


def join(pieces: Iterable[tuple[int, int]]) -> Spans:
    """Pieces in any order as spans."""
    joined: Spans = []
    for begin, end in sorted(pieces):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif begin < end:
            joined.append((begin, end))
    return joined


def size(spans: Iterable[tuple[int, int]]) -> int:
    """How many numbers spans have."""
    return sum(end - begin for begin, end in spans)


def subtract(spans: Spans, others: Spans) -> Spans:
    """What of these spans isn't in the others."""
    left: Spans = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        rest = begin
        for other_begin, other_end in others[at:]:
            if other_begin >= end:
                break
            if rest < other_begin:
                left.append((rest, other_begin))
            rest = other_end
        if rest < end:
            left.append((rest, end))
    return left


def intersect(spans: Spans, others: Spans) -> Spans:
    """What of these spans is in the others, too."""
    return subtract(spans, subtract(spans, others))


def split(spans: Spans, first_size: int) -> tuple[Spans, Spans]:
    """The first numbers of spans, so many, and the others."""
    first: Spans = []
    for place, (begin, end) in enumerate(spans):
        if first_size <= 0:
            return first, spans[place:]
        if end - begin > first_size:
            middle = begin + first_size
            return [*first, (begin, middle)], [(middle, end), *spans[place + 1 :]]
        first.append((begin, end))
        first_size -= end - begin
    return first, []


def contains(spans: Spans, number: int) -> bool:
    """Whether a number is in one of the spans."""
    at = bisect_right(spans, (number, INFINITY)) - 1
    return at >= 0 and number < spans[at][1]


def uncovered_from(spans: Spans, number: int) -> int:
    """The first number from this one on that is in none of the spans."""
    at = bisect_right(spans, (number, INFINITY)) - 1
    return spans[at][1] if at >= 0 and number < spans[at][1] else number
