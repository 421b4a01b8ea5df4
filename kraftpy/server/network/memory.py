"""The limits on what requests and answers of all connections take, each with a count of its own.

Rules:

* All unfinished frames, and what long requests have become until they are answered, stay together
  within `queued.max.request.bytes` (Kafka's name; a connection over the limit isn't read until
  others finished).
* All answers that are being built, wait for their turn or aren't sent yet stay together within
  `queued.max.response.bytes`: beyond it no long answer is begun.
* Connections that hold memory and never finish can't starve the rest: while it is scarce, the
  listener closes who sent nothing for MEMORY_STALL_MAX_S in the middle of a request, or took
  nothing of its answers for as long, or not all of them in MEMORY_WAIT_MAX_S; and one that waited
  for memory longer than that is closed, which frees what it held, until there is room again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MEMORY_WAIT_MAX_S = 30.0
MEMORY_STALL_MAX_S = 10.0


class Waiter(Protocol):
    """What waits for memory: a connection, or a task that works for one."""

    def memory_available(self) -> None:
        """Called once there is room."""

    def close(self, reason: str | None) -> None:
        """Called when it waited too long."""


class _Task:
    """A task that waits for memory on behalf of a connection."""

    __slots__ = ("_owner", "available")

    def __init__(self, owner: Waiter) -> None:
        self._owner = owner
        self.available: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def memory_available(self) -> None:
        if not self.available.done():
            self.available.set_result(None)

    def close(self, reason: str | None) -> None:
        self._owner.close(reason)


class QueueMemory:
    """Counts reserved bytes against a limit; `setting` is the limit's name.

    A reservation always counts, even the one that passes the limit: its owner must stop reading
    until `memory_available`. So the overshoot is at most one growth step per connection.
    """

    __slots__ = ("_limit_bytes", "_setting", "_used_bytes", "_waiting")

    def __init__(self, limit_bytes: int, setting: str = "queued.max.request.bytes") -> None:
        self._limit_bytes = limit_bytes
        self._setting = setting
        self._used_bytes = 0
        self._waiting: dict[Waiter, float] = {}

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

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

    async def room(self, owner: Waiter) -> None:
        """Returns once the limit isn't passed; `owner` is closed if that takes too long."""
        while self._used_bytes > self._limit_bytes:
            task = _Task(owner)
            self.wait(task)
            try:
                await task.available
            finally:
                self._waiting.pop(task, None)

    @property
    def scarce(self) -> bool:
        """Whether somebody waits, or would have to."""
        return bool(self._waiting) or self._used_bytes > self._limit_bytes

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
                waiter.close(f"waited too long for memory ({self._setting} is used up)")
