"""Connections of which it isn't known yet who they are: bounded in number and time.

A connection takes a place when it is accepted and leaves it when its handshake, and where there is
one its authentication, is done. Of MAX places the oldest is given up for a newcomer, so that who
opens connections and says nothing keeps nobody out; and one that takes longer than TIME_S, however
busy it is, is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNESTABLISHED_MAX = 1000
UNESTABLISHED_MAX_S = 10.0


class Place:
    """That of one connection. `close`, with a reason, ends the connection, which then leaves."""

    __slots__ = ("close", "since_s")

    def __init__(self, close: Callable[[str], None], since_s: float) -> None:
        self.close = close
        self.since_s = since_s


class Unestablished:
    """All of them, the oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: dict[Place, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, close: Callable[[str], None]) -> Place:
        """A place from now on; the oldest gives way if there is none."""
        if len(self._places) >= UNESTABLISHED_MAX:
            self._give_up(
                next(iter(self._places)),
                f"{UNESTABLISHED_MAX} connections haven't said who they are, this one longest",
            )
        place = Place(close, self._loop.time())
        self._places[place] = None
        if self._timer is None:
            self._timer = self._loop.call_later(UNESTABLISHED_MAX_S, self._look)
        return place

    def leave(self, place: Place) -> None:
        """It's known who that is, or the connection has ended."""
        self._places.pop(place, None)

    def _give_up(self, place: Place, reason: str) -> None:
        self.leave(place)
        place.close(reason)

    def _look(self) -> None:
        self._timer = None
        due_s = self._loop.time() - UNESTABLISHED_MAX_S
        for place in list(self._places):
            if place.since_s > due_s:
                self._timer = self._loop.call_later(place.since_s - due_s, self._look)
                return
            self._give_up(place, f"no handshake within {UNESTABLISHED_MAX_S:g} s")

    def close(self) -> None:
        """Ends them all."""
        if self._timer is not None:
            self._timer.cancel()
        for place in list(self._places):
            self._give_up(place, "the broker stops")
