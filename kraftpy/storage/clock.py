"""The time by which data is deleted.

Rules:

* It is the wall clock, but a step forward counts only once it has lasted: a clock that was set
  wrong must not delete what nobody can bring back. (Kafka goes by the wall clock alone.)
* A step back counts at once: it deletes nothing.
* A clock that is slewed, or goes wrong slowly, is followed.
"""

from __future__ import annotations

from collections.abc import Callable

SETTLE_MS = 600_000
STEP_MS = 1_000

_SETTLE_S = SETTLE_MS / 1000
_STEP_S = STEP_MS / 1000


class SettledClock:
    """The time by `wall_s` (since 1970), as far as that went along with `monotonic_s`."""

    __slots__ = ("_monotonic_s", "_offset_s", "_seen_s", "_seen_since_s", "_wall_s")

    def __init__(self, wall_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        # What the wall clock is ahead of the monotonic one: as it counts, and as it was last seen.
        self._offset_s = self._seen_s = wall_s() - monotonic_s()
        self._seen_since_s = monotonic_s()

    def now_ms(self) -> int:
        """The time that counts, in milliseconds since 1970."""
        monotonic_s = self._monotonic_s()
        offset_s = self._wall_s() - monotonic_s
        if offset_s - self._offset_s > _STEP_S:
            if abs(offset_s - self._seen_s) > _STEP_S:
                self._seen_since_s = monotonic_s
            self._seen_s = offset_s
            if monotonic_s - self._seen_since_s < _SETTLE_S:
                return int((monotonic_s + self._offset_s) * 1000)
        self._offset_s = self._seen_s = offset_s
        return int((monotonic_s + offset_s) * 1000)
