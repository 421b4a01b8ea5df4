"""Wall clocks that jump, and wall clocks that go too fast or too slow."""

from __future__ import annotations

import math
import threading
import time
from functools import partial

from kraftpy.testing import clocks
from kraftpy.testing.consistency.faults.ground import Act, Ground, Need

NEED = Need("clocks", clocks.missing)

# From what nobody notices to a few days more than producers and small retentions live.
_JUMP_S = (0.5, 10 * 86_400.0)
_DRIFT = (0.02, 0.2)
_STEP_S = 0.25


def jump(ground: Ground, *, forward: bool) -> Act:
    """One node's clock is set, and set right again at the end."""
    cluster, (victim,) = ground.cluster, ground.victims(1)
    size_s = math.exp(ground.rng.uniform(*map(math.log, _JUMP_S)))
    offset_s = size_s if forward else -size_s
    where = "forward" if forward else "back"

    def begin() -> None:
        cluster.set_clock(victim, offset_s)
        time.sleep(clocks.NOTICED_S)

    return Act(
        [victim],
        f"its wall clock is set {_words(size_s)} {where}",
        begin,
        partial(cluster.set_clock, victim, 0.0),
    )


def drift(ground: Ground) -> Act:
    """One node's clock goes wrong, a little more each second, until it is set right at the end."""
    cluster, (victim,) = ground.cluster, ground.victims(1)
    rate = ground.rng.uniform(*_DRIFT) * ground.rng.choice((-1, 1))
    ended = threading.Event()

    def go_wrong() -> None:
        offset_s = 0.0
        while not ended.wait(_STEP_S):
            offset_s += rate * _STEP_S
            cluster.set_clock(victim, offset_s)

    thread = threading.Thread(target=go_wrong, daemon=True)

    def end() -> None:
        ended.set()
        thread.join()
        cluster.set_clock(victim, 0.0)

    how = "fast" if rate > 0 else "slow"
    return Act([victim], f"its wall clock goes {abs(rate):.0%} too {how}", thread.start, end)


def _words(seconds: float) -> str:
    for size_s, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.1f} {name}"
    return f"{seconds:.1f} s"
