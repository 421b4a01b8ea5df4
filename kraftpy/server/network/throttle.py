"""Replication throttles (KIP-73): at most so many bytes a second for the replicas that are named.

`leader.replication.throttled.rate` bounds what this broker sends to throttled followers, and
`follower.replication.throttled.rate` what it fetches for throttled replicas of its own. Which are
throttled the topic says. Rule: a replica in sync is never held back, else a throttle would take it
out of the ISR.
"""

from __future__ import annotations


class Throttle:
    """A bucket of one second's bytes; what is over it is paid back before anything more flows.

    Times are seconds of one monotonic clock.
    """

    __slots__ = ("_at_s", "_left_bytes", "_rate")

    def __init__(self, rate_bytes_per_s: int, now_s: float) -> None:
        self._rate = rate_bytes_per_s
        self._left_bytes = float(rate_bytes_per_s)
        self._at_s = now_s

    def set_rate(self, rate_bytes_per_s: int) -> None:
        """Takes a changed configuration."""
        self._rate = rate_bytes_per_s
        self._left_bytes = min(self._left_bytes, float(rate_bytes_per_s))

    def spend(self, size_bytes: int) -> None:
        """So many bytes flowed."""
        self._left_bytes -= size_bytes

    def is_exceeded(self, now_s: float) -> bool:
        """Whether throttled replicas have to wait."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        self._left_bytes = min(self._left_bytes + elapsed_s * self._rate, float(self._rate))
        return self._left_bytes <= 0
