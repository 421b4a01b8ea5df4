"""Faults of producers that write in transactions: requests that arrive seconds late, and ids that
two of them have at once."""

from __future__ import annotations

import time
from itertools import permutations

from kraftpy.testing.consistency.faults.frames import SHARE
from kraftpy.testing.consistency.faults.ground import Act, Ground, LeftOut

HIJACKED_S = 3.0
_FIRST_S = 5.0
_POLL_S = 0.05

_NO_TRANSACTIONS = LeftOut("nobody writes in transactions")


def late_frames(ground: Ground) -> Act:
    """EndTxn and Produce arrive late, after they were sent again, or given up."""
    frames = ground.frames
    seed = ground.rng.randrange(2**32)

    def begin() -> str:
        if frames is None:
            return _NO_TRANSACTIONS
        before = frames.begin(seed)
        deadline = time.monotonic() + _FIRST_S
        while frames.held() == before:
            if time.monotonic() > deadline:
                return LeftOut("no request came that could be late")
            time.sleep(_POLL_S)
        return ""

    def end() -> None:
        if frames is not None:
            frames.end()

    return Act([], f"{SHARE:.0%} of EndTxn and Produce arrive late", begin, end)


def hijack(ground: Ground) -> Act:
    """One producer takes another one's transactional id, which goes on to use it too."""
    able = {each: each.identity for each in ground.clients if each.identity is not None}
    clients = ground.rng.sample(list(able), len(able))
    pairs = [
        (thief, victim) for thief, victim in permutations(clients, 2) if thief.role == victim.role
    ]

    def begin() -> str:
        if not pairs:
            return _NO_TRANSACTIONS
        thief, victim = pairs[0]
        thief.take_identity(able[victim])
        return f"{thief.name} has the id of {victim.name}, too"

    def end() -> None:
        for thief, _ in pairs[:1]:
            thief.take_identity(able[thief])

    return Act([], "a transactional id has two producers", begin, end)
