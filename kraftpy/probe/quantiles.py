"""Percentiles of a stream of durations in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

_STEP = math.log(1.02)
_LEAST_S = 0.000_01
_MOST_S = 10_000.0


class Quantiles:
    """Counts durations in steps of 2 %, of which there are about a thousand."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.max_s = 0.0

    def observe(self, seconds: float) -> None:
        bounded = min(max(seconds, _LEAST_S), _MOST_S)
        self._counts[math.ceil(math.log(bounded / _LEAST_S) / _STEP)] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def at(self, share: float) -> float | None:
        """What `share` (0 to 1) of them didn't exceed, up to 2 % too high; None without any."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        for step in sorted(self._counts):
            rank -= self._counts[step]
            if rank <= 0:
                return min(_LEAST_S * math.exp(step * _STEP), self.max_s)
        return self.max_s
