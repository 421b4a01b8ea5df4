"""How fast numbers grow, from what they were when they were asked for before.

Rules:

* A rate is that of the last `RATE_S` or so, and isn't known before there are two answers. What has
  become smaller, as the size of a log that retention cuts, has no rate.
* A number rises if all that was seen of it in the last third of `WINDOW_S` is above all that was in
  the first third. Lag goes up and down with every commit, which is no rise.
* Answers of the last `WINDOW_S` are kept, `SAMPLES_MAX` at most.

Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from kraftpy.frozen import NamedTuple

WINDOW_S = 30.0
RATE_S = 10.0
SPAN_MIN_S = 20.0
"""A rise is judged by answers that lie so far apart at least: commits may be five seconds apart."""
THIRD_MIN = 2
SAMPLES_MAX = 32


class Trend(NamedTuple):
    """How a number goes: by how much a second, None if that isn't known."""

    per_s: float | None = None
    rises: bool = False


UNKNOWN = Trend()


class Growth:
    """The last answers; each is the numbers by their names."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_s: float, numbers: Mapping[str, int]) -> None:
        """Takes an answer of this moment; what isn't known in it has no number."""
        while self._answers and self._answers[0][0] < at_s - WINDOW_S:
            self._answers.popleft()
        self._answers.append((at_s, numbers))

    def rate(self, name: str) -> float | None:
        """By how much the number grows a second; None if it isn't known, or fell."""
        per_s = self._slope(name)
        return None if per_s is None or per_s < 0 else per_s

    def rates(self) -> dict[str, float]:
        """Of each number of the last answer that has one."""
        names = self._answers[-1][1] if self._answers else {}
        return {name: rate for name in names if (rate := self.rate(name)) is not None}

    def trend(self, name: str) -> Trend:
        """How the number goes, up or down."""
        return Trend(self._slope(name), self._rises(name))

    def _slope(self, name: str) -> float | None:
        if len(self._answers) < 2:
            return None
        at_s, numbers = self._answers[-1]
        # The last but one counts however old it is.
        since_s = min(at_s - RATE_S, self._answers[-2][0])
        for then_s, before in self._answers:
            if since_s <= then_s < at_s and name in before and name in numbers:
                return (numbers[name] - before[name]) / (at_s - then_s)
        return None

    def _rises(self, name: str) -> bool:
        found = [(at_s, numbers[name]) for at_s, numbers in self._answers if name in numbers]
        if not found or found[-1][0] - found[0][0] < SPAN_MIN_S:
            return False
        third_s = (found[-1][0] - found[0][0]) / 3
        first = [value for at_s, value in found if at_s <= found[0][0] + third_s]
        last = [value for at_s, value in found if at_s >= found[-1][0] - third_s]
        return min(len(first), len(last)) >= THIRD_MIN and min(last) > max(first)
