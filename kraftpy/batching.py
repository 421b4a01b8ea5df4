"""Many things in some batches, each of bounded weight and count."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def bounded(
    weighed: Iterable[tuple[T, int]], weight_max: int, count_max: int = sys.maxsize
) -> Iterator[list[T]]:
    """Those that follow each other, of (it, weight): so many that weigh so much, or one alone."""
    batch: list[T] = []
    total = 0
    for item, weight in weighed:
        if batch and (len(batch) == count_max or total + weight > weight_max):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += weight
    if batch:
        yield batch
