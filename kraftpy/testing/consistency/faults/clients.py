"""Faults of those who load the cluster: a client's process ends, leaves, or stands still for too
long."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.testing.consistency.clients import SESSION_TIMEOUT_MS
from kraftpy.testing.consistency.faults.ground import Act, Client, Ground, LeftOut

FREEZE_S = SESSION_TIMEOUT_MS / 1000 + 1.5
"""By then a member of a group was thrown out, and others have what it had."""
_NOBODY = LeftOut("no client is there")


def kill(ground: Ground) -> Act:
    return _act(ground, "SIGKILL", lambda victim: victim.crash(), lambda victim: None)


def leave(ground: Ground) -> Act:
    return _act(
        ground, "told to leave", lambda victim: victim.leave(), lambda victim: victim.come_back()
    )


def freeze(ground: Ground) -> Act:
    return _act(ground, "SIGSTOP", lambda victim: victim.freeze(), lambda victim: victim.thaw())


def _act(
    ground: Ground, how: str, begin: Callable[[Client], None], end: Callable[[Client], None]
) -> Act:
    """What is done to one client, chosen now, and what ends it."""
    clients = list(ground.clients)
    victim = ground.rng.choice(clients) if clients else None

    def begin_with() -> str:
        if victim is None:
            return _NOBODY
        begin(victim)
        return victim.name

    def end_with() -> None:
        if victim is not None:
            end(victim)

    return Act([], how, begin_with, end_with)
