"""The limit on request bytes that are held while their frames are still incomplete.

Rule: all unfinished frames of all connections together stay within `queued.max.request.bytes`
(Kafka's name; a connection over the limit isn't read until others finished). Connections that hold
memory and never finish can't starve the rest: while somebody waits, the listener closes who sent
nothing for MEMORY_STALL_MAX_S in the middle of a request, and one that waited for memory longer
than MEMORY_WAIT_MAX_S is closed, which frees what it held, until there is room again.
"""

from __future__ import annotations

from typing import Protocol

MEMORY_WAIT_MAX_S = 30.0
MEMORY_STALL_MAX_S = 10.0


class Waiter(Protocol):
    """What waits for memory: a connection."""

    def memory_available(self) -> None:
        """Called once there is room."""

    def close(self, reason: str | None) -> None:
        """Called when it waited too long."""


class RequestMemory:
    """Counts reserved bytes against a limit.

    A reservation always counts, even the one that passes the limit: its owner must stop reading
    until `memory_available`. So the overshoot is at most one growth step per connection.
    """

    __slots__ = ("_limit_bytes", "_used_bytes", "_waiting")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: dict[Waiter, float] = {}

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def reserve(self, size_bytes: int) -> bool:
        """Takes `size_bytes`; False when the owner must `wait`."""
        self._used_bytes += size_bytes
        return self._used_bytes <= self._limit_bytes

    def wait(self, waiter: Waiter) -> None:
        """Registers for `memory_available`; the waiting time counts from the next `expire`."""
        self._waiting.setdefault(waiter, -1.0)

    @property
    def scarce(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def is_waiting(self, waiter: Waiter) -> bool:
        return waiter in self._waiting

    def release(self, size_bytes: int) -> None:
        """Gives back and wakes everybody who waits, if there is room now."""
        self._used_bytes -= size_bytes
        if self._waiting and self._used_bytes <= self._limit_bytes:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                waiter.memory_available()

    def forget(self, waiter: Waiter, size_bytes: int) -> None:
        """A connection ended: it no longer waits and holds nothing."""
        self._waiting.pop(waiter, None)
        if size_bytes:
            self.release(size_bytes)

    def expire(self, now_s: float) -> None:
        """Closes who waited longer than MEMORY_WAIT_MAX_S; call it every few seconds."""
        for waiter, since_s in list(self._waiting.items()):
            if waiter not in self._waiting:
                break  # closing one made room for all
            if since_s < 0:
                self._waiting[waiter] = now_s
            elif now_s - since_s > MEMORY_WAIT_MAX_S:
                waiter.close(
                    "waited too long for request memory (queued.max.request.bytes is used up)"
                )
