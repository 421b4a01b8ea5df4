"""Faults of those who load the cluster: a client's process ends, leaves, or stands still for too
long."""

from __future__ import annotations

from kraftpy.testing.consistency.clients import SESSION_TIMEOUT_MS
from kraftpy.testing.consistency.faults.ground import Act, Client, Ground, LeftOut

FREEZE_S = SESSION_TIMEOUT_MS / 1000 + 1.5
"""By then a member of a group was thrown out, and others have what it had."""
_NOBODY = LeftOut("no client is there")


def _victim(ground: Ground) -> Client | None:
    clients = list(ground.clients)
    return ground.rng.choice(clients) if clients else None


def kill(ground: Ground) -> Act:
    victim = _victim(ground)

    def begin() -> str:
        if victim is None:
            return _NOBODY
        victim.crash()
        return victim.name

    return Act([], "SIGKILL", begin, lambda: None)


def leave(ground: Ground) -> Act:
    victim = _victim(ground)

    def begin() -> str:
        if victim is None:
            return _NOBODY
        victim.leave()
        return victim.name

    def end() -> None:
        if victim is not None:
            victim.come_back()

    return Act([], "told to leave", begin, end)


def freeze(ground: Ground) -> Act:
    victim = _victim(ground)

    def begin() -> str:
        if victim is None:
            return _NOBODY
        victim.freeze()
        return victim.name

    def end() -> None:
        if victim is not None:
            victim.thaw()

    return Act([], "SIGSTOP", begin, end)
