"""Ranges of offsets, and sets of them: what a plan asks for and what a lake holds.

A set of offsets is a tuple of spans `(start, end)`, `end` exclusive, sorted, none empty, no two of
which touch. So a lake that was loaded without a gap has one span per partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kraftpy.frozen import NamedTuple

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]


class OffsetRange(NamedTuple):
    """The offsets `start` to `end` (exclusive) of a partition, whether or not each has a record."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def union(spans: Spans, more: Iterable[Span]) -> Spans:
    """All offsets of both."""
    merged: list[Span] = []
    for start, end in sorted((*spans, *more)):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def common(spans: Spans, start: int, end: int) -> Spans:
    """Those offsets of `spans` that are in the one span `start` to `end`."""
    return tuple(
        (max(start, low), min(end, high)) for low, high in spans if low < end and start < high
    )


def missing(spans: Spans, start: int, end: int) -> Spans:
    """Those offsets from `start` to `end` that aren't in `spans`."""
    gaps: list[Span] = []
    for low, high in common(spans, start, end):
        if start < low:
            gaps.append((start, low))
        start = high
    if start < end:
        gaps.append((start, end))
    return tuple(gaps)


def spans_of(ranges: Iterable[OffsetRange]) -> dict[tuple[str, int], Spans]:
    """The offsets of the ranges, by topic and partition."""
    found: dict[tuple[str, int], list[Span]] = {}
    for topic, partition, start, end in ranges:
        found.setdefault((topic, partition), []).append((start, end))
    return {name: union((), spans) for name, spans in found.items()}


def merged(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The same offsets in as few ranges as there can be."""
    found = spans_of(ranges)
    return tuple(OffsetRange(*name, *span) for name, spans in found.items() for span in spans)
