"""Where the tables of leases of a broker wait for their turn to be opened.

Rules (docs/rules.md, rule 358):

* So many are opened at once, whoever asks for however many, and groups take turns: one with many
  partitions here, or that nobody knows, holds up no other.
* One that takes long, for want of its coordinator, has its place no longer, and goes on without it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from kraftpy.server.coordination.led_tables import TableKey

AT_ONCE_MAX: Final = 32
"""To open one takes some 60 µs in all, which its steps spread over a few turns of the loop."""

PLACE_S: Final = 0.2


class Unopened(Protocol):
    """A table that waits."""

    @property
    def key(self) -> TableKey: ...
    def open_now(self) -> asyncio.Task[None]:
        """Begins to open it; what comes back ends with the attempt."""


class Openings:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[str, OrderedDict[Unopened, None]] = OrderedDict()
        self._places: dict[asyncio.Task[None], asyncio.TimerHandle] = {}

    def add(self, table: Unopened) -> None:
        """Opens it when it is its turn."""
        self._waiting.setdefault(table.key.group, OrderedDict())[table] = None
        self._go_on()

    def discard(self, table: Unopened) -> None:
        """It doesn't wait any more, if it did."""
        of_group = self._waiting.get(table.key.group)
        if of_group is not None:
            of_group.pop(table, None)
            if not of_group:
                del self._waiting[table.key.group]

    def _go_on(self) -> None:
        while self._waiting and len(self._places) < AT_ONCE_MAX:
            group, of_group = self._waiting.popitem(last=False)
            table, _ = of_group.popitem(last=False)
            if of_group:
                self._waiting[group] = of_group
            attempt = table.open_now()
            self._places[attempt] = self._loop.call_later(PLACE_S, self._leave, attempt)
            attempt.add_done_callback(self._leave)

    def _leave(self, attempt: asyncio.Task[None]) -> None:
        timer = self._places.pop(attempt, None)
        if timer is not None:
            timer.cancel()
            self._go_on()
