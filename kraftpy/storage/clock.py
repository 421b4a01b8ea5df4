"""The time by which data is deleted and producers are forgotten.

Rules:

* It is the wall clock, but a step forward counts only once it has lasted: a clock that was set
  wrong must not delete what nobody can bring back, nor have a retry written twice because its
  producer seems to have been silent for a day. (Kafka goes by the wall clock alone.)
* A step back counts at once: it deletes nothing.
* A clock that is slewed, or goes wrong slowly, is followed.
"""

from __future__ import annotations

from collections.abc import Callable

SETTLE_MS = 600_000
STEP_MS = 1_000


class SettledClock:
    """Milliseconds since 1970 by `wall_ms`, as far as it went along with `monotonic_ms`."""

    def __init__(self, wall_ms: Callable[[], float], monotonic_ms: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        # What the wall clock is ahead of the monotonic one: as it counts, and as it was last seen.
        self._offset_ms = self._seen_ms = wall_ms() - monotonic_ms()
        self._seen_since_ms = monotonic_ms()

    def now_ms(self) -> int:
        """The time that counts."""
        monotonic_ms = self._monotonic_ms()
        offset_ms = self._wall_ms() - monotonic_ms
        if abs(offset_ms - self._seen_ms) > STEP_MS:
            self._seen_since_ms = monotonic_ms
        self._seen_ms = offset_ms
        lasted = monotonic_ms - self._seen_since_ms >= SETTLE_MS
        if offset_ms - self._offset_ms <= STEP_MS or lasted:
            self._offset_ms = offset_ms
        return int(monotonic_ms + self._offset_ms)
